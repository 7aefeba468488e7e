//! Reading a directory.
//!
//! The cookies are the file system's own (`d_off`). An open directory keeps what it has read and
//! not told yet, up to a bound for all of a tree, and where that goes on, so that reading in order
//! neither seeks nor reads twice. One whose descriptor was taken away meanwhile seeks. Whoever
//! reads from the start may get what `listings` has kept.
//!
//! The number of an entry that is a mount point is that of the directory beneath the mount: the
//! kernel says so to everybody. Attributes ([`Plus::Entries`]) are those of what is mounted.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::SeekFrom;
use rustix::io::Errno as Raw;
use sys::dir::Entry as RawEntry;
use sys::errno;
use vfs::{Cx, DirEntry, DirSink, Entry, Errno, Kind, Name, Plus, Result};

use crate::listings::{Listing, Listings, Recording, Start};
use crate::node::HostNode;
use crate::opened::OpenFile;
use crate::tree::Tree;

/// How much is read at once: some 2000 entries, so that large directories take few calls.
const BUFFER: usize = 64 << 10;

/// How much the open directories of a tree keep of what they have read and not told, bytes. One for
/// which there is no room reads it again.
const READ_AHEAD: usize = 16 << 20;

/// An open directory's position.
#[derive(Default)]
pub(crate) struct Stream(Mutex<State>);

#[derive(Default)]
struct State {
    entries: Entries,
    /// The cookie before the first of the entries.
    base: u64,
    /// Where the next entry is among them, and the cookie before it.
    at: usize,
    cookie: u64,
    /// The end was told; whoever asks once more is told again without a look.
    ended: bool,
    /// The descriptor's own position is elsewhere.
    astray: bool,
    recording: Option<Recording>,
    /// The bytes of [`READ_AHEAD`] that it uses.
    kept: usize,
}

/// What was read of the directory.
enum Entries {
    /// A part, from `base` on.
    Part { buffer: Vec<u8>, filled: usize },
    /// All of it.
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
    /// Reads on behind `cookie` of `opened`, whose descriptor is `fd`.
    pub(crate) fn read(
        &self,
        opened: &OpenFile,
        fd: BorrowedFd<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let mut state = self.0.lock().expect("no panic holds it");
        if opened.take_reopened() {
            state.astray = true;
            state.recording = None;
        }
        state.go_to(cookie);
        let told = state.tell(opened.node(), fd, cx, plus, sink);
        state.keep_within(&opened.node().device().tree.read_ahead);
        told
    }

    /// The directory is closed.
    pub(crate) fn close(&self, tree: &Tree) {
        let mut state = self.0.lock().expect("no panic holds it");
        tree.read_ahead
            .fetch_sub(std::mem::take(&mut state.kept), Ordering::Relaxed);
    }
}

impl State {
    /// Gives `sink` what comes next, until it has enough.
    fn tell(
        &mut self,
        node: &HostNode,
        fd: BorrowedFd<'_>,
        cx: &Cx<'_>,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let state = self;
        let mut told = false;
        loop {
            if state.at == state.entries.bytes().len() {
                match state.fill(node, fd) {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    // The next call meets it again.
                    Err(_) if told => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            let rest = &state.entries.bytes()[state.at..];
            let raw = RawEntry::first(rest).ok_or(Errno::EIO)?;
            if !matches!(raw.name, b"." | b"..") {
                let (id, kind, entry) = match plus {
                    Plus::Names => (
                        node.device().id(raw.ino),
                        Kind::from_d_type(raw.d_type),
                        None,
                    ),
                    Plus::Entries => with_attr(node, cx, &raw)?,
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

fn with_attr(node: &HostNode, cx: &Cx<'_>, raw: &RawEntry<'_>) -> Result<Looked> {
    match Name::new(raw.name).and_then(|name| node.look_up(cx, name)) {
        Ok((child, attr)) => {
            let entry = Entry { node: child, attr };
            Ok((attr.id, Some(attr.kind), Some(entry)))
        }
        Err(error) if error.is_signal() => Err(error),
        // It vanished, or may not be looked at.
        Err(_) => Ok((
            node.device().id(raw.ino),
            Kind::from_d_type(raw.d_type),
            None,
        )),
    }
}

impl State {
    /// Gives the memory back of what has been told, and of all if others keep too much.
    fn keep_within(&mut self, all: &AtomicUsize) {
        let Entries::Part { buffer, filled } = &mut self.entries else {
            all.fetch_sub(std::mem::take(&mut self.kept), Ordering::Relaxed);
            return;
        };
        if self.at == *filled {
            (*buffer, *filled) = (Vec::new(), 0);
            (self.base, self.at) = (self.cookie, 0);
        }
        let (before, now) = (self.kept, buffer.capacity());
        self.kept = now;
        if all.fetch_add(now, Ordering::Relaxed) + now - before > READ_AHEAD && now > 0 {
            *buffer = Vec::new();
            self.leave(self.cookie);
            all.fetch_sub(std::mem::take(&mut self.kept), Ordering::Relaxed);
        }
        all.fetch_sub(before, Ordering::Relaxed);
    }

    /// Makes the entry behind `cookie` the next.
    fn go_to(&mut self, cookie: u64) {
        if cookie == self.cookie {
            return;
        }
        self.ended = false;
        // The start is read anew: whoever goes there wants to see what is new.
        if cookie != 0 && self.find(cookie) {
            return;
        }
        self.recording = None;
        self.leave(cookie);
    }

    /// Forgets what was read: it goes on behind `cookie`.
    fn leave(&mut self, cookie: u64) {
        if let Entries::Part { filled, .. } = &mut self.entries {
            *filled = 0;
        } else {
            self.entries = Entries::default();
        }
        (self.base, self.cookie, self.at) = (cookie, cookie, 0);
        self.astray = true;
    }

    /// Goes to `cookie` if what was read has it.
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

    /// Reads on, and says whether there was more.
    fn fill(&mut self, node: &HostNode, fd: BorrowedFd<'_>) -> Result<bool> {
        if std::mem::take(&mut self.ended) {
            return Ok(false);
        }
        if let Entries::Whole(_) = self.entries {
            self.ended = true;
            self.leave(self.cookie);
            return Ok(false);
        }
        if self.cookie == 0 {
            match Listings::start(node, fd) {
                Start::Known(listing) => {
                    self.entries = Entries::Whole(listing);
                    // A directory has its dots at least, but one that was removed.
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
            // What a removed directory says.
            Err(Raw::NOENT) => 0,
            filled => filled.map_err(errno)?,
        };
        (self.base, self.at) = (self.cookie, 0);
        let recording = self.recording.take();
        if *filled == 0 {
            self.ended = true;
            if let Some(recording) = recording {
                recording.finish(node, fd);
            }
            return Ok(false);
        }
        self.recording = recording.and_then(|recording| recording.add(&buffer[..*filled]));
        Ok(true)
    }
}
