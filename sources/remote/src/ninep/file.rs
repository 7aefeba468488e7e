//! Open files.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use p9::{Data, Datasync, Fid, Rmessage, Tmessage};
use parking_lot::Mutex;
use vfs::copies::count_copied;
use vfs::{
    Access, AllocateMode, Attr, AttrMask, Backing, BreakCallback, CopyMode, Cx, DirSink, Errno,
    Extent, File, Kind, Lease, LeaseKind, NodeId, OpenFlags, Payload, ReaddirMode, Result, SetAttr,
    Sink, Whence,
};

use super::attr::{allowed, set_attr};
use super::connection::{DirectReceive, Outcome, Reply};
use super::dir;
use super::fd_passing::PassedFd;
use super::fid::{Opened, OwnedFid, Session};
use super::legacy::Listing;
use super::node::RemoteNode;
use super::open::{open_fid, open_with_fd};
use crate::file::{MAX_IN_FLIGHT, in_pieces, may_open, seek_without_holes};

/// An open file or directory. Dropping it closes it, without waiting for the reply.
pub(super) struct RemoteFile {
    opened: Opened,
    flags: OpenFlags,
    id: NodeId,
    kind: Kind,
    /// The cached listing of a directory, for dialects without cookies.
    listing: Listing,
    /// The directory's node, to look up entries.
    node: Option<Arc<RemoteNode>>,
    /// The node's fid, which is not given up while the file is open: another client may remove its
    /// name.
    _node_fid: Option<Arc<OwnedFid>>,
    /// The file descriptor passed by the server, until it is taken.
    passed_fd: Mutex<Option<PassedFd>>,
}

impl RemoteFile {
    pub(super) fn new(
        (opened, handed): (Opened, Option<PassedFd>),
        node_fid: Option<Arc<OwnedFid>>,
        flags: OpenFlags,
        (id, kind): (NodeId, Kind),
    ) -> Arc<RemoteFile> {
        Arc::new(RemoteFile {
            opened,
            flags,
            id,
            kind,
            listing: Listing::default(),
            node: None,
            _node_fid: node_fid,
            passed_fd: Mutex::new(handed),
        })
    }

    /// [`vfs::Node::open`].
    pub(super) fn open(node: &RemoteNode, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        may_open(node.kind, flags)?;
        let wire = node.session();
        let held = node.fid(cx)?;
        if flags.contains(OpenFlags::EXEC) && wire.is_linux() {
            // Tlopen has no bit for execution.
            let attr = wire.attr(cx, held.fid)?;
            if !allowed(&attr, cx.caller).contains(Access::EXEC) {
                return Err(Errno::EACCES);
            }
        }
        let directory = node.kind == Kind::Directory;
        let (opened, handed) = match directory || !wire.is_linux() {
            true => (open_fid(wire, cx, held.fid, flags)?, None),
            false => open_with_fd(wire, cx, held.fid, flags)?,
        };
        Ok(Arc::new(RemoteFile {
            opened,
            flags,
            id: node.id,
            kind: node.kind,
            listing: Listing::default(),
            node: node.shared_node().filter(|_| directory),
            _node_fid: Some(held),
            passed_fd: Mutex::new(handed),
        }))
    }

    fn session(&self) -> &Arc<Session> {
        &self.opened.held.session
    }

    fn fid(&self) -> Fid {
        self.opened.held.fid
    }

    fn check_same_file(&self, attr: Attr) -> Result<Attr> {
        if (attr.id, attr.kind) == (self.id, self.kind) {
            Ok(attr)
        } else {
            Err(Errno::ESTALE)
        }
    }

