//! The credentials with which the calling thread accesses file systems.
//!
//! Linux keeps them per thread. A thread that is started later inherits them.

use rustix::io::{Errno, Result};

pub use rustix::thread::set_thread_groups;

/// Sets the calling thread's file-system user id to `uid` (setfsuid(2)). Changing it from 0 makes
/// the thread's capabilities over file systems ineffective, changing it back to 0 restores them.
///
/// setfsuid(2) itself reports no failure, so the result is read back: returns `EPERM` if it was
/// refused.
pub fn set_fs_uid(uid: u32) -> Result<()> {
    // SAFETY: setfsuid takes a number and touches no memory. rustix has no such call.
    #[allow(unsafe_code)]
    unsafe {
        libc::setfsuid(uid);
    }
    if fs_uid() == uid {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// Does the same as [`set_fs_uid`] for the group id.
pub fn set_fs_gid(gid: u32) -> Result<()> {
    // SAFETY: setfsgid takes a number and touches no memory. rustix has no such call.
    #[allow(unsafe_code)]
    unsafe {
        libc::setfsgid(gid);
    }
    if fs_gid() == gid {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// Returns the calling thread's file-system user id.
pub fn fs_uid() -> u32 {
    // SAFETY: as above; -1 is not a valid user id, so the call only returns the current one.
    #[allow(unsafe_code)]
    unsafe {
        libc::setfsuid(u32::MAX) as u32
    }
}

/// Returns the calling thread's file-system group id.
pub fn fs_gid() -> u32 {
    // SAFETY: as above; -1 is not a valid group id, so the call only returns the current one.
    #[allow(unsafe_code)]
    unsafe {
        libc::setfsgid(u32::MAX) as u32
    }
}

/// Runs `run` with the process's own user as file-system user, which owns the sockets that are
/// created meanwhile: the kernel reports the owner of a TCP socket to a peer on this host
/// (`sock_alloc()` in `net/socket.c`). Returns `PERM` if the thread may not become that user.
pub fn as_own_user<T>(run: impl FnOnce() -> T) -> Result<T> {
    let (own, before) = (rustix::process::geteuid().as_raw(), fs_uid());
    if before == own {
        return Ok(run());
    }
    set_fs_uid(own)?;
    let done = run();
    // Code that relies on the thread's credentials must not continue with others.
    set_fs_uid(before).expect("the thread was that user before");
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_the_thread_s_own() {
        let before = (fs_uid(), fs_gid());
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: switching users needs root");
            assert_eq!(set_fs_uid(before.0 + 1), Err(Errno::PERM));
            return;
        }
        std::thread::spawn(|| {
            set_fs_gid(65534).expect("root may");
            set_fs_uid(65534).expect("root may");
            assert_eq!((fs_uid(), fs_gid()), (65534, 65534));
        })
        .join()
        .expect("no panic");
        assert_eq!((fs_uid(), fs_gid()), before);
    }

    #[test]
    fn sockets_are_the_process_s_own_and_the_thread_s_identity_stays() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: switching users needs root");
        }
        let seen = std::thread::spawn(|| {
            set_fs_uid(65534).expect("root may");
            (as_own_user(fs_uid), fs_uid())
        });
        assert_eq!(seen.join().expect("no panic"), (Ok(0), 65534));
    }
}
