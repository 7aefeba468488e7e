//! Nodes and open files.
//!
//! Every method may be called from many threads at once. None has a default body, so that each
//! source and layer decides, except [`File::backing`], which is optional.

use core::any::Any;
use std::sync::Arc;

use bitflags::bitflags;

use crate::fd::AsFd;
use crate::lock::{ForeignLock, HostLock, LockKind, LockRange};
use crate::{
    Attr, AttrMask, BreakCallback, Caller, Cx, Device, Errno, Handle, Kind, Lease, LeaseKind, Name,
    Payload, Peer, Result, SetAttr, Sink, StatFs,
};

/// The inode number of a node: unique and stable within a file system, including the devices below
/// it. Never 0.
pub type NodeId = u64;

/// A file, directory or other object of a file system, whether or not it still has a name.
///
/// A node refers to its object across renames, and still returns attributes and can be opened after
/// the last unlink. Errors are those of the system call of the same name.
pub trait Node: Send + Sync {
    /// Returns the concrete node, with which a source recognises its own nodes, and a layer those
    /// it wrapped.
    fn as_any(&self) -> &dyn Any;

    /// Returns its inode number.
    fn id(&self) -> NodeId;

    /// Returns its type, which never changes.
    fn kind(&self) -> Kind;

    /// Returns a handle that outlives this process, for [`crate::FileSystem::resolve`]. Returns
    /// `EOPNOTSUPP` if the source has none.
    fn handle(&self, cx: &Cx<'_>) -> Result<Handle>;

    /// Returns its attributes, at least those in `want`.
    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr>;

    /// Changes attributes, size last, and returns the new ones.
    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr>;

    /// Returns the subset of `want` that the caller is permitted: access(2), NFS ACCESS.
    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access>;

    /// Returns statistics of the file system that contains it.
    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs>;

    /// Opens a file or directory. Returns `ELOOP` for a symbolic link and `ENXIO` for other kinds,
    /// which clients open themselves.
    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>>;

    /// Returns the target of a symbolic link. Returns `EINVAL` for any other kind.
    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>>;

    /// Looks up the child `name`.
    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry>;

    /// Returns the parent of this directory. The root is its own parent; a directory moved out of
    /// the tree returns `ESTALE`.
    fn parent(&self, cx: &Cx<'_>) -> Result<Entry>;

    /// Opens the file `name`, and creates it if it does not exist; with [`OpenFlags::EXCL`] it must
    /// not exist. Returns `ELOOP` if `name` is a symbolic link.
    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)>;

    /// Creates the child `name`. Returns `EEXIST` if the name exists. The child belongs to the
    /// caller and the caller's group, unless the directory's set-gid bit is set.
    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry>;

    /// Creates a file without a name in this directory's file system (`O_TMPFILE`).
    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)>;

    /// Creates a hard link `name` to `target` in this directory. Returns `EXDEV` if `target` is on
    /// another file system.
    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry>;

    /// Removes a directory (`dir`, rmdir(2)) or the name of any other node (unlink(2)).
    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()>;

    /// Renames the child `name` to `to_name` in the directory `to`: renameat2(2).
    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// Returns the extended attribute `name` (with its namespace, without NUL). Returns `ENODATA`
    /// if there is none.
    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>>;

    /// Returns the names of all extended attributes, each terminated by a NUL: listxattr(2).
    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>>;

    /// Sets an extended attribute.
    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()>;

    /// Removes an extended attribute. Returns `ENODATA` if there is none.
    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()>;

    /// Sets the lock that programs outside barge see on `range`, for all of barge's clients
    /// together: the owners are known to [`crate::lock::LockTable`], the only caller. Returns
    /// `EAGAIN` if a lock outside conflicts. (If an export is served both alone and combined with
    /// others, each has a lock table, and either is outside the other.)
    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()>;

    /// Returns the first lock outside barge that conflicts with a lock of `kind` on `range`.
    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>>;
}

