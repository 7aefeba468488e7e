//! Owners, modes and kinds kept in extended attributes, so that an ordinary user can keep a whole
//! system's tree: what QEMU calls `security_model=mapped-xattr`.
//!
//! The format is QEMU's (`hw/9pfs/9p-local.c`), and a tree can move between the two:
//!
//! | attribute | bytes, little-endian |
//! |---|---|
//! | `user.virtfs.uid`, `user.virtfs.gid` | 4: owner and group |
//! | `user.virtfs.mode` | 4: `st_mode`, kind included |
//! | `user.virtfs.rdev` | 8: the device of a device node, as `dev_t` |
//!
//! On the disk everything belongs to the process: directories are 0700, all else is a regular file
//! of 0600, symbolic links hold their target. What has none of the attributes is shown as it is.
//!
//! Nobody but barge knows these owners, so barge checks permissions, as path_resolution(7) and the
//! pages of the system calls have them. Checks and what they are for are two steps: clients that
//! race each other with chmod(2) may find either outcome. POSIX ACLs are not kept, groups of callers
//! count as far as the protocol tells them (the host's user database is about other users), and
//! the attributes above are hidden from clients.

mod file;
mod meta;
mod node;
mod permit;

pub use file::MappedFile;
pub use node::MappedNode;
