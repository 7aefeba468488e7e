//! Reading a directory.
//!
//! The cookies are the file system's own (`d_off`). An open directory keeps the entries that it has
//! read and not returned yet, and its position, so that sequential reading neither seeks nor reads
//! twice. It seeks after its descriptor was evicted meanwhile. A read from the start may use a
//! cached listing (`listings`).
//!
//! The listings of open directories are bounded per tree and per client ([`Streams`]). Without
//! room, the least recently read directories lose theirs: the client's own if it has used its
//! share, otherwise any client's.
//!
//! The inode number of an entry that is a mount point is that of the covered directory, as
//! everywhere in Linux. Attributes ([`Plus::Entries`]) are those of the mounted root.
//!
//! Lock order: an open directory's position, then the ring of all. Another directory's position is
//! only locked with `try_lock`.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rustix::fs::SeekFrom;
use rustix::io::Errno as Raw;
use sys::dir::Entry as RawEntry;
use sys::errno;
use vfs::{
    Account, Charge, Cx, DirEntry, DirSink, Entry, Errno, Full, Kind, Name, Plus, Quota, Result,
};

use crate::clock::Ring;
use crate::device::Device;
use crate::dir_cache::{Listing, Listings, Recording, Start};

/// The bytes to read at once: some 2000 entries, so that large directories take few calls.
const BUFFER: usize = 64 << 10;

/// The most bytes of read-ahead and listings that the open directories of a tree keep. A directory
/// without room reads again.
const READ_AHEAD: usize = 16 << 20;

/// The open directories of a tree that keep entries.
pub(crate) struct Streams {
    quota: Arc<Quota>,
    ring: Mutex<Ring<Weak<Stream>>>,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            quota: Quota::shared(READ_AHEAD, 1),
            ring: Mutex::default(),
        }
    }
}

impl Streams {
    /// Charges `bytes` to `account`, evicting other open directories' entries if necessary.
    pub(crate) fn take(
        &self,
        account: &Account,
        bytes: usize,
    ) -> std::result::Result<Charge, Full> {
        loop {
            match self.quota.take(account, bytes) {
                Ok(charge) => return Ok(charge),
                Err(full) if self.evict(full.is_peers().then_some(account)) => {}
                Err(full) => return Err(full),
            }
        }
    }

    /// Drops the entries of an idle open directory, of `account` or of any.
    fn evict(&self, account: Option<&Account>) -> bool {
        // Twice around: the clock hand at first skips entries that were read since it last passed.
        let rounds = 2 * self.ring().len();
        for _ in 0..rounds {
            let next = self.ring().advance().and_then(Weak::upgrade);
            if next.is_some_and(|stream| stream.evict(self, account)) {
                return true;
            }
        }
        false
    }

    fn ring(&self) -> MutexGuard<'_, Ring<Weak<Stream>>> {
        self.ring.lock().expect("no panic holds it")
    }
}

/// An open directory to read from, and its surroundings.
pub(crate) struct OpenDir<'a, L> {
    pub(crate) device: &'a Device,
    pub(crate) fd: BorrowedFd<'a>,
    /// Set when the descriptor was replaced by one with another position; reset by the next read.
    pub(crate) reopened: &'a AtomicBool,
    pub(crate) streams: &'a Streams,
    pub(crate) listings: &'a Listings,
    /// Looks up a child.
    pub(crate) look_up: L,
}

/// An open directory's position.
#[derive(Default)]
pub(crate) struct Stream {
    state: Mutex<State>,
    /// Read since the clock hand last passed.
    touched: AtomicBool,
}

#[derive(Default)]
struct State {
    entries: Entries,
    /// The cookie before the first of the entries.
    base: u64,
    /// The index of the next entry, and the cookie before it.
    at: usize,
    cookie: u64,
    /// The end was returned; the next call returns it again without reading.
    ended: bool,
    /// The descriptor's own position differs.
    astray: bool,
    recording: Option<Recording>,
    /// For the part that it keeps.
    charge: Option<Charge>,
    /// Its position in the ring, while it keeps entries.
    place: Option<u32>,
}

