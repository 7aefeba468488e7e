//! System calls that `rustix` lacks, made safe, and the file reads and writes that more than one
//! transport needs.
//!
//! One small file per topic, no policy: error handling is left to the caller. System calls return
//! [`rustix::io::Result`]; helpers of the file-system traits ([`file_io`]) return [`vfs::Result`],
//! and [`errno`] converts errors.
//!
//! Only [`probes`] takes a lock, for short sections that make no system call.

pub mod cache;
pub mod caller_independence;
pub mod caps;
pub mod clone;
pub mod creds;
pub mod diag;
pub mod dir;
pub mod fanotify;
pub mod fiemap;
pub mod file_io;
pub mod fs_changes;
pub mod fuse;
pub mod handle;
pub mod inherit;
pub mod lease;
pub mod limits;
pub mod lock;
pub mod mounts;
pub mod namespaces;
pub mod net;
pub mod pages;
pub mod path;
pub mod peer;
pub mod probes;
pub mod project_quota;
pub mod random;
pub mod shared_memory;
pub mod tsc;
pub mod umask;
pub mod usage;
pub mod users;
pub mod vsock;

/// Converts an error of a system call to one of the file-system traits.
pub fn errno(error: rustix::io::Errno) -> vfs::Errno {
    vfs::Errno::from_raw(error.raw_os_error())
}

/// Converts a result of `libc`, where -1 means that `errno` is set.
fn check(answer: libc::c_int) -> rustix::io::Result<libc::c_int> {
    if answer == -1 {
        Err(last_error())
    } else {
        Ok(answer)
    }
}

fn last_error() -> rustix::io::Errno {
    rustix::io::Errno::from_raw_os_error(
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
    )
}
