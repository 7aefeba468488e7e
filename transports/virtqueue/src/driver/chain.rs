//! A request of a queue, from its making to its reply: [`Chain`], [`Ticket`], [`Reply`].

use std::io;

use super::layout::Layout;
use super::ring::{Phase, Queue};

/// How long the parts of a request and of its reply are, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lengths {
    /// Of the request, what is inline.
    pub request: usize,
    /// Of the request, what stands in the payload behind that.
    pub request_payload: usize,
    /// Of the reply, what may come inline.
    pub reply: usize,
    /// Of the reply, what may come into the payload behind that.
    pub reply_payload: usize,
}

impl Lengths {
    /// How many bytes the device may write.
    fn room(&self) -> u32 {
        (self.reply + self.reply_payload) as u32
    }
}

/// A request being made: memory that the device will see. Dropping it gives it up.
pub struct Chain<'q> {
    queue: &'q Queue,
    slot: u16,
}

/// A request that the device has. Dropping it forgets the reply.
#[must_use = "a reply that nobody waits for is forgotten"]
pub struct Ticket<'q> {
    queue: &'q Queue,
    slot: u16,
    /// How much of the reply may come inline.
    inline: usize,
}

/// A reply, where the device has put it.
pub struct Reply<'q> {
    chain: Chain<'q>,
    len: usize,
    inline: usize,
}

impl<'q> Chain<'q> {
    /// The request of a slot that is the caller's.
    pub(super) fn of(queue: &'q Queue, slot: u16) -> Chain<'q> {
        Chain { queue, slot }
    }

    /// Writes the beginning of the request, at most [`Queue::INLINE`] bytes.
    pub fn request(&mut self, bytes: &[u8]) {
        self.request_at(0, bytes);
    }

    /// Writes a part of the beginning of the request.
    pub(super) fn request_at(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= Queue::INLINE, "a request is in bounds");
        self.queue.store(self.at(at), bytes);
    }

    /// Writes a part of the payload.
    pub fn payload(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.room(), "a payload is in bounds");
        self.queue.store(self.at(Layout::PAYLOAD_AT + at), bytes);
    }

    /// How many bytes of payload there may be.
    pub fn room(&self) -> usize {
        self.queue.layout().payload()
    }

    /// Has the device see it, which may have to be told: [`Queue::kick`].
    pub fn submit(self, lengths: Lengths) -> Ticket<'q> {
        let (queue, slot, inline) = (self.queue, self.slot, lengths.reply);
        let room = lengths.room();
        self.publish(&lengths, Phase::There { room });
        Ticket {
            queue,
            slot,
            inline,
        }
    }

    /// [`Chain::submit`], and the reply is for whoever asks for any: [`Queue::any`].
    pub(super) fn post(self, lengths: Lengths) {
        let (room, inline) = (lengths.room(), lengths.reply as u32);
        self.publish(&lengths, Phase::Posted { room, inline });
    }

    fn publish(self, lengths: &Lengths, phase: Phase) {
        let &Lengths {
            request,
            request_payload,
            reply,
            reply_payload,
        } = lengths;
        assert!(
            (1..=Queue::INLINE).contains(&request)
                && reply <= Queue::REPLY
                && request_payload.max(reply_payload) <= self.room()
                && (request_payload == 0 || reply_payload == 0),
            "{lengths:?}"
        );
        let (queue, slot) = (self.queue, self.slot);
        std::mem::forget(self);
        queue.publish(slot, lengths, phase);
    }

    /// What is put aside, to go on with by [`Queue::resume`].
    pub(super) fn put_aside(self) -> u16 {
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
    /// Waits for the reply. Errs once the device is gone; `TimedOut` once it is `over`, which is looked at now and then: then the
    /// reply is forgotten.
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
        self.queue.forget(self.slot);
    }
}

impl Reply<'_> {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies what came inline into `bytes`, and says how much that was.
    pub fn inline(&self, bytes: &mut [u8]) -> usize {
        let len = self.len.min(self.inline).min(bytes.len());
        let at = self.chain.at(Layout::REPLY_AT);
        self.chain.queue.load(at, &mut bytes[..len]);
        len
    }

    /// Copies what came into the payload at `at` on into `bytes`, which is no longer than that.
    pub fn payload(&self, at: usize, bytes: &mut [u8]) {
        assert!(
            at + bytes.len() <= self.len.saturating_sub(self.inline),
            "a payload is in bounds"
        );
        let at = self.chain.at(Layout::PAYLOAD_AT + at);
        self.chain.queue.load(at, bytes);
    }
}