/// The entries read from the directory.
enum Entries {
    /// A part, from `base` on.
    Part { buffer: Vec<u8>, filled: usize },
    /// The whole directory.
    Whole(Arc<Listing>),
}

impl Default for Entries {
    fn default() -> Entries {
        Entries::Part {
            buffer: Vec::new(),
            filled: 0,
        }
    }
}

impl Entries {
    fn bytes(&self) -> &[u8] {
        match self {
            Entries::Part { buffer, filled } => &buffer[..*filled],
            Entries::Whole(listing) => listing.entries(),
        }
    }
}

impl Stream {
    /// Reads on after `cookie` in `dir`.
    pub(crate) fn read(
        self: &Arc<Self>,
        dir: &OpenDir<'_, impl Fn(Name<'_>) -> Result<Entry>>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.touched.store(true, Ordering::Relaxed);
        let mut state = self.state.lock().expect("no panic holds it");
        if dir.reopened.swap(false, Ordering::Relaxed) {
            state.astray = true;
            state.recording = None;
        }
        state.go_to(cookie);
        let told = state.tell(dir, cx.call.account(), plus, sink);
        state.keep(self, dir.streams, cx.call.account());
        told
    }

    /// Closes the directory.
    pub(crate) fn close(&self, streams: &Streams) {
        let mut state = self.state.lock().expect("no panic holds it");
        state.give_up(streams);
    }

    /// Drops its entries if they are charged to `account`, unless it is being read or was read
    /// recently.
    fn evict(&self, streams: &Streams, account: Option<&Account>) -> bool {
        if self.touched.swap(false, Ordering::Relaxed) {
            return false;
        }
        let Ok(mut state) = self.state.try_lock() else {
            return false;
        };
        let is_its = |account| state.account() == Some(account);
        if state.place.is_none() || !account.is_none_or(is_its) {
            return false;
        }
        state.recording = None;
        let at = state.cookie;
        state.leave(at);
        state.give_up(streams);
        true
    }
}

impl State {
    /// Passes the next entries to `sink`, until it accepts no more.
    fn tell(
        &mut self,
        dir: &OpenDir<'_, impl Fn(Name<'_>) -> Result<Entry>>,
        account: &Account,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let state = self;
        let mut told = false;
        loop {
            if state.at == state.entries.bytes().len() {
                match state.fill(dir, account) {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    // The next call returns the error.
                    Err(_) if told => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            let rest = &state.entries.bytes()[state.at..];
            let raw = RawEntry::first(rest).ok_or(Errno::EIO)?;
            if !matches!(raw.name, b"." | b"..") {
                let (id, kind, entry) = match plus {
                    Plus::Names => (dir.device.id(raw.ino), Kind::from_d_type(raw.d_type), None),
                    Plus::Entries => with_attr(dir, &raw)?,
                };
                let taken = sink.entry(DirEntry {
                    name: raw.name,
                    id,
                    kind,
                    cookie: raw.cookie,
                    entry,
                });
                if !taken {
                    return Ok(());
                }
                told = true;
            }
            state.cookie = raw.cookie;
            state.at += raw.len;
        }
    }
}

type Looked = (vfs::NodeId, Option<Kind>, Option<Entry>);

fn with_attr(
    dir: &OpenDir<'_, impl Fn(Name<'_>) -> Result<Entry>>,
    raw: &RawEntry<'_>,
) -> Result<Looked> {
    match Name::new(raw.name).and_then(&dir.look_up) {
        Ok(entry) => Ok((entry.attr.id, Some(entry.attr.kind), Some(entry))),
        Err(error) if error.is_signal() => Err(error),
        // It vanished, or the caller may not look it up.
        Err(_) => Ok((dir.device.id(raw.ino), Kind::from_d_type(raw.d_type), None)),
    }
}

