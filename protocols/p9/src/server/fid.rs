//! Fids: their state, and a connection's table of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use concurrency::{FastRandomState, Shards};
use parking_lot::{Mutex, MutexGuard};
use vfs::{
    Account, Allotment, Attr, Call, Cx, Errno, File, Full, Kind, Name, Node, OpenFlags, Portion,
    Quota, Result, Want,
};

use super::append::Writer;
use super::attach::Attach;
use super::legacy::Records;
use super::lock::Lockers;
use super::xattr::{Draft, Value};
use crate::Fid;

/// The estimated size in bytes of a [`Step`] and its node.
pub(super) const STEP: usize = 176;

/// The estimated size in bytes of an [`Open`] and its file.
pub(super) const OPEN: usize = 640;

/// A fid's state. Immutable: a request replaces it. Clients hold many fids that are only walked, so
/// these are represented by their step alone.
#[derive(Clone)]
pub(super) enum FidState {
    Walked(Arc<Step>),
    Used(Arc<Use>),
}

pub(super) struct Use {
    step: Arc<Step>,
    state: State,
}

/// The use of a fid.
#[derive(Clone)]
pub(super) enum State {
    /// Only walked to a node.
    Walked,
    /// An open file.
    Open(Arc<Open>),
    /// An extended attribute being read.
    Value(Arc<Value>),
    /// An extended attribute's new value being written.
    Draft(Arc<Draft>),
}

/// An open file of a fid. Its locks are released before the file is dropped, and with them possibly
/// the last reference to its node: closing the file is simpler then.
pub(super) struct Open {
    /// The owners of locks requested through this fid.
    pub(super) lockers: Lockers,
    /// Present if the file is open for writing.
    pub(super) writer: Option<Writer>,
    pub(super) file: Arc<dyn File>,
    pub(super) flags: OpenFlags,
    /// Whether it is a directory.
    pub(super) directory: bool,
    /// Whether to remove the file on clunk (`ORCLOSE`).
    pub(super) remove: bool,
    /// How far 9P2000 has read this directory.
    pub(super) records: Mutex<Records>,
    _room: Portion,
}

/// A node and the path walked to it, used for removal, renaming and 9P2000's stat. Accounted as a
/// [`STEP`].
pub(super) struct Step {
    pub(super) attach: Arc<Attach>,
    pub(super) node: Arc<dyn Node>,
    /// Its name and directory when it was walked to; `None` for an attach's root and for a parent
    /// reached with `..` from elsewhere.
    pub(super) place: Option<Place>,
}

pub(super) struct Place {
    pub(super) up: Arc<Step>,
    name: Label,
}

impl FidState {
    /// Returns the path walked to it.
    #[inline]
    pub(super) fn step(&self) -> &Arc<Step> {
        match self {
            FidState::Walked(step) => step,
            FidState::Used(used) => &used.step,
        }
    }

    #[inline]
    pub(super) fn state(&self) -> &State {
        static WALKED: State = State::Walked;
        match self {
            FidState::Walked(_) => &WALKED,
            FidState::Used(used) => &used.state,
        }
    }

    #[inline]
    pub(super) fn attach(&self) -> &Arc<Attach> {
        &self.step().attach
    }

    pub(super) fn node(&self) -> &dyn Node {
        &*self.step().node
    }

    pub(super) fn is_directory(&self) -> bool {
        self.node().kind() == Kind::Directory
    }

    /// Reserves memory on the client's account: [`Attach::room`].
    pub(super) fn room(&self, bytes: usize) -> Result<Portion> {
        self.attach().room(bytes)
    }

    /// Returns a state for the child `name` of this directory, with `room` for a [`STEP`].
    pub(super) fn child(&self, name: Name<'_>, node: Arc<dyn Node>, room: Portion) -> FidState {
        FidState::Walked(Step::new(self.step(), name, node, room))
    }

    /// Returns a state for the same path with another use.
    pub(super) fn with(&self, state: State) -> FidState {
        let step = self.step().clone();
        match state {
            State::Walked => FidState::Walked(step),
            state => FidState::Used(Arc::new(Use { step, state })),
        }
    }

