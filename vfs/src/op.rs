//! The table of operations: one name for each method of the traits that can serve a request.

use core::fmt;

macro_rules! ops {
    ($($variant:ident $name:literal,)*) => {
        /// An operation of [`crate::FileSystem`], [`crate::Node`] or [`crate::File`], by which
        /// layers, statistics and scripted fakes distinguish calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Op {
            $($variant,)*
        }

        impl Op {
            /// All operations.
            pub const ALL: &[Op] = &[$(Op::$variant,)*];

            /// Returns the method's name, with the prefix `file_` for a method of an open file that
            /// a node has, too.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Op::$variant => $name,)*
                }
            }
        }
    };
}

ops! {
    Root "root",
    Resolve "resolve",
    Sync "sync",
    Capabilities "capabilities",
    Handle "handle",
    Attr "attr",
    Setattr "setattr",
    Access "access",
    Statfs "statfs",
    Open "open",
    Readlink "readlink",
    Lookup "lookup",
    Parent "parent",
    Create "create",
    Make "make",
    Tmpfile "tmpfile",
    Link "link",
    Unlink "unlink",
    Rename "rename",
    Xattr "xattr",
    Xattrs "xattrs",
    SetXattr "set_xattr",
    RemoveXattr "remove_xattr",
    HostLock "host_lock",
    HostLockHolder "host_lock_holder",
    FileAttr "file_attr",
    FileSetattr "file_setattr",
    Read "read",
    Write "write",
    Readdir "readdir",
    Fsync "fsync",
    Flush "flush",
    Allocate "allocate",
    Seek "seek",
    Extents "extents",
    Copy "copy",
    Lease "lease",
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
