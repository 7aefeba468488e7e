//! Open files.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuse::Request;
use fuse::client::request;
use fuse::layout::{
    CopyIn, FallocateIn, FlushIn, FsyncIn, LseekIn, LseekOut, OpenIn, OpenOut, ReadIn, ReleaseIn,
    WriteIn, WriteOut,
};
use fuse::numbers::{FSYNC_FDATASYNC, Flags, InitFlags, whence};
use vfs::{
    AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, DirSink, Errno, Extent, File, Kind,
    Lease, LeaseKind, Node, OpenFlags, Payload, ReaddirMode, Result, SetAttr, Sink, Whence,
};

use super::channel::{FuseReply, PendingRequest, ReplySize};
use super::node::FuseNode;
use crate::file::{in_pieces, may_open, seek_without_holes};

/// A file handle that the server has open. Dropping it closes it, without waiting for the reply.
pub(super) struct Opened {
    pub(super) node: Arc<FuseNode>,
    pub(super) fh: u64,
}

impl Opened {
    pub(super) fn new(node: Arc<FuseNode>, fh: u64) -> Opened {
        Opened { node, fh }
    }

    pub(super) fn open(node: &FuseNode, cx: &Cx<'_>, flags: OpenFlags) -> Result<Opened> {
        let args = OpenIn {
            flags: request::open(flags - OpenFlags::EXCL).bits(),
            open_flags: 0,
        };
        let request = match node.kind() {
            Kind::Directory => Request::Opendir { args },
            _ => Request::Open { args },
        };
        let channel = node.channel();
        let this = node.this.upgrade().ok_or(Errno::EIO)?;
        match channel.call(cx, node.nodeid, &request, ReplySize::Fixed(OpenOut::SIZE)) {
            Ok(answer) => Ok(Opened::new(this, answer.decode(OpenOut::decode)?.fh)),
            // The server needs no open (`FUSE_NO_OPEN_SUPPORT`), but then does not truncate either.
            Err(Errno::EOPNOTSUPP) => Ok(Opened::new(this, 0)),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let args = ReleaseIn {
            fh: self.fh,
            ..ReleaseIn::default()
        };
        let request = match self.node.kind() {
            Kind::Directory => Request::Releasedir { args },
            _ => Request::Release { args },
        };
        self.node.channel().send(self.node.nodeid, &request);
    }
}

/// An open file or directory.
pub(super) struct FuseFile {
    opened: Opened,
    flags: OpenFlags,
    /// Whether the server does not support LSEEK.
    no_holes: AtomicBool,
}

impl FuseFile {
    pub(super) fn new(opened: Opened, flags: OpenFlags) -> FuseFile {
        FuseFile {
            opened,
            flags,
            no_holes: AtomicBool::new(false),
        }
    }

    /// [`Node::open`].
    pub(super) fn open(node: &FuseNode, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        may_open(node.kind(), flags)?;
        let opened = Opened::open(node, cx, flags)?;
        let file = FuseFile::new(opened, flags);
        let cuts = flags.contains(OpenFlags::TRUNC);
        if cuts && !node.channel().client().has(InitFlags::ATOMIC_O_TRUNC) {
            let cut = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            file.setattr(cx, &cut)?;
        }
        Ok(Arc::new(file))
    }

    fn node(&self) -> &FuseNode {
        &self.opened.node
    }

    fn check_file(&self, flags: OpenFlags) -> Result<()> {
        match self.node().kind() {
            Kind::Directory => Err(Errno::EISDIR),
            _ if self.flags.intersects(flags) => Ok(()),
            _ => Err(Errno::EBADF),
        }
    }

    fn call(
        &self,
        cx: &Cx<'_>,
        request: &Request<'_>,
        reply_size: ReplySize,
    ) -> Result<FuseReply<'_>> {
        self.node()
            .channel()
            .call(cx, self.node().nodeid, request, reply_size)
    }

