//! The state under the pipe's mutex.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, MutexGuard};
use vfs::{Errno, Result};

use super::asides::Asides;
use super::input::{Input, Reply};
use super::silence::Clock;
use super::{Apart, Half, Shape};

pub(super) type Guard<'a, H> = MutexGuard<'a, State<H>>;

pub(super) struct State<H: Half> {
    pub(super) half: H,
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
    pub(super) asides: Asides<H::Aside>,
    pub(super) clock: Clock,
    pub(super) failed: Option<(Errno, String)>,
}

/// The state of a request number.
pub(super) struct Slot<H: Half> {
    pub(super) reply: Option<Result<Came<H>>>,
    pub(super) who: Who,
    /// Notifies a follower.
    pub(super) bell: Option<Arc<Condvar>>,
    pub(super) waits: bool,
    large: bool,
    /// Bytes of payload, requested or sent.
    payload: usize,
    /// Distinguishes this use of the number from earlier ones.
    pub(super) life: u64,
    /// Whether the reply has not arrived.
    pub(super) in_flight: bool,
    /// For a cancelled request, the start of the server's silence.
    pub(super) cancelled: Option<Instant>,
    /// The time of the first check that found the request waiting.
    pub(super) seen: Option<Instant>,
    /// Whether the request has no timeout.
    pub(super) long: bool,
    /// See [`Shape::timeouts`].
    pub(super) timeouts: u32,
    /// The error of a request that was given up.
    pub(super) over: Option<Errno>,
}

impl<H: Half> Default for Slot<H> {
    fn default() -> Slot<H> {
        Slot {
            reply: None,
            who: Who::Ticket,
            bell: None,
            waits: false,
            large: false,
            payload: 0,
            life: 0,
            in_flight: false,
            cancelled: None,
            seen: None,
            long: false,
            timeouts: 0,
            over: None,
        }
    }
}

/// The outcome of a request.
pub(crate) enum Came<H: Half> {
    /// The whole reply.
    Whole(Reply<H>),
    /// The kept part of the head, and the length of the payload, which is in the lent memory.
    Landed(H::Head, usize),
    /// No reply: the server is lost, and the lent payload has to be sent again.
    Again,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// A caller with a ticket.
    Ticket,
    /// No caller any more.
    Nobody,
    /// No caller from the start.
    Aside,
}

impl<H: Half> State<H> {
    pub(super) fn usable(&self) -> Result<()> {
        match self.failed {
            Some((errno, _)) => Err(errno),
            None => Ok(()),
        }
    }

    /// Takes the queue to send it.
    pub(super) fn take_queue(&mut self) -> Vec<u8> {
        self.asides.queued = 0;
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.queue, spare)
    }

    pub(super) fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    #[inline]
    pub(super) fn begin(&mut self, at: usize, who: Who, shape: Shape) {
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.slots[at];
        slot.who = who;
        slot.life += 1;
        slot.large = shape.reply >= Shape::LARGE;
        slot.payload = shape.reply + shape.payload;
        slot.in_flight = true;
        slot.timeouts = shape.timeouts;
        (slot.cancelled, slot.seen, slot.long, slot.over) = (None, None, false, None);
        self.in_flight += slot.payload;
        if slot.large {
            self.large = (self.large.0 + 1, shape.reply);
        }
    }

    /// Records the reply to request `number`.
    fn ended(&mut self, number: usize) {
        self.clock.heard = true;
        let slot = &mut self.slots[number];
        slot.in_flight = false;
        self.in_flight -= slot.payload;
        if slot.large {
            self.large.0 -= 1;
        }
    }

    /// Records that the payload for request `number` has landed in the memory of the thread that
    /// holds its ticket.
    pub(super) fn landed(&mut self, apart: Apart, head: &[u8]) {
        let Apart { number, len, .. } = apart;
        let head = self.half.landed(number, head);
        self.ended(number);
        self.slots[number].reply = Some(Ok(Came::Landed(head, len)));
    }

    /// Ends request `number`, whose server and lent payload are lost.
    pub(super) fn lost(&mut self, number: usize) {
        if !self.slots.get(number).is_some_and(|slot| slot.in_flight) {
            return;
        }
        self.half.lost(number);
        self.ended(number);
        let slot = &mut self.slots[number];
        if slot.who != Who::Ticket {
            return self.half.release(number);
        }
        slot.reply = Some(Ok(Came::Again));
        if let Some(bell) = slot.bell.as_ref().filter(|_| slot.waits) {
            bell.notify_one();
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
        self.ended(number);
        let slot = &mut self.slots[number];
        if slot.who == Who::Ticket {
            slot.reply = Some(match result {
                Ok(()) => Ok(Came::Whole(input.take(len))),
                Err(errno) => {
                    input.skip(len);
                    Err(errno)
                }
            });
            if let Some(bell) = slot.bell.as_ref().filter(|_| slot.waits) {
                bell.notify_one();
            }
            return;
        }
        let aside = slot.who == Who::Aside;
        input.skip(len);
        self.half.release(number);
        if aside {
            self.asides.in_flight -= 1;
            if let Some(aside) = self.asides.waiting.pop() {
                self.aside(aside);
            }
        }
    }
}
