//! Raw directory reads: with the cookie of each entry, and into a reusable buffer.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Result;

/// Fills `buffer` with entries from the directory's position and returns the number of bytes; 0 at
/// the end (getdents64(2)). [`Entry::first`] parses them.
pub fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: getdents64 writes at most `buffer.len()` bytes there. rustix's `RawDir` would do, but
    // loses entries that it has read and not yet returned when it is dropped between two calls.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    if answer < 0 {
        Err(crate::last_error())
    } else {
        Ok(answer as usize)
    }
}

/// A directory entry in the kernel's layout (`struct linux_dirent64`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode number, on the directory's own device even for a mount point.
    pub ino: u64,
    /// The position to seek to, to continue after this entry.
    pub cookie: u64,
    /// `DT_*`, 0 if the file system does not report it.
    pub d_type: u8,
    /// The name, `.` and `..` included.
    pub name: &'a [u8],
    /// Its length in the buffer in bytes.
    pub len: usize,
}

impl<'a> Entry<'a> {
    /// Parses the first entry in `bytes`; `None` at their end, or if they are malformed.
    pub fn first(bytes: &'a [u8]) -> Option<Entry<'a>> {
        let u64_at = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let ino = u64_at(0)?;
        let cookie = u64_at(8)?;
        let len = usize::from(u16::from_ne_bytes(*bytes.get(16..)?.first_chunk()?));
        let d_type = *bytes.get(18)?;
        let name = bytes.get(19..len)?;
        let end = name.iter().position(|&byte| byte == 0)?;
        Some(Entry {
            ino,
            cookie,
            d_type,
            name: &name[..end],
            len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn every_entry_comes_once_and_a_cookie_leads_behind_it() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in 0..100 {
            std::fs::write(dir.path().join(name.to_string()), "").expect("a file");
        }
        let fd = std::fs::File::open(dir.path()).expect("opens");
        let all = names(fd.as_fd(), 4096);
        assert_eq!(all.len(), 102);
        let cookie = all[40].1;
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(cookie)).expect("seeks");
        assert_eq!(names(fd.as_fd(), 280), all[41..]);
    }

    #[test]
    fn what_is_no_entry_is_none() {
        assert_eq!(Entry::first(&[]), None);
        assert_eq!(Entry::first(&[0xff; 40]), None);
        assert_eq!(Entry::first(&[0; 64]), None);
    }

    fn names(fd: BorrowedFd<'_>, size: usize) -> Vec<(Vec<u8>, u64)> {
        let mut names = Vec::new();
        let mut buffer = vec![0; size];
        loop {
            let filled = read(fd, &mut buffer).expect("reads");
            let mut rest = &buffer[..filled];
            if rest.is_empty() {
                return names;
            }
            while let Some(entry) = Entry::first(rest) {
                names.push((entry.name.to_vec(), entry.cookie));
                rest = &rest[entry.len..];
            }
        }
    }
}