    fn read_request(&self, offset: u64, size: usize) -> Request<'static> {
        let args = ReadIn {
            fh: self.opened.fh,
            offset,
            size: size as u32,
            ..ReadIn::default()
        };
        Request::Read { args }
    }

    /// Submits a part of a transfer. `first` says that no other part is in flight.
    fn submit(
        &self,
        cx: &Cx<'_>,
        queue: usize,
        first: bool,
        request: &Request<'_>,
        data: &[u8],
        reply_size: ReplySize,
    ) -> Result<PendingRequest<'_>> {
        let channel = self.node().channel();
        let mut draft = channel.begin(queue, !first)?;
        draft.payload(0, data);
        draft.submit(
            cx.caller,
            self.node().nodeid,
            request,
            data.len(),
            reply_size,
        )
    }

    /// Writes `data`, and returns the number of bytes written from its start, and the error that
    /// stopped it. Several requests are in flight at a time, so bytes after a failure may be
    /// written, too; appends send one at a time.
    fn write_long(&self, cx: &Cx<'_>, offset: u64, data: &[u8]) -> (usize, Result<()>) {
        let channel = self.node().channel();
        let queue = channel.own_queue();
        let at_a_time = match self.flags.contains(OpenFlags::APPEND) {
            true => 1,
            false => channel.max_requests(),
        };
        let flags = match self.flags.contains(OpenFlags::APPEND) {
            true => Flags::APPEND,
            false => Flags::empty(),
        };
        let mut pieces = data.chunks(channel.max_write()).peekable();
        let mut pending = VecDeque::new();
        let (mut requested, mut written) = (0, 0);
        loop {
            while pending.len() < at_a_time
                && let Some(&piece) = pieces.peek()
            {
                let args = WriteIn {
                    fh: self.opened.fh,
                    offset: offset + requested as u64,
                    size: piece.len() as u32,
                    flags: flags.bits(),
                    ..WriteIn::default()
                };
                let request = Request::Write { args };
                let reply_size = ReplySize::Fixed(WriteOut::SIZE);
                match self.submit(cx, queue, pending.is_empty(), &request, piece, reply_size) {
                    Ok(sent) => pending.push_back((piece.len(), sent)),
                    Err(Errno::EAGAIN) => break,
                    Err(errno) => return (written, Err(errno)),
                }
                requested += piece.len();
                pieces.next();
            }
            let Some((len, sent)) = pending.pop_front() else {
                return (written, Ok(()));
            };
            match sent.wait_in(cx).and_then(|answer| count(&answer)) {
                Ok(count) => {
                    let count = count.min(len);
                    written += count;
                    if count < len {
                        return (written, Ok(()));
                    }
                }
                Err(errno) => return (written, Err(errno)),
            }
        }
    }
}

/// Returns `EFBIG` for ranges beyond `OFFSET_MAX`, which Linux never sends.
fn in_bounds(offset: u64, len: usize) -> Result<()> {
    let end = offset.checked_add(len as u64);
    match end.is_some_and(|end| i64::try_from(end).is_ok()) {
        true => Ok(()),
        false => Err(Errno::EFBIG),
    }
}

fn count(answer: &FuseReply<'_>) -> Result<usize> {
    Ok(answer.decode(WriteOut::decode)?.size as usize)
}

