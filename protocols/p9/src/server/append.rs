//! Twrite to open files, and write-back through fids that are open to append.
//!
//! A write to a file that is open to append goes to the file's end, whatever offset the client
//! sends. Linux's v9fs relies on the opposite: with a page cache (`cache=mmap`, `loose` or
//! `fscache`, Linux 6.4 and later) it opens the fid with the program's `O_RDWR | O_APPEND` and then
//! writes pages back through it, from the start of the page, with bytes that the file has already.
//! A server that appends these corrupts the file (`docs/notes/v9fs-append.md`). So a fid that is
//! open for reading and appending appends bytes beyond the end of the file as the client knows it,
//! and writes bytes before that end in place.
//!
//! The end as the client knows it is the size when the connection opened the file, advanced by its
//! own writes through any fid, each taken at the offset that the client sent. A client that does
//! not cache never writes before that end, even if others have appended meanwhile: its writes go to
//! the end of the file. A client never writes back through fids that are open for writing only, so
//! these always append. Linux with a page cache opens no file for writing only if it may read it:
//! once a client has done so, all of its fids append.
//!
//! Deliberately absent: write-back of a file that others append to at the same time. Bytes of the
//! cached page may then be duplicated.

use std::ops::Range;
use std::sync::atomic::Ordering;

use vfs::{Access, AttrMask, Cx, Errno, File, OpenFlags, Result};

use super::fid::{FidState, Open};
use super::request::RequestContext;
use super::write_state::Writer;
use crate::message::WRITE_HEAD;

impl RequestContext<'_> {
    /// Returns the [`Writer`] of `fid` if `flags` open a file for writing. `size` is the file's
    /// size when it was opened.
    pub(super) fn writer(&self, fid: &FidState, flags: OpenFlags, size: u64) -> Option<Writer> {
        let writes = flags.contains(OpenFlags::WRITE) && !fid.is_directory();
        writes.then(|| Writer::new(&self.connection.write_states, fid.step(), flags, size))
    }

    /// Records whether the client opens a file for writing only that it may read: no client that
    /// writes pages back does so.
    pub(super) fn note_open(&self, cx: &Cx<'_>, fid: &FidState, flags: OpenFlags) {
        let both = OpenFlags::READ | OpenFlags::WRITE;
        if fid.is_directory() || flags & both != OpenFlags::WRITE || self.appends_only() {
            return;
        }
        if matches!(fid.node().access(cx, Access::READ), Ok(may) if !may.is_empty()) {
            self.connection.appends_only.store(true, Ordering::Relaxed);
        }
    }

    fn appends_only(&self) -> bool {
        self.connection.appends_only.load(Ordering::Relaxed)
    }

    /// Writes the payload of a Twrite to an open file and returns the number of bytes. Returns
    /// `EBADF` if it is not open for writing.
    pub(super) fn write_file(&self, fid: &FidState, open: &Open, offset: u64) -> Result<usize> {
        let writer = open.writer.as_ref().ok_or(Errno::EBADF)?;
        let cx = self.cx(&fid.attach().caller);
        let reach = &writer.state;
        let range = WRITE_HEAD..self.size;
        if range.is_empty() {
            // An empty write does not show where the client believes the end to be.
            return Ok(0);
        }
        let count = if self.appends_only() || !reach.has_appenders() {
            self.put(&cx, &*open.file, offset, range)?
        } else {
            let _order = reach.lock_writes(&cx)?;
            match writer.appender {
                true => self.write_back(&cx, (fid, open, writer), offset)?,
                false => self.put(&cx, &*open.file, offset, range)?,
            }
        };
        reach.extend(offset.saturating_add(count as u64));
        Ok(count)
    }

    /// Writes the part before the end of the file as the client knows it in place, and appends the
    /// rest.
    fn write_back(
        &self,
        cx: &Cx<'_>,
        (fid, open, writer): (&FidState, &Open, &Writer),
        offset: u64,
    ) -> Result<usize> {
        let len = self.size - WRITE_HEAD;
        let in_place = match offset == writer.state.end() {
            true => 0,
            false => {
                // Several steps: an operation that would block must not stop between them.
                cx.check_may_block()?;
                let size = open.file.attr(cx, AttrMask::SIZE)?.size;
                writer.state.in_place(size, offset, len)
            }
        };
        let split = WRITE_HEAD + in_place;
        if in_place > 0 {
            let file = match writer.in_place.get() {
                Some(file) => file,
                None => {
                    let durable = open.flags & (OpenFlags::DSYNC | OpenFlags::SYNC);
                    let flags = OpenFlags::WRITE | OpenFlags::OWNER | durable;
                    let file = fid.node().open(cx, flags)?;
                    writer.in_place.get_or_init(|| file)
                }
            };
            let count = self.put(cx, &**file, offset, WRITE_HEAD..split)?;
            if count < in_place {
                return Ok(count);
            }
        }
        let behind = offset.saturating_add(in_place as u64);
        Ok(in_place + self.put(cx, &*open.file, behind, split..self.size)?)
    }

    /// Writes a part of the message.
    fn put(&self, cx: &Cx<'_>, file: &dyn File, offset: u64, range: Range<usize>) -> Result<usize> {
        if range.is_empty() {
            return Ok(0);
        }
        let len = range.len();
        let mut write = |payload: &mut dyn vfs::Payload| file.write(cx, offset, payload);
        let count = self.message.payload(range, &mut write)?;
        debug_assert!(count <= len, "a source wrote more than it got");
        Ok(count.min(len))
    }
}
