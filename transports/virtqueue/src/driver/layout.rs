//! The layout of a queue's part of the shared memory: its rings and its requests.

use super::ring::Queue;

/// The layout of a queue.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    depth: usize,
    payload: usize,
}

impl Layout {
    const PAGE: usize = 4096;

    /// Descriptors of a request: two device-readable, two device-writable.
    pub(super) const DESCRIPTORS_PER_REQUEST: usize = 4;

    /// The size of a descriptor in bytes.
    pub(super) const DESCRIPTOR_SIZE: usize = 16;

    /// The offset of the reply, after the request.
    pub(super) const REPLY_OFFSET: usize = Queue::MAX_INLINE_REQUEST;

    pub(super) const PAYLOAD_OFFSET: usize =
        (Layout::REPLY_OFFSET + Queue::MAX_INLINE_REPLY).next_multiple_of(Layout::PAGE);

    pub(super) fn new(depth: u16, payload: usize) -> Layout {
        Layout {
            depth: (usize::from(depth) + Queue::SPARE_SLOTS)
                .clamp(4, 256)
                .next_power_of_two(),
            payload: payload.next_multiple_of(Layout::PAGE),
        }
    }

    /// Returns the maximum number of requests.
    pub(super) fn depth(&self) -> u16 {
        self.depth as u16
    }

    /// Returns the payload size of each request in bytes.
    pub(super) fn payload(&self) -> usize {
        self.payload
    }

    /// Returns the queue size in descriptors.
    pub(super) fn size(&self) -> u16 {
        (self.depth * Layout::DESCRIPTORS_PER_REQUEST) as u16
    }

    pub(super) fn descriptors(&self) -> usize {
        0
    }

    pub(super) fn available(&self) -> usize {
        self.descriptors() + usize::from(self.size()) * Layout::DESCRIPTOR_SIZE
    }

    pub(super) fn used(&self) -> usize {
        // Flags, index, a number for each descriptor, and the event index.
        (self.available() + 6 + 2 * usize::from(self.size())).next_multiple_of(Layout::PAGE)
    }

    fn slots(&self) -> usize {
        (self.used() + 6 + 8 * usize::from(self.size())).next_multiple_of(Layout::PAGE)
    }

    pub(super) fn slot(&self, slot: u16) -> usize {
        self.slots() + usize::from(slot) * (Layout::PAYLOAD_OFFSET + self.payload)
    }

    pub(super) fn bytes(&self) -> usize {
        self.slot(self.depth())
    }
}