    fn check_file(&self) -> Result<()> {
        match self.kind {
            Kind::Directory => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    fn read_request(&self, offset: u64, count: usize) -> Tmessage<'static> {
        Tmessage::Read {
            fid: self.fid(),
            offset,
            count: count as u32,
        }
    }

    /// Reads with as many messages as needed, several at a time: into `memory`, split among the
    /// messages, or else to `each`, in order.
    fn read_long(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        mut memory: &mut [u8],
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let connection = &self.session().connection;
        let io = self.opened.max_io();
        let mut counts = VecDeque::new();
        let mut pending = VecDeque::new();
        let (mut requested, mut got) = (0, 0);
        loop {
            while requested < len && pending.len() < MAX_IN_FLIGHT {
                let count = io.min(len - requested);
                if !pending.is_empty() && !connection.has_room(count) {
                    break;
                }
                let at = offset.checked_add(requested as u64).ok_or(Errno::EINVAL)?;
                let own = count.min(memory.len());
                let own = memory.split_off_mut(..own).unwrap_or_default();
                let ticket = connection.submit(&self.read_request(at, count))?;
                pending.push_back(DirectReceive::new(ticket, own));
                counts.push_back(count);
                requested += count;
            }
            let (Some(outcome), Some(count)) =
                (connection.wait_direct(cx, &mut pending), counts.pop_front())
            else {
                return Ok(got);
            };
            let come = outcome.map(|(outcome, own)| match outcome {
                Outcome::Resend => unreachable!("nobody lent its payload"),
                Outcome::Direct((), come) => come,
                Outcome::Whole(reply) => {
                    let data = reply.data();
                    match own.get_mut(..data.len()) {
                        Some(own) if !own.is_empty() => {
                            count_copied(data.len());
                            own.copy_from_slice(data);
                        }
                        _ => each(data),
                    }
                    data.len()
                }
            });
            match come {
                Ok(come) => {
                    got += come;
                    if come < count {
                        return Ok(got);
                    }
                }
                // Returns the data before the error; the next read meets the error again.
                Err(_) if got > 0 => return Ok(got),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Writes `data`, and returns the number of bytes written from its start, and the error that
    /// stopped it. Several messages are in flight at a time, so bytes after a failure may be
    /// written, too; appends send one at a time.
    fn write_long(&self, cx: &Cx<'_>, offset: u64, data: &[u8]) -> (usize, Result<()>) {
        let appends = self.flags.contains(OpenFlags::APPEND);
        let at_a_time = if appends { 1 } else { MAX_IN_FLIGHT };
        let connection = &self.session().connection;
        let submit = |behind: usize, piece| {
            let write = self.write_request(offset, behind, piece)?;
            match appends {
                true => connection.submit(&write),
                false => connection.submit_lent(&write),
            }
        };
        let mut pieces = data.chunks(self.opened.max_io()).peekable();
        let mut pending = VecDeque::new();
        let (mut requested, mut written) = (0, 0);
        loop {
            while pending.len() < at_a_time
                && let Some(piece) =
                    pieces.next_if(|piece| pending.is_empty() || connection.has_room(piece.len()))
            {
                match submit(requested, piece) {
                    Ok(ticket) => pending.push_back((piece, ticket)),
                    Err(errno) => return (written, Err(errno)),
                }
                requested += piece.len();
            }
            let Some((piece, ticket)) = pending.pop_front() else {
                return (written, Ok(()));
            };
            let reply = match connection.wait_lent(cx, ticket) {
                // All pieces before this one have been written.
                Ok(None) => match cx.call.check().and_then(|()| submit(written, piece)) {
                    Ok(ticket) => {
                        pending.push_front((piece, ticket));
                        continue;
                    }
                    Err(errno) => Err(errno),
                },
                Ok(Some(reply)) => count(&reply),
                Err(errno) => Err(errno),
            };
            match reply {
                Ok(count) => {
                    written += count;
                    if count < piece.len() {
                        return (written, Ok(()));
                    }
                }
                Err(errno) => return (written, Err(errno)),
            }
        }
    }

    fn write_request<'a>(
        &self,
        offset: u64,
        behind: usize,
        data: &'a [u8],
    ) -> Result<Tmessage<'a>> {
        Ok(Tmessage::Write {
            fid: self.fid(),
            offset: offset.checked_add(behind as u64).ok_or(Errno::EINVAL)?,
            data: Data(data),
        })
    }
}

fn count(reply: &Reply) -> Result<usize> {
    match reply.message()? {
        Rmessage::Write { count } => Ok(count as usize),
        _ => Err(Errno::EIO),
    }
}

impl File for RemoteFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        self.check_same_file(self.session().attr(cx, self.fid())?)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if set.size.is_some() && !self.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EINVAL);
        }
        cx.check_may_block()?;
        self.check_same_file(set_attr(self.session(), cx, self.fid(), self.kind, set)?)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        self.check_file()?;
        if !self.flags.intersects(OpenFlags::READ | OpenFlags::EXEC) {
            return Err(Errno::EBADF);
        }
        cx.check_may_block()?;
        let len = len.min(sink.room());
        if len >= self.session().connection.direct_receive_min() {
            let mut fill = |memory: &mut [u8]| self.read_long(cx, offset, len, memory, &mut |_| {});
            if let Some(done) = sink.lend(len, &mut fill) {
                return done;
            }
        }
        if len > self.opened.max_io() {
            return self.read_long(cx, offset, len, &mut [], &mut |data| sink.bytes(data));
        }
        let reply = self.session().call(cx, &self.read_request(offset, len))?;
        sink.bytes(reply.data());
        Ok(reply.data().len())
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        self.check_file()?;
        if !self.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EBADF);
        }
        cx.check_may_block()?;
        // A server may treat a write below the end of file that the client knows as page-cache
        // write-back instead of an append (barge's own does), so an append states the current end
        // of the file. The lock orders the appends of this mount.
        let both = OpenFlags::READ | OpenFlags::APPEND;
        let appending = self
            .flags
            .contains(both)
            .then(|| self.session().appending.lock());
        let offset = match appending {
            Some(_) => self.attr(cx, AttrMask::SIZE)?.size,
            None => offset,
        };
        let most = self.opened.max_io();
        in_pieces(data, most, |behind, piece| {
            match offset.checked_add(behind as u64) {
                Some(at) => self.write_long(cx, at, piece),
                None => (0, Err(Errno::EINVAL)),
            }
        })
    }

    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        if self.kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        cx.check_may_block()?;
        if self.session().is_linux() {
            dir::list(&self.opened, self.node.as_deref(), cx, cookie, plus, sink)
        } else {
            self.listing
                .list(&self.opened, self.node.as_deref(), cx, cookie, plus, sink)
        }
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        cx.check_may_block()?;
        let fid = self.fid();
        let request = if self.session().is_linux() {
            let datasync = Datasync(datasync.into());
            Tmessage::Fsync { fid, datasync }
        } else {
            // stat(5): a wstat that changes no field makes the file durable.
            let stat = p9::Stat::UNTOUCHED;
            Tmessage::Wstat { fid, stat }
        };
        self.session().call(cx, &request).map(drop)
    }

    /// The client buffers no writes.
    fn flush(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _cx: &Cx<'_>, _how: AllocateMode, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Reports a file without holes, as 9P has no notion of them.
    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        let size = self.attr(cx, AttrMask::SIZE)?.size;
        seek_without_holes(size, offset, what)
    }

    /// Reports a file without holes, as 9P has no notion of them.
    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        let size = self.attr(cx, AttrMask::SIZE)?.size;
        let len = len.min(size.saturating_sub(offset));
        if len > 0 {
            each(Extent {
                offset,
                len,
                hole: false,
            });
        }
        Ok(())
    }

    fn copy(
        &self,
        _cx: &Cx<'_>,
        _offset: u64,
        _to: &dyn File,
        _to_offset: u64,
        _len: u64,
        _how: CopyMode,
    ) -> Result<u64> {
        Err(Errno::EOPNOTSUPP)
    }

    /// 9P does not report what other clients of the server do.
    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the descriptor once: the caller keeps it.
    fn backing(&self, _cx: &Cx<'_>) -> Option<Arc<dyn Backing>> {
        let handed = self.passed_fd.lock().take();
        handed.map(|handed| Arc::new(handed) as _)
    }
}