impl File for FuseFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        self.node().attr_with(cx, Some(self.opened.fh), want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if set.size.is_some() && !self.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EINVAL);
        }
        self.node().set_attr_with(cx, Some(self.opened.fh), set)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        self.check_file(OpenFlags::READ | OpenFlags::EXEC)?;
        cx.check_may_block()?;
        cx.call.check()?;
        let channel = self.node().channel();
        let (queue, most) = (channel.own_queue(), channel.max_write());
        let at_a_time = channel.max_requests();
        let len = len.min(sink.room());
        let mut buffer = Vec::new();
        let mut pending = VecDeque::with_capacity(at_a_time);
        let (mut requested, mut got) = (0, 0);
        loop {
            while requested < len && pending.len() < at_a_time {
                let size = most.min(len - requested);
                let at = offset.checked_add(requested as u64).ok_or(Errno::EINVAL)?;
                let request = self.read_request(at, size);
                let reply_size = ReplySize::Data(size);
                match self.submit(cx, queue, pending.is_empty(), &request, &[], reply_size) {
                    Ok(sent) => pending.push_back((size, sent)),
                    Err(Errno::EAGAIN) => break,
                    Err(errno) => return Err(errno),
                }
                requested += size;
            }
            let Some((size, sent)) = pending.pop_front() else {
                return Ok(got);
            };
            match sent.wait_in(cx) {
                Ok(answer) => {
                    let come = answer.len().min(size);
                    let lent = sink.lend(come, &mut |memory| {
                        answer.load(0, memory);
                        Ok(come)
                    });
                    if lent.is_none() {
                        buffer.resize(come.max(buffer.len()), 0);
                        answer.load(0, &mut buffer[..come]);
                        sink.bytes(&buffer[..come]);
                    }
                    got += come;
                    if come < size {
                        return Ok(got);
                    }
                }
                // Returns the data before the error; the next read meets the error again.
                Err(_) if got > 0 => return Ok(got),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        self.check_file(OpenFlags::WRITE)?;
        cx.check_may_block()?;
        cx.call.check()?;
        // Linux states the offset of an append, so servers need not look up the end of the file.
        // The lock orders the appends of this mount; data that other clients append meanwhile may
        // be overwritten.
        let _appending;
        let offset = match self.flags.contains(OpenFlags::APPEND) {
            true => {
                _appending = self.node().shared.appending.lock();
                self.attr(cx, AttrMask::SIZE)?.size
            }
            false => offset,
        };
        in_bounds(offset, data.len())?;
        let most = self.node().channel().max_write();
        in_pieces(data, most, |behind, piece| {
            self.write_long(cx, offset + behind as u64, piece)
        })
    }

    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        match self.node().kind() {
            Kind::Directory => self.opened.list(cx, cookie, plus, sink),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        let args = FsyncIn {
            fh: self.opened.fh,
            fsync_flags: if datasync { FSYNC_FDATASYNC } else { 0 },
        };
        let request = match self.node().kind() {
            Kind::Directory => Request::Fsyncdir { args },
            _ => Request::Fsync { args },
        };
        match self.call(cx, &request, ReplySize::Fixed(0)) {
            // As Linux treats it.
            Err(Errno::EOPNOTSUPP) => Ok(()),
            done => done.map(drop),
        }
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        if self.node().kind() == Kind::Directory {
            return Ok(());
        }
        let args = FlushIn {
            fh: self.opened.fh,
            lock_owner: 0,
        };
        match self.call(cx, &Request::Flush { args }, ReplySize::Fixed(0)) {
            Err(Errno::EOPNOTSUPP) => Ok(()),
            done => done.map(drop),
        }
    }

    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let args = FallocateIn {
            fh: self.opened.fh,
            offset,
            length: len,
            mode: request::allocate(how),
        };
        self.call(cx, &Request::Fallocate { args }, ReplySize::Fixed(0))
            .map(drop)
    }

    /// Reports a file without holes if the server cannot seek.
    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64> {
        self.check_file(OpenFlags::all())?;
        if !self.no_holes.load(Ordering::Relaxed) {
            let args = LseekIn {
                fh: self.opened.fh,
                offset,
                whence: match what {
                    Whence::Data => whence::DATA,
                    Whence::Hole => whence::HOLE,
                },
            };
            match self.call(
                cx,
                &Request::Lseek { args },
                ReplySize::Fixed(LseekOut::SIZE),
            ) {
                Err(Errno::EOPNOTSUPP) => self.no_holes.store(true, Ordering::Relaxed),
                answer => return Ok(answer?.decode(LseekOut::decode)?.offset),
            }
        }
        let size = self.attr(cx, AttrMask::SIZE)?.size;
        seek_without_holes(size, offset, what)
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        let size = self.attr(cx, AttrMask::SIZE)?.size;
        let end = offset.saturating_add(len).min(size);
        let mut at = offset;
        while at < end {
            let data = match self.seek(cx, at, Whence::Data) {
                Ok(data) => data.clamp(at, end),
                // A hole up to the end.
                Err(Errno::ENXIO) => end,
                Err(errno) => return Err(errno),
            };
            let (to, hole) = match data > at {
                true => (data, true),
                false => match self.seek(cx, at, Whence::Hole) {
                    Ok(hole) if hole > at => (hole.min(end), false),
                    // The file has been truncated meanwhile.
                    Ok(_) | Err(Errno::ENXIO) => return Ok(()),
                    Err(errno) => return Err(errno),
                },
            };
            let extent = Extent {
                offset: at,
                len: to - at,
                hole,
            };
            if !each(extent) {
                return Ok(());
            }
            at = to;
        }
        Ok(())
    }

    fn copy(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        if how == CopyMode::Clone {
            return Err(Errno::EOPNOTSUPP);
        }
        let to = to.as_any().downcast_ref::<FuseFile>();
        let to = to
            .filter(|to| Arc::ptr_eq(&to.node().shared, &self.node().shared))
            .ok_or(Errno::EXDEV)?;
        self.check_file(OpenFlags::READ | OpenFlags::EXEC)?;
        to.check_file(OpenFlags::WRITE)?;
        if to.flags.contains(OpenFlags::APPEND) {
            return Err(Errno::EBADF);
        }
        let args = CopyIn {
            fh_in: self.opened.fh,
            off_in: offset,
            nodeid_out: to.node().nodeid,
            fh_out: to.opened.fh,
            off_out: to_offset,
            len,
            flags: 0,
        };
        let reply_size = ReplySize::Fixed(WriteOut::SIZE);
        let answer = self.call(cx, &Request::CopyFileRange { args }, reply_size)?;
        Ok(count(&answer)? as u64)
    }

    /// FUSE does not report what other clients of the server do.
    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::EOPNOTSUPP)
    }
}
