//! Replies: a header, and the arguments or data after it.

use core::time::Duration;

use vfs::{Attr, Caller, Cx, Entry, Errno, Patience, Result};

use super::RequestContext;
use super::nodes::NodeRef;
use crate::convert::encode_device;
use crate::layout::{self, AttrOut, EntryOut, OutHeader, StatxOut};
use crate::message::REPLY_HEADER;
use crate::numbers::{ATTR_SUBMOUNT, InitFlags, MAX_ERRNO};

impl RequestContext<'_> {
    /// Writes a whole reply with these arguments. Returns `EIO` if it does not fit.
    pub(super) fn reply(&mut self, arguments: &[&[u8]]) -> Result<()> {
        let len = REPLY_HEADER + arguments.iter().map(|piece| piece.len()).sum::<usize>();
        if len > self.limit {
            return Err(Errno::EIO);
        }
        if let Some((records, entry)) = self.journaled {
            records.finish(entry, Ok(arguments));
        }
        let header = self.header(len).encode();
        let mut buffer = [0; REPLY_HEADER + StatxOut::SIZE];
        let Some(whole) = buffer.get_mut(..len) else {
            self.out.bytes(&header);
            arguments.iter().for_each(|piece| self.out.bytes(piece));
            return Ok(());
        };
        let mut at = 0;
        for piece in [&header[..]].iter().chain(arguments) {
            whole[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.out.bytes(whole);
        Ok(())
    }

    pub(super) fn refuse(&mut self, errno: Errno) {
        let errno = match errno.raw() {
            raw if raw > MAX_ERRNO => Errno::EIO,
            _ => errno,
        };
        if let Some((records, entry)) = self.journaled {
            records.finish(entry, Err(errno));
        }
        let header = OutHeader {
            error: -i32::from(errno.raw()),
            ..self.header(REPLY_HEADER)
        };
        self.out.bytes(&header.encode());
    }

    /// Returns `EIO` if arguments of `len` bytes do not fit. Called before irreversible changes.
    pub(super) fn check_room(&self, len: usize) -> Result<()> {
        match REPLY_HEADER + len <= self.limit {
            true => Ok(()),
            false => Err(Errno::EIO),
        }
    }

    /// Returns how many of the requested `size` bytes the reply may carry.
    pub(super) fn reply_room(&self, size: u32) -> usize {
        (size as usize).min(self.limit.saturating_sub(REPLY_HEADER))
    }

    /// Begins a reply whose data are written directly after its header.
    pub(super) fn begin_data(&mut self) {
        self.out.bytes(&self.header(REPLY_HEADER).encode());
    }

    /// Ends the reply by setting its length.
    pub(super) fn end_data(&mut self) -> Result<()> {
        let len = self.out.len() as u32;
        self.out.patch(0, &len.to_le_bytes());
        Ok(())
    }

    fn header(&self, len: usize) -> OutHeader {
        OutHeader {
            len: len as u32,
            error: 0,
            unique: self.header.unique,
        }
    }

    /// Returns the reply to a look-up of `entry` in `up`, and counts the look-up.
    pub(super) fn entry_out(&self, up: &NodeRef, entry: &Entry) -> Result<EntryOut> {
        let handle = || {
            let cx = self.cx.on_behalf_of(&Caller::ROOT);
            entry.node.handle(&Cx {
                patience: Patience::Full,
                ..cx
            })
        };
        let nodes = &self.session.nodes;
        let id = nodes.add_lookup(self.incarnation, entry, handle)?;
        let mut attr = self.attr_out(&entry.attr);
        if self.negotiated.has(InitFlags::SUBMOUNTS) && entry.attr.device != up.device {
            attr.flags |= ATTR_SUBMOUNT;
        }
        let up_id = self.session.nodes.nodeid_of(up.node.id());
        let name_validity = match entry.attr.device == up.device {
            true => self.name_validity(up_id, up.device),
            // An unmount is not reported.
            false => self.session.options.validity(),
        };
        let (validity, attr_validity) = match self.cx.call.is_uncacheable() {
            true => (Duration::ZERO, Duration::ZERO),
            false => (name_validity, self.attr_validity(&entry.attr)),
        };
        Ok(EntryOut {
            nodeid: id.nodeid,
            generation: id.generation.into(),
            entry_valid: validity.as_secs(),
            attr_valid: attr_validity.as_secs(),
            entry_valid_nsec: validity.subsec_nanos(),
            attr_valid_nsec: attr_validity.subsec_nanos(),
            attr,
        })
    }

    /// Returns the reply to a look-up that finds no file, a negative entry for the client's cache.
    pub(super) fn negative_entry(&self, validity: Duration) -> EntryOut {
        EntryOut {
            entry_valid: validity.as_secs(),
            entry_valid_nsec: validity.subsec_nanos(),
            ..EntryOut::default()
        }
    }

    pub(super) fn reply_attr(&mut self, attr: &Attr) -> Result<()> {
        let validity = self.attr_validity(attr);
        let answer = AttrOut {
            attr_valid: validity.as_secs(),
            attr_valid_nsec: validity.subsec_nanos(),
            attr: self.attr_out(attr),
        };
        self.reply(&[&answer.encode()])
    }

    fn attr_out(&self, attr: &Attr) -> layout::Attr {
        layout::Attr {
            ino: self.session.nodes.inode_number(attr.id),
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.sec as u64,
            mtime: attr.mtime.sec as u64,
            ctime: attr.ctime.sec as u64,
            atimensec: attr.atime.nsec,
            mtimensec: attr.mtime.nsec,
            ctimensec: attr.ctime.nsec,
            mode: attr.st_mode(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: encode_device(attr.rdev),
            blksize: attr.blksize,
            flags: 0,
        }
    }
}
