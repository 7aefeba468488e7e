//! Page-granular memory, returned to the system as soon as it is unused (mmap(2), madvise(2),
//! malloc_trim(3)).
//!
//! The allocator keeps most freed memory between blocks in use: a thousand connections that had
//! used 20 KiB each, and were idle or closed, held all of it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// A buffer in its own pages, always initialized. Dropping it returns its memory to the system.
/// Fresh pages take no memory until they are written.
pub struct PageBuffer {
    /// Dangling if `len` is 0.
    start: NonNull<u8>,
    len: usize,
    /// Whether it is allocated on the heap, because the system had no mapping left
    /// (`vm.max_map_count`).
    is_heap: bool,
}

// SAFETY: the buffer owns its bytes, which are not tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for PageBuffer {}
// SAFETY: a shared buffer can only be read.
#[allow(unsafe_code)]
unsafe impl Sync for PageBuffer {}

impl PageBuffer {
    /// Creates a buffer without bytes or pages.
    pub const fn new() -> PageBuffer {
        PageBuffer {
            start: NonNull::dangling(),
            len: 0,
            is_heap: false,
        }
    }

    /// Creates a buffer of `len` zeros, not necessarily whole pages. Aborts the process if there is
    /// no memory, as `Vec` does.
    pub fn zeroed(len: usize) -> PageBuffer {
        if len == 0 {
            return PageBuffer::new();
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the system chooses the address, so no existing mapping changes.
        #[allow(unsafe_code)]
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) };
        let mapped = mapped.ok().and_then(|start| NonNull::new(start.cast()));
        let is_heap = mapped.is_none();
        let start = mapped.unwrap_or_else(|| {
            let layout = PageBuffer::layout(len);
            // SAFETY: the layout is not of size 0.
            #[allow(unsafe_code)]
            let start = unsafe { alloc_zeroed(layout) };
            NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout))
        });
        PageBuffer {
            start,
            len,
            is_heap,
        }
    }

    /// Enlarges the buffer to `len` bytes, if it is smaller; new bytes are zero.
    pub fn grow(&mut self, len: usize) {
        if len <= self.len {
            return;
        }
        if self.len > 0 && !self.is_heap {
            let start = self.start.as_ptr().cast();
            // SAFETY: the mapping belongs to this buffer, which is borrowed mutably: no reference
            // to its bytes exists while they move. Bytes between the old length and the end of its
            // page are zero: no slice has covered them.
            #[allow(unsafe_code)]
            let moved = unsafe { mremap(start, self.len, len, MremapFlags::MAYMOVE) };
            if let Some(start) = moved.ok().and_then(|start| NonNull::new(start.cast())) {
                (self.start, self.len) = (start, len);
                return;
            }
        }
        let mut larger = PageBuffer::zeroed(len);
        larger[..self.len].copy_from_slice(self);
        *self = larger;
    }

    fn layout(len: usize) -> Layout {
        Layout::array::<u8>(len).expect("less than half of the address space")
    }
}

/// Copies the bytes to other pages.
impl Clone for PageBuffer {
    fn clone(&self) -> PageBuffer {
        let mut copy = PageBuffer::zeroed(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl Default for PageBuffer {
    fn default() -> PageBuffer {
        PageBuffer::new()
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped or allocated there, all initialized to zero by the system
        // or the allocator, and owned by the buffer; a dangling pointer is valid for none.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.len)
        }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed mutably.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len)
        }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // SAFETY: the mapping or allocation belongs to this buffer, has this length, and no
        // reference to its bytes outlives the buffer.
        #[allow(unsafe_code)]
        unsafe {
            match self.is_heap {
                true => dealloc(self.start.as_ptr(), PageBuffer::layout(self.len)),
                // An error leaves the mapping in place, which is harmless.
                false => {
                    let _ = munmap(self.start.as_ptr().cast(), self.len);
                }
            }
        }
    }
}

/// Returns the unused part of the calling thread's stack to the system: the pages below the
/// caller's frame, which a deep call leaves in memory for as long as the thread lives. Does nothing
/// if the bounds of the stack are unknown. Not for the main thread, whose stack bounds are costly
/// to find.
#[inline(never)]
pub fn release_stack() {
    /// More than the frames of this function and of madvise(2)'s wrapper, and small enough that
    /// they rarely spare the page below.
    const FRAMES: usize = 512;
    let Some(bottom) = stack_bottom() else {
        return;
    };
    let local = 0u8;
    let here = std::ptr::from_ref(std::hint::black_box(&local)).addr();
    let page = rustix::param::page_size();
    let until = (here - FRAMES) & !(page - 1);
    let from = bottom.next_multiple_of(page);
    if from < until {
        let start = std::ptr::with_exposed_provenance_mut(from);
        // SAFETY: the range is within this thread's own stack and ends below the frames in use, so
        // no object there is live. The system provides zeroed pages to later frames. A refusal
        // changes nothing.
        #[allow(unsafe_code)]
        unsafe {
            libc::madvise(start, until - from, libc::MADV_DONTNEED);
        }
    }
}

/// Returns the lowest address of the calling thread's stack.
fn stack_bottom() -> Option<usize> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut bottom, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call initializes the attributes if it returns 0; the others use and destroy
    // them, and write to locals.
    #[allow(unsafe_code)]
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let found = libc::pthread_attr_getstack(attributes.as_ptr(), &mut bottom, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (found == 0).then_some(bottom.addr())
    }
}

/// Returns free memory that the allocator keeps between blocks in use to the system
/// (malloc_trim(3)). Locks each heap meanwhile: some milliseconds for thousands of chunks. C
/// libraries other than glibc return memory by themselves.
pub fn trim_heaps() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it changes only the allocator's free memory, under its own locks.
        #[allow(unsafe_code)]
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_grows_keeps_its_bytes_and_has_zeros_after_them() {
        let mut buffer = PageBuffer::new();
        assert!(buffer.is_empty());
        for len in [1, 3, 4096, 5000, 4 << 20] {
            let before = buffer.len();
            buffer.grow(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer[before..].iter().all(|&byte| byte == 0));
            assert!(buffer[..before].iter().all(|&byte| byte == 7));
            buffer.fill(7);
        }
        buffer.grow(10);
        assert_eq!(buffer.len(), 4 << 20, "it does not shrink");
    }

    /// Returns the resident memory of this process in bytes.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/thread-self/statm").expect("figures");
        let field = text.split(' ').nth(1).expect("a field");
        field.parse::<usize>().expect("a number") * rustix::param::page_size()
    }

    #[inline(never)]
    fn deep(levels: usize) -> usize {
        let frame = std::hint::black_box([levels as u8; 4096]);
        match levels {
            0 => usize::from(frame[0]),
            _ => deep(levels - 1) + usize::from(frame[4095]),
        }
    }

    #[test]
    fn a_stack_that_was_deep_is_small_again() {
        const DEPTH: usize = 4000;
        let run = || {
            let buffer = std::hint::black_box([5u8; 10_000]);
            let sum = deep(DEPTH);
            let before = resident();
            release_stack();
            let after = resident();
            assert!(buffer.iter().all(|&byte| byte == 5));
            assert_eq!(deep(DEPTH), sum);
            (before, after)
        };
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(run);
        let (before, after) = thread.expect("a thread").join().expect("no panic");
        // Other tests run concurrently.
        assert!(after + DEPTH * 2048 < before, "{before} and then {after}");
    }
}
