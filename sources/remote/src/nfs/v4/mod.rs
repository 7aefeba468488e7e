//! v4.0, v4.1 and v4.2: compounds, state, and what becomes of that when the server begins anew.
//!
//! - `life` is what a server knows a client by, `core` asks and recovers.
//! - `opens` has what is open and by whom, `locks` what is locked, `delegations` what need not be asked for;
//!   `keeper` closes, gives back, renews the lease, and hears the server when nobody else does.

mod core;
mod delegations;
mod keeper;
mod life;
mod locks;
mod opens;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::nfs::client::v4::{
    Access as AskAccess, Allocate, Claim, Commit, Copy, Create, FsStat, GetAttr, GetXattr, Link,
    ListXattrs, Lookup, Piece, Read, ReadDir, ReadLink, Remove, RemoveXattr, Rename,
    Seek as AskSeek, SetAttr as AskSetAttr, SetXattr, StateId, Write,
};
use ::nfs::client::{Failure, Limits, Listed, Stable, Tree, Written};
use vfs::lock::{HostLock, LockKind, Outsider};
use vfs::{
    Access, Attr, Capabilities, CopyHow, Cx, Errno, Level, Make, OpenFlags, Result, Seek, SetAttr,
    Sink, StatFs, XattrFlags,
};

pub use self::core::Turn;
pub(super) use self::core::{Core, NOWHERE};
use self::delegations::{Delegation, Delegations};
pub(super) use self::keeper::Keeper;
pub(super) use self::opens::Opening;
use self::opens::Wanted;
use super::place::{Got, Place, end_in};
use super::version::{Found, Handle, List, Open, Paged, Target, Version, whole};
use crate::file::may_open;
use crate::locks::Range;
use crate::xattr::MOST;

/// A server that speaks v4.
pub(super) struct V4 {
    core: Arc<Core>,
    tree: Tree,
    limits: Limits,
    xattr: bool,
    clone: bool,
    /// Whether holes may be left out of what is read.
    plus: AtomicBool,
    _keeper: Keeper,
}

