//! Where a queue's part of the shared memory has its rings, and its requests theirs.

use super::ring::Queue;

/// Where in its memory a queue has what.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    depth: usize,
    payload: usize,
}

impl Layout {
    const PAGE: usize = 4096;

    /// Descriptors of a request: two to read, two to write.
    pub(super) const DESCRIPTORS: usize = 4;

    /// Bytes of a descriptor.
    pub(super) const DESCRIPTOR: usize = 16;

    /// Behind the request, where its reply begins.
    pub(super) const REPLY_AT: usize = Queue::INLINE;

    pub(super) const PAYLOAD_AT: usize =
        (Layout::REPLY_AT + Queue::REPLY).next_multiple_of(Layout::PAGE);

    pub(super) fn new(depth: u16, payload: usize) -> Layout {
        Layout {
            depth: (usize::from(depth) + Queue::SPARE)
                .clamp(4, 256)
                .next_power_of_two(),
            payload: payload.next_multiple_of(Layout::PAGE),
        }
    }

    /// How many requests there may be.
    pub(super) fn depth(&self) -> u16 {
        self.depth as u16
    }

    /// Bytes of payload of each.
    pub(super) fn payload(&self) -> usize {
        self.payload
    }

    /// How many descriptors there are.
    pub(super) fn size(&self) -> u16 {
        (self.depth * Layout::DESCRIPTORS) as u16
    }

    pub(super) fn descriptors(&self) -> usize {
        0
    }

    pub(super) fn available(&self) -> usize {
        self.descriptors() + usize::from(self.size()) * Layout::DESCRIPTOR
    }

    pub(super) fn used(&self) -> usize {
        // Flags, index, a number each, and the event.
        (self.available() + 6 + 2 * usize::from(self.size())).next_multiple_of(Layout::PAGE)
    }

    fn slots(&self) -> usize {
        (self.used() + 6 + 8 * usize::from(self.size())).next_multiple_of(Layout::PAGE)
    }

    pub(super) fn slot(&self, slot: u16) -> usize {
        self.slots() + usize::from(slot) * (Layout::PAYLOAD_AT + self.payload)
    }

    pub(super) fn bytes(&self) -> usize {
        self.slot(self.depth())
    }
}
