//! v4.0, v4.1 and v4.2: compounds, state, and its recovery after a server restart.
//!
//! - `server` is the server, whose operations are in this module.
//! - `client_state` is the client ID and session. `core` sends compounds, `calls` repeats them
//!   after delays and errors of state. `recovery` establishes and recovers state, with `reclaim`
//!   for opens and locks.
//! - `open` opens files; `open_close` sends OPEN and CLOSE, `open_owner` and `open_state` are their
//!   state; `locks` are byte-range locks.
//! - `delegations` takes and returns read delegations, which are in `delegation_table`;
//!   `delegreturn` sends DELEGRETURN, and `callbacks` receives recalls.
//! - `maintenance` carries out the tasks of `task_queue`, renews the lease, and receives callbacks
//!   while the connection is idle.
//! - `data` reads and writes, `xattrs` implements extended attributes.

mod callbacks;
mod calls;
mod client_state;
mod core;
mod data;
mod delegation_table;
mod delegations;
mod delegreturn;
mod locks;
mod maintenance;
mod open;
mod open_close;
mod open_owner;
mod open_state;
mod reclaim;
mod recovery;
mod server;
mod task_queue;
mod xattrs;

use std::sync::Arc;

use ::nfs::client::v4::{
    Access as AskAccess, Allocate, Commit, Copy, Create, FsStat, GetAttr, Link, Lookup, ReadDir,
    ReadLink, Remove, Rename, Seek as AskSeek, SetAttr as AskSetAttr, StateId,
};
use ::nfs::client::{Limits, ListedEntry, Stable, Written};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, Capabilities, CopyMode, Cx, Errno, NewNode, OpenFlags, Result, SetAttr, Sink,
    StatFs, Support, Whence, XattrFlags,
};

use self::client_state::ClientState;
pub use self::core::PendingCompound;
pub(super) use self::core::{Core, UNKNOWN_TREE};
pub(super) use self::data::PendingIo;
pub(super) use self::maintenance::Maintenance;
use self::open_state::OpenState;
pub(super) use self::server::{ServerCapabilities, V4};
use super::rpc_client::Attempts;
use super::version::{
    Found, Handle, List, Open, PageEnd, ProtocolVersion, Target, complete_node, pass_entries,
};

impl ProtocolVersion for V4 {
    type Open = OpenState;
    type PendingIo = PendingIo;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn reconnections(&self) -> u64 {
        self.core.reconnections()
    }

    fn capabilities(&self) -> Capabilities {
        let if_any = |there| match there {
            true => Support::Native,
            false => Support::None,
        };
        Capabilities {
            xattr: if_any(self.xattr),
            host_locks: Support::Native,
            handles: Support::Native,
            persistent: true,
            change: Support::Native,
            holes: if_any(self.core.minor >= 2),
            // The server may still refuse the operation.
            copy: if_any(self.core.minor >= 2),
            clone: if_any(self.clone),
            devices: Support::Native,
            owners: Support::Native,
            ..Capabilities::default()
        }
    }

