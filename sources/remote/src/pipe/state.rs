//! What the pipe's mutex guards.

use std::sync::{Arc, Condvar, MutexGuard};
use std::time::Instant;

use vfs::{Errno, Result};

use super::asides::Asides;
use super::input::{Input, Reply};
use super::silence::Clock;
use super::{Apart, Half, Shape};

pub(super) type Guard<'a, H> = MutexGuard<'a, State<H>>;

pub(super) struct State<H: Half> {
    pub(super) half: H,
    /// By number.
    pub(super) slots: Vec<Slot<H>>,
    /// Requests that have not left.
    pub(super) queue: Vec<u8>,
    /// The queue's other memory.
    pub(super) spare: Vec<u8>,
    /// Whether a thread has the sending role.
    pub(super) sending: bool,
    /// How many threads wait for it.
    pub(super) senders: usize,
    /// Whether who sends waits for room, and nobody receives.
    pub(super) stuck: bool,
    /// The receiving role, unless a thread has it.
    pub(super) input: Option<Input<H>>,
    /// Who waits for a reply, and could receive.
    pub(super) followers: Vec<usize>,
    /// How many large replies are awaited, and about how large.
    pub(super) large: (usize, usize),
    /// How many bytes of payloads are on their way, in either direction.
    pub(super) in_flight: usize,
    pub(super) asides: Asides<H::Aside>,
    pub(super) clock: Clock,
    pub(super) failed: Option<(Errno, String)>,
}

/// What becomes of a reply.
pub(super) struct Slot<H: Half> {
    pub(super) reply: Option<Result<Came<H>>>,
    pub(super) who: Who,
    /// Rung for a follower.
    pub(super) bell: Option<Arc<Condvar>>,
    pub(super) waits: bool,
    large: bool,
    /// Bytes of payload, asked for or sent.
    payload: usize,
    /// Tells this use of the number from earlier ones.
    pub(super) life: u64,
    /// Whether the server has not answered.
    pub(super) in_flight: bool,
    /// It is cancelled, since when the server has said nothing.
    pub(super) cancelled: Option<Instant>,
    /// When it was first seen to wait.
    pub(super) seen: Option<Instant>,
    /// It may take as long as it takes, whatever the pipe is like.
    pub(super) long: bool,
    /// It has waited long enough: what it fails with.
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
            over: None,
        }
    }
}

/// How a reply has come.
pub(crate) enum Came<H: Half> {
    /// As it is.
    Whole(Reply<H>),
    /// As what is kept of its head, and its payload, so many bytes, in the memory that was lent for it.
    Landed(H::Head, usize),
    /// Not at all: its server is lost, and what was lent for it is to be sent again.
    Again,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Somebody has a ticket.
    Ticket,
    /// Nobody cares any more.
    Nobody,
    /// Nobody from the start.
    Aside,
}

impl<H: Half> State<H> {
    pub(super) fn usable(&self) -> Result<()> {
        match self.failed {
            Some((errno, _)) => Err(errno),
            None => Ok(()),
        }
    }

    /// What is queued has left, or is about to.
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
        (slot.cancelled, slot.seen, slot.long, slot.over) = (None, None, false, None);
        self.in_flight += slot.payload;
        if slot.large {
            self.large = (self.large.0 + 1, shape.reply);
        }
    }

    /// The server has answered request `number`.
    fn ended(&mut self, number: usize) {
        self.clock.heard = true;
        let slot = &mut self.slots[number];
        slot.in_flight = false;
        self.in_flight -= slot.payload;
        if slot.large {
            self.large.0 -= 1;
        }
    }

    /// The payload that answers request `number` has come to where its ticket's holder, who received it, wanted it.
    pub(super) fn landed(&mut self, apart: Apart, head: &[u8]) {
        let Apart { number, len, .. } = apart;
        let head = self.half.landed(number, head);
        self.ended(number);
        self.slots[number].reply = Some(Ok(Came::Landed(head, len)));
    }

    /// The server that was asked `number` is lost, and its payload with it.
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
