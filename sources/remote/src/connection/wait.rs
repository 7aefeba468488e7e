//! Waiting for replies: of the waiting threads, one receives for all.

use vfs::{Errno, Result};

use super::direct_receive::{DirectReceive, has_memory, memory_for};
use super::input::{Input, Reply};
use super::state::{Guard, State, Waiter};
use super::{ClientCodec, Connection, ECONNRESET, Outcome, Received, ResendRequired, Ticket};
#[cfg(doc)]
use crate::Timeouts;

impl<H: ClientCodec> Connection<H> {
    /// Waits for the reply. Returns the server's error, that of a failed connection, or the
    /// timeout's ([`Timeouts`]).
    pub fn wait(&self, ticket: Ticket<'_, H>) -> Result<Reply<H>> {
        let reply = self.wait_whole(ticket)?;
        Ok(reply.expect("nobody lent its payload"))
    }

    /// Waits for the reply to a request that may have a lent payload. Returns `None` if it must be
    /// sent again.
    pub(super) fn wait_whole(&self, ticket: Ticket<'_, H>) -> Result<Option<Reply<H>>> {
        assert!(
            std::ptr::eq(self, ticket.connection),
            "a ticket of another pipe"
        );
        let number = ticket.number;
        std::mem::forget(ticket);
        match self.wait_for(number, &mut [])? {
            Outcome::Whole(reply) => Ok(Some(reply)),
            Outcome::Resend => Ok(None),
            Outcome::Direct(..) => unreachable!("nobody lent memory for it"),
        }
    }

    /// Waits for the reply to request `number`, and lets payloads land in `landings` meanwhile.
    pub(super) fn wait_for(
        &self,
        number: usize,
        landings: &mut [DirectReceive<'_, '_, H>],
    ) -> Result<Outcome<H>> {
        let mut state = self.state();
        loop {
            let slot = &mut state.slots[number];
            if let Some(reply) = slot.reply.take() {
                state.codec.release(number);
                return reply;
            }
            if let Some((errno, _)) = state.failed {
                return Err(errno);
            }
            let slot = &mut state.slots[number];
            if let Some(errno) = slot.given_up {
                slot.waiter = Waiter::Abandoned;
                return Err(errno);
            }
            if !state.queue.is_empty() && !state.sending {
                state = self.send_queued(state, true);
            } else if let Some(input) = state.input.take() {
                state = self.receive_for_all(state, input, number, landings);
            } else {
                state = self.wait_for_leader(state, number);
            }
        }
    }

    /// Receives until the reply to request `number` has arrived, then passes the role on.
    fn receive_for_all<'a>(
        &'a self,
        mut state: Guard<'a, H>,
        mut input: Input<H>,
        number: usize,
        landings: &mut [DirectReceive<'_, '_, H>],
    ) -> Guard<'a, H> {
        let lands = has_memory(landings);
        loop {
            let apart = match lands {
                true => state.codec.payload_layout(input.pending()),
                false => None,
            };
            let direct = apart.and_then(|apart| Some((apart, memory_for(landings, apart)?)));
            state = match direct {
                Some((apart, into)) => self.receive_direct(state, &mut input, apart, into),
                None => self.recv(state, &mut input, true, lands),
            };
            self.check_timeouts(&mut state);
            let slot = &state.slots[number];
            let done = slot.reply.is_some() || slot.given_up.is_some();
            if done || state.failed.is_some() {
                break;
            }
            // Sends what a canceller could not. Not patiently, as no other thread receives
            // meanwhile.
            state = self.send_queued(state, false);
        }
        self.pass_role(&mut state, input);
        state
    }

    /// Receives once, and distributes the complete messages. With `apart`, receives no more than
    /// the head before a payload.
    pub(super) fn recv<'a>(
        &'a self,
        state: Guard<'a, H>,
        input: &mut Input<H>,
        wait: bool,
        apart: bool,
    ) -> Guard<'a, H> {
        // An error would have been found when the bytes arrived.
        let frame_len = state.codec.frame(input.pending()).unwrap_or(None);
        let next = (state.large.0 > 0).then_some(state.large.1);
        drop(state);
        let got = input.recv(&*self.link, frame_len, next, apart, wait);
        let mut state = self.state();
        match got {
            Ok(0) => self.fail(&mut state, ECONNRESET, &"the server closed the connection"),
            Ok(_) => {
                if self.deliver(&mut state, input) {
                    // Not patiently, as no other thread receives meanwhile.
                    state = self.send_queued(state, false);
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                input.restart();
                for number in ResendRequired::numbers(&error) {
                    state.lost(number);
                }
            }
            Err(error) => self.fail(&mut state, ECONNRESET, &error),
        }
        state
    }

    /// Distributes the complete messages, and returns whether replies to the server's own requests
    /// were queued.
    fn deliver(&self, state: &mut State<H>, input: &mut Input<H>) -> bool {
        let mut answered = false;
        loop {
            let pending = input.pending();
            let len = match state.codec.frame(pending) {
                Ok(Some(len)) if len <= pending.len() => len,
                Ok(_) => return answered,
                Err(what) => {
                    self.fail(state, Errno::EIO, &what);
                    return false;
                }
            };
            let before = state.queue.len();
            match state.codec.receive(&pending[..len], &mut state.queue) {
                Ok(Received::Reply { number, result }) => {
                    state.answered(number, result, input, len);
                }
                Ok(Received::Nothing) => input.skip(len),
                Err(what) => {
                    self.fail(state, Errno::EIO, &what);
                    return false;
                }
            }
            if state.queue.len() > before {
                answered = true;
                if state.queue.len() > Connection::<H>::MAX_UNREAD {
                    self.fail(
                        state,
                        Errno::EIO,
                        &"the server sends requests and does not receive replies",
                    );
                    return false;
                }
            }
        }
    }

    /// Waits until the reply to request `number` has arrived, or no thread receives.
    fn wait_for_leader<'a>(&'a self, mut state: Guard<'a, H>, number: usize) -> Guard<'a, H> {
        state.followers.push(number);
        let slot = &mut state.slots[number];
        slot.is_waiting = true;
        let wakeup = slot.wakeup.get_or_insert_default().clone();
        wakeup.wait_while(&mut state, |state| {
            let slot = &state.slots[number];
            let done = slot.reply.is_some() || slot.given_up.is_some();
            !done && state.input.is_none() && state.failed.is_none()
        });
        state.slots[number].is_waiting = false;
        state.followers.retain(|&follower| follower != number);
        state
    }

    /// Returns the receiving role, and wakes a waiting thread to take it.
    pub(super) fn pass_role(&self, state: &mut State<H>, input: Input<H>) {
        state.input = Some(input);
        let next = state.followers.iter().find_map(|&number| {
            let slot = &state.slots[number];
            let done = slot.reply.is_some() || slot.given_up.is_some();
            slot.wakeup.as_ref().filter(|_| !done)
        });
        match next {
            Some(wakeup) => {
                wakeup.notify_one();
            }
            None if state.stuck => self.wake_sender(),
            None => {}
        }
    }
}
