//! Fids: their state, and a connection's table of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use concurrency::{FastRandomState, Shards};
use parking_lot::{Mutex, MutexGuard};
use vfs::{
    Account, Allotment, Attr, AttrMask, Call, Cx, Errno, File, Kind, Name, Node, OpenFlags,
    Portion, Quota, Result,
};

use super::lock_owners::LockOwners;
use super::step::{Attach, NameInParent, Step, errno};
use super::write_state::Writer;
use super::xattr_value::{XattrRead, XattrWrite};
use crate::Fid;

/// The estimated size in bytes of an [`Open`] and its file.
pub(super) const OPEN_BYTES: usize = 640;

/// A fid's state. Immutable: a request replaces it. Clients hold many fids that are only walked, so
/// these are represented by their step alone.
#[derive(Clone)]
pub(super) enum FidState {
    Walked(Arc<Step>),
    InUse(Arc<FidUse>),
}

pub(super) struct FidUse {
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
    XattrRead(Arc<XattrRead>),
    /// An extended attribute's new value being written.
    XattrWrite(Arc<XattrWrite>),
}

/// An open file of a fid. Its locks are released before the file is dropped, and with them possibly
/// the last reference to its node: closing the file is simpler then.
pub(super) struct Open {
    /// The owners of locks requested through this fid.
    pub(super) lock_owners: LockOwners,
    /// Present if the file is open for writing.
    pub(super) writer: Option<Writer>,
    pub(super) file: Arc<dyn File>,
    pub(super) flags: OpenFlags,
    /// Whether it is a directory.
    pub(super) directory: bool,
    /// Whether to remove the file on clunk (`ORCLOSE`).
    pub(super) remove: bool,
    /// How far 9P2000 has read this directory.
    pub(super) records: Mutex<DirPosition>,
    _charge: Portion,
}

/// A position in a directory: reading may continue only there or at the start.
#[derive(Default)]
pub(super) struct DirPosition {
    pub(super) offset: u64,
    pub(super) cookie: u64,
}

impl FidState {
    /// Returns the path walked to it.
    #[inline]
    pub(super) fn step(&self) -> &Arc<Step> {
        match self {
            FidState::Walked(step) => step,
            FidState::InUse(used) => &used.step,
        }
    }

