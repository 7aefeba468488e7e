//! The state that all files of a cache share.

use std::io;
use std::sync::Arc;

use super::cached::Cached;
use super::memory::Memory;
use super::workers::Workers;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Core {
    pub(super) memory: Arc<Memory>,
    pub(super) workers: Arc<Workers>,
    /// The maximum number of concurrent messages for a file.
    pub(super) depth: usize,
    /// Incremented when a write is sent, and when its reply arrives.
    write_epoch: AtomicU64,
    /// Reads served from the cache alone, and those that were not.
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    /// Buffers for write-back messages, which must not depend on an allocation: they may be what
    /// frees memory.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Core {
    /// Creates the state, with `bytes` of memory and up to `depth` threads.
    pub(super) fn new(bytes: usize, depth: usize) -> io::Result<Arc<Core>> {
        let buffer = || vec![0; Cached::MESSAGE as usize];
        Ok(Arc::new(Core {
            memory: Memory::new(bytes),
            workers: Workers::new(depth)?,
            depth,
            write_epoch: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            buffers: Mutex::new((0..depth).map(|_| buffer()).collect()),
        }))
    }

    /// Returns the number of writes sent plus the number of replies.
    pub(super) fn write_epoch(&self) -> u64 {
        self.write_epoch.load(Ordering::SeqCst)
    }

    /// Counts a write that is sent, or its reply; returns the new number.
    pub(super) fn advance_write_epoch(&self) -> u64 {
        self.write_epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns a buffer for a message: a preallocated one for each worker, new ones for callers
    /// that write themselves.
    pub(super) fn buffer(&self) -> Vec<u8> {
        let buffer = self.buffers.lock().pop();
        buffer.unwrap_or_default()
    }

    pub(super) fn return_buffer(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < self.depth {
            buffers.push(buffer);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.workers.close();
    }
}
