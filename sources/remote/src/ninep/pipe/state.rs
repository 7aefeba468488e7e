//! What the pipe's mutex guards.

use std::sync::{Arc, Condvar, MutexGuard};

use p9::Tag;
use p9::client::Client;
use vfs::{Errno, Result};

use super::clunks::Clunks;
use super::input::{Input, Reply};

pub(super) type Guard<'a> = MutexGuard<'a, State>;

pub(super) struct State {
    pub(super) client: Client,
    /// By tag.
    pub(super) slots: Vec<Slot>,
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
    pub(super) input: Option<Input>,
    /// Who waits for a reply, and could receive.
    pub(super) followers: Vec<Tag>,
    /// How many large replies are awaited, and about how large.
    pub(super) large: (usize, usize),
    pub(super) clunks: Clunks,
    pub(super) failed: Option<(Errno, String)>,
}

/// What becomes of a reply.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) reply: Option<Result<Reply>>,
    pub(super) who: Who,
    /// Rung for a follower.
    pub(super) bell: Option<Arc<Condvar>>,
    pub(super) waits: bool,
    large: bool,
    /// Tells this use of the tag from earlier ones.
    pub(super) life: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Who {
    /// Somebody has a ticket.
    #[default]
    Ticket,
    /// Nobody cares any more.
    Nobody,
    /// Nobody, and it was a Tclunk.
    Clunk,
}

impl State {
    pub(super) fn usable(&self) -> Result<()> {
        match self.failed {
            Some((errno, _)) => Err(errno),
            None => Ok(()),
        }
    }

    /// What is queued has left, or is about to.
    pub(super) fn take_queue(&mut self) -> Vec<u8> {
        self.clunks.queued = 0;
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.queue, spare)
    }

    pub(super) fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    #[inline]
    pub(super) fn begin(&mut self, tag: Tag, who: Who, large: Option<usize>) {
        let at = usize::from(tag.0);
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.slots[at];
        slot.who = who;
        slot.life += 1;
        slot.large = large.is_some();
        if let Some(large) = large {
            self.large = (self.large.0 + 1, large + p9::message::DATA_HEAD);
        }
    }

    #[inline]
    pub(super) fn answered(&mut self, tag: Tag, result: Result<()>, input: &mut Input, len: usize) {
        let slot = &mut self.slots[usize::from(tag.0)];
        if slot.large {
            self.large.0 -= 1;
        }
        if slot.who == Who::Ticket {
            slot.reply = Some(match result {
                Ok(()) => Ok(input.take(len)),
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
        let clunk = slot.who == Who::Clunk;
        input.skip(len);
        self.client.release(tag);
        if clunk {
            self.clunks.in_flight -= 1;
            if let Some(fid) = self.clunks.waiting.pop() {
                self.clunk(fid);
            }
        }
    }
}
