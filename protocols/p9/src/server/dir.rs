//! Treaddir: directory entries in 9P2000.L.

use vfs::{Attr, AttrMask, Cx, DirEntry, DirSink, Errno, Kind, ReaddirMode, Result};
use wire::{AFTER_DOT, AFTER_DOTS, Buffered, Outgoing, Put, cookie_of, offset_of};

use super::fid::FidState;
use super::qid::{entry_qid, qid_of};
use super::request::RequestContext;
use super::walk::parent;
use crate::message::DATA_HEAD;
use crate::{Fid, Kind as Message, Qid};

impl RequestContext<'_> {
    pub(super) fn readdir(&mut self, fid: Fid, offset: u64, count: u32) -> Result<()> {
        let fid = self.fid(fid)?;
        let open = fid.open()?;
        if !fid.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        let limit = self.reply_room(count);
        let cx = self.cx(&fid.attach().caller);
        self.begin_data(Message::Readdir);
        let mut entries = Entries {
            out: self.out,
            end: DATA_HEAD + limit,
            full: false,
        };
        let done = dots(&cx, &fid, offset, &mut entries).and_then(|()| {
            if entries.full {
                return Ok(());
            }
            let cookie = cookie_of(offset);
            open.file
                .readdir(&cx, cookie, ReaddirMode::Names, &mut entries)
        });
        let (empty, full) = (entries.out.len() == DATA_HEAD, entries.full);
        match done {
            // Entries before an error are returned; the next Treaddir returns the error.
            Err(errno) if empty || errno.is_signal() => return Err(errno),
            // An empty reply would mean the end of the directory.
            Ok(()) if empty && full => return Err(Errno::EINVAL),
            _ => {}
        }
        self.end_data(Message::Readdir)
    }
}

/// Adds `.` and `..`, unless `offset` is after them.
fn dots(cx: &Cx<'_>, fid: &FidState, offset: u64, entries: &mut Entries<'_>) -> Result<()> {
    if offset == 0 {
        let attr = fid.attr(cx, AttrMask::BASIC | AttrMask::TIMES)?;
        entries.put(dot(&attr), AFTER_DOT, b".");
    }
    if (offset == 0 || offset == AFTER_DOT) && !entries.full {
        let attr = match parent(cx, fid.step()) {
            Ok((_, Some(attr))) => attr,
            Ok((up, None)) => up.node.attr(cx, AttrMask::BASIC | AttrMask::TIMES)?,
            Err(errno) if errno.is_signal() => return Err(errno),
            // The directory was removed or moved away while open: it is its own parent.
            Err(_) => fid.attr(cx, AttrMask::BASIC | AttrMask::TIMES)?,
        };
        entries.put(dot(&attr), AFTER_DOTS, b"..");
    }
    Ok(())
}

fn dot(attr: &Attr) -> (Qid, u8) {
    (qid_of(attr), Kind::Directory.d_type())
}

/// Writes whole entries after the reply's head: `qid[13] offset[8] type[1] name[s]`.
struct Entries<'a> {
    out: &'a mut dyn Outgoing,
    /// The largest length of the reply.
    end: usize,
    /// Whether an entry did not fit.
    full: bool,
}

impl Entries<'_> {
    /// The bytes before the name, including its length.
    const HEAD: usize = Qid::SIZE + 8 + 1 + 2;

    fn put(&mut self, (qid, d_type): (Qid, u8), offset: u64, name: &[u8]) -> bool {
        if self.full || Entries::HEAD + name.len() > self.end - self.out.len() {
            self.full = true;
            return false;
        }
        let mut entry = Buffered::new(self.out);
        entry.put(&[qid.kind.bits()]);
        entry.put(&qid.version.to_le_bytes());
        entry.put(&qid.path.to_le_bytes());
        entry.put(&offset.to_le_bytes());
        entry.put(&[d_type]);
        entry.put(&(name.len() as u16).to_le_bytes());
        entry.put(name);
        true
    }
}

impl DirSink for Entries<'_> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        let qid = entry_qid(entry.kind, entry.id);
        let d_type = entry.kind.map_or(0, Kind::d_type);
        self.put((qid, d_type), offset_of(entry.cookie), entry.name)
    }
}
