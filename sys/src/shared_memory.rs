//! Memory that a process shares with its successor (memfd_create(2)).
//!
//! The descriptor keeps the contents while no process has them mapped. Its size is sealed, so that
//! no other holder of the descriptor can make an access fail (`SIGBUS`).

use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes in a word.
const WORD: usize = size_of::<AtomicU64>();

/// Returns memory of `words` zeros, shown as `name` below /proc. It takes space when it is written.
pub fn create(name: &str, words: usize) -> Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, (words * WORD) as u64)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Memory of [`create`], mapped into this process. Other processes may change it at any time, so
/// it consists of atomic words.
pub struct SharedMemory {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is not tied to a thread, and all accesses are atomic.
#[allow(unsafe_code)]
unsafe impl Send for SharedMemory {}
// SAFETY: likewise.
#[allow(unsafe_code)]
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps the memory of `fd`. Returns `EINVAL` unless it has `words` words and its size is
    /// sealed.
    pub fn map(fd: BorrowedFd<'_>, words: usize) -> Result<SharedMemory> {
        let len = words.checked_mul(WORD).filter(|&len| len > 0);
        let len = len.ok_or(Errno::INVAL)?;
        let sealed = fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        if !sealed || u64::try_from(fstat(fd)?.st_size) != Ok(len as u64) {
            return Err(Errno::INVAL);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address, so no existing mapping changes.
        #[allow(unsafe_code)]
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                fd,
                0,
            )
        };
        let start = NonNull::new(start?.cast()).ok_or(Errno::FAULT)?;
        Ok(SharedMemory { start, words })
    }
}

impl Deref for SharedMemory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, aligned to a page, as long as `self` lives; the
        // seal keeps them. Any bits are a valid word, and other processes use them atomically.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.words)
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and no reference to it outlives the object.
        #[allow(unsafe_code)]
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.words * WORD) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_outlive_a_mapping() {
        let fd = create("test", 1024).expect("memory");
        let memory = SharedMemory::map(fd.as_fd(), 1024).expect("mapped");
        assert!(memory.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        memory[1023].store(7, Ordering::Relaxed);
        drop(memory);
        let memory = SharedMemory::map(fd.as_fd(), 1024).expect("mapped");
        assert_eq!(memory[1023].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn memory_of_another_size_or_without_seals_is_refused() {
        let fd = create("test", 1024).expect("memory");
        for words in [0, 1, 1023, 1025, usize::MAX] {
            assert!(SharedMemory::map(fd.as_fd(), words).is_err(), "{words}");
        }
        assert!(ftruncate(&fd, 8).is_err());
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, 8192).expect("enlarged");
        assert!(SharedMemory::map(fd.as_fd(), 1024).is_err());
    }
}
