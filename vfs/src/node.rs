//! Nodes and open files.
//!
//! Every method may be called from many threads at once. None has a default body: a source or a
//! layer decides each. But for [`File::backing`], which nobody misses where it is forgotten.

use core::any::Any;
use std::os::fd::AsFd;
use std::sync::Arc;

use bitflags::bitflags;

use crate::lock::{HostLock, LockKind, LockRange, Outsider};
use crate::{
    Attr, Broken, Caller, Cx, Device, Errno, Handle, Kind, Lease, LeaseKind, Name, Payload, Peer,
    Result, SetAttr, Sink, StatFs, Want,
};

/// A node's number: unique and stable within a file system, the devices below it included.
/// Never 0.
pub type NodeId = u64;

/// A file, directory or other object of a file system, whether or not it still has a name.
///
/// A node follows its object through renames, and after the last unlink still answers
/// attributes and opens. Errors are those of the system call of the same name.
pub trait Node: Send + Sync {
    /// The concrete node: how a source knows its own, and a layer what it wrapped.
    fn as_any(&self) -> &dyn Any;

    /// Its number.
    fn id(&self) -> NodeId;

    /// What it is. Never changes.
    fn kind(&self) -> Kind;

    /// A name for it that outlives this process, for [`crate::FileSystem::resolve`].
    /// `EOPNOTSUPP` where the source has none.
    fn handle(&self, cx: &Cx<'_>) -> Result<Handle>;

    /// Its attributes, at least those in `want`.
    fn attr(&self, cx: &Cx<'_>, want: Want) -> Result<Attr>;

    /// Changes attributes, size last, and answers the new ones.
    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr>;

    /// Which of `want` the caller may do: access(2), NFS ACCESS.
    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access>;

    /// Figures of the file system that it is on.
    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs>;

    /// Opens it. Only files and directories can be opened; other kinds answer `ENXIO` (they are
    /// the client's own to open), a symbolic link `ELOOP`.
    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>>;

    /// The target of a symbolic link, `EINVAL` for any other kind.
    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>>;

    /// The child `name`.
    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry>;

    /// The directory that holds this directory; the root is its own parent, and a directory
    /// moved out of the tree answers `ESTALE`.
    fn parent(&self, cx: &Cx<'_>) -> Result<Entry>;

    /// Opens the file `name`, which is made if there is none; [`OpenFlags::EXCL`] insists on
    /// that. A symbolic link of that name is not followed: `ELOOP`.
    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)>;

    /// Makes the child `name`, `EEXIST` if there is one. Owned by the caller, group by the
    /// caller's unless the directory's set-gid bit says otherwise.
    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: Make<'_>, mode: Mode) -> Result<Entry>;

    /// A file without a name in this directory's file system (`O_TMPFILE`).
    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)>;

    /// Gives `target` the further name `name` here; `EXDEV` if it is of another file system.
    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry>;

    /// Removes the name of a directory (`dir`, rmdir(2)) or of anything else (unlink(2)).
    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()>;

    /// Moves the child `name` to the directory `to` as `to_name`: renameat2(2).
    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// The extended attribute `name` (with its namespace, without NUL), `ENODATA` if there is none.
    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>>;

    /// All names of extended attributes, each ended by a NUL: listxattr(2).
    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>>;

    /// Sets an extended attribute.
    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()>;

    /// Removes an extended attribute, `ENODATA` if there is none.
    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()>;

    /// Tells those who share this node outside barge what `range` is locked as from now
    /// on, for all of barge's clients together: who of those holds what is the business of
    /// [`crate::lock::LockTable`], its only caller. `EAGAIN` if an outsider is in the way. (Where an
    /// export is served both by itself and among others, each has a table, and either is outside the other.)
    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()>;

    /// The first lock outside barge that a lock of `kind` on `range` would meet.
    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<Outsider>>;
}

/// An open file or directory. Dropping it closes it.
///
/// Permission was checked when it was opened: it stays readable, and its attributes stay
/// changeable by its owner, after unlink, rename and chmod.
pub trait File: Send + Sync {
    /// The concrete file: how a source knows its own, and a layer what it wrapped.
    fn as_any(&self) -> &dyn Any;

