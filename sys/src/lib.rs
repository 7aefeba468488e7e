//! Operating-system calls that `rustix` lacks, made safe, and the ends of reads and writes that
//! more than one transport needs.
//!
//! One small file per topic, no policy: what to do with an error is the caller's business. Raw
//! calls answer [`rustix::io::Result`]; what speaks the language of the file-system traits
//! ([`payload`]) answers [`vfs::Result`], and [`errno`] leads from the one to the other.
//!
//! Nothing here takes a lock.

pub mod anybody;
pub mod cache;
pub mod caps;
pub mod clone;
pub mod creds;
pub mod diag;
pub mod dir;
pub mod fiemap;
pub mod fuse;
pub mod handle;
pub mod inherit;
pub mod lease;
pub mod limits;
pub mod lock;
pub mod net;
pub mod pages;
pub mod path;
pub mod payload;
pub mod peer;
pub mod random;
pub mod tsc;
pub mod umask;
pub mod usage;
pub mod users;
pub mod vsock;

/// An error of a system call in the words of the file-system traits.
pub fn errno(error: rustix::io::Errno) -> vfs::Errno {
    vfs::Errno::from_raw(error.raw_os_error())
}

/// What `libc` reports by -1 and its `errno`.
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
