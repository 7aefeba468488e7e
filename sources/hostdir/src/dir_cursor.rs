//! Reading a directory.
//!
//! The cookies are the file system's own (`d_off`). An open directory keeps the entries that it has
//! read and not returned yet, and its position, so that sequential reading neither seeks nor reads
//! twice. It seeks after its descriptor was evicted meanwhile. A read from the start may use a
//! cached listing (`dir_cache`).
//!
//! The listings of open directories are bounded per tree and per client ([`DirCursors`]). Without
//! room, the least recently read directories lose theirs: the client's own if it has used its
//! share, otherwise any client's.
//!
//! The inode number of an entry that is a mount point is that of the covered directory, as
//! everywhere in Linux. Attributes ([`ReaddirMode::Entries`]) are those of the mounted root.
//!
//! Lock order: an open directory's position, then the ring of all. Another directory's position is
//! only locked with `try_lock`.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::SeekFrom;
use rustix::io::Errno as Raw;
use sys::dir::Entry as RawEntry;
use sys::errno;
use vfs::{
    Account, Charge, Cx, DirEntry, DirSink, Entry, Errno, Kind, Name, Quota, QuotaExceeded,
    ReaddirMode, Result,
};

use crate::clock::ClockRing;
use crate::device::Device;
use crate::dir_cache::{DirCache, Listing, Lookup, Recording};

/// The bytes to read at once: some 2000 entries, so that large directories take few calls.
const BUFFER: usize = 64 << 10;

/// The most bytes of read-ahead and listings that the open directories of a tree keep. A directory
/// without room reads again.
const MAX_BYTES: usize = 16 << 20;

/// The open directories of a tree that keep entries.
pub(crate) struct DirCursors {
    quota: Arc<Quota>,
    ring: Mutex<ClockRing<Weak<DirCursor>>>,
}

impl Default for DirCursors {
    fn default() -> DirCursors {
        DirCursors {
            quota: Quota::shared(MAX_BYTES, 1),
            ring: Mutex::default(),
        }
    }
}

impl DirCursors {
    /// Charges `bytes` to `account`, evicting other open directories' entries if necessary.
    pub(crate) fn take(
        &self,
        account: &Account,
        bytes: usize,
    ) -> std::result::Result<Charge, QuotaExceeded> {
        loop {
            match self.quota.take(account, bytes) {
                Ok(charge) => return Ok(charge),
                Err(full) if self.evict(full.is_per_client().then_some(account)) => {}
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
            if next.is_some_and(|cursor| cursor.evict(self, account)) {
                return true;
            }
        }
        false
    }

    fn ring(&self) -> MutexGuard<'_, ClockRing<Weak<DirCursor>>> {
        self.ring.lock()
    }
}

/// An open directory to read from, and its surroundings.
pub(crate) struct OpenDir<'a, L> {
    pub(crate) device: &'a Device,
    pub(crate) fd: BorrowedFd<'a>,
    /// Set when the descriptor was replaced by one with another position; reset by the next read.
    pub(crate) reopened: &'a AtomicBool,
    pub(crate) cursors: &'a DirCursors,
    pub(crate) dir_cache: &'a DirCache,
    /// Looks up a child.
    pub(crate) look_up: L,
}

/// An open directory's position.
#[derive(Default)]
pub(crate) struct DirCursor {
    state: Mutex<State>,
    /// Read since the clock hand last passed.
    recently_used: AtomicBool,
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
    at_end: bool,
    /// The descriptor's own position differs.
    needs_seek: bool,
    recording: Option<Recording>,
    /// For the part that it keeps.
    charge: Option<Charge>,
    /// Its position in the ring, while it keeps entries.
    ring_position: Option<u32>,
}

/// The entries read from the directory.
enum Entries {
    /// A part, from `base` on.
    Chunk { buffer: Vec<u8>, filled: usize },
    /// The whole directory.
    Listing(Arc<Listing>),
}

impl Default for Entries {
    fn default() -> Entries {
        Entries::Chunk {
            buffer: Vec::new(),
            filled: 0,
        }
    }
}

