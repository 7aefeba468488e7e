//! Mounts of the kernel's 9P client over `trans=fd` (v9fs, `Documentation/filesystems/9p.rst`),
//! whose other end is a relay to the server. If the connection to the server is lost, the kernel
//! only waits until the relay has restored it.
//!
//! `barge connect` relays in a confined process. `barge-mount-9p` is a small program for guests,
//! with one process.

#![forbid(unsafe_code)]

mod args;
mod options;
mod relay;

pub use self::args::ConnectArgs;
pub use self::options::{ConnectOption, MountSettings, unmount};
pub use self::relay::Relay;