/// An open file or directory. Dropping it closes it.
///
/// Permissions were checked at the open: the file stays readable, and its attributes stay
/// changeable by its owner, after unlink, rename and chmod.
pub trait File: Send + Sync {
    /// Returns the concrete file, with which a source recognises its own files, and a layer those
    /// it wrapped.
    fn as_any(&self) -> &dyn Any;

    /// Does what [`Node::attr`] does, for the open file.
    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr>;

    /// Does what [`Node::setattr`] does, for the open file; a new size requires that the file is
    /// open for writing, but no permission.
    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr>;

    /// Reads up to `len` bytes at `offset` into `sink` and returns their number: 0 at end of file
    /// only. `len` is at most the sink's room.
    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize>;

    /// Writes the payload at `offset`, or at the end if open to append, and returns the number of
    /// bytes.
    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize>;

    /// Passes the entries after `cookie` (0: from the start), without `.` and `..`, to `sink` until
    /// it is full or the directory ends. Cookies stay valid while the directory is open, and across
    /// opens if the source's [`crate::Capabilities::stable_cookies`] is set.
    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()>;

    /// Makes written data durable; with `datasync`, only the metadata that reading it back needs.
    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()>;

    /// Reports errors of write-back. Called when a client closes one of its descriptors.
    fn flush(&self, cx: &Cx<'_>) -> Result<()>;

    /// Allocates, punches or moves a range: fallocate(2).
    fn allocate(&self, cx: &Cx<'_>, how: AllocateMode, offset: u64, len: u64) -> Result<()>;

    /// Finds the next data or hole at or after `offset`: lseek(2) with `SEEK_DATA`, `SEEK_HOLE`.
    /// Returns `ENXIO` at or after the end of file, which includes every `offset` above `i64::MAX`:
    /// lseek(2)'s negative offsets (Linux's `generic_file_llseek_size`).
    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Whence) -> Result<u64>;

    /// Passes the extents of `offset..offset+len` to `each` in order, without gaps, up to end of
    /// file or until `each` returns `false`. An extent is a hole only if it certainly reads as
    /// zeros.
    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()>;

    /// Copies up to `len` bytes to `to`, which is on the same file system, and returns their
    /// number: copy_file_range(2), or FICLONERANGE, which copies all or fails.
    fn copy(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64>;

    /// Takes a lease on the file, and calls `broken` when its holder may no longer cache. All
    /// accesses can break it: those of other clients, other protocols and programs of the host. A
    /// caller that would change the contents, or open the file in conflict, waits until the lease
    /// is returned ([`crate::Errno::PARKED`], if the source may wait); a holder that does not
    /// return a broken lease loses it after about a minute. Changes of names or attributes through
    /// barge wait as well; those by other programs are reported right after they happened.
    ///
    /// [`LeaseKind::Read`] requires a file open for reading only, [`LeaseKind::Write`] one open for
    /// both. Returns `EAGAIN` if the file is open in a conflicting way; `ENFILE` if there are too
    /// many leases; `EOPNOTSUPP` if the source does not see all accesses.
    fn lease(&self, cx: &Cx<'_>, kind: LeaseKind, broken: &BreakCallback)
    -> Result<Box<dyn Lease>>;

    /// Returns the file of this host to which [`File::read`] and [`File::write`] pass everything
    /// through: the caller may let the kernel read and write it directly (FUSE passthrough), also
    /// for other opens of the same node, within [`Backing::restrictions`]. `None` if there is no
    /// such file, which is never an error.
    fn backing(&self, _cx: &Cx<'_>) -> Option<Arc<dyn Backing>> {
        None
    }
}

/// The descriptor of [`File::backing`], which stays open as long as this object.
pub trait Backing: AsFd + Send + Sync {
    /// Returns the restrictions on its use. `None` allows it for every open of the node, whatever
    /// the descriptor's access mode: this process opened it, and each open was checked.
    fn restrictions(&self) -> Option<BackingRestrictions> {
        None
    }
}

/// The restrictions on a descriptor that another process opened, which must not be used beyond that
/// process's own permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingRestrictions {
    /// [`OpenFlags::READ`] and [`OpenFlags::WRITE`], or one of them.
    pub access: OpenFlags,
    /// The device and the inode number of the file.
    pub file: (u64, u64),
}

impl BackingRestrictions {
    /// Returns whether an open with `flags` may use the descriptor.
    pub fn allows(&self, flags: OpenFlags) -> bool {
        let reads = flags.intersects(OpenFlags::READ | OpenFlags::EXEC);
        let writes = flags.contains(OpenFlags::WRITE);
        (!reads || self.access.contains(OpenFlags::READ))
            && (!writes || self.access.contains(OpenFlags::WRITE))
    }
}

/// Opens `node` with `open`, and implements [`OpenFlags::OWNER`] for it: retries a refused open of
/// a regular file as the superuser if the caller owns the file.
pub fn open_by_owner<T>(
    node: &dyn Node,
    cx: &Cx<'_>,
    flags: OpenFlags,
    open: impl Fn(&Cx<'_>, OpenFlags) -> Result<T>,
) -> Result<T> {
    let plain = flags - OpenFlags::OWNER;
    match open(cx, plain) {
        // For directories, the mode applies to the owner, too.
        Err(Errno::EACCES) if plain != flags && node.kind() == Kind::File => {}
        done => return done,
    }
    match node.attr(cx, AttrMask::BASIC)?.uid == cx.caller.uid {
        true => open(&cx.on_behalf_of(&Caller::ROOT), plain),
        false => Err(Errno::EACCES),
    }
}

/// Returns `opened`, the result of opening `node` with `flags`, or, if the caller may execute a
/// regular file but not read it, the file opened for execution. The kernel of a client opens a
/// program for reading, and does not send that it executes it (RFC 1813 section 4.4 for NFS;
/// `open_exec` of Linux through v9fs for 9P); it applies the mode to its own users. A peer that
/// acts as the owner of its socket is a program of that user, which cannot read the file on this
/// host either: `EACCES`.
pub fn or_open_for_exec(
    node: &dyn Node,
    cx: &Cx<'_>,
    flags: OpenFlags,
    opened: Result<Arc<dyn File>>,
) -> Result<Arc<dyn File>> {
    match opened {
        Err(Errno::EACCES) if may_be_exec_open(node, cx, flags) => node.open(cx, OpenFlags::EXEC),
        done => done,
    }
}

/// Returns whether an open of `node` with `flags` may be for executing a program
/// ([`or_open_for_exec`]).
pub fn may_be_exec_open(node: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> bool {
    let may_claim_users = cx.call.peer().is_none_or(Peer::is_trusted);
    may_claim_users && node.kind() == Kind::File && flags == OpenFlags::READ
}

/// A directory entry's node, with attributes.
#[derive(Clone)]
pub struct Entry {
    /// The node.
    pub node: Arc<dyn Node>,
    /// Its current attributes, [`AttrMask::STAT`] at least.
    pub attr: Attr,
}

/// The kind of node that [`Node::make`] creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NewNode<'a> {
    File,
    Directory,
    /// A symbolic link and its target, stored verbatim.
    Symlink(&'a [u8]),
    Fifo,
    Socket,
    CharDevice(Device),
    BlockDevice(Device),
}

impl NewNode<'_> {
    /// Returns the kind of the node.
    pub const fn kind(&self) -> Kind {
        match self {
            NewNode::File => Kind::File,
            NewNode::Directory => Kind::Directory,
            NewNode::Symlink(_) => Kind::Symlink,
            NewNode::Fifo => Kind::Fifo,
            NewNode::Socket => Kind::Socket,
            NewNode::CharDevice(_) => Kind::CharDevice,
            NewNode::BlockDevice(_) => Kind::BlockDevice,
        }
    }
}

/// The permissions of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The requested bits, `0o7777`.
    pub bits: u32,
    /// The bits to clear, unless the directory has a default ACL. 0 if the client applied the
    /// umask.
    pub umask: u32,
}

impl Mode {
    /// Creates a mode of these bits, without a umask.
    pub const fn without_umask(bits: u32) -> Mode {
        Mode { bits, umask: 0 }
    }
}

bitflags! {
    /// The flags of an open.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Open for reading (a directory: for listing).
        const READ = 1;
        /// Open for writing.
        const WRITE = 2;
        /// Append: every write goes to the end.
        const APPEND = 4;
        /// Truncate the file.
        const TRUNC = 8;
        /// With create: the file must not exist.
        const EXCL = 16;
        /// Bypass the host's page cache (`O_DIRECT`).
        const DIRECT = 32;
        /// Each write is durable, with the metadata needed to read it back (`O_DSYNC`).
        const DSYNC = 64;
        /// Each write is durable, with all metadata (`O_SYNC`).
        const SYNC = 128;
        /// Reads do not update atime (`O_NOATIME`), if the caller may request that.
        const NOATIME = 256;
        /// Open for execution: requires execute permission, permits reading.
        const EXEC = 512;
        /// Allow a file's owner the open, whatever the mode. The source decides whether the caller
        /// is the owner, as layers may map callers: [`open_by_owner`]. Not valid for
        /// [`Node::create`].
        const OWNER = 1024;
    }

    /// The accesses that a caller wants, as in access(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Execute, or search a directory.
        const EXEC = 1;
        /// Write.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }

    /// renameat2(2)'s flags, with the same numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail if the target exists.
        const NOREPLACE = 1;
        /// Exchange the two.
        const EXCHANGE = 2;
        /// Leave a whiteout at the old name (overlayfs).
        const WHITEOUT = 4;
    }

