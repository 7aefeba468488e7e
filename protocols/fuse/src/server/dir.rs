//! READDIR and READDIRPLUS: the entries of a directory.

use std::sync::Arc;

use vfs::{Cx, DirEntry, DirSink, Errno, Kind, NodeId, ReaddirMode, Result};
use wire::{AFTER_DOT, AFTER_DOTS, cookie_of, offset_of};

use super::RequestContext;
use super::handles::Open;
use super::nodes::NodeRef;
use crate::dirent::Dirent;
use crate::layout::{EntryOut, ReadIn};
use crate::message::REPLY_HEADER;
use crate::numbers::InitFlags;

impl<'a> RequestContext<'a> {
    /// With `plus`, each entry except `.` and `..` counts as a look-up.
    pub(super) fn readdir(&mut self, args: &ReadIn, plus: bool) -> Result<()> {
        let open = match self.negotiated.has(InitFlags::NO_OPENDIR_SUPPORT) {
            true => Arc::new(self.open_directory()?),
            false => self.opened(args.fh)?,
        };
        if !open.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let up = self.node()?;
        let end = REPLY_HEADER + self.reply_room(args.size);
        let cx = self.cx;
        self.begin_data();
        let mut entries = Entries {
            request: self,
            dir: &up,
            plus,
            end,
            full: false,
            looked_up: Vec::new(),
        };
        let done = dots(&cx, &open, args.offset, &mut entries).and_then(|()| {
            if entries.full {
                return Ok(());
            }
            let what = if plus {
                ReaddirMode::Entries
            } else {
                ReaddirMode::Names
            };
            let cookie = cookie_of(args.offset);
            open.file.readdir(&cx, cookie, what, &mut entries)
        });
        let (full, counted) = (entries.full, entries.looked_up);
        let empty = self.out.len() == REPLY_HEADER;
        match done {
            // Entries before an error are returned; the next READDIR returns the error.
            Err(errno) if empty || errno.is_signal() => {
                for nodeid in counted {
                    self.session.nodes.forget(self.incarnation, nodeid, 1);
                }
                return Err(errno);
            }
            // An empty reply would mean the end of the directory.
            Ok(()) if empty && full => return Err(Errno::EINVAL),
            _ => {}
        }
        self.end_data()
    }
}

/// Adds `.` and `..`, unless `offset` is after them.
fn dots(cx: &Cx<'_>, open: &Open, offset: u64, entries: &mut Entries<'_, '_>) -> Result<()> {
    if offset == 0 {
        entries.dot(open.node().id(), AFTER_DOT, b".");
    }
    if (offset == 0 || offset == AFTER_DOT) && !entries.full {
        let id = match open.node().parent(cx) {
            Ok(up) => up.node.id(),
            Err(errno) if errno.is_signal() => return Err(errno),
            // The directory was removed or moved away while open: it is its own parent.
            Err(_) => open.node().id(),
        };
        entries.dot(id, AFTER_DOTS, b"..");
    }
    Ok(())
}

/// Writes whole entries after the reply's header.
struct Entries<'a, 'b> {
    request: &'a mut RequestContext<'b>,
    /// The directory.
    dir: &'a NodeRef,
    plus: bool,
    /// The largest length of the reply.
    end: usize,
    /// Whether an entry did not fit.
    full: bool,
    /// The nodes that this reply looked up.
    looked_up: Vec<u64>,
}

impl Entries<'_, '_> {
    /// Adds an entry with node id 0, which does not count as a look-up.
    fn dot(&mut self, id: NodeId, off: u64, name: &[u8]) {
        if self.fits(name) {
            self.put(&Dirent {
                entry: self.plus.then(EntryOut::default),
                ino: self.request.session.nodes.inode_number(id),
                off,
                kind: Kind::Directory.d_type(),
                name,
            });
        }
    }

    fn fits(&mut self, name: &[u8]) -> bool {
        let size = Dirent::size(self.plus, name.len());
        self.full |= size > self.end - self.request.out.len();
        !self.full
    }

    fn put(&mut self, dirent: &Dirent<'_>) {
        /// Most names are no longer; then the transport is called once for the whole entry.
        const NAME: usize = 104;
        let mut buffer = [0; Dirent::MAX_HEAD + NAME];
        let size = Dirent::size(self.plus, dirent.name.len());
        let out = &mut *self.request.out;
        if size > buffer.len() {
            return dirent.encode(&mut |piece| out.bytes(piece));
        }
        let mut at = 0;
        dirent.encode(&mut |piece| {
            buffer[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        });
        out.bytes(&buffer[..at]);
    }
}

impl DirSink for Entries<'_, '_> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        if !self.fits(entry.name) {
            return false;
        }
        let looked = self.plus.then(|| {
            // The client looks up an entry itself if the node table has no room for it.
            let looked = entry.entry.as_ref();
            let looked = looked.and_then(|entry| self.request.entry_out(self.dir, entry).ok());
            looked.unwrap_or_default()
        });
        self.looked_up
            .extend(looked.map(|looked| looked.nodeid).filter(|&id| id != 0));
        self.put(&Dirent {
            entry: looked,
            ino: self.request.session.nodes.inode_number(entry.id),
            off: offset_of(entry.cookie),
            kind: entry.kind.map_or(0, Kind::d_type),
            name: entry.name,
        });
        true
    }

    fn room(&self, name: usize) -> usize {
        (self.end - self.request.out.len()) / Dirent::size(self.plus, name)
    }
}