    /// Returns whether both are the same object, not only equal.
    fn is(&self, other: &FidState) -> bool {
        match (self, other) {
            (FidState::Walked(one), FidState::Walked(other)) => Arc::ptr_eq(one, other),
            (FidState::Used(one), FidState::Used(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Returns its open file, or `EBADF` if it is not open.
    #[inline]
    pub(super) fn open(&self) -> Result<&Arc<Open>> {
        match self.state() {
            State::Open(open) => Ok(open),
            State::Walked | State::Value(_) | State::Draft(_) => Err(Errno::EBADF),
        }
    }

    /// Returns `EINVAL` unless the fid is only walked.
    pub(super) fn unused(&self) -> Result<()> {
        match self.state() {
            State::Walked => Ok(()),
            State::Open(_) | State::Value(_) | State::Draft(_) => Err(Errno::EINVAL),
        }
    }

    /// Returns `EINVAL` for a fid of an extended attribute.
    pub(super) fn is_file(&self) -> Result<()> {
        match self.state() {
            State::Walked | State::Open(_) => Ok(()),
            State::Value(_) | State::Draft(_) => Err(Errno::EINVAL),
        }
    }

    /// Returns the attributes, of the open file if it is open: it outlives its name.
    pub(super) fn attr(&self, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        match self.state() {
            State::Open(open) => open.file.attr(cx, want),
            State::Walked | State::Value(_) | State::Draft(_) => self.node().attr(cx, want),
        }
    }

    /// Returns its directory and name, after checking that the file is still there. Returns `EBUSY`
    /// for a root, `ENOENT` if the name is gone or another file's.
    pub(super) fn place(&self, cx: &Cx<'_>) -> Result<&Place> {
        let place = self.step().place.as_ref().ok_or(Errno::EBUSY)?;
        let found = place.up.node.lookup(cx, place.name()?)?;
        if found.node.id() != self.node().id() {
            return Err(Errno::ENOENT);
        }
        Ok(place)
    }

    /// Removes its name.
    pub(super) fn unlink(&self, cx: &Cx<'_>) -> Result<()> {
        let place = self.place(cx)?;
        let up = &place.up.node;
        up.unlink(cx, place.name()?, self.is_directory())
    }

    /// Completes the work of a clunk when the client is gone.
    fn abandon(&self) {
        if let State::Open(open) = self.state()
            && open.remove
        {
            let call = Call::detached();
            // There is no client to report an error to.
            let _ = self.unlink(&Cx::new(&self.attach().caller, &call));
        }
    }
}

impl State {
    /// Returns the state of `fid` opened as `file`, with `room` for an [`OPEN`]. Its file is
    /// removed on clunk if `remove`.
    pub(super) fn opened(
        fid: &FidState,
        file: Arc<dyn File>,
        flags: OpenFlags,
        (remove, writer): (bool, Option<Writer>),
        room: Portion,
    ) -> State {
        State::Open(Arc::new(Open {
            lockers: Lockers::new(fid.step()),
            writer,
            file,
            flags,
            directory: fid.is_directory(),
            remove,
            records: Mutex::default(),
            _room: room,
        }))
    }
}

impl Step {
    /// Returns a step for a node without a known name.
    pub(super) fn unnamed(attach: &Arc<Attach>, node: Arc<dyn Node>) -> Result<Arc<Step>> {
        attach.room(STEP)?.leave();
        Ok(Arc::new(Step {
            attach: attach.clone(),
            node,
            place: None,
        }))
    }

    pub(super) fn new(
        up: &Arc<Step>,
        name: Name<'_>,
        node: Arc<dyn Node>,
        room: Portion,
    ) -> Arc<Step> {
        room.leave();
        Arc::new(Step {
            attach: up.attach.clone(),
            node,
            place: Some(Place {
                up: up.clone(),
                name: Label::new(name),
            }),
        })
    }
}

impl Place {
    pub(super) fn name(&self) -> Result<Name<'_>> {
        Name::new(self.name.bytes())
    }
}

/// A tree may be arbitrarily deep, so steps are dropped iteratively, not recursively.
impl Drop for Step {
    fn drop(&mut self) {
        let mut place = self.place.take();
        while let Some(Place { up, .. }) = place {
            place = Arc::into_inner(up).and_then(|mut step| step.place.take());
        }
        self.attach.held.remove(STEP);
    }
}

/// A name that needs no allocation while it is short.
enum Label {
    Short { len: u8, bytes: [u8; 22] },
    Long(Box<[u8]>),
}

impl Label {
    fn new(name: Name<'_>) -> Label {
        let name = name.bytes();
        let mut bytes = [0; 22];
        match bytes.get_mut(..name.len()) {
            Some(short) => {
                short.copy_from_slice(name);
                let len = name.len() as u8;
                Label::Short { len, bytes }
            }
            None => Label::Long(name.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Label::Short { len, bytes } => &bytes[..(*len).into()],
            Label::Long(bytes) => bytes,
        }
    }
}

/// The fids of a connection.
pub(super) struct Fids {
    shards: Shards<Shard, { Fids::SHARDS }>,
    count: AtomicUsize,
    most: usize,
    /// The memory of the fids' state, in bytes. Set by the first attach.
    held: OnceLock<Arc<Allotment>>,
}

/// Clients number their fids densely, so several share a page. A sparse fid pays for the rest of
/// its page, about eighty bytes, as much as for a step.
type Shard = HashMap<u32, Box<Page>, FastRandomState>;

#[derive(Default)]
struct Page([Option<FidState>; Page::FIDS]);

impl Page {
    const FIDS: usize = 8;

    /// The size in bytes of a page and its slot in a shard.
    const SIZE: usize = size_of::<Page>() + 24;

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// The location of a fid: its page, and the index in it.
#[derive(Clone, Copy)]
struct Spot {
    page: u32,
    place: usize,
}

impl From<Fid> for Spot {
    #[inline]
    fn from(fid: Fid) -> Spot {
        Spot {
            page: fid.0 / Page::FIDS as u32,
            place: fid.0 as usize % Page::FIDS,
        }
    }
}

impl Fids {
    /// More than the threads that work for one connection. A power of two.
    const SHARDS: usize = 16;

    pub(super) fn new(most: usize) -> Fids {
        Fids {
            shards: Shards::default(),
            count: AtomicUsize::new(0),
            most,
            held: OnceLock::new(),
        }
    }

    /// Returns the connection's allotment: a part of `quota` on its client's `account`.
    pub(super) fn held(&self, quota: &Arc<Quota>, account: &Account) -> &Arc<Allotment> {
        self.held.get_or_init(|| Allotment::new(quota, account))
    }

    /// Returns a fid's state, or `EBADF` if there is none.
    #[inline]
    pub(super) fn get(&self, fid: Fid) -> Result<FidState> {
        let spot = Spot::from(fid);
        let shard = self.shard(spot);
        let page = shard.get(&spot.page).ok_or(Errno::EBADF)?;
        page.0[spot.place].clone().ok_or(Errno::EBADF)
    }

    /// Returns `EBADF` if a fid is in use, or is `NOFID`.
    pub(super) fn check_free(&self, fid: Fid) -> Result<()> {
        let spot = Spot::from(fid);
        let shard = self.shard(spot);
        let taken = shard
            .get(&spot.page)
            .is_some_and(|page| page.0[spot.place].is_some());
        if fid == Fid::NONE || taken {
            return Err(Errno::EBADF);
        }
        Ok(())
    }

    /// Adds a fid. Returns `EBADF` if it is in use, `EMFILE` if the connection or its client has
    /// reached a limit, `ENFILE` if all clients together have.
    pub(super) fn insert(&self, fid: Fid, state: FidState) -> Result<()> {
        if fid == Fid::NONE {
            return Err(Errno::EBADF);
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::EMFILE);
        }
        let spot = Spot::from(fid);
        let mut shard = self.shard(spot);
        let inserted = match shard.entry(spot.page) {
            Entry::Occupied(mut entry) => match &mut entry.get_mut().0[spot.place] {
                Some(_) => Err(Errno::EBADF),
                place => {
                    *place = Some(state);
                    Ok(())
                }
            },
            Entry::Vacant(entry) => state
                .attach()
                .held
                .add(Page::SIZE)
                .map_err(errno)
                .map(|()| {
                    entry.insert(Box::default()).0[spot.place] = Some(state);
                }),
        };
        if inserted.is_err() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        inserted
    }

    /// Replaces a fid's state. Returns `EBADF` if it is no longer `old`.
    pub(super) fn replace(&self, fid: Fid, old: &FidState, new: FidState) -> Result<()> {
        let spot = Spot::from(fid);
        let mut shard = self.shard(spot);
        let replaced = match shard
            .get_mut(&spot.page)
            .map(|page| &mut page.0[spot.place])
        {
            Some(Some(state)) if state.is(old) => std::mem::replace(state, new),
            _ => return Err(Errno::EBADF),
        };
        // Closing may take time: not under the shard's lock.
        drop(shard);
        drop(replaced);
        Ok(())
    }

    /// Removes a fid if its state is still `old`.
    pub(super) fn remove(&self, fid: Fid, old: &FidState) {
        let spot = Spot::from(fid);
        let mut shard = self.shard(spot);
        let Entry::Occupied(mut entry) = shard.entry(spot.page) else {
            return;
        };
        let removed = entry.get_mut().0[spot.place].take_if(|state| state.is(old));
        if removed.is_some() {
            if entry.get().is_empty() {
                entry.remove();
                self.give_back(1);
            }
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        drop(shard);
        drop(removed);
    }

    /// Clunks all fids.
    pub(super) fn clear(&self) {
        for shard in self.shards.all() {
            let pages = std::mem::take(&mut *shard.lock());
            self.give_back(pages.len());
            for fid in pages.values().flat_map(|page| page.0.iter().flatten()) {
                self.count.fetch_sub(1, Ordering::Relaxed);
                fid.abandon();
            }
        }
    }

    /// Releases the memory of `pages` pages.
    fn give_back(&self, pages: usize) {
        if let Some(held) = self.held.get() {
            held.remove(pages * Page::SIZE);
        }
    }

    #[inline]
    fn shard(&self, spot: Spot) -> MutexGuard<'_, Shard> {
        self.shards.lock(&spot.page)
    }
}

/// Returns the error for a client that has reached a limit, as for open(2).
pub(super) fn errno(full: Full) -> Errno {
    match full.is_peers() {
        true => Errno::EMFILE,
        false => Errno::ENFILE,
    }
}

impl Drop for Fids {
    fn drop(&mut self) {
        self.clear();
    }
}