impl State {
    /// Frees the entries that were returned, and all if there is no room to keep them.
    fn keep(&mut self, stream: &Arc<Stream>, streams: &Streams, account: &Account) {
        let size = match &mut self.entries {
            // A listing has a charge of its own.
            Entries::Whole(_) => {
                self.charge = None;
                return self.enlist(stream, streams);
            }
            Entries::Part { buffer, filled } => {
                if self.at == *filled {
                    (*buffer, *filled) = (Vec::new(), 0);
                    (self.base, self.at) = (self.cookie, 0);
                }
                buffer.capacity()
            }
        };
        if size == 0 {
            return self.give_up(streams);
        }
        if self.charge.is_none() {
            self.charge = streams.take(account, size).ok();
        }
        match self.charge {
            Some(_) => self.enlist(stream, streams),
            None => {
                self.leave(self.cookie);
                self.give_up(streams);
            }
        }
    }

    /// Returns the account that its entries are charged to.
    fn account(&self) -> Option<&Account> {
        let charge = match &self.entries {
            Entries::Whole(listing) => listing.charge(),
            Entries::Part { .. } => self.charge.as_ref(),
        };
        charge.map(Charge::account)
    }

    fn enlist(&mut self, stream: &Arc<Stream>, streams: &Streams) {
        let enlist = || streams.ring().insert(Arc::downgrade(stream));
        self.place.get_or_insert_with(enlist);
    }

    /// Frees its entries, which are used up or will not be read any more.
    fn give_up(&mut self, streams: &Streams) {
        self.entries = Entries::default();
        self.charge = None;
        if let Some(place) = self.place.take() {
            streams.ring().remove(place);
        }
    }

    /// Moves to the entry after `cookie`.
    fn go_to(&mut self, cookie: u64) {
        if cookie == self.cookie {
            return;
        }
        self.ended = false;
        // The start is read again, because the client expects current entries.
        if cookie != 0 && self.find(cookie) {
            return;
        }
        self.recording = None;
        self.leave(cookie);
    }

    /// Drops the entries and continues after `cookie`.
    fn leave(&mut self, cookie: u64) {
        if let Entries::Part { filled, .. } = &mut self.entries {
            *filled = 0;
        } else {
            self.entries = Entries::default();
        }
        (self.base, self.cookie, self.at) = (cookie, cookie, 0);
        self.astray = true;
    }

    /// Moves to `cookie` if the entries include it.
    fn find(&mut self, cookie: u64) -> bool {
        let (mut at, mut here) = (0, self.base);
        while here != cookie {
            match RawEntry::first(&self.entries.bytes()[at..]) {
                Some(raw) => (at, here) = (at + raw.len, raw.cookie),
                None => return false,
            }
        }
        (self.at, self.cookie) = (at, cookie);
        true
    }

    /// Reads more entries, on `account`, and returns whether there were any.
    fn fill<L>(&mut self, dir: &OpenDir<'_, L>, account: &Account) -> Result<bool> {
        let fd = dir.fd;
        if std::mem::take(&mut self.ended) {
            return Ok(false);
        }
        if let Entries::Whole(_) = self.entries {
            self.ended = true;
            self.leave(self.cookie);
            return Ok(false);
        }
        if self.cookie == 0 {
            match dir.listings.start(dir.device, fd) {
                Start::Known(listing) => {
                    self.entries = Entries::Whole(listing);
                    // Every directory has at least `.` and `..`, unless it was removed.
                    self.ended = self.entries.bytes().is_empty();
                    return Ok(!self.ended);
                }
                Start::Record(recording) => self.recording = Some(recording),
                Start::Unknown => {}
            }
        }
        if self.astray {
            rustix::fs::seek(fd, SeekFrom::Start(self.cookie)).map_err(errno)?;
            self.astray = false;
        }
        let Entries::Part { buffer, filled } = &mut self.entries else {
            return Ok(false);
        };
        buffer.resize(BUFFER, 0);
        *filled = match sys::dir::read(fd, buffer) {
            // A removed directory.
            Err(Raw::NOENT) => 0,
            filled => filled.map_err(errno)?,
        };
        (self.base, self.at) = (self.cookie, 0);
        let recording = self.recording.take();
        if *filled == 0 {
            self.ended = true;
            if let Some(recording) = recording {
                recording.finish(dir.listings, dir.device, fd, |bytes| {
                    dir.streams.take(account, bytes).ok()
                });
            }
            return Ok(false);
        }
        self.recording = recording.and_then(|recording| recording.add(&buffer[..*filled]));
        Ok(true)
    }
}