/// What a server has told of itself.
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

    fn check_xattr<'n>(&self, name: &'n [u8]) -> Result<&'n [u8]> {
        // The only namespace that there is.
        match name.strip_prefix(b"user.") {
            Some(name) if self.xattr => Ok(name),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// A read as it is asked now.
    fn read<'a>(&self, open: Open<'a, V4>, offset: u64, count: u32) -> Result<Read<'a>> {
        Ok(Read {
            handle: open.handle,
            state: open.state.state()?,
            offset,
            count,
            plus: self.plus.load(Ordering::Relaxed),
        })
    }

    /// Whether a read is to be asked again without holes left out: the server cannot do that, or not well.
    fn was_too_clever(&self, plus: bool, failure: &Failure) -> bool {
        let refused = matches!(
            failure,
            Failure::Refused(Errno::EOPNOTSUPP | Errno::EIO) | Failure::Malformed(_)
        );
        if plus && refused && self.plus.swap(false, Ordering::Relaxed) {
            let peer = self.core.peer();
            tracing::info!("{peer} has no READ_PLUS that is of use: {failure:?}");
        }
        plus && refused
    }

    /// Reads what READ_PLUS has found nothing of, though it had something to say of that.
    fn read_plainly(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        offset: u64,
        count: u32,
        sink: &mut dyn Sink,
    ) -> Result<(usize, bool)> {
        let make = |_: &life::Life| {
            let read = self.read(open, offset, count)?;
            Ok(Read {
                plus: false,
                ..read
            })
        };
        let (got, eof) = self.core.call(cx, make, |read| fill(sink, &read))?;
        if got > 0 && self.plus.swap(false, Ordering::Relaxed) {
            let peer = self.core.peer();
            tracing::info!("{peer} has a READ_PLUS that leaves data out");
        }
        Ok((got, eof))
    }

    /// To be opened without a delegation.
    fn wanted<'a>(&self, claim: Claim<'a>, flags: OpenFlags) -> Wanted<'a> {
        Wanted {
            claim,
            flags,
            tree: self.tree,
            delegation: false,
        }
    }

    /// Opens by handle, or finds it open by a delegation.
    fn open_by_handle(
        &self,
        cx: &Cx<'_>,
        target: Target<'_>,
        flags: OpenFlags,
    ) -> Result<Arc<Opening>> {
        let core = &self.core;
        let wanted = self.wanted(Claim::Handle(target.handle), flags);
        if target.alone || !Delegations::covers(flags) || !core.takes_delegations() {
            if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC) {
                core.give_file_back(cx, target.handle);
            }
            return Ok(core.open_file(cx, &wanted)?.1);
        }
        if let Some(opening) = core.delegations.open(target.handle, cx.caller) {
            return Ok(opening);
        }
        let wanted = Wanted {
            delegation: true,
            ..wanted
        };
        let (opened, opening) = core.open_file(cx, &wanted)?;
        if let Some(came) = opened.delegation {
            core.keep(cx, Delegation::new(came, &opening, &target));
        }
        Ok(opening)
    }

    /// Opens by name what cannot be opened by handle (v4.0). If that is not there any more, each read and write
    /// is checked by itself.
    fn open_by_place(
        &self,
        cx: &Cx<'_>,
        target: Target<'_>,
        flags: OpenFlags,
    ) -> Result<Arc<Opening>> {
        if let Some((dir, name)) = target.place {
            let wanted = self.wanted(Claim::Name(dir, name), flags);
            match self.core.open_file(cx, &wanted) {
                Ok((opened, opening))
                    if opened.made.attr.is_some_and(|attr| attr.id == target.id) =>
                {
                    return Ok(opening);
                }
                // Another has the name by now, or nobody.
                Ok(_)
                | Err(Errno::ENOENT | Errno::ESTALE | Errno::ELOOP | Errno::EISDIR)
                | Err(Errno::EINVAL | Errno::ENOTDIR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let mut want = Access::empty();
        want.set(Access::READ, flags.contains(OpenFlags::READ));
        want.set(Access::WRITE, flags.contains(OpenFlags::WRITE));
        if self.access(cx, target.handle, false, want)? != want {
            return Err(Errno::EACCES);
        }
        let handle = target.handle.clone();
        Ok(self
            .core
            .opening(cx, handle, flags, StateId::ANONYMOUS, None))
    }
}

/// A read or write in flight, and what it was asked with.
pub(super) struct Flight {
    turn: Turn,
    state: StateId,
    plus: bool,
}

/// Puts what was read where it belongs.
fn fill(sink: &mut dyn Sink, read: &::nfs::client::v4::ReadPieces<'_>) -> Got {
    for piece in read.pieces() {
        match piece {
            Piece::Data(data) => sink.bytes(data),
            Piece::Hole(len) => sink.zeros(len),
        }
    }
    (read.len(), read.eof)
}

impl Version for V4 {
    type Open = Arc<Opening>;
    type Flight = Flight;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capabilities(&self) -> Capabilities {
        let since = |minor, level| match self.core.minor >= minor {
            true => level,
            false => Level::None,
        };
        Capabilities {
            read_only: false,
            xattr: if self.xattr {
                Level::Native
            } else {
                Level::None
            },
            acl: Level::None,
            host_locks: Level::Native,
            handles: Level::Native,
            change: Level::Native,
            holes: since(2, Level::Native),
            // Whether a server has them is known when it is asked.
            copy: since(2, Level::Native),
            clone: if self.clone {
                Level::Native
            } else {
                Level::None
            },
            tmpfile: Level::None,
            devices: Level::Native,
            owners: Level::Native,
            // The server's to know.
            stable_cookies: false,
            no_births: false,
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
        let make = |_: &life::Life| {
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
            return Ok(self.create(cx, dir, name, flags, mode)?.0);
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
            // OPEN takes who may execute for who may read.
            let exec = Access::EXEC;
            if self.access(cx, target.handle, target.directory, exec)? != exec {
                return Err(Errno::EACCES);
            }
        }
        if self.core.minor == 0 {
            return self.open_by_place(cx, target, flags);
        }
        self.open_by_handle(cx, target, flags)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(Found, Arc<Opening>)> {
        self.core.give_name_back(cx, dir, name);
        let wanted = self.wanted(Claim::Create(dir, name, mode), flags);
        let (opened, opening) = match self.core.open_file(cx, &wanted) {
            // So a server says of whatever is no file.
            Err(errno @ (Errno::EINVAL | Errno::ELOOP)) => {
                let found = self.lookup(cx, dir, Some(name))?;
                may_open(found.attr.kind, flags)?;
                return Err(errno);
            }
            opened => opened?,
        };
        let found = whole(
            opened.made,
            || Err(Errno::EIO),
            |handle| self.attr(cx, handle),
        )?;
        Ok((found, opening))
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
        let read = self.read(open, offset, count)?;
        let turn = self.core.begin(cx, &read, wait)?;
        let (state, plus) = (read.state, read.plus);
        Ok(turn.map(|turn| Flight { turn, state, plus }))
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
        let Flight { turn, state, plus } = flight;
        let asked = Read {
            handle: open.handle,
            state,
            offset,
            count,
            plus,
        };
        let mut doubtful = false;
        let end = |place: Place<'_>| {
            self.core.end_in(cx, turn, &asked, place, |read, place| {
                doubtful = read.empty && read.first.is_none();
                match place {
                    Some(place) => place.put(|sink| fill(sink, &read)),
                    None => (read.len(), read.eof),
                }
            })
        };
        let done = match count as usize {
            len if len >= self.core.lands_from() => end_in(sink, len, end),
            _ => end(Place::Sink(sink)),
        };
        match done {
            Ok(_) if doubtful => return self.read_plainly(cx, open, offset, count, sink),
            Ok(read) => return Ok(read),
            Err(failure) if self.was_too_clever(plus, &failure) => {}
            Err(Failure::Later | Failure::State(_)) => {}
            Err(failure) => return Err(core::errno(failure)),
        }
        let make = |_: &life::Life| self.read(open, offset, count);
        self.core.call(cx, make, |read| fill(sink, &read))
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
        let write = write(open, offset, stable, data)?;
        let turn = self.core.begin(cx, &write, wait)?;
        let (state, plus) = (write.state, false);
        Ok(turn.map(|turn| Flight { turn, state, plus }))
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
        let asked = Write {
            handle: open.handle,
            state: flight.state,
            offset,
            stable,
            data,
        };
        match self.core.end(cx, flight.turn, &asked, |written| written) {
            Ok(written) => return Ok(written),
            Err(Failure::Later | Failure::State(_)) => {}
            Err(failure) => return Err(core::errno(failure)),
        }
        let make = |_: &life::Life| write(open, offset, stable, data);
        self.core.call(cx, make, |written| written)
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
        let make = |_: &life::Life| {
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
        let make = |_: &life::Life| {
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
        let make = |_: &life::Life| {
            Ok(Copy {
                from: (from.handle, from.state.state()?),
                to: (to.handle, to.state.state()?),
                offset,
                to_offset,
                len,
                how,
            })
        };
        self.core.call(cx, make, |copied| copied)
    }

    fn xattr(&self, cx: &Cx<'_>, handle: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        let name = self.check_xattr(name)?;
        self.core.ask(cx, GetXattr { handle, name }, <[u8]>::to_vec)
    }

    fn xattrs(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Vec<u8>> {
        if !self.xattr {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut list = Vec::new();
        let mut at = 0;
        loop {
            let ask = ListXattrs {
                handle,
                cookie: at,
                count: MOST as u32,
            };
            let (cookie, end) = self.core.ask(cx, ask, |(names, cookie, end)| {
                for name in names {
                    list.extend_from_slice(b"user.");
                    list.extend_from_slice(name);
                    list.push(0);
                }
                (cookie, end)
            })?;
            if end {
                return Ok(list);
            }
            // It would go on for ever, or is longer than Linux has it.
            if cookie == at || list.len() > MOST {
                return Err(Errno::E2BIG);
            }
            at = cookie;
        }
    }

    fn set_xattr(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let name = self.check_xattr(name)?;
        let ask = SetXattr {
            handle,
            name,
            value,
            flags,
        };
        self.core.ask(cx, ask, |()| ())
    }

    fn remove_xattr(&self, cx: &Cx<'_>, handle: &Handle, name: &[u8]) -> Result<()> {
        let name = self.check_xattr(name)?;
        self.core.ask(cx, RemoveXattr { handle, name }, |()| ())
    }

    fn has_locks(&self) -> bool {
        true
    }

    fn set_lock(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, V4>,
        range: &Range,
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
        range: &Range,
        kind: LockKind,
    ) -> Result<Option<Outsider>> {
        locks::find(&self.core, cx, open.state, range, kind)
    }
}

fn write<'a>(open: Open<'a, V4>, offset: u64, stable: Stable, data: &'a [u8]) -> Result<Write<'a>> {
    Ok(Write {
        handle: open.handle,
        state: open.state.state()?,
        offset,
        stable,
        data,
    })
}
