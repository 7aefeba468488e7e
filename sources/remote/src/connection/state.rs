//! The state under the connection's mutex.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, MutexGuard};
use vfs::{Errno, Result};

use super::background::BackgroundRequests;
use super::input::{Input, Reply};
use super::timeouts::TimeoutState;
use super::{ClientCodec, PayloadLayout, Shape};

pub(super) type Guard<'a, H> = MutexGuard<'a, State<H>>;

pub(super) struct State<H: ClientCodec> {
    pub(super) codec: H,
    /// Indexed by request number.
    pub(super) slots: Vec<Slot<H>>,
    /// Requests that have not been sent.
    pub(super) queue: Vec<u8>,
    /// The buffer to swap with the queue.
    pub(super) spare: Vec<u8>,
    /// Whether a thread has the sending role.
    pub(super) sending: bool,
    /// The number of threads that wait for the sending role.
    pub(super) senders: usize,
    /// Whether the sender waits for room while another thread receives.
    pub(super) stuck: bool,
    /// The receiving role, unless a thread has it.
    pub(super) input: Option<Input<H>>,
    /// The numbers of the requests whose threads wait for a reply and could receive.
    pub(super) followers: Vec<usize>,
    /// The number of large replies in flight, and their approximate length.
    pub(super) large: (usize, usize),
    /// The number of payload bytes in flight, in both directions.
    pub(super) in_flight: usize,
    pub(super) background: BackgroundRequests<H::Background>,
    pub(super) timeout_state: TimeoutState,
    pub(super) failed: Option<(Errno, String)>,
}

/// The state of a request number.
pub(super) struct Slot<H: ClientCodec> {
    pub(super) reply: Option<Result<Outcome<H>>>,
    pub(super) waiter: Waiter,
    /// Notifies a follower.
    pub(super) wakeup: Option<Arc<Condvar>>,
    pub(super) is_waiting: bool,
    large: bool,
    /// Bytes of payload, requested or sent.
    payload: usize,
    /// Distinguishes this use of the number from earlier ones.
    pub(super) generation: u64,
    /// Whether the reply has not arrived.
    pub(super) in_flight: bool,
    /// For a cancelled request, the start of the server's silence.
    pub(super) cancelled: Option<Instant>,
    /// The time of the first check that found the request waiting.
    pub(super) first_check: Option<Instant>,
    /// See [`Shape::timeouts`].
    pub(super) timeouts: u32,
    /// The error of a request that was given up.
    pub(super) given_up: Option<Errno>,
}

impl<H: ClientCodec> Default for Slot<H> {
    fn default() -> Slot<H> {
        Slot {
            reply: None,
            waiter: Waiter::Ticket,
            wakeup: None,
            is_waiting: false,
            large: false,
            payload: 0,
            generation: 0,
            in_flight: false,
            cancelled: None,
            first_check: None,
            timeouts: 0,
            given_up: None,
        }
    }
}

/// The outcome of a request.
pub(crate) enum Outcome<H: ClientCodec> {
    /// The whole reply.
    Whole(Reply<H>),
    /// The kept part of the head, and the length of the payload, which is in the lent memory.
    Direct(H::Head, usize),
    /// No reply: the server is lost, and the lent payload has to be sent again.
    Resend,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiter {
    /// A caller with a ticket.
    Ticket,
    /// No caller any more.
    Abandoned,
    /// No caller from the start.
    Background,
}

impl<H: ClientCodec> State<H> {
    pub(super) fn check_usable(&self) -> Result<()> {
        match self.failed {
            Some((errno, _)) => Err(errno),
            None => Ok(()),
        }
    }

    /// Takes the queue to send it.
    pub(super) fn take_queue(&mut self) -> Vec<u8> {
        self.background.queued = 0;
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.queue, spare)
    }

    pub(super) fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    #[inline]
    pub(super) fn begin(&mut self, at: usize, waiter: Waiter, shape: Shape) {
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.slots[at];
        slot.waiter = waiter;
        slot.generation += 1;
        slot.large = shape.reply >= Shape::LARGE;
        slot.payload = shape.reply + shape.payload;
        slot.in_flight = true;
        slot.timeouts = shape.timeouts;
        (slot.cancelled, slot.first_check, slot.given_up) = (None, None, None);
        self.in_flight += slot.payload;
        if slot.large {
            self.large = (self.large.0 + 1, shape.reply);
        }
    }

    /// Records the reply to request `number`.
    fn end(&mut self, number: usize) {
        self.timeout_state.received = true;
        let slot = &mut self.slots[number];
        slot.in_flight = false;
        self.in_flight -= slot.payload;
        if slot.large {
            self.large.0 -= 1;
        }
    }

    /// Records that the payload for request `number` has landed in the memory of the thread that
    /// holds its ticket.
    pub(super) fn payload_received(&mut self, apart: PayloadLayout, head: &[u8]) {
        let PayloadLayout { number, len, .. } = apart;
        let head = self.codec.payload_received(number, head);
        self.end(number);
        self.slots[number].reply = Some(Ok(Outcome::Direct(head, len)));
    }

    /// Ends request `number`, whose server and lent payload are lost.
    pub(super) fn lost(&mut self, number: usize) {
        if !self.slots.get(number).is_some_and(|slot| slot.in_flight) {
            return;
        }
        self.codec.lost(number);
        self.end(number);
        let slot = &mut self.slots[number];
        if slot.waiter != Waiter::Ticket {
            return self.codec.release(number);
        }
        slot.reply = Some(Ok(Outcome::Resend));
        if let Some(wakeup) = slot.wakeup.as_ref().filter(|_| slot.is_waiting) {
            wakeup.notify_one();
        }
    }

    #[inline]
    pub(super) fn answered(
        &mut self,
        number: usize,
        result: Result<()>,
        input: &mut Input<H>,
        len: usize,
    ) {
        self.end(number);
        let slot = &mut self.slots[number];
        if slot.waiter == Waiter::Ticket {
            slot.reply = Some(match result {
                Ok(()) => Ok(Outcome::Whole(input.take(len))),
                Err(errno) => {
                    input.skip(len);
                    Err(errno)
                }
            });
            if let Some(wakeup) = slot.wakeup.as_ref().filter(|_| slot.is_waiting) {
                wakeup.notify_one();
            }
            return;
        }
        let aside = slot.waiter == Waiter::Background;
        input.skip(len);
        if !aside {
            return self.abandon(number);
        }
        self.codec.release(number);
        self.background.in_flight -= 1;
        if let Some(aside) = self.background.waiting.pop() {
            self.queue_background(aside);
        }
    }

    /// Releases the number of an answered request whose caller has stopped waiting, and queues what
    /// the server must undo.
    pub(super) fn abandon(&mut self, number: usize) {
        if let Some(aside) = self.codec.abandon(number) {
            self.queue_background(aside);
        }
    }
}
