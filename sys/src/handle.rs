//! Kernel file handles: identifiers of inodes that survive renames, closing and restarts.

use std::ffi::CStr;
use std::fmt::{self, Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::{Errno, Result};

/// A file handle of name_to_handle_at(2): a type specific to the file system and up to
/// [`FileHandle::MAX`] bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FileHandle {
    len: u32,
    kind: i32,
    bytes: [u8; FileHandle::MAX],
}

impl FileHandle {
    /// The maximum length in bytes (`MAX_HANDLE_SZ`).
    pub const MAX: usize = 128;

    /// Creates a handle of these parts. Returns `EINVAL` beyond [`FileHandle::MAX`].
    pub fn new(kind: i32, bytes: &[u8]) -> Result<FileHandle> {
        let mut handle = FileHandle {
            len: bytes.len() as u32,
            kind,
            bytes: [0; FileHandle::MAX],
        };
        handle
            .bytes
            .get_mut(..bytes.len())
            .ok_or(Errno::INVAL)?
            .copy_from_slice(bytes);
        Ok(handle)
    }

    /// Returns the handle of the file that `fd` refers to, `O_PATH` or not. Returns `EOPNOTSUPP` if
    /// the file system has none. Needs no privilege.
    pub fn of(fd: BorrowedFd<'_>) -> Result<FileHandle> {
        let mut handle = FileHandle {
            len: FileHandle::MAX as u32,
            kind: 0,
            bytes: [0; FileHandle::MAX],
        };
        let mut mount_id: libc::c_int = 0;
        let empty: &CStr = c"";
        // SAFETY: `FileHandle` is laid out as `struct file_handle` with `len` bytes of room after
        // its head, which is all that the kernel writes. rustix has no such call.
        #[allow(unsafe_code)]
        let answer = unsafe {
            libc::name_to_handle_at(
                fd.as_raw_fd(),
                empty.as_ptr(),
                (&raw mut handle).cast(),
                &raw mut mount_id,
                libc::AT_EMPTY_PATH,
            )
        };
        crate::check(answer)?;
        debug_assert!(handle.len as usize <= FileHandle::MAX);
        Ok(handle)
    }

    /// Returns the handle type, specific to the file system.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// The number of pauses between repetitions of an open that fails with `ENOMEM`. They double
    /// from 1 µs on, to 16 ms in total: longer than a thread that creates a file usually waits for
    /// a processor.
    const PAUSES: u32 = 14;

    /// Opens the file on the file system of the descriptor `mount` (not `O_PATH`). Returns `ESTALE`
    /// if it no longer exists. Needs `CAP_DAC_READ_SEARCH` in effect, and checks no permissions
    /// then.
    pub fn open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        for pause in 0..FileHandle::PAUSES {
            match self.try_open(mount, flags) {
                // ext4 also fails so while another file with this inode number is being created
                // (`iget_locked` returns no inode, Linux 6.18).
                Err(Errno::NOMEM) => std::thread::sleep(Duration::from_micros(1 << pause)),
                opened => return opened,
            }
        }
        self.try_open(mount, flags)
    }

    fn try_open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        let mut handle = *self;
        // SAFETY: the kernel reads `len` bytes after the head, which `FileHandle` has. rustix has
        // no such call.
        #[allow(unsafe_code)]
        let answer = unsafe {
            libc::open_by_handle_at(
                mount.as_raw_fd(),
                (&raw mut handle).cast(),
                (flags | OFlags::CLOEXEC).bits() as libc::c_int,
            )
        };
        let fd = crate::check(answer)?;
        // SAFETY: the kernel has just created this descriptor for us; it has no other owner.
        #[allow(unsafe_code)]
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl PartialEq for FileHandle {
    fn eq(&self, other: &FileHandle) -> bool {
        (self.kind, self.bytes()) == (other.kind, other.bytes())
    }
}

impl Eq for FileHandle {}

impl Hash for FileHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind, self.bytes()).hash(state);
    }
}

impl Debug for FileHandle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "FileHandle({}, {:02x?})", self.kind, self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_handle_leads_back_to_its_file_and_dies_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = std::fs::File::open(dir.path()).expect("opens");
        let path = dir.path().join("file");
        let file = std::fs::File::create(&path).expect("a file");
        let handle = match FileHandle::of(file.as_fd()) {
            Err(Errno::OPNOTSUPP) => return eprintln!("skipped: no handles here"),
            handle => handle.expect("a handle"),
        };
        assert_eq!(
            FileHandle::new(handle.kind(), handle.bytes()).map(|h| h == handle),
            Ok(true)
        );
        let again = match handle.open(mount.as_fd(), OFlags::PATH) {
            Err(Errno::PERM) => return eprintln!("skipped: needs CAP_DAC_READ_SEARCH"),
            again => again.expect("opens"),
        };
        let ino = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| stat.st_ino);
        assert_eq!(ino(again.as_fd()), ino(file.as_fd()));
        drop((again, file));
        std::fs::remove_file(&path).expect("removes");
        assert_eq!(
            handle.open(mount.as_fd(), OFlags::PATH).map(drop),
            Err(Errno::STALE)
        );
        assert_eq!(FileHandle::new(1, &[0; 129]).map(drop), Err(Errno::INVAL));
    }

    /// Two threads create and remove files, so that each reuses the other's inode numbers.
    #[test]
    fn memory_does_not_run_out_while_an_inode_number_is_reused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = std::fs::File::open(dir.path()).expect("opens");
        let reuse = |name: &str| {
            for _ in 0..20_000 {
                let path = dir.path().join(name);
                let file = std::fs::File::create(&path).expect("a file");
                let handle = FileHandle::of(file.as_fd());
                drop(file);
                std::fs::remove_file(&path).expect("removes");
                let opened = match handle {
                    Err(Errno::OPNOTSUPP) => return eprintln!("skipped: no handles here"),
                    handle => handle.expect("a handle").open(mount.as_fd(), OFlags::PATH),
                };
                match opened.map(drop) {
                    Err(Errno::PERM) => return eprintln!("skipped: needs CAP_DAC_READ_SEARCH"),
                    // The other thread's attempt may hold the removed file for a moment.
                    opened => assert!(matches!(opened, Ok(()) | Err(Errno::STALE)), "{opened:?}"),
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| reuse("one"));
            reuse("other");
        });
    }
}