    #[inline]
    pub(super) fn state(&self) -> &State {
        static WALKED: State = State::Walked;
        match self {
            FidState::Walked(_) => &WALKED,
            FidState::InUse(used) => &used.state,
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

    /// Reserves memory on the client's account: [`Attach::reserve_memory`].
    pub(super) fn reserve_memory(&self, bytes: usize) -> Result<Portion> {
        self.attach().reserve_memory(bytes)
    }

    /// Returns a state for the child `name` of this directory, with `charge` for a
    /// [`STEP_BYTES`](super::step::STEP_BYTES).
    pub(super) fn child(&self, name: Name<'_>, node: Arc<dyn Node>, charge: Portion) -> FidState {
        FidState::Walked(Step::new(self.step(), name, node, charge))
    }

    /// Returns a state for the same path with another use.
    pub(super) fn with_state(&self, state: State) -> FidState {
        let step = self.step().clone();
        match state {
            State::Walked => FidState::Walked(step),
            state => FidState::InUse(Arc::new(FidUse { step, state })),
        }
    }

    /// Returns whether both are the same object, not only equal.
    fn is_same(&self, other: &FidState) -> bool {
        match (self, other) {
            (FidState::Walked(one), FidState::Walked(other)) => Arc::ptr_eq(one, other),
            (FidState::InUse(one), FidState::InUse(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Returns its open file, or `EBADF` if it is not open.
    #[inline]
    pub(super) fn open(&self) -> Result<&Arc<Open>> {
        match self.state() {
            State::Open(open) => Ok(open),
            State::Walked | State::XattrRead(_) | State::XattrWrite(_) => Err(Errno::EBADF),
        }
    }

    /// Returns `EINVAL` unless the fid is only walked.
    pub(super) fn check_walked(&self) -> Result<()> {
        match self.state() {
            State::Walked => Ok(()),
            State::Open(_) | State::XattrRead(_) | State::XattrWrite(_) => Err(Errno::EINVAL),
        }
    }

    /// Returns `EINVAL` for a fid of an extended attribute.
    pub(super) fn check_file(&self) -> Result<()> {
        match self.state() {
            State::Walked | State::Open(_) => Ok(()),
            State::XattrRead(_) | State::XattrWrite(_) => Err(Errno::EINVAL),
        }
    }

    /// Returns the attributes, of the open file if it is open: it outlives its name.
    pub(super) fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        match self.state() {
            State::Open(open) => open.file.attr(cx, want),
            State::Walked | State::XattrRead(_) | State::XattrWrite(_) => {
                self.node().attr(cx, want)
            }
        }
    }

    /// Returns its directory and name, after checking that the file is still there. Returns `EBUSY`
    /// for a root, `ENOENT` if the name is gone or another file's.
    pub(super) fn check_name_in_parent(&self, cx: &Cx<'_>) -> Result<&NameInParent> {
        let location = self.step().name_in_parent.as_ref().ok_or(Errno::EBUSY)?;
        let found = location.parent.node.lookup(cx, location.name()?)?;
        if found.node.id() != self.node().id() {
            return Err(Errno::ENOENT);
        }
        Ok(location)
    }

    /// Removes its name.
    pub(super) fn unlink(&self, cx: &Cx<'_>) -> Result<()> {
        let location = self.check_name_in_parent(cx)?;
        let up = &location.parent.node;
        up.unlink(cx, location.name()?, self.is_directory())
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
    /// Returns the state of `fid` opened as `file`, with `charge` for an [`OPEN_BYTES`]. Its file
    /// is removed on clunk if `remove`.
    pub(super) fn opened(
        fid: &FidState,
        file: Arc<dyn File>,
        flags: OpenFlags,
        (remove, writer): (bool, Option<Writer>),
        charge: Portion,
    ) -> State {
        State::Open(Arc::new(Open {
            lock_owners: LockOwners::new(fid.step()),
            writer,
            file,
            flags,
            directory: fid.is_directory(),
            remove,
            records: Mutex::default(),
            _charge: charge,
        }))
    }
}

/// The fids of a connection.
pub(super) struct Fids {
    shards: Shards<Shard, { Fids::SHARDS }>,
    count: AtomicUsize,
    max: usize,
    /// The memory of the fids' state, in bytes. Set by the first attach.
    memory: OnceLock<Arc<Allotment>>,
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
struct FidLocation {
    page: u32,
    index: usize,
}

impl From<Fid> for FidLocation {
    #[inline]
    fn from(fid: Fid) -> FidLocation {
        FidLocation {
            page: fid.0 / Page::FIDS as u32,
            index: fid.0 as usize % Page::FIDS,
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
            max: most,
            memory: OnceLock::new(),
        }
    }

    /// Returns the connection's allotment: a part of `quota` on its client's `account`.
    pub(super) fn memory(&self, quota: &Arc<Quota>, account: &Account) -> &Arc<Allotment> {
        self.memory.get_or_init(|| Allotment::new(quota, account))
    }

    /// Returns a fid's state, or `EBADF` if there is none.
    #[inline]
    pub(super) fn get(&self, fid: Fid) -> Result<FidState> {
        let spot = FidLocation::from(fid);
        let shard = self.shard(spot);
        let page = shard.get(&spot.page).ok_or(Errno::EBADF)?;
        page.0[spot.index].clone().ok_or(Errno::EBADF)
    }

    /// Returns all fids, sorted by number.
    pub(super) fn snapshot(&self) -> Vec<(Fid, FidState)> {
        let mut fids = Vec::new();
        for shard in self.shards.all() {
            for (&page, states) in &*shard.lock() {
                let number = |index| Fid(page * Page::FIDS as u32 + index as u32);
                let states = states.0.iter().enumerate();
                fids.extend(
                    states.filter_map(|(index, state)| Some((number(index), state.clone()?))),
                );
            }
        }
        fids.sort_unstable_by_key(|(fid, _)| fid.0);
        fids
    }

    /// Returns `EBADF` if a fid is in use, or is `NOFID`.
    pub(super) fn check_free(&self, fid: Fid) -> Result<()> {
        let spot = FidLocation::from(fid);
        let shard = self.shard(spot);
        let taken = shard
            .get(&spot.page)
            .is_some_and(|page| page.0[spot.index].is_some());
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
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::EMFILE);
        }
        let spot = FidLocation::from(fid);
        let mut shard = self.shard(spot);
        let inserted = match shard.entry(spot.page) {
            Entry::Occupied(mut entry) => match &mut entry.get_mut().0[spot.index] {
                Some(_) => Err(Errno::EBADF),
                slot => {
                    *slot = Some(state);
                    Ok(())
                }
            },
            Entry::Vacant(entry) => {
                state
                    .attach()
                    .memory
                    .add(Page::SIZE)
                    .map_err(errno)
                    .map(|()| {
                        entry.insert(Box::default()).0[spot.index] = Some(state);
                    })
            }
        };
        if inserted.is_err() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        inserted
    }

    /// Replaces a fid's state. Returns `EBADF` if it is no longer `old`.
    pub(super) fn replace(&self, fid: Fid, old: &FidState, new: FidState) -> Result<()> {
        let spot = FidLocation::from(fid);
        let mut shard = self.shard(spot);
        let replaced = match shard
            .get_mut(&spot.page)
            .map(|page| &mut page.0[spot.index])
        {
            Some(Some(state)) if state.is_same(old) => std::mem::replace(state, new),
            _ => return Err(Errno::EBADF),
        };
        // Closing may take time: not under the shard's lock.
        drop(shard);
        drop(replaced);
        Ok(())
    }

    /// Removes a fid if its state is still `old`.
    pub(super) fn remove(&self, fid: Fid, old: &FidState) {
        let spot = FidLocation::from(fid);
        let mut shard = self.shard(spot);
        let Entry::Occupied(mut entry) = shard.entry(spot.page) else {
            return;
        };
        let removed = entry.get_mut().0[spot.index].take_if(|state| state.is_same(old));
        if removed.is_some() {
            if entry.get().is_empty() {
                entry.remove();
                self.release_pages(1);
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
            self.release_pages(pages.len());
            for fid in pages.values().flat_map(|page| page.0.iter().flatten()) {
                self.count.fetch_sub(1, Ordering::Relaxed);
                fid.abandon();
            }
        }
    }

    /// Releases the memory of `pages` pages.
    fn release_pages(&self, pages: usize) {
        if let Some(held) = self.memory.get() {
            held.remove(pages * Page::SIZE);
        }
    }

    #[inline]
    fn shard(&self, spot: FidLocation) -> MutexGuard<'_, Shard> {
        self.shards.lock(&spot.page)
    }
}

impl Drop for Fids {
    fn drop(&mut self) {
        self.clear();
    }
}
