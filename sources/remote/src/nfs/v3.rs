//! v3: one procedure per call, no state, no locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::nfs::client::v3::{
    Access as AskAccess, Commit, Create, FsStat, GetAttr, Link, Lookup, Make as AskMake, PathConf,
    Read, ReadDir, ReadLink, Remove, Rename, SetAttr as AskSetAttr, Write,
};
use ::nfs::client::{ClientCall, Failure, Limits, ListedEntry, NodeInfo, Stable, Tree, Written};
use vfs::{
    Access, Attr, Capabilities, Cx, Errno, Kind, NewNode, OpenFlags, Result, SetAttr, SetTime,
    Sink, StatFs, Support,
};

use super::read_destination::{ReadDestination, end_in};
use super::rpc_client::{Backoff, PendingCall, RpcClient};
use super::version::{
    Found, Handle, List, Open, PageEnd, ProtocolVersion, Target, complete_node, pass_entries,
};
use crate::client_owner::random;

/// A server that speaks v3.
pub(super) struct V3 {
    conn: RpcClient,
    tree: Tree,
    limits: Limits,
    list: u32,
    /// The verifier of the next exclusive create, from a random number on.
    next_verifier: AtomicU64,
}

impl V3 {
    pub(super) fn new(conn: RpcClient, tree: Tree, limits: Limits) -> V3 {
        conn.apply_soft_setting();
        V3 {
            conn,
            tree,
            limits,
            list: limits.read.min(64 << 10),
            next_verifier: AtomicU64::new(random()),
        }
    }

    /// Makes a call, repeating it while the server answers `NFS3ERR_JUKEBOX`.
    fn call<A: ClientCall, T>(
        &self,
        cx: &Cx<'_>,
        arguments: &A,
        read: impl FnMut(A::Answer<'_>) -> T,
    ) -> Result<T> {
        call(&self.conn, cx, arguments, read)
    }

    /// Waits for the reply to a call in flight, repeating the call while the server answers
    /// `NFS3ERR_JUKEBOX`. `read` gets `destination` if no payload has landed there.
    fn end<A: ClientCall, T>(
        &self,
        cx: &Cx<'_>,
        mut call: PendingCall,
        arguments: &A,
        mut destination: ReadDestination<'_>,
        mut read: impl FnMut(A::Answer<'_>, Option<&mut ReadDestination<'_>>) -> T,
    ) -> Result<T> {
        let mut pauses = Backoff::new();
        loop {
            match self
                .conn
                .end_in(cx, call, arguments, &mut destination, &mut read)
            {
                Ok(answer) => return Ok(answer),
                Err(Failure::Error(errno)) => return Err(errno),
                Err(Failure::Delay) => pauses.pause(cx)?,
                Err(Failure::State(_) | Failure::Malformed(_)) => return Err(Errno::EIO),
            }
            call = self.conn.begin(cx, arguments);
        }
    }

    fn complete_node(
        &self,
        cx: &Cx<'_>,
        made: NodeInfo,
        dir: &Handle,
        name: &[u8],
    ) -> Result<Found> {
        let handle = || {
            let found = self.lookup(cx, dir, Some(name))?;
            Ok(found.handle[..].into())
        };
        complete_node(made, handle, |handle| self.attr(cx, handle))
    }

    /// Creates a file that must be new.
    fn create_new(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8], mode: u32) -> Result<Found> {
        let attempt = self.next_verifier.fetch_add(1, Ordering::Relaxed);
        let create = |attempt| Create {
            dir,
            name,
            mode,
            verifier: attempt,
            tree: self.tree,
        };
        match self.call(cx, &create(Some(attempt.to_be_bytes())), |made| made) {
            Ok(made) => {
                let found = self.complete_node(cx, made, dir, name)?;
                // The server stores the verifier in the file's times.
                let set = SetAttr {
                    mode: Some(mode),
                    atime: Some(SetTime::Now),
                    mtime: Some(SetTime::Now),
                    ..SetAttr::default()
                };
                let attr = self.set_attr(cx, &found.handle, None, &set)?;
                Ok(Found { attr, ..found })
            }
            Err(Errno::EOPNOTSUPP) => {
                let made = self.call(cx, &create(None), |made| made)?;
                self.complete_node(cx, made, dir, name)
            }
            Err(errno) => Err(errno),
        }
    }

    fn check(&self, cx: &Cx<'_>, handle: &Handle, flags: OpenFlags) -> Result<()> {
        let mut want = Access::empty();
        want.set(Access::READ, flags.contains(OpenFlags::READ));
        want.set(
            Access::WRITE,
            flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC),
        );
        want.set(Access::EXEC, flags.contains(OpenFlags::EXEC));
        match self.access(cx, handle, false, want)? {
            allowed if allowed == want => Ok(()),
            _ => Err(Errno::EACCES),
        }
    }
}