impl Entries {
    fn bytes(&self) -> &[u8] {
        match self {
            Entries::Chunk { buffer, filled } => &buffer[..*filled],
            Entries::Listing(listing) => listing.entries(),
        }
    }
}

impl DirCursor {
    /// Reads on after `cookie` in `dir`.
    pub(crate) fn read(
        self: &Arc<Self>,
        dir: &OpenDir<'_, impl Fn(Name<'_>) -> Result<Entry>>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.recently_used.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        if dir.reopened.swap(false, Ordering::Relaxed) {
            state.needs_seek = true;
            state.recording = None;
        }
        state.seek(cookie);
        let passed = state.pass_entries(dir, cx.call.account(), plus, sink);
        state.retain(self, dir.cursors, cx.call.account());
        passed
    }

    /// Closes the directory.
    pub(crate) fn close(&self, cursors: &DirCursors) {
        let mut state = self.state.lock();
        state.drop_entries(cursors);
    }

    /// Drops its entries if they are charged to `account`, unless it is being read or was read
    /// recently.
    fn evict(&self, cursors: &DirCursors, account: Option<&Account>) -> bool {
        if self.recently_used.swap(false, Ordering::Relaxed) {
            return false;
        }
        let Some(mut state) = self.state.try_lock() else {
            return false;
        };
        let is_its = |account| state.account() == Some(account);
        if state.ring_position.is_none() || !account.is_none_or(is_its) {
            return false;
        }
        let at = state.cookie;
        state.restart_at(at);
        state.drop_entries(cursors);
        true
    }
}

impl State {
    /// Passes the next entries to `sink`, until it accepts no more.
    fn pass_entries(
        &mut self,
        dir: &OpenDir<'_, impl Fn(Name<'_>) -> Result<Entry>>,
        account: &Account,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let state = self;
        let mut passed = false;
        loop {
            if state.at == state.entries.bytes().len() {
                match state.fill(dir, account) {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    // The next call returns the error.
                    Err(_) if passed => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            let rest = &state.entries.bytes()[state.at..];
            let raw = RawEntry::first(rest).ok_or(Errno::EIO)?;
            if !matches!(raw.name, b"." | b"..") {
                let (id, kind, entry) = match plus {
                    ReaddirMode::Names => {
                        (dir.device.id(raw.ino), Kind::from_d_type(raw.d_type), None)
                    }
                    ReaddirMode::Entries => with_attr(dir, &raw)?,
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
                passed = true;
            }
            state.cookie = raw.cookie;
            state.at += raw.len;
        }
    }
}

type EntryFacts = (vfs::NodeId, Option<Kind>, Option<Entry>);

fn with_attr(
    dir: &OpenDir<'_, impl Fn(Name<'_>) -> Result<Entry>>,
    raw: &RawEntry<'_>,
) -> Result<EntryFacts> {
    match Name::new(raw.name).and_then(&dir.look_up) {
        Ok(entry) => Ok((entry.attr.id, Some(entry.attr.kind), Some(entry))),
        Err(error) if error.is_signal() => Err(error),
        // It vanished, or the caller may not look it up.
        Err(_) => Ok((dir.device.id(raw.ino), Kind::from_d_type(raw.d_type), None)),
    }
}

impl State {
    /// Frees the entries that were returned, and all if there is no room to keep them.
    fn retain(&mut self, cursor: &Arc<DirCursor>, cursors: &DirCursors, account: &Account) {
        let size = match &mut self.entries {
            // A listing has a charge of its own.
            Entries::Listing(_) => {
                self.charge = None;
                return self.insert_into_ring(cursor, cursors);
            }
            Entries::Chunk { buffer, filled } => {
                if self.at == *filled {
                    (*buffer, *filled) = (Vec::new(), 0);
                    (self.base, self.at) = (self.cookie, 0);
                }
                buffer.capacity()
            }
        };
        if size == 0 {
            return self.drop_entries(cursors);
        }
        if self.charge.is_none() {
            self.charge = cursors.take(account, size).ok();
        }
        match self.charge {
            Some(_) => self.insert_into_ring(cursor, cursors),
            None => {
                self.restart_at(self.cookie);
                self.drop_entries(cursors);
            }
        }
    }

