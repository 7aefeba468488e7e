//! System calls that `rustix` lacks, made safe, and the file reads and writes that more than one
//! transport needs.
//!
//! One small file per topic, no policy: error handling is left to the caller. System calls return
//! [`rustix::io::Result`]; helpers of the file-system traits ([`file_io`]) return [`vfs::Result`],
//! and [`errno`] converts errors.
//!
//! Only [`probes`] takes a lock, for short sections that make no system call.

#[cfg(target_os = "linux")]
pub mod cache;
#[cfg(target_os = "linux")]
pub mod caller_independence;
#[cfg(target_os = "linux")]
pub mod caps;
#[cfg(target_os = "linux")]
pub mod clone;
#[cfg(target_os = "linux")]
pub mod creds;
#[cfg(target_os = "linux")]
pub mod diag;
#[cfg(target_os = "linux")]
pub mod dir;
#[cfg(target_os = "linux")]
pub mod fanotify;
#[cfg(target_os = "linux")]
pub mod fiemap;
#[cfg_attr(not(target_os = "linux"), path = "file_io/elsewhere.rs")]
pub mod file_io;
#[cfg(target_os = "linux")]
pub mod fs_changes;
#[cfg(target_os = "linux")]
pub mod fuse;
#[cfg(target_os = "linux")]
pub mod handle;
#[cfg(target_os = "linux")]
pub mod inherit;
#[cfg(target_os = "linux")]
pub mod lease;
#[cfg(target_os = "linux")]
pub mod limits;
#[cfg(target_os = "linux")]
pub mod lock;
#[cfg(target_os = "linux")]
pub mod mounts;
#[cfg(target_os = "linux")]
pub mod namespaces;
#[cfg(target_os = "linux")]
pub mod net;
#[cfg(target_os = "linux")]
pub mod pages;
#[cfg(target_os = "linux")]
pub mod path;
#[cfg(target_os = "linux")]
pub mod peer;
#[cfg(target_os = "linux")]
pub mod pending_signals;
pub mod positioned;
#[cfg(target_os = "linux")]
pub mod probes;
#[cfg_attr(windows, path = "process/windows.rs")]
pub mod process;
#[cfg(target_os = "linux")]
pub mod project_quota;
#[cfg(target_os = "linux")]
pub mod random;
#[cfg(target_os = "linux")]
mod result;
#[cfg(target_os = "linux")]
pub mod shared_memory;
#[cfg(target_os = "linux")]
pub mod sigbus;
#[cfg(target_os = "linux")]
pub mod signals;
#[cfg(target_os = "linux")]
pub mod tsc;
#[cfg(target_os = "linux")]
pub mod umask;
#[cfg_attr(not(target_os = "linux"), path = "usage/elsewhere.rs")]
pub mod usage;
#[cfg(target_os = "linux")]
pub mod users;
#[cfg(target_os = "linux")]
pub mod vsock;

#[cfg(target_os = "linux")]
use result::{check, last_error};

/// Converts an error of a system call to one of the file-system traits.
pub fn errno(error: rustix::io::Errno) -> vfs::Errno {
    std::io::Error::from(error).into()
}
