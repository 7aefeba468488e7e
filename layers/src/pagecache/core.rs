//! What all files of a cache share.

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
    /// How many messages of a file are under way at once.
    pub(super) depth: usize,
    /// Moves with each write that is sent, and with each that comes back.
    landings: AtomicU64,
    /// Reads that had all they wanted here, and those that had not.
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    /// For messages of write-behind, which must not have to ask for memory: it may be what makes room.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Core {
    /// With `bytes` of memory and up to `depth` threads.
    pub(super) fn new(bytes: usize, depth: usize) -> io::Result<Arc<Core>> {
        let buffer = || vec![0; Cached::MESSAGE as usize];
        Ok(Arc::new(Core {
            memory: Memory::new(bytes),
            workers: Workers::new(depth)?,
            depth,
            landings: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            buffers: Mutex::new((0..depth).map(|_| buffer()).collect()),
        }))
    }

    /// How many writes have been sent and have come back by now.
    pub(super) fn landings(&self) -> u64 {
        self.landings.load(Ordering::SeqCst)
    }

    /// One more is sent, or has come back.
    pub(super) fn landed(&self) -> u64 {
        self.landings.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A buffer of a message; more than there are workers are made for those that wait for what they write themselves.
    pub(super) fn buffer(&self) -> Vec<u8> {
        let buffer = self.buffers.lock().expect("no panic holds it").pop();
        buffer.unwrap_or_default()
    }

    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock().expect("no panic holds it");
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
