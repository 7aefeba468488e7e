//! v4.0, v4.1 and v4.2: compounds, state, and its recovery after a server restart.
//!
//! - `life` is the client ID and session, `core` sends compounds and recovers state.
//! - `open` opens files, `opens` tracks open state, `locks` byte-range locks, `delegations` read
//!   delegations; `keeper` closes files, returns delegations, renews the lease, and receives
//!   callbacks while the connection is idle.
//! - `data` reads and writes, `xattrs` implements extended attributes.

mod core;
mod data;
mod delegations;
mod keeper;
mod life;
mod locks;
mod open;
mod opens;
mod xattrs;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::nfs::client::v4::{
    Access as AskAccess, Allocate, Commit, Copy, Create, FsStat, GetAttr, Link, Lookup, ReadDir,
    ReadLink, Remove, Rename, Seek as AskSeek, SetAttr as AskSetAttr, StateId,
};
use ::nfs::client::{Limits, Listed, Stable, Tree, Written};
use vfs::lock::{HostLock, LockKind, LockRange, Outsider};
use vfs::{
    Access, Attr, Capabilities, CopyHow, Cx, Errno, Level, Make, OpenFlags, Result, Seek, SetAttr,
    Sink, StatFs, XattrFlags,
};

pub use self::core::Turn;
pub(super) use self::core::{Core, NOWHERE};
pub(super) use self::data::Flight;
pub(super) use self::keeper::Keeper;
use self::life::Life;
pub(super) use self::opens::Opening;
use super::version::{Found, Handle, List, Open, Paged, Target, Version, whole};

/// A server that speaks v4.
pub(super) struct V4 {
    core: Arc<Core>,
    tree: Tree,
    limits: Limits,
    xattr: bool,
    clone: bool,
    /// Whether to use READ_PLUS.
    plus: AtomicBool,
    _keeper: Keeper,
}

/// The attributes of the server and of its root.
pub(super) struct Traits {
    pub(super) tree: Tree,
    pub(super) limits: Limits,
    pub(super) lease: Duration,
    pub(super) xattr: bool,
    pub(super) clone: bool,
}

impl V4 {
    pub(super) fn new(core: Arc<Core>, traits: Traits, plus: bool) -> Result<V4> {
        let limits = core.limits(traits.limits);
        let keeper = Keeper::start(core.clone(), traits.lease)?;
        Ok(V4 {
            tree: traits.tree,
            limits,
            xattr: traits.xattr && core.minor >= 2,
            clone: traits.clone && core.minor >= 2,
            plus: AtomicBool::new(plus && core.minor >= 2),
            core,
            _keeper: keeper,
        })
    }

