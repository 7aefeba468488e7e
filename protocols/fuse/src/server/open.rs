//! OPEN, OPENDIR, CREATE, TMPFILE, FLUSH, RELEASE: the lifetime of handles.

use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::sync::Arc;

use vfs::{
    AttrMask, BackingRestrictions, Caller, Cx, Entry, Errno, File, Kind, Mode, Name, Node,
    OpenFlags, Result, SetAttr,
};

use super::handles::{HandleLocks, Open, ReservedHandle};
use super::init::Negotiated;
use super::io_modes::{BackingRegistry, IoMode, IoModeRef};
use super::lock::LockOwnerId;
use super::nodes::NodeRef;
use super::table::Incarnation;
use super::{RequestContext, Session};
use crate::convert;
use crate::layout::{CreateIn, EntryOut, FlushIn, OpenIn, OpenOut, ReleaseIn};
use crate::numbers::{Flags, Fopen, InitFlags, OPEN_KILL_SUIDGID, RELEASE_FLOCK_UNLOCK};

impl RequestContext<'_> {
    /// After `ENOSYS` the client does without OPEN, and likewise without FLUSH.
    pub(super) fn open(&mut self, args: &OpenIn) -> Result<()> {
        if self.negotiated.has(InitFlags::NO_OPEN_SUPPORT) {
            return Err(Errno::ENOSYS);
        }
        self.check_room(OpenOut::SIZE)?;
        let node = self.node()?.node;
        if node.kind() == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        let reserved = self.session.handles.reserve(self.cx.call.account())?;
        let flags = self.open_flags(Flags::from_bits_retain(args.flags))?;
        let kill = kills_privileges(flags, args.open_flags);
        // First, because it changes no state.
        let in_place = self.open_in_place(&*node, flags)?;
        let (file, flags) = self.open_for_writeback(flags, |flags| match kill {
            true => self.open_truncated(&*node, flags),
            false => node.open(&self.cx, flags),
        })?;
        let open = self.open_of(self.header.nodeid, node, file, flags, in_place);
        let open = self.with_io_mode(open)?;
        let opened = self.store_handle(reserved, open)?;
        self.reply(&[&opened.encode()])
    }

    /// Opens a file for writing and truncates it. Truncating and removing set-id bits is one
    /// change.
    fn open_truncated(&self, node: &dyn Node, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let file = node.open(&self.cx, flags - OpenFlags::TRUNC)?;
        let cut = SetAttr {
            size: Some(0),
            kill_priv: true,
            ..SetAttr::default()
        };
        file.setattr(&self.cx, &cut)?;
        Ok(file)
    }

    /// After `ENOSYS` the client does without OPENDIR.
    pub(super) fn opendir(&mut self) -> Result<()> {
        if self.negotiated.has(InitFlags::NO_OPENDIR_SUPPORT) {
            return Err(Errno::ENOSYS);
        }
        self.check_room(OpenOut::SIZE)?;
        let reserved = self.session.handles.reserve(self.cx.call.account())?;
        let opened = self.store_handle(reserved, self.open_directory()?)?;
        self.reply(&[&opened.encode()])
    }

    /// Opens the request's directory.
    pub(super) fn open_directory(&self) -> Result<Open> {
        let node = self.directory()?.node;
        let file = node.open(&self.cx, OpenFlags::READ)?;
        Ok(self.open_of(self.header.nodeid, node, file, OpenFlags::READ, None))
    }

    /// Opens the request's file without a permission check: the client has made its own.
    pub(super) fn open_unchecked(&self) -> Result<Open> {
        let node = self.node()?.node;
        let file = node.open(&self.cx.on_behalf_of(&Caller::ROOT), OpenFlags::READ)?;
        Ok(self.open_of(self.header.nodeid, node, file, OpenFlags::READ, None))
    }

    pub(super) fn create(&mut self, args: &CreateIn, name: &[u8]) -> Result<()> {
        let name = Name::new(name)?;
        let flags = self.create_flags(args)?;
        let mode = self.mode(args.mode, args.umask);
        let kill = kills_privileges(flags, args.open_flags);
        self.make_open(flags, |context, dir, flags| {
            if context.labels.is_empty() && !kill {
                return match dir.create(&context.cx, name, flags, mode) {
                    Err(Errno::EEXIST) => context.open_own(dir, name, flags),
                    created => created,
                };
            }
            match dir.create(&context.cx, name, flags | OpenFlags::EXCL, mode) {
                Err(Errno::EEXIST) if flags.contains(OpenFlags::EXCL) => {
                    context.open_own(dir, name, flags)
                }
                Err(Errno::EEXIST) => {
                    // The file existed: its label and set-id bits were settled when it was made.
                    let entry = dir.lookup(&context.cx, name)?;
                    match kill {
                        false => {
                            let file = entry.node.open(&context.cx, flags)?;
                            Ok((entry, file))
                        }
                        true => {
                            let file = context.open_truncated(&*entry.node, flags)?;
                            let attr = file.attr(&context.cx, AttrMask::STAT)?;
                            Ok((Entry { attr, ..entry }, file))
                        }
                    }
                }
                made => {
                    let (entry, file) = made?;
                    Ok((context.label(dir, Some(name), entry)?, file))
                }
            }
        })
    }

    /// After `ENOSYS` the client sends no more TMPFILE.
    pub(super) fn tmpfile(&mut self, args: &CreateIn) -> Result<()> {
        if !self.session.options.tmpfile {
            return Err(Errno::ENOSYS);
        }
        let flags = self.create_flags(args)?;
        let mode = self.mode(args.mode, args.umask);
        self.make_open(flags, |context, dir, flags| {
            let (entry, file) = dir.tmpfile(&context.cx, flags, mode)?;
            Ok((context.label(dir, None, entry)?, file))
        })
    }

    fn create_flags(&self, args: &CreateIn) -> Result<OpenFlags> {
        let requested = Flags::from_bits_retain(args.flags);
        let mut flags = self.open_flags(requested)?;
        flags.set(OpenFlags::EXCL, requested.contains(Flags::EXCL));
        Ok(flags)
    }

    fn make_open(
        &mut self,
        flags: OpenFlags,
        make: impl Fn(&RequestContext<'_>, &dyn Node, OpenFlags) -> Result<(Entry, Arc<dyn File>)>,
    ) -> Result<()> {
        self.check_room(EntryOut::SIZE + OpenOut::SIZE)?;
        let up = self.directory()?;
        let reserved = self.session.handles.reserve(self.cx.call.account())?;
        self.session.nodes.check_room()?;
        self.check_may_label()?;
        if flags.contains(OpenFlags::APPEND) {
            // The file is opened twice: an operation that would block must leave neither open as a
            // trace.
            self.cx.check_may_block()?;
        }
        let ((entry, file), flags) =
            self.open_for_writeback(flags, |flags| make(self, &*up.node, flags))?;
        if flags.contains(OpenFlags::EXCL) && !self.cx.call.is_existing() {
            self.session
                .nodes
                .record_created(self.incarnation, &*entry.node);
        }
        let in_place = self.open_in_place(&*entry.node, flags)?;
        let looked = self.entry_out(&up, &entry)?;
        let open = self.open_of(looked.nodeid, entry.node, file, flags, in_place);
        let opened = self
            .with_io_mode(open)
            .and_then(|open| self.store_handle(reserved, open));
        // After an error the client does not learn of the node, and would never forget it.
        let forget = || {
            self.session
                .nodes
                .forget(self.incarnation, looked.nodeid, 1)
        };
        let opened = opened.inspect_err(|_| forget())?;
        self.reply(&[&looked.encode(), &opened.encode()])
    }

    /// Returns the request's directory, or `ENOTDIR`.
    pub(super) fn directory(&self) -> Result<NodeRef> {
        let known = self.node()?;
        match known.node.kind() {
            Kind::Directory => Ok(known),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Opens the file without append for [`Open::writer`], if the client opens it with these flags.
    /// The other open has checked that the caller may write.
    fn open_in_place(&self, node: &dyn Node, flags: OpenFlags) -> Result<Option<Arc<dyn File>>> {
        let Some(flags) = in_place_flags(self.negotiated, node, flags) else {
            return Ok(None);
        };
        for cx in [self.cx.on_behalf_of(&Caller::ROOT), self.cx] {
            match node.open(&cx, flags) {
                Err(errno) if !errno.is_signal() => {}
                opened => return opened.map(Some),
            }
        }
        Ok(None)
    }

    fn open_of(
        &self,
        nodeid: u64,
        node: Arc<dyn Node>,
        file: Arc<dyn File>,
        flags: OpenFlags,
        in_place: Option<Arc<dyn File>>,
    ) -> Open {
        Open {
            in_place,
            locks: HandleLocks::new(node, self.session.mount_locks()),
            file,
            flags,
            io_mode: None,
            nodeid,
        }
    }

    /// Assigns the file its node's I/O mode, which the first open file of the node determines.
    /// Without `ways` every file goes through the client's page cache.
    fn with_io_mode(&self, mut open: Open) -> Result<Open> {
        let Some(ways) = &self.session.io_modes else {
            return Ok(open);
        };
        let choose = |backings: Option<&dyn BackingRegistry>| match backings
            .and_then(|backings| self.register_backing(backings, &open))
        {
            Some((number, limits)) => (IoMode::Passthrough(number), limits),
            None if self.bypasses_cache(open.flags) => (IoMode::Direct, None),
            None => (IoMode::Cached, None),
        };
        let own = || open.file.backing(&self.cx)?.restrictions();
        open.io_mode = ways.acquire(self.incarnation, open.nodeid, open.flags, choose, own)?;
        Ok(open)
    }

    /// Registers the file for passthrough, if the client and the file support it. A file with
    /// set-id bits is excluded: only this server distinguishes the callers whose writes leave the
    /// bits.
    fn register_backing(
        &self,
        backings: &dyn BackingRegistry,
        open: &Open,
    ) -> Option<(NonZeroU32, Option<BackingRestrictions>)> {
        const SET_ID: u32 = 0o6000;
        if !self.negotiated.has(InitFlags::PASSTHROUGH) {
            return None;
        }
        let backing = open.file.backing(&self.cx)?;
        let attr = open.file.attr(&self.cx, AttrMask::BASIC).ok()?;
        match attr.mode & SET_ID {
            0 => Some((backings.open(backing.as_fd())?, backing.restrictions())),
            _ => None,
        }
    }

    /// Returns whether an open file with these flags is better off without the client's page cache.
    /// A program that appends keeps the file open for long while others read the new data. A client
    /// that cannot map such files (Linux before 6.6) has no other way to drop cached pages of a
    /// file that is written, either.
    fn bypasses_cache(&self, flags: OpenFlags) -> bool {
        self.session.options.writers_bypass_cache
            && self.negotiated.has(InitFlags::DIRECT_IO_ALLOW_MMAP)
            && !self.negotiated.has(InitFlags::WRITEBACK_CACHE)
            && flags.contains(OpenFlags::WRITE)
            && !flags.intersects(OpenFlags::READ | OpenFlags::APPEND)
    }

    fn store_handle(&self, reserved: ReservedHandle<'_>, open: Open) -> Result<OpenOut> {
        let (open_flags, backing) = match open
            .io_mode
            .as_ref()
            .map(IoModeRef::mode)
            .unwrap_or_default()
        {
            IoMode::Passthrough(number) => (Fopen::PASSTHROUGH, Some(number)),
            IoMode::Direct => (Fopen::PAST, None),
            IoMode::Cached => (self.session.options.open_flags(open.is_directory()), None),
        };
        Ok(OpenOut {
            fh: reserved.store(self.incarnation, open, self.header.unique)?,
            open_flags: open_flags.bits(),
            backing_id: backing.map_or(0, |number| number.get() as i32),
        })
    }

    /// Opens a file as a client with a write-back cache needs it: the client reads pages that it
    /// writes in part, and finds the end of the file itself. A file that may not be read is opened
    /// as requested; `NOATIME` is dropped if it is refused. Returns the flags used.
    fn open_for_writeback<T>(
        &self,
        flags: OpenFlags,
        open: impl Fn(OpenFlags) -> Result<T>,
    ) -> Result<(T, OpenFlags)> {
        // The client's root may use `NOATIME`, but a server without privileges may not.
        let all = self.cx.caller.uid == 0;
        let open = |flags: OpenFlags| match open(flags) {
            Err(Errno::EPERM) if all && flags.contains(OpenFlags::NOATIME) => {
                let flags = flags - OpenFlags::NOATIME;
                Ok((open(flags)?, flags))
            }
            opened => Ok((opened?, flags)),
        };
        if !self.negotiated.has(InitFlags::WRITEBACK_CACHE) || !flags.contains(OpenFlags::WRITE) {
            return open(flags);
        }
        let flags = flags - OpenFlags::APPEND;
        match open(flags | OpenFlags::READ) {
            Err(Errno::EACCES) if !flags.contains(OpenFlags::READ) => open(flags),
            done => done,
        }
    }

    /// Converts open(2) flags. The client handles flags that are not listed here.
    fn open_flags(&self, requested: Flags) -> Result<OpenFlags> {
        let mut flags = match (requested & Flags::ACCESS).bits() {
            0 if requested.contains(Flags::EXEC) => OpenFlags::EXEC,
            0 => OpenFlags::READ,
            1 => OpenFlags::WRITE,
            2 => OpenFlags::READ | OpenFlags::WRITE,
            _ => return Err(Errno::EINVAL),
        };
        for (bit, flag) in convert::OPEN_FLAGS {
            flags.set(flag, requested.contains(bit));
        }
        let noatime = self.session.options.noatime && requested.contains(Flags::NOATIME);
        flags.set(OpenFlags::NOATIME, noatime);
        let direct = self.session.options.allow_direct_io && requested.contains(Flags::DIRECT);
        flags.set(OpenFlags::DIRECT, direct);
        Ok(flags)
    }

    /// Returns the permissions of a new file. Without `DONT_MASK` the client has applied the umask.
    pub(super) fn mode(&self, mode: u32, umask: u32) -> Mode {
        match self.negotiated.has(InitFlags::DONT_MASK) {
            true => Mode {
                bits: mode & 0o7777,
                umask: umask & 0o777,
            },
            false => Mode::without_umask(mode & 0o7777),
        }
    }

    /// Handles the close of one descriptor of an open file, which releases its process's locks on
    /// the file.
    pub(super) fn flush(&mut self, args: &FlushIn) -> Result<()> {
        if self.negotiated.has(InitFlags::NO_OPEN_SUPPORT) {
            return Err(Errno::ENOSYS);
        }
        let open = self.opened(args.fh)?;
        let done = match open.flags.contains(OpenFlags::WRITE) {
            true => open.file.flush(&self.cx),
            false => Ok(()),
        };
        if let Err(errno) = done
            && errno.is_signal()
        {
            return Err(errno);
        }
        self.release_locks(&open, LockOwnerId::posix(args.lock_owner));
        done?;
        self.reply(&[])
    }

    pub(super) fn release(&mut self, args: &ReleaseIn) -> Result<()> {
        let open = match self.opened(args.fh) {
            // It was closed before the reply was lost.
            Err(Errno::EBADF | Errno::EIO) if self.is_resent() => return self.reply(&[]),
            open => open?,
        };
        if args.release_flags & RELEASE_FLOCK_UNLOCK != 0 {
            self.release_locks(&open, LockOwnerId::flock(args.lock_owner));
        }
        drop(open);
        drop(self.session.handles.remove(self.incarnation, args.fh)?);
        self.reply(&[])
    }
}

/// Returns whether OPEN or CREATE truncates a file for a caller without the right to keep its
/// set-id bits.
fn kills_privileges(flags: OpenFlags, open_flags: u32) -> bool {
    open_flags & OPEN_KILL_SUIDGID != 0 && flags.contains(OpenFlags::TRUNC | OpenFlags::WRITE)
}

/// Returns the flags of the file without append for [`Open::writer`], if the client opens `node`
/// with `flags` and needs one.
fn in_place_flags(negotiated: Negotiated, node: &dyn Node, flags: OpenFlags) -> Option<OpenFlags> {
    let needed = !negotiated.has(InitFlags::WRITEBACK_CACHE)
        && node.kind() == Kind::File
        && flags.contains(OpenFlags::WRITE | OpenFlags::APPEND);
    needed.then_some(OpenFlags::WRITE | (flags & (OpenFlags::SYNC | OpenFlags::DSYNC)))
}

/// An open file of an earlier process or another server.
pub(super) struct Reopened {
    pub(super) nodeid: u64,
    pub(super) flags: OpenFlags,
    /// Its I/O mode, unless open files of the node have another one already.
    pub(super) io_mode: IoMode,
}

impl Session {
    /// Opens `node` again as a client has it open that has agreed on `negotiated`. It keeps its
    /// contents. The caller of `cx` is root: the client was permitted to open it, and the mode may
    /// have changed since.
    pub(super) fn reopen(
        &self,
        cx: &Cx<'_>,
        incarnation: Incarnation,
        negotiated: Negotiated,
        node: Arc<dyn Node>,
        reopened: &Reopened,
    ) -> Result<Open> {
        let once = OpenFlags::TRUNC | OpenFlags::EXCL | OpenFlags::OWNER;
        let flags = reopened.flags - once;
        let file = match node.open(cx, flags) {
            Err(Errno::EPERM) => node.open(cx, flags - OpenFlags::NOATIME),
            // Its mode no longer permits to execute it.
            Err(Errno::EACCES) if flags == OpenFlags::EXEC => node.open(cx, OpenFlags::READ),
            opened => opened,
        }?;
        let in_place = in_place_flags(negotiated, &*node, flags);
        let in_place = in_place.map(|flags| node.open(cx, flags)).transpose()?;
        let io_mode = match &self.io_modes {
            Some(modes) => {
                let choose = |_: Option<&dyn BackingRegistry>| (reopened.io_mode, None);
                modes.acquire(incarnation, reopened.nodeid, flags, choose, || None)?
            }
            None => None,
        };
        Ok(Open {
            locks: HandleLocks::new(node, self.mount_locks()),
            file,
            flags,
            in_place,
            io_mode,
            nodeid: reopened.nodeid,
        })
    }
}
