//! Byte-range locks owned by an open file description instead of a process.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

/// The state of a range's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Unlocked,
    Shared,
    Exclusive,
}

/// A conflicting lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The first byte of its range.
    pub start: u64,
    /// The last byte of its range; `u64::MAX` for the end of file, however far it grows.
    pub end: u64,
    /// Its mode.
    pub kind: Kind,
    /// The process that holds it; 0 if it is owned by an open file description.
    pub pid: u32,
}

/// Sets the lock of `start..=end` of `fd` to `kind` without waiting (`F_OFD_SETLK`,
/// fcntl_locking(2)). Returns `EAGAIN` if the lock of another open file or a process conflicts,
/// `EBADF` if `fd` is not open for the access that `kind` requires, and `EINVAL` for a `start`
/// beyond the largest offset. An `end` beyond it means the end of file, however far it grows.
pub fn set(fd: BorrowedFd<'_>, start: u64, end: u64, kind: Kind) -> Result<()> {
    let mut lock = flock(start, end, kind)?;
    match fcntl(fd, libc::F_OFD_SETLK, &mut lock) {
        Err(Errno::ACCESS) => Err(Errno::AGAIN),
        answer => answer,
    }
}

/// Does the same, but waits for conflicting locks (`F_OFD_SETLKW`). The kernel detects no deadlock:
/// a caller must hold no lock that the holder may wait for.
pub fn wait(fd: BorrowedFd<'_>, start: u64, end: u64, kind: Kind) -> Result<()> {
    let mut lock = flock(start, end, kind)?;
    rustix::io::retry_on_intr(|| fcntl(fd, libc::F_OFD_SETLKW, &mut lock))
}

/// Returns the first lock that conflicts with [`set`] (`F_OFD_GETLK`).
pub fn holder(fd: BorrowedFd<'_>, start: u64, end: u64, kind: Kind) -> Result<Option<Holder>> {
    let mut lock = flock(start, end, kind)?;
    fcntl(fd, libc::F_OFD_GETLK, &mut lock)?;
    let kind = match libc::c_int::from(lock.l_type) {
        libc::F_RDLCK => Kind::Shared,
        libc::F_WRLCK => Kind::Exclusive,
        _ => return Ok(None),
    };
    let start = lock.l_start as u64;
    Ok(Some(Holder {
        start,
        end: match lock.l_len {
            0 => u64::MAX,
            len => start + len as u64 - 1,
        },
        kind,
        pid: u32::try_from(lock.l_pid).unwrap_or(0),
    }))
}

fn flock(start: u64, end: u64, kind: Kind) -> Result<libc::flock> {
    let l_start = i64::try_from(start).map_err(|_| Errno::INVAL)?;
    let l_len = match i64::try_from(end) {
        Ok(end) if end < i64::MAX => end.checked_sub(l_start).ok_or(Errno::INVAL)? + 1,
        _ => 0,
    };
    Ok(libc::flock {
        l_type: match kind {
            Kind::Unlocked => libc::F_UNLCK,
            Kind::Shared => libc::F_RDLCK,
            Kind::Exclusive => libc::F_WRLCK,
        } as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start,
        l_len,
        // The kernel requires 0 for locks of open file descriptions.
        l_pid: 0,
    })
}

fn fcntl(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<()> {
    // SAFETY: these commands read and write one `flock`, which outlives the call. rustix has
    // process-owned whole-file locks only.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    crate::check(answer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_open_files_of_one_process_are_in_each_other_s_way() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let other = file.reopen().expect("opens");
        set(file.as_fd(), 10, 19, Kind::Exclusive).expect("free");
        assert_eq!(
            set(other.as_fd(), 19, u64::MAX, Kind::Shared),
            Err(Errno::AGAIN)
        );
        assert_eq!(
            holder(other.as_fd(), 0, u64::MAX, Kind::Shared),
            Ok(Some(Holder {
                start: 10,
                end: 19,
                kind: Kind::Exclusive,
                pid: 0
            }))
        );
        assert_eq!(holder(other.as_fd(), 20, 30, Kind::Exclusive), Ok(None));
        set(file.as_fd(), 0, u64::MAX, Kind::Unlocked).expect("unlocks");
        set(other.as_fd(), 5, u64::MAX, Kind::Shared).expect("free");
        assert_eq!(
            holder(file.as_fd(), 0, 9, Kind::Exclusive).map(|h| h.map(|h| (h.start, h.end))),
            Ok(Some((5, u64::MAX)))
        );
        assert_eq!(
            set(file.as_fd(), u64::MAX, u64::MAX, Kind::Shared),
            Err(Errno::INVAL)
        );
    }
}
