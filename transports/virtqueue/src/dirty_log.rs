//! The dirty log of a live migration: a bitmap in memory that the monitor shares, with a bit for
//! each page of the guest's memory that the device has written (vhost-user, "Migration").
//!
//! The monitor clears bits while the device sets others, so each byte is accessed atomically. Pages
//! beyond the end of the log are not recorded: the monitor made the log large enough for all
//! regions. One function is unsafe, as the guard of the mapping replaces it.

use std::fs::File;
use std::sync::atomic::{AtomicU8, Ordering};

use sys::sigbus::GuardedRange;
use vhost::vhost_user::{Error, Result};
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, VolatileMemory};

/// The size of a page of the log (`VHOST_LOG_PAGE`), whatever the guest's page size.
const PAGE: u64 = 4096;

/// A mapped dirty log.
pub(crate) struct DirtyLog {
    /// The monitor may truncate the file. Dropped before the mapping.
    _guard: GuardedRange,
    map: MmapRegion<()>,
}

impl DirtyLog {
    /// Maps `size` bytes of `file` from `offset` on. Returns an error if these are none, or extend
    /// beyond the end of the file, where an access would raise SIGBUS.
    pub(crate) fn map(file: File, offset: u64, size: u64) -> Result<DirtyLog> {
        let len = file.metadata().map_err(Error::ReqHandlerError)?.len();
        let end = offset.checked_add(size);
        let bytes = usize::try_from(size).map_err(|_| Error::InvalidParam)?;
        if bytes == 0 || end.is_none_or(|end| end > len) {
            return Err(Error::InvalidParam);
        }
        let map = MmapRegion::from_file(FileOffset::new(file, offset), bytes)
            .map_err(|_| Error::InvalidParam)?;
        // SAFETY: it is a mapping of its own, of whole pages, and stays until the guard is dropped.
        // Its bytes change at any time anyway, and are accessed as atomics.
        #[allow(unsafe_code)]
        let guard = unsafe { GuardedRange::new(map.as_ptr(), map.size()) };
        Ok(DirtyLog {
            _guard: guard.map_err(Error::ReqHandlerError)?,
            map,
        })
    }

    /// Returns its file, and its offset and size there in bytes.
    pub(crate) fn file(&self) -> Option<(&File, u64, u64)> {
        let at = self.map.file_offset()?;
        Some((at.file(), at.start(), self.map.size() as u64))
    }

    /// Marks the pages of `len` bytes at the guest address `start`.
    pub(crate) fn mark(&self, start: u64, len: u64) {
        let Some(last) = len.checked_sub(1).and_then(|more| start.checked_add(more)) else {
            return;
        };
        let (first, last) = (start / PAGE, last / PAGE);
        for byte in first / 8..=last / 8 {
            let bits = |page: u64| page.saturating_sub(byte * 8).min(7);
            let (from, to) = (bits(first), bits(last));
            let mask = (0xff << from) & (0xff >> (7 - to));
            let Ok(Ok(cell)) =
                usize::try_from(byte).map(|at| self.map.get_atomic_ref::<AtomicU8>(at))
            else {
                return;
            };
            // After the write to the page, which the monitor copies after it has cleared the bit.
            cell.fetch_or(mask, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn log(size: u64) -> (DirtyLog, File) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(size + 4096).expect("room");
        let again = file.try_clone().expect("a descriptor");
        (DirtyLog::map(again, 4096, size).expect("mapped"), file)
    }

    /// Returns the marked pages.
    fn marked(file: &File, size: usize) -> Vec<usize> {
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, 4096).expect("read");
        (0..size * 8)
            .filter(|page| bytes[page / 8] & 1 << (page % 8) != 0)
            .collect()
    }

    #[test]
    fn every_page_of_a_range_is_marked_and_no_other() {
        for (start, len, pages) in [
            (0, 1, 0..1),
            (4095, 1, 0..1),
            (4095, 2, 0..2),
            (4096, 4096, 1..2),
            (7 * 4096, 2 * 4096, 7..9),
            (3 * 4096 + 5, 20 * 4096, 3..24),
            (4096, 0, 0..0),
        ] {
            let (log, file) = log(8);
            log.mark(start, len);
            assert_eq!(marked(&file, 8), pages.collect::<Vec<_>>(), "{start} {len}");
        }
    }

    #[test]
    fn pages_beyond_the_log_are_ignored() {
        let (log, file) = log(1);
        log.mark(6 * 4096, 1 << 40);
        log.mark(u64::MAX, 1);
        log.mark(u64::MAX - 4096, u64::MAX);
        assert_eq!(marked(&file, 1), [6, 7]);
    }

    #[test]
    fn a_log_beyond_its_file_is_refused() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(4096).expect("room");
        for (offset, size) in [(0, 0), (0, 4097), (4096, 1), (u64::MAX, 2)] {
            let again = file.try_clone().expect("a descriptor");
            assert!(
                DirtyLog::map(again, offset, size).is_err(),
                "{offset} {size}"
            );
        }
    }
}
