//! Owners, modes and types stored in extended attributes, so that an ordinary user can store a
//! whole system's tree: QEMU's `security_model=mapped-xattr`.
//!
//! The format is QEMU's (`hw/9pfs/9p-local.c`), and a tree can be moved between the two:
//!
//! | attribute | bytes, little-endian |
//! |---|---|
//! | `user.virtfs.uid`, `user.virtfs.gid` | 4: owner and group |
//! | `user.virtfs.mode` | 4: `st_mode`, type included |
//! | `user.virtfs.rdev` | 8: the device of a device node, as `dev_t` |
//!
//! On disk all files belong to the process: directories have mode 0700, all others are regular
//! files of mode 0600, and symbolic links contain their target. A file without these attributes is
//! shown as it is.
//!
//! The host does not know these owners, so barge checks permissions as path_resolution(7) and the
//! manual pages of the system calls specify. A check and its operation are two steps: clients that
//! race with chmod(2) may get either result. POSIX ACLs are not stored, supplementary groups of
//! callers count only if the protocol sends them (the host's user database is about other users),
//! and the attributes above are hidden from clients.

mod file;
mod node;
mod permissions;
mod stored;

pub use file::MappedFile;
pub use node::MappedNode;
