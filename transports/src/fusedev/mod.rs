//! /dev/fuse: the kernel of this host as a peer. A [`Mount`] is the connection, a [`Channel`] one
//! of its descriptors, from which a thread reads requests, and [`PassthroughFiles`] the files that
//! the kernel reads and writes itself. The process that mounts passes descriptors to the one that
//! serves.
//!
//! Sources: Linux `fs/fuse/dev.c`, `fs/fuse/inode.c` (mount options), fuse(4); fusermount3(1).

mod channel;
mod mount;
mod notifier;
mod passthrough;
mod thread_group;

pub use channel::{Channel, Channels, Sent};
pub use mount::{Mount, MountFlag, MountOptions, is_fstab_only};
pub use notifier::{Notifier, relay};
pub use passthrough::PassthroughFiles;