    /// Returns the account that its entries are charged to.
    fn account(&self) -> Option<&Account> {
        let charge = match &self.entries {
            Entries::Listing(listing) => listing.charge(),
            Entries::Chunk { .. } => self.charge.as_ref(),
        };
        charge.map(Charge::account)
    }

    fn insert_into_ring(&mut self, cursor: &Arc<DirCursor>, cursors: &DirCursors) {
        let insert = || cursors.ring().insert(Arc::downgrade(cursor));
        self.ring_position.get_or_insert_with(insert);
    }

    /// Frees its entries, which are used up or will not be read any more.
    fn drop_entries(&mut self, cursors: &DirCursors) {
        self.entries = Entries::default();
        self.charge = None;
        if let Some(ring_position) = self.ring_position.take() {
            cursors.ring().remove(ring_position);
        }
    }

    /// Moves to the entry after `cookie`.
    fn seek(&mut self, cookie: u64) {
        if cookie == self.cookie {
            return;
        }
        self.at_end = false;
        // The start is read again, because the client expects current entries.
        if cookie != 0 && self.seek_within(cookie) {
            return;
        }
        self.restart_at(cookie);
    }

    /// Drops the entries and continues after `cookie`. A recording ends: it would miss entries, or
    /// have some twice.
    fn restart_at(&mut self, cookie: u64) {
        self.recording = None;
        if let Entries::Chunk { filled, .. } = &mut self.entries {
            *filled = 0;
        } else {
            self.entries = Entries::default();
        }
        (self.base, self.cookie, self.at) = (cookie, cookie, 0);
        self.needs_seek = true;
    }

    /// Moves to `cookie` if the entries include it.
    fn seek_within(&mut self, cookie: u64) -> bool {
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
        if std::mem::take(&mut self.at_end) {
            return Ok(false);
        }
        if let Entries::Listing(_) = self.entries {
            self.at_end = true;
            self.restart_at(self.cookie);
            return Ok(false);
        }
        if self.cookie == 0 {
            match dir.dir_cache.look_up(dir.device, fd) {
                Lookup::Cached(listing) => {
                    self.entries = Entries::Listing(listing);
                    return Ok(true);
                }
                Lookup::Record(recording) => self.recording = Some(recording),
                Lookup::Uncached => {}
            }
        }
        if self.needs_seek {
            seek(fd, self.cookie)?;
            self.needs_seek = false;
        }
        let Entries::Chunk { buffer, filled } = &mut self.entries else {
            return Ok(false);
        };
        buffer.resize(BUFFER, 0);
        *filled = read_from(fd, self.cookie, buffer)?;
        (self.base, self.at) = (self.cookie, 0);
        let recording = self.recording.take();
        if *filled == 0 {
            self.at_end = true;
            if let Some(recording) = recording {
                recording.finish(dir.dir_cache, dir.device, fd, |bytes| {
                    dir.cursors.take(account, bytes).ok()
                });
            }
            return Ok(false);
        }
        self.recording = recording.and_then(|recording| recording.add(&buffer[..*filled]));
        Ok(true)
    }
}

fn seek(fd: BorrowedFd<'_>, cookie: u64) -> Result<()> {
    rustix::fs::seek(fd, SeekFrom::Start(cookie))
        .map(drop)
        .map_err(errno)
}

/// Reads entries into `buffer` at the position `cookie` of `fd`. Returns the number of bytes, 0 at
/// the end and for a removed directory.
fn read_from(fd: BorrowedFd<'_>, cookie: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut read = || match sys::dir::read(fd, buffer) {
        // A removed directory.
        Err(Raw::NOENT) => Ok(0),
        filled => filled.map_err(errno),
    };
    let filled = read()?;
    if filled > 0 || cookie > 0 {
        return Ok(filled);
    }
    // Every directory has at least `.` and `..`, unless it was removed. But a descriptor on ext4
    // whose first read was at the end has no entries at the start, once (`ext4_dx_readdir` keeps
    // the hash of the end, as it does not record where that read was). A client's last READDIR is
    // such a read if the descriptor was opened for it.
    seek(fd, cookie)?;
    read()
}