    /// [`Node::attr`] of the open file.
    fn attr(&self, cx: &Cx<'_>, want: Want) -> Result<Attr>;

    /// [`Node::setattr`] of the open file; a new size needs a file open for writing, no permission.
    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr>;

    /// Puts up to `len` bytes from `offset` into `sink` and says how many: 0 at end of file
    /// only. `len` is at most the sink's room.
    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize>;

    /// Writes the payload at `offset`, or at the end if open to append, and says how many bytes.
    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize>;

    /// Gives `sink` the entries behind `cookie` (0: from the start), without `.` and `..`, until it
    /// is full or there are no more. Cookies stay valid while the directory is open, and across
    /// opens where the source's [`crate::Capabilities::stable_cookies`] says so.
    fn readdir(&self, cx: &Cx<'_>, cookie: u64, plus: Plus, sink: &mut dyn DirSink) -> Result<()>;

    /// Makes written data durable; with `datasync`, only the metadata that reading it back needs.
    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()>;

    /// A client closed one of its descriptors: reports what went wrong in writing behind.
    fn flush(&self, cx: &Cx<'_>) -> Result<()>;

    /// fallocate(2).
    fn allocate(&self, cx: &Cx<'_>, how: Allocate, offset: u64, len: u64) -> Result<()>;

    /// Finds the next data or hole from `offset` on: lseek(2) with `SEEK_DATA`, `SEEK_HOLE`.
    /// `ENXIO` from the end of the file on, beyond which an `offset` above `i64::MAX` always is:
    /// lseek(2)'s negative offsets (Linux's `generic_file_llseek_size`).
    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Seek) -> Result<u64>;

    /// Gives `each` the extents of `offset..offset+len` in order, without gaps, up to end of file,
    /// until it says stop (`false`). An extent is a hole only if it certainly reads as zeros.
    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()>;

    /// Copies up to `len` bytes into `to`, which is of the same file system, and says how many:
    /// copy_file_range(2), or FICLONERANGE, which takes all or nothing.
    fn copy(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyHow,
    ) -> Result<u64>;

    /// A lease of the file, which tells `broken` who may no longer keep things. It sees everybody: other clients,
    /// other protocols, programs of the host. Who wants to change contents or open in conflict waits until it is
    /// given back ([`crate::Errno::PARKED`], for a source that is asked to wait); but whoever breaks it for too long, a
    /// minute or so, has lost it. So do those who change a name or attributes, if they come by barge; of others'
    /// changes of these it tells right behind them.
    ///
    /// [`LeaseKind::Read`] of a file open for reading only, [`LeaseKind::Write`] of one open for both. `EAGAIN` if
    /// somebody has the file open in a way that conflicts; `ENFILE` if there are too many leases; `EOPNOTSUPP` where the source cannot see everybody.
    fn lease(&self, cx: &Cx<'_>, kind: LeaseKind, broken: &Broken) -> Result<Box<dyn Lease>>;

    /// The file of this host that [`File::read`] and [`File::write`] read and write, and do nothing else: then whoever asks may have
    /// the host do that without asking here, also for other opens of the same node, as far as [`Backing::limits`] allows. Nothing where
    /// there is none, which is never an error.
    fn backing(&self, _cx: &Cx<'_>) -> Option<Arc<dyn Backing>> {
        None
    }
}

/// See [`File::backing`]: a descriptor that stays open as long as this.
pub trait Backing: AsFd + Send + Sync {
    /// What it is good for; without any, for whoever has the node open, whatever this descriptor may do by itself: it is of this
    /// process's own opening, and each open has been checked.
    fn limits(&self) -> Option<Limits> {
        None
    }
}

/// What a descriptor is good for that another process has opened: for no more than that process may do itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// [`OpenFlags::READ`] and [`OpenFlags::WRITE`], or one of them.
    pub access: OpenFlags,
    /// The device and the number of the file.
    pub file: (u64, u64),
}

impl Limits {
    /// Whether it is good for who opens with `flags`.
    pub fn allow(&self, flags: OpenFlags) -> bool {
        let reads = flags.intersects(OpenFlags::READ | OpenFlags::EXEC);
        let writes = flags.contains(OpenFlags::WRITE);
        (!reads || self.access.contains(OpenFlags::READ))
            && (!writes || self.access.contains(OpenFlags::WRITE))
    }
}

/// Opens `node`, a source's own, by `open`, which knows nothing of [`OpenFlags::OWNER`].
pub fn open_by_owner<T>(
    node: &dyn Node,
    cx: &Cx<'_>,
    flags: OpenFlags,
    open: impl Fn(&Cx<'_>, OpenFlags) -> Result<T>,
) -> Result<T> {
    let plain = flags - OpenFlags::OWNER;
    match open(cx, plain) {
        // Of directories, what their mode says counts for everybody.
        Err(Errno::EACCES) if plain != flags && node.kind() == Kind::File => {}
        done => return done,
    }
    match node.attr(cx, Want::BASIC)?.uid == cx.caller.uid {
        true => open(&cx.on_behalf_of(&Caller::ROOT), plain),
        false => Err(Errno::EACCES),
    }
}

/// Returns `opened`, the result of opening `node` as `flags` say, or, if the caller may execute a
/// regular file and not read it, the file opened to be executed. The kernel of a client opens a
/// program to read, and says nothing of executing it (RFC 1813 section 4.4 for NFS; `open_exec` of
/// Linux through v9fs for 9P); it applies the mode for its own users. A peer that acts as the owner
/// of its socket is a program of that user, which cannot read the file on this host either:
/// `EACCES`.
pub fn or_executed(
    node: &dyn Node,
    cx: &Cx<'_>,
    flags: OpenFlags,
    opened: Result<Arc<dyn File>>,
) -> Result<Arc<dyn File>> {
    match opened {
        Err(Errno::EACCES) if may_execute_to_read(node, cx, flags) => {
            node.open(cx, OpenFlags::EXEC)
        }
        done => done,
    }
}

/// Whether an open of `node` as `flags` say may be that of a program to execute ([`or_executed`]).
pub fn may_execute_to_read(node: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> bool {
    let may_claim_users = cx.call.peer().is_none_or(Peer::is_trusted);
    may_claim_users && node.kind() == Kind::File && flags == OpenFlags::READ
}

/// A node as a directory has it: with the attributes that came along.
#[derive(Clone)]
pub struct Entry {
    /// The node.
    pub node: Arc<dyn Node>,
    /// Its attributes, [`Want::STAT`] at least, as of now.
    pub attr: Attr,
}

/// What [`Node::make`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Make<'a> {
    File,
    Directory,
    /// A symbolic link and its target, which is stored as it is.
    Symlink(&'a [u8]),
    Fifo,
    Socket,
    CharDevice(Device),
    BlockDevice(Device),
}

/// Permissions of what is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The bits asked for, `0o7777`.
    pub bits: u32,
    /// Those taken away, unless the directory's default ACL decides. 0 if a client did it.
    pub umask: u32,
}

impl Mode {
    /// These bits, whatever the umask.
    pub const fn exactly(bits: u32) -> Mode {
        Mode { bits, umask: 0 }
    }
}

bitflags! {
    /// How a file is opened.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// For reading (a directory: for listing).
        const READ = 1;
        /// For writing.
        const WRITE = 2;
        /// Every write goes to the end.
        const APPEND = 4;
        /// Cut to nothing.
        const TRUNC = 8;
        /// With create: there must be none.
        const EXCL = 16;
        /// Past the host's page cache (`O_DIRECT`).
        const DIRECT = 32;
        /// Each write is durable with its size (`O_DSYNC`).
        const DSYNC = 64;
        /// Each write is durable with all metadata (`O_SYNC`).
        const SYNC = 128;
        /// Reading leaves atime (`O_NOATIME`), where the caller may.
        const NOATIME = 256;
        /// To execute it: needs execute permission, grants reading.
        const EXEC = 512;
        /// A file's owner may, whatever its mode says. It is the source that knows whether the caller owns it, for layers
        /// make others of callers: [`open_by_owner`]. Not of [`Node::create`].
        const OWNER = 1024;
    }

    /// What a caller wants to do, as in access(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Execute, or search a directory.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }

    /// renameat2(2)'s flags, by the same numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Replace nothing.
        const NOREPLACE = 1;
        /// Swap the two.
        const EXCHANGE = 2;
        /// Leave a whiteout behind (overlayfs).
        const WHITEOUT = 4;
    }

    /// setxattr(2)'s flags, by the same numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// There must be none.
        const CREATE = 1;
        /// There must be one.
        const REPLACE = 2;
    }
}

/// What [`File::readdir`] tells besides names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plus {
    /// Numbers and kinds.
    Names,
    /// Also nodes with attributes, as if each had been looked up (FUSE and NFS readdirplus).
    Entries,
}

/// An entry of a directory.
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The node's number.
    pub id: NodeId,
    /// What it is; nothing where the source would have to look.
    pub kind: Option<Kind>,
    /// Where to go on behind this entry. Never 0, unique in its directory.
    pub cookie: u64,
    /// With [`Plus::Entries`]: the node, unless it vanished meanwhile.
    pub entry: Option<Entry>,
}