/// Makes a call, repeating it while the server answers `NFS3ERR_JUKEBOX`.
pub(super) fn call<A: ClientCall, T>(
    conn: &RpcClient,
    cx: &Cx<'_>,
    arguments: &A,
    mut read: impl FnMut(A::Answer<'_>) -> T,
) -> Result<T> {
    cx.check_may_block()?;
    let mut pauses = Backoff::new();
    loop {
        cx.call.check_begin()?;
        match conn.call(cx, arguments, &mut read) {
            Ok(answer) => {
                if has_effect(arguments) {
                    cx.call.note_effect();
                }
                return Ok(answer);
            }
            Err(Failure::Error(errno)) => return Err(errno),
            Err(Failure::Delay) => pauses.pause(cx)?,
            Err(Failure::State(_) | Failure::Malformed(_)) => return Err(Errno::EIO),
        }
    }
}

/// Returns whether a call changes the tree, so that the operation that it is part of has to be
/// finished.
fn has_effect(arguments: &impl ClientCall) -> bool {
    use ::nfs::v3::Procedure as P;
    let number = arguments.procedure().number;
    number == P::SetAttr as u32 || (P::Create as u32..=P::Link as u32).contains(&number)
}

impl ProtocolVersion for V3 {
    type Open = ();
    type PendingIo = PendingCall;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn reconnections(&self) -> u64 {
        self.conn.reconnections()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            handles: Support::Native,
            persistent: true,
            // The time in nanoseconds.
            change: Support::Emulated,
            devices: Support::Native,
            owners: Support::Native,
            ..Capabilities::default()
        }
    }

    fn attr(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Attr> {
        let tree = self.tree;
        self.call(cx, &GetAttr { handle, tree }, |attr| attr)
    }

    fn set_attr(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        _: Option<&()>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let arguments = AskSetAttr {
            handle,
            set: *set,
            tree: self.tree,
        };
        match self.call(cx, &arguments, |attr| attr)? {
            Some(attr) => Ok(attr),
            None => self.attr(cx, handle),
        }
    }

    fn access(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        directory: bool,
        want: Access,
    ) -> Result<Access> {
        let arguments = AskAccess {
            handle,
            directory,
            want,
        };
        self.call(cx, &arguments, |allowed| allowed)
    }

    fn statfs(&self, cx: &Cx<'_>, handle: &Handle) -> Result<StatFs> {
        let figures = self.call(cx, &FsStat { handle }, |figures| figures)?;
        let namelen = self.call(cx, &PathConf { handle }, |most| most)?;
        Ok(StatFs {
            fsid: self.tree.fsid,
            namelen,
            ..figures
        })
    }

    fn readlink(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Vec<u8>> {
        self.call(cx, &ReadLink { handle }, |target| target)
    }

    fn lookup(&self, cx: &Cx<'_>, dir: &Handle, name: Option<&[u8]>) -> Result<Found> {
        let arguments = Lookup {
            dir,
            name: name.unwrap_or(b".."),
            tree: self.tree,
        };
        let made = self.call(cx, &arguments, |made| made)?;
        complete_node(made, || Err(Errno::EIO), |handle| self.attr(cx, handle))
    }

    fn make(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        what: NewNode<'_>,
        mode: u32,
    ) -> Result<Found> {
        const MKDIR: u32 = ::nfs::v3::Procedure::MkDir as u32;
        const SYMLINK: u32 = ::nfs::v3::Procedure::Symlink as u32;
        const MKNOD: u32 = ::nfs::v3::Procedure::MkNod as u32;
        let tree = self.tree;
        macro_rules! make {
            ($number:ident) => {{
                let arguments = AskMake::<$number> {
                    dir,
                    name,
                    what,
                    mode,
                    tree,
                };
                self.call(cx, &arguments, |made| made)?
            }};
        }
        let made = match what {
            NewNode::File => return self.create_new(cx, dir, name, mode),
            NewNode::Directory => make!(MKDIR),
            NewNode::Symlink(_) => make!(SYMLINK),
            _ => make!(MKNOD),
        };
        self.complete_node(cx, made, dir, name)
    }

    fn link(&self, cx: &Cx<'_>, handle: &Handle, dir: &Handle, name: &[u8]) -> Result<Attr> {
        let arguments = Link {
            handle,
            dir,
            name,
            tree: self.tree,
        };
        match self.call(cx, &arguments, |attr| attr)? {
            Some(attr) => Ok(attr),
            None => self.attr(cx, handle),
        }
    }

    fn remove(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8], directory: bool) -> Result<()> {
        if directory {
            return self.call(cx, &Remove::<true> { dir, name }, |()| ());
        }
        match self.call(cx, &Remove::<false> { dir, name }, |()| ()) {
            // The server chooses which of the two errors a directory gets (RFC 1813 section
            // 3.3.12).
            Err(Errno::EPERM) => match self.lookup(cx, dir, Some(name))?.attr.kind {
                Kind::Directory => Err(Errno::EISDIR),
                _ => Err(Errno::EPERM),
            },
            done => done,
        }
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        (from, name): (&Handle, &[u8]),
        (to, to_name): (&Handle, &[u8]),
    ) -> Result<()> {
        let arguments = Rename {
            from,
            name,
            to,
            to_name,
        };
        self.call(cx, &arguments, |()| ())
    }

    fn list(
        &self,
        cx: &Cx<'_>,
        list: &List<'_>,
        each: &mut dyn FnMut(ListedEntry<'_>) -> Result<bool>,
    ) -> Result<PageEnd> {
        macro_rules! list {
            ($plus:literal) => {{
                let arguments = ReadDir::<$plus> {
                    handle: list.handle,
                    cookie: list.cookie,
                    verifier: list.verifier,
                    count: self.list,
                    tree: self.tree,
                };
                self.call(cx, &arguments, |page| pass_entries(page, list, each))?
            }};
        }
        match list.plus {
            true => list!(true),
            false => list!(false),
        }
    }

    fn open(&self, cx: &Cx<'_>, target: Target<'_>, flags: OpenFlags) -> Result<Arc<()>> {
        self.check(cx, target.handle, flags).map(Arc::new)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(Found, Arc<()>)> {
        loop {
            if !flags.contains(OpenFlags::EXCL) {
                match self.lookup(cx, dir, Some(name)) {
                    Ok(found) => {
                        crate::file::may_open(found.attr.kind, flags | OpenFlags::WRITE)?;
                        self.check(cx, &found.handle, flags)?;
                        if !flags.contains(OpenFlags::TRUNC) {
                            return Ok((found, Arc::new(())));
                        }
                        let set = SetAttr {
                            size: Some(0),
                            ..SetAttr::default()
                        };
                        let attr = self.set_attr(cx, &found.handle, None, &set)?;
                        return Ok((Found { attr, ..found }, Arc::new(())));
                    }
                    Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
            match self.create_new(cx, dir, name, mode) {
                // Another client was faster.
                Err(Errno::EEXIST) if !flags.contains(OpenFlags::EXCL) => {}
                done => return Ok((done?, Arc::new(()))),
            }
        }
    }

    fn has_room(&self, len: usize) -> bool {
        self.conn.has_room(len)
    }

    fn begin_read(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V3>,
        offset: u64,
        count: u32,
        _: bool,
    ) -> Result<Option<PendingCall>> {
        Ok(Some(self.conn.begin(cx, &read(open, offset, count))))
    }

    fn end_read(
        &self,
        cx: &Cx<'_>,
        call: PendingCall,
        open: Open<'_, V3>,
        offset: u64,
        count: u32,
        sink: &mut dyn Sink,
    ) -> Result<(usize, bool)> {
        let read = read(open, offset, count);
        let end = |destination: ReadDestination<'_>| {
            self.end(cx, call, &read, destination, |read, destination| {
                if let Some(destination) = destination {
                    destination.put(|sink| sink.bytes(read.data));
                }
                (read.data.len(), read.eof)
            })
        };
        match count as usize {
            len if len >= self.conn.direct_receive_min() => end_in(sink, len, end),
            _ => end(ReadDestination::Sink(sink)),
        }
    }

    fn begin_write(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V3>,
        offset: u64,
        stable: Stable,
        data: &[u8],
        _: bool,
    ) -> Result<Option<PendingCall>> {
        let write = write(open, offset, stable, data);
        Ok(Some(self.conn.begin(cx, &write)))
    }

    fn end_write(
        &self,
        cx: &Cx<'_>,
        call: PendingCall,
        open: Open<'_, V3>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written> {
        let write = write(open, offset, stable, data);
        self.end(cx, call, &write, ReadDestination::none(), |written, _| {
            written
        })
    }

    fn write(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        _: Option<&()>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written> {
        let open = Open { handle, state: &() };
        let write = write(open, offset, stable, data);
        self.call(cx, &write, |written| written)
    }

    fn commit(&self, cx: &Cx<'_>, handle: &Handle) -> Result<[u8; 8]> {
        self.call(cx, &Commit { handle }, |verifier| verifier)
    }
}

fn read<'a>(open: Open<'a, V3>, offset: u64, count: u32) -> Read<'a> {
    Read {
        handle: open.handle,
        offset,
        count,
    }
}

fn write<'a>(open: Open<'a, V3>, offset: u64, stable: Stable, data: &'a [u8]) -> Write<'a> {
    Write {
        handle: open.handle,
        offset,
        stable,
        data,
    }
}
