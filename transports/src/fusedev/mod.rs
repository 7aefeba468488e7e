//! /dev/fuse: this host's own kernel as a peer. A [`Mount`] is the connection, a [`Channel`] a descriptor of it that a
//! thread takes requests from, [`Files`] what the kernel reads and writes by itself.
//!
//! Sources: Linux `fs/fuse/dev.c`, `fs/fuse/inode.c` (mount options), fuse(4); fusermount3(1).

mod channel;
mod crew;
mod files;
mod mount;

pub use channel::Channel;
pub use files::Files;
pub use mount::{Mount, MountFlag, MountOptions};