    fn attr(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Attr> {
        let tree = self.tree;
        self.core
            .call_stateless(cx, GetAttr { handle, tree }, |attr| attr)
    }

    fn set_attr(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        open: Option<&OpenState>,
        set: &SetAttr,
    ) -> Result<Attr> {
        self.core.return_file_delegation(cx, handle);
        let make = |_: &ClientState| {
            Ok(AskSetAttr {
                handle,
                state: match open {
                    Some(open) if set.size.is_some() => open.state()?,
                    _ => StateId::ANONYMOUS,
                },
                set: *set,
                tree: self.tree,
            })
        };
        self.core.call(cx, make, |attr| attr)
    }

    fn access(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        directory: bool,
        want: Access,
    ) -> Result<Access> {
        let operations = AskAccess {
            handle,
            directory,
            want,
        };
        self.core.call_stateless(cx, operations, |allowed| allowed)
    }

    fn statfs(&self, cx: &Cx<'_>, handle: &Handle) -> Result<StatFs> {
        self.core
            .call_stateless(cx, FsStat { handle }, |figures| figures)
    }

    fn readlink(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Vec<u8>> {
        self.core
            .call_stateless(cx, ReadLink { handle }, |target| target)
    }

    fn lookup(&self, cx: &Cx<'_>, dir: &Handle, name: Option<&[u8]>) -> Result<Found> {
        let operations = Lookup {
            dir,
            name,
            tree: self.tree,
        };
        let made = self.core.call_stateless(cx, operations, |made| made)?;
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
        if what == NewNode::File {
            let flags = OpenFlags::WRITE | OpenFlags::EXCL;
            return Ok(open::create(self, cx, (dir, name), flags, mode)?.0);
        }
        let operations = Create {
            dir,
            name,
            what,
            mode,
            tree: self.tree,
        };
        let made = self.core.call_stateless(cx, operations, |made| made)?;
        complete_node(made, || Err(Errno::EIO), |handle| self.attr(cx, handle))
    }

    fn link(&self, cx: &Cx<'_>, handle: &Handle, dir: &Handle, name: &[u8]) -> Result<Attr> {
        self.core.return_file_delegation(cx, handle);
        let operations = Link {
            handle,
            dir,
            name,
            tree: self.tree,
        };
        self.core.call_stateless(cx, operations, |attr| attr)
    }

    fn remove(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8], directory: bool) -> Result<()> {
        self.core.return_name_delegation(cx, dir, name);
        let operations = Remove {
            dir,
            name,
            directory,
        };
        self.core.call_stateless(cx, operations, |()| ())
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        (from, name): (&Handle, &[u8]),
        (to, to_name): (&Handle, &[u8]),
    ) -> Result<()> {
        self.core.return_name_delegation(cx, from, name);
        self.core.return_name_delegation(cx, to, to_name);
        let operations = Rename {
            from,
            name,
            to,
            to_name,
        };
        self.core.call_stateless(cx, operations, |()| ())
    }

    fn list(
        &self,
        cx: &Cx<'_>,
        list: &List<'_>,
        each: &mut dyn FnMut(ListedEntry<'_>) -> Result<bool>,
    ) -> Result<PageEnd> {
        let operations = ReadDir {
            handle: list.handle,
            cookie: list.cookie,
            verifier: list.verifier,
            count: self.limits.read.min(64 << 10),
            plus: list.plus,
            tree: self.tree,
        };
        self.core
            .call_stateless(cx, operations, |page| pass_entries(page, list, each))?
    }

    fn opens_by_name(&self) -> bool {
        self.core.minor == 0
    }

    fn preserves_unlinked(&self, open: &OpenState) -> bool {
        open.preserves_unlinked
    }

    fn open(&self, cx: &Cx<'_>, target: Target<'_>, flags: OpenFlags) -> Result<Arc<OpenState>> {
        if flags.contains(OpenFlags::EXEC) {
            // OPEN treats execute permission as read permission.
            let exec = Access::EXEC;
            if self.access(cx, target.handle, target.directory, exec)? != exec {
                return Err(Errno::EACCES);
            }
        }
        if self.core.minor == 0 {
            return open::by_name(self, cx, target, flags);
        }
        open::by_handle(self, cx, target, flags)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(Found, Arc<OpenState>)> {
        open::create(self, cx, (dir, name), flags, mode)
    }

    fn has_room(&self, len: usize) -> bool {
        self.core.has_room(len)
    }

    fn begin_read(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        offset: u64,
        count: u32,
        wait: bool,
    ) -> Result<Option<PendingIo>> {
        data::begin_read(self, cx, open, (offset, count), wait)
    }

    fn end_read(
        &self,
        cx: &Cx<'_>,
        pending: PendingIo,
        open: Open<'_, V4>,
        offset: u64,
        count: u32,
        sink: &mut dyn Sink,
    ) -> Result<(usize, bool)> {
        data::end_read(self, cx, pending, open, (offset, count), sink)
    }

    fn begin_write(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        offset: u64,
        stable: Stable,
        data: &[u8],
        wait: bool,
    ) -> Result<Option<PendingIo>> {
        let write = data::write(open, offset, stable, data)?;
        data::begin_write(self, cx, &write, wait)
    }

    fn end_write(
        &self,
        cx: &Cx<'_>,
        pending: PendingIo,
        open: Open<'_, V4>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written> {
        data::end_write(self, cx, pending, open, (offset, data), stable)
    }

    fn write(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        open: Option<&OpenState>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written> {
        data::write_with(self, cx, (handle, open), offset, stable, data)
    }

    fn commit(&self, cx: &Cx<'_>, handle: &Handle) -> Result<[u8; 8]> {
        self.core
            .call_stateless(cx, Commit { handle }, |verifier| verifier)
    }

    fn allocate(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        offset: u64,
        len: u64,
        hole: bool,
    ) -> Result<()> {
        self.needs_4_2()?;
        let make = |_: &ClientState| {
            Ok(Allocate {
                handle: open.handle,
                state: open.state.state()?,
                offset,
                len,
                hole,
            })
        };
        self.core.call(cx, make, |()| ())
    }

    fn seek(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        offset: u64,
        what: Whence,
    ) -> Result<Option<u64>> {
        self.needs_4_2()?;
        let make = |_: &ClientState| {
            Ok(AskSeek {
                handle: open.handle,
                state: open.state.state()?,
                offset,
                what,
            })
        };
        self.core.call(cx, make, |found| found)
    }

    fn copy(
        &self,
        cx: &Cx<'_>,
        from: Open<'_, V4>,
        offset: u64,
        to: Open<'_, V4>,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        self.needs_4_2()?;
        let make = |_: &ClientState| {
            Ok(Copy {
                from: (from.handle, from.state.state()?),
                to: (to.handle, to.state.state()?),
                offset,
                to_offset,
                len,
                how,
            })
        };
        let mut attempts = Attempts::new();
        loop {
            let copied = self.core.call(cx, make, |copied| copied)?;
            // The client has no copy of these bytes to write again, so they are committed before
            // the next change.
            match copied.unstable_verifier {
                Some(verifier) if copied.count > 0 && self.commit(cx, to.handle)? != verifier => {}
                _ => return Ok(copied.count),
            }
            if !attempts.may_repeat(self.core.reconnections()) {
                return Err(Errno::EIO);
            }
        }
    }

    fn xattr(&self, cx: &Cx<'_>, handle: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        xattrs::get(self, cx, handle, name)
    }

    fn xattrs(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Vec<u8>> {
        xattrs::list(self, cx, handle)
    }

    fn set_xattr(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        xattrs::set(self, cx, handle, name, (value, flags))
    }

    fn remove_xattr(&self, cx: &Cx<'_>, handle: &Handle, name: &[u8]) -> Result<()> {
        xattrs::remove(self, cx, handle, name)
    }

    fn has_locks(&self) -> bool {
        true
    }

    fn set_lock(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        range: &LockRange,
        state: HostLock,
    ) -> Result<()> {
        let kind = match state {
            HostLock::Unlocked => return locks::unlock(&self.core, cx, open.state, range),
            HostLock::Shared => LockKind::Shared,
            HostLock::Exclusive => LockKind::Exclusive,
        };
        locks::lock(&self.core, cx, open.state, range, kind)
    }

    fn find_lock(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        range: &LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        locks::find(&self.core, cx, open.state, range, kind)
    }
}