/// Takes the entries of a directory.
pub trait DirSink {
    /// Takes `entry`, or says that it does not fit (`false`): the next call begins with it.
    fn entry(&mut self, entry: DirEntry<'_>) -> bool;

    /// About how many more entries fit if each name has `name` bytes: a hint for a source that
    /// looks up several entries ahead of [`DirSink::entry`].
    fn room(&self, _name: usize) -> usize {
        usize::MAX
    }
}

/// fallocate(2)'s modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve space, extend the file.
    Extend,
    /// Reserve space, keep the size.
    KeepSize,
    /// Make a hole, keep the size.
    Punch,
    /// Make zeros, extend the file.
    Zero,
    /// Make zeros, keep the size.
    ZeroKeepSize,
    /// Take the range out.
    Collapse,
    /// Put a hole in between.
    Insert,
    /// Give a shared range its own space.
    Unshare,
}

/// What [`File::seek`] seeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Seek {
    Data,
    Hole,
}

/// A stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte.
    pub offset: u64,
    /// How many bytes; never 0.
    pub len: u64,
    /// Whether it has nothing but zeros, and takes no space.
    pub hole: bool,
}

/// How [`File::copy`] goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyHow {
    /// As the source likes.
    Any,
    /// By sharing blocks, or not at all (`EOPNOTSUPP`).
    Clone,
}
