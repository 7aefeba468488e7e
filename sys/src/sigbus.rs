//! Mapped files that another process may truncate. An access to a page that is gone raises SIGBUS,
//! which would end this process, with all that it does for others.
//!
//! The handler replaces a guarded range by zeros that belong to this process, and notes that the
//! range is lost. A fault anywhere else has the action that was there before, which is that of the
//! standard library. System calls return `EFAULT` for such a page, and need no handler.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most ranges at a time: more than devices have regions of memory.
const MAX_RANGES: usize = 4096;

/// `BUS_ADRERR` (`asm-generic/siginfo.h`): there is no page. Other codes are faults of the
/// hardware.
const NO_PAGE: libc::c_int = 2;

/// A range of addresses. The handler reads it while other threads change it, without a lock.
struct Range {
    /// 0 if it is free, and [`RESERVED`] while it is being set.
    start: AtomicUsize,
    /// 0 unless the range is complete.
    end: AtomicUsize,
    is_lost: AtomicBool,
}

const RESERVED: usize = 1;

static RANGES: [Range; MAX_RANGES] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; MAX_RANGES];

/// The action that was there before.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// A mapping that is replaced by zeros when a page of it is gone, until dropped.
pub struct GuardedRange(&'static Range);

impl GuardedRange {
    /// Guards `len` bytes of memory at `start`. Returns an error of kind `OutOfMemory` if too many
    /// ranges are guarded.
    ///
    /// # Safety
    /// The range is a mapping of whole pages to read and write, which stays mapped until the guard
    /// is dropped, and of which nobody has a reference that assumes fixed contents.
    #[allow(unsafe_code)]
    pub unsafe fn new(start: *const u8, len: usize) -> io::Result<GuardedRange> {
        if BEFORE.get_or_init(install).is_none() {
            return Err(io::Error::other("SIGBUS cannot be handled"));
        }
        let claim = |range: &&Range| {
            let order = Ordering::SeqCst;
            let claimed = range.start.compare_exchange(0, RESERVED, order, order);
            claimed.is_ok()
        };
        let range = RANGES.iter().find(claim);
        let range = range.ok_or(io::ErrorKind::OutOfMemory)?;
        range.is_lost.store(false, Ordering::SeqCst);
        range.start.store(start.addr(), Ordering::SeqCst);
        range.end.store(start.addr() + len, Ordering::SeqCst);
        Ok(GuardedRange(range))
    }

    /// Returns whether a page was gone, and the range is zeros of this process since.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for GuardedRange {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::SeqCst);
        self.0.start.store(0, Ordering::SeqCst);
    }
}

/// Installs the handler, and returns the action before.
fn install() -> Option<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a sigaction of zeros is valid, and is filled in. The handler is async-signal-safe: it
    // reads atomics and makes system calls. The standard library's alternative stack is used, as a
    // stack may have overflowed.
    #[allow(unsafe_code)]
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handle as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        match libc::sigaction(libc::SIGBUS, &action, before.as_mut_ptr()) {
            0 => Some(before.assume_init()),
            _ => None,
        }
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes valid information about a fault, whose address it has.
    #[allow(unsafe_code)]
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == NO_PAGE && RANGES.iter().any(|range| range.replace(address)) {
        return;
    }
    if let Some(Some(before)) = BEFORE.get() {
        // SAFETY: the action was valid before. The instruction is repeated, and faults again.
        #[allow(unsafe_code)]
        unsafe {
            libc::sigaction(signal, before, ptr::null_mut());
        }
    }
}

impl Range {
    /// Replaces the range by zeros if `address` is in it. Returns whether that is done.
    fn replace(&self, address: usize) -> bool {
        let end = self.end.load(Ordering::SeqCst);
        let start = self.start.load(Ordering::SeqCst);
        if start <= RESERVED || !(start..end).contains(&address) {
            return false;
        }
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let start = ptr::without_provenance_mut::<libc::c_void>(start);
        // SAFETY: the range is a mapping of whole pages, as the caller of `GuardedRange::new` has
        // promised, and the new one is to be accessed in the same way. All of it is replaced: a
        // part of a huge page cannot be. errno belongs to the interrupted code.
        #[allow(unsafe_code)]
        let mapped = unsafe {
            let errno = *libc::__errno_location();
            let mapped = libc::mmap(start, end - start.addr(), access, kind, -1, 0);
            *libc::__errno_location() = errno;
            mapped
        };
        let is_replaced = mapped == start;
        if is_replaced {
            self.is_lost.store(true, Ordering::SeqCst);
        }
        is_replaced
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    const LEN: usize = 1 << 20;

    #[test]
    fn a_file_that_is_truncated_becomes_zeros_and_others_stay() {
        let map = || {
            let file = memfd_create("guarded", MemfdFlags::CLOEXEC).expect("made");
            ftruncate(&file, LEN as u64).expect("sized");
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping is no part of another one.
            #[allow(unsafe_code)]
            let start = unsafe { mmap(ptr::null_mut(), LEN, access, MapFlags::SHARED, &file, 0) };
            let start = start.expect("mapped").cast::<u8>();
            // SAFETY: it is mapped until the end of the test, and only accessed as bytes.
            #[allow(unsafe_code)]
            let guard = unsafe { GuardedRange::new(start, LEN) };
            (file, start, guard.expect("guarded"))
        };
        let (lost, kept) = (map(), map());
        let write = |at: *mut u8, value| {
            // SAFETY: the address is in a mapping that lives.
            #[allow(unsafe_code)]
            unsafe {
                at.write_volatile(value)
            }
        };
        let read = |at: *mut u8| {
            // SAFETY: the address is in a mapping that lives.
            #[allow(unsafe_code)]
            unsafe {
                at.read_volatile()
            }
        };
        write(lost.1, 1);
        write(kept.1, 2);
        ftruncate(&lost.0, 0).expect("truncated");
        assert!(!lost.2.is_lost());
        let last = lost.1.wrapping_add(LEN - 1);
        assert_eq!(read(last), 0);
        assert!(lost.2.is_lost() && !kept.2.is_lost());
        write(last, 3);
        assert_eq!((read(lost.1), read(last), read(kept.1)), (0, 3, 2));
        for (_, start, guard) in [lost, kept] {
            drop(guard);
            // SAFETY: it is not accessed any more.
            #[allow(unsafe_code)]
            unsafe {
                munmap(start.cast(), LEN).expect("unmapped");
            }
        }
    }
}