    fn needs_4_2(&self) -> Result<()> {
        match self.core.minor {
            2.. => Ok(()),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

impl Version for V4 {
    type Open = Arc<Opening>;
    type Flight = Flight;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn connections(&self) -> u64 {
        self.core.times()
    }

    fn capabilities(&self) -> Capabilities {
        let if_any = |there| match there {
            true => Level::Native,
            false => Level::None,
        };
        Capabilities {
            xattr: if_any(self.xattr),
            host_locks: Level::Native,
            handles: Level::Native,
            change: Level::Native,
            holes: if_any(self.core.minor >= 2),
            // The server may still refuse the operation.
            copy: if_any(self.core.minor >= 2),
            clone: if_any(self.clone),
            devices: Level::Native,
            owners: Level::Native,
            ..Capabilities::default()
        }
    }

    fn attr(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Attr> {
        let tree = self.tree;
        self.core.ask(cx, GetAttr { handle, tree }, |attr| attr)
    }

    fn set_attr(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        open: Option<&Arc<Opening>>,
        set: &SetAttr,
    ) -> Result<Attr> {
        self.core.give_file_back(cx, handle);
        let make = |_: &Life| {
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
        let ask = AskAccess {
            handle,
            directory,
            want,
        };
        self.core.ask(cx, ask, |allowed| allowed)
    }

    fn statfs(&self, cx: &Cx<'_>, handle: &Handle) -> Result<StatFs> {
        self.core.ask(cx, FsStat { handle }, |figures| figures)
    }

    fn readlink(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Vec<u8>> {
        self.core.ask(cx, ReadLink { handle }, |target| target)
    }

    fn lookup(&self, cx: &Cx<'_>, dir: &Handle, name: Option<&[u8]>) -> Result<Found> {
        let ask = Lookup {
            dir,
            name,
            tree: self.tree,
        };
        let made = self.core.ask(cx, ask, |made| made)?;
        whole(made, || Err(Errno::EIO), |handle| self.attr(cx, handle))
    }

    fn make(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        what: Make<'_>,
        mode: u32,
    ) -> Result<Found> {
        if what == Make::File {
            let flags = OpenFlags::WRITE | OpenFlags::EXCL;
            return Ok(open::create(self, cx, (dir, name), flags, mode)?.0);
        }
        let ask = Create {
            dir,
            name,
            what,
            mode,
            tree: self.tree,
        };
        let made = self.core.ask(cx, ask, |made| made)?;
        whole(made, || Err(Errno::EIO), |handle| self.attr(cx, handle))
    }

    fn link(&self, cx: &Cx<'_>, handle: &Handle, dir: &Handle, name: &[u8]) -> Result<Attr> {
        self.core.give_file_back(cx, handle);
        let ask = Link {
            handle,
            dir,
            name,
            tree: self.tree,
        };
        self.core.ask(cx, ask, |attr| attr)
    }

    fn remove(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8], directory: bool) -> Result<()> {
        self.core.give_name_back(cx, dir, name);
        let ask = Remove {
            dir,
            name,
            directory,
        };
        self.core.ask(cx, ask, |()| ())
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        (from, name): (&Handle, &[u8]),
        (to, to_name): (&Handle, &[u8]),
    ) -> Result<()> {
        self.core.give_name_back(cx, from, name);
        self.core.give_name_back(cx, to, to_name);
        let ask = Rename {
            from,
            name,
            to,
            to_name,
        };
        self.core.ask(cx, ask, |()| ())
    }

    fn list(
        &self,
        cx: &Cx<'_>,
        list: &List<'_>,
        each: &mut dyn FnMut(Listed<'_>) -> Result<bool>,
    ) -> Result<Paged> {
        let ask = ReadDir {
            handle: list.handle,
            cookie: list.cookie,
            verifier: list.verifier,
            count: self.limits.read.min(64 << 10),
            plus: list.plus,
            tree: self.tree,
        };
        self.core
            .ask(cx, ask, |page| super::dir::give(page, list, each))?
    }

    fn open(&self, cx: &Cx<'_>, target: Target<'_>, flags: OpenFlags) -> Result<Arc<Opening>> {
        if flags.contains(OpenFlags::EXEC) {
            // OPEN treats execute permission as read permission.
            let exec = Access::EXEC;
            if self.access(cx, target.handle, target.directory, exec)? != exec {
                return Err(Errno::EACCES);
            }
        }
        if self.core.minor == 0 {
            return open::by_place(self, cx, target, flags);
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
    ) -> Result<(Found, Arc<Opening>)> {
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
    ) -> Result<Option<Flight>> {
        data::begin_read(self, cx, open, (offset, count), wait)
    }

    fn end_read(
        &self,
        cx: &Cx<'_>,
        flight: Flight,
        open: Open<'_, V4>,
        offset: u64,
        count: u32,
        sink: &mut dyn Sink,
    ) -> Result<(usize, bool)> {
        data::end_read(self, cx, flight, open, (offset, count), sink)
    }

    fn begin_write(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        offset: u64,
        stable: Stable,
        data: &[u8],
        wait: bool,
    ) -> Result<Option<Flight>> {
        let write = data::write(open, offset, stable, data)?;
        data::begin_write(self, cx, &write, wait)
    }

    fn end_write(
        &self,
        cx: &Cx<'_>,
        flight: Flight,
        open: Open<'_, V4>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written> {
        data::end_write(self, cx, flight, open, (offset, data), stable)
    }

    fn write(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        open: Option<&Arc<Opening>>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written> {
        data::write_by(self, cx, (handle, open), offset, stable, data)
    }

    fn commit(&self, cx: &Cx<'_>, handle: &Handle) -> Result<[u8; 8]> {
        self.core.ask(cx, Commit { handle }, |verifier| verifier)
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
        let make = |_: &Life| {
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
        what: Seek,
    ) -> Result<Option<u64>> {
        self.needs_4_2()?;
        let make = |_: &Life| {
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
        how: CopyHow,
    ) -> Result<u64> {
        self.needs_4_2()?;
        let make = |_: &Life| {
            Ok(Copy {
                from: (from.handle, from.state.state()?),
                to: (to.handle, to.state.state()?),
                offset,
                to_offset,
                len,
                how,
            })
        };
        loop {
            let copied = self.core.call(cx, make, |copied| copied)?;
            // The client has no copy of these bytes to write again, so they are committed before
            // the next change.
            match copied.unstable {
                Some(verifier) if copied.count > 0 && self.commit(cx, to.handle)? != verifier => {}
                _ => return Ok(copied.count),
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
    ) -> Result<Option<Outsider>> {
        locks::find(&self.core, cx, open.state, range, kind)
    }
}