    /// setxattr(2)'s flags, with the same numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct XattrFlags: u32 {
        /// Fail if the attribute exists.
        const CREATE = 1;
        /// Fail if the attribute does not exist.
        const REPLACE = 2;
    }
}

/// The information that [`File::readdir`] returns with each name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirMode {
    /// Inode number and kind.
    Names,
    /// Also the node and its attributes, as if it had been looked up (FUSE and NFS readdirplus).
    Entries,
}

/// An entry of a directory.
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The node's inode number.
    pub id: NodeId,
    /// Its kind; `None` if the source would have to look it up.
    pub kind: Option<Kind>,
    /// The position after this entry, from which to continue. Never 0, unique in its directory.
    pub cookie: u64,
    /// With [`ReaddirMode::Entries`]: the node, unless it was removed meanwhile.
    pub entry: Option<Entry>,
}

/// A consumer of directory entries.
pub trait DirSink {
    /// Consumes `entry`, or returns `false` if it does not fit: the next readdir call starts with
    /// it.
    fn entry(&mut self, entry: DirEntry<'_>) -> bool;

    /// Returns roughly how many more entries fit if each name has `name` bytes: a hint for a source
    /// that looks up several entries ahead of [`DirSink::entry`].
    fn room(&self, _name: usize) -> usize {
        usize::MAX
    }
}

/// The modes of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Allocate space and extend the file.
    Extend,
    /// Allocate space and keep the size.
    KeepSize,
    /// Punch a hole and keep the size.
    Punch,
    /// Zero the range and extend the file.
    Zero,
    /// Zero the range and keep the size.
    ZeroKeepSize,
    /// Remove the range and move the rest down.
    Collapse,
    /// Insert a hole and move the rest up.
    Insert,
    /// Unshare shared blocks.
    Unshare,
}

/// The target of [`File::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Whence {
    Data,
    Hole,
}

/// A contiguous range of a file that is either data or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes; never 0.
    pub len: u64,
    /// Whether it reads as zeros only, and takes no space.
    pub hole: bool,
}

/// The method of [`File::copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMode {
    /// Any that the source supports.
    Any,
    /// A clone that shares blocks; `EOPNOTSUPP` if that is impossible.
    Clone,
}
