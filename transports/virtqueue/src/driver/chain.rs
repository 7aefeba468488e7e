//! A queue's request from its construction to its reply: [`Chain`], [`Ticket`], [`Reply`].

use std::io;

use super::layout::Layout;
use super::ring::{Queue, SlotState};

/// The lengths of the parts of a request and its reply in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lengths {
    /// The inline part of the request.
    pub request: usize,
    /// The part of the request in the payload buffer, after the inline part.
    pub request_payload: usize,
    /// The maximum inline part of the reply.
    pub reply: usize,
    /// The maximum part of the reply in the payload buffer, after the inline part.
    pub reply_payload: usize,
}

impl Lengths {
    /// Returns how many bytes the device may write.
    fn writable(&self) -> u32 {
        (self.reply + self.reply_payload) as u32
    }
}

/// A request under construction in memory shared with the device. Dropping it abandons it.
pub struct Chain<'q> {
    queue: &'q Queue,
    slot: u16,
}

/// A request that the device owns. Dropping it discards the reply.
#[must_use = "a reply that nobody waits for is forgotten"]
pub struct Ticket<'q> {
    queue: &'q Queue,
    slot: u16,
    /// The maximum inline part of the reply.
    inline: usize,
}

/// A reply in shared memory.
pub struct Reply<'q> {
    chain: Chain<'q>,
    len: usize,
    inline: usize,
}

impl<'q> Chain<'q> {
    /// Creates the request of a slot that the caller owns.
    pub(super) fn of(queue: &'q Queue, slot: u16) -> Chain<'q> {
        Chain { queue, slot }
    }

    /// Writes the inline part of the request, at most [`Queue::MAX_INLINE_REQUEST`] bytes.
    pub fn request(&mut self, bytes: &[u8]) {
        self.request_at(0, bytes);
    }

    /// Writes a section of the inline part of the request.
    pub(super) fn request_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(
            at + bytes.len() <= Queue::MAX_INLINE_REQUEST,
            "a request is in bounds"
        );
        self.queue.store(self.at(at), bytes);
    }

    /// Writes a section of the payload.
    pub fn payload(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.room(), "a payload is in bounds");
        self.queue
            .store(self.at(Layout::PAYLOAD_OFFSET + at), bytes);
    }

    /// Returns the maximum size of the payload in bytes.
    pub fn room(&self) -> usize {
        self.queue.layout().payload()
    }

    /// Makes it available to the device, which may need a notification: [`Queue::kick`].
    pub fn submit(self, lengths: Lengths) -> Ticket<'q> {
        let (queue, slot, inline) = (self.queue, self.slot, lengths.reply);
        let limit = lengths.writable();
        self.publish(&lengths, SlotState::InFlight { limit });
        Ticket {
            queue,
            slot,
            inline,
        }
    }

    /// Does the same as [`Chain::submit`], with the reply for any receiver: [`Queue::next_posted`].
    pub(super) fn post(self, lengths: Lengths) {
        let (limit, inline) = (lengths.writable(), lengths.reply as u32);
        self.publish(&lengths, SlotState::Posted { limit, inline });
    }

    fn publish(self, lengths: &Lengths, phase: SlotState) {
        let &Lengths {
            request,
            request_payload,
            reply,
            reply_payload,
        } = lengths;
        assert!(
            (1..=Queue::MAX_INLINE_REQUEST).contains(&request)
                && reply <= Queue::MAX_INLINE_REPLY
                && request_payload.max(reply_payload) <= self.room()
                && (request_payload == 0 || reply_payload == 0),
            "{lengths:?}"
        );
        let (queue, slot) = (self.queue, self.slot);
        std::mem::forget(self);
        queue.publish(slot, lengths, phase);
    }

    /// Detaches the slot, to continue with [`Queue::resume`].
    pub(super) fn detach(self) -> u16 {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }

    fn at(&self, offset: usize) -> usize {
        self.queue.layout().slot(self.slot) + offset
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.queue.release(self.slot);
    }
}

impl<'q> Ticket<'q> {
    /// Waits for the reply. Returns an error once the device is gone, and `TimedOut` once `over`
    /// returns true, which is called now and then; the reply is then discarded.
    pub fn wait(self, over: impl Fn() -> bool) -> io::Result<Reply<'q>> {
        let (queue, slot, inline) = (self.queue, self.slot, self.inline);
        let len = queue.wait(slot, over)?;
        std::mem::forget(self);
        let chain = Chain::of(queue, slot);
        Ok(Reply { chain, len, inline })
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.queue.abandon(self.slot);
    }
}

impl Reply<'_> {
    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the inline part into `bytes`, and returns its length.
    pub fn inline(&self, bytes: &mut [u8]) -> usize {
        let len = self.len.min(self.inline).min(bytes.len());
        let at = self.chain.at(Layout::REPLY_OFFSET);
        self.chain.queue.load(at, &mut bytes[..len]);
        len
    }

    /// Copies the payload from `at` on into `bytes`, which must not be longer.
    pub fn payload(&self, at: usize, bytes: &mut [u8]) {
        assert!(
            at + bytes.len() <= self.len.saturating_sub(self.inline),
            "a payload is in bounds"
        );
        let at = self.chain.at(Layout::PAYLOAD_OFFSET + at);
        self.chain.queue.load(at, bytes);
    }
}
