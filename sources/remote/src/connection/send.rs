//! Sending: one thread at a time sends the queue of all.

use std::io::{self, ErrorKind, IoSlice};
use std::time::Instant;

use transports::Interest;
use vfs::fd::AsFd;

use super::state::Guard;
use super::{ClientCodec, Connection, ECONNRESET, Shape};

impl<H: ClientCodec> Connection<H> {
    /// Sends the queue, unless another thread is sending and will send it. Without `patient`, sends
    /// no more than fits at once; the rest stays queued for the next receiver to send.
    pub(super) fn send_queued<'a>(
        &'a self,
        mut state: Guard<'a, H>,
        patient: bool,
    ) -> Guard<'a, H> {
        if state.sending || state.queue.is_empty() || state.is_failed() {
            return state;
        }
        state.sending = true;
        state = self.send_all_queued(state, patient);
        self.stop_sending(state)
    }

    /// Sends the queue, `payload` directly after it, and the zeros of `shape`. The sending role
    /// must be free.
    pub(super) fn send_with<'a>(
        &'a self,
        mut state: Guard<'a, H>,
        payload: &[u8],
        shape: Shape,
    ) -> Guard<'a, H> {
        state.sending = true;
        let mut queued = state.take_queue();
        // The zeros precede all that other threads queue meanwhile.
        state.queue.resize(shape.zeros, 0);
        drop(state);
        let sent = self.send_pieces(&queued, payload, shape.lent, true);
        queued.clear();
        state = self.state();
        state.spare = queued;
        if let Err(error) = sent {
            self.fail(&mut state, ECONNRESET, &error);
        }
        // Other threads may have queued requests meanwhile.
        state = self.send_all_queued(state, true);
        self.stop_sending(state)
    }

    fn send_all_queued<'a>(&'a self, mut state: Guard<'a, H>, patient: bool) -> Guard<'a, H> {
        while !state.queue.is_empty() && !state.is_failed() {
            let mut queued = state.take_queue();
            drop(state);
            let sent = self.send_pieces(&queued, &[], false, patient);
            state = self.state();
            match sent {
                Ok(sent) if sent < queued.len() => {
                    queued.drain(..sent);
                    queued.extend_from_slice(&state.queue);
                    state.queue = queued;
                    break;
                }
                Ok(_) => {
                    queued.clear();
                    state.spare = queued;
                }
                Err(error) => {
                    self.fail(&mut state, ECONNRESET, &error);
                }
            }
        }
        state
    }

    fn stop_sending<'a>(&'a self, mut state: Guard<'a, H>) -> Guard<'a, H> {
        state.sending = false;
        if state.senders > 0 {
            self.may_send.notify_one();
        }
        state
    }

    /// Sends `one` and then `other`, which may be `lent`, and returns the number of bytes sent; all
    /// of them if `patient`.
    fn send_pieces(
        &self,
        one: &[u8],
        other: &[u8],
        lent: bool,
        patient: bool,
    ) -> io::Result<usize> {
        let whole = one.len() + other.len();
        let mut sent = 0;
        let mut stuck = None;
        while sent < whole {
            let head = &one[sent.min(one.len())..];
            let tail = &other[sent.saturating_sub(one.len())..];
            let more = if tail.is_empty() {
                self.link.send(head, false)
            } else if lent {
                self.link.send_lent(head, tail, false)
            } else {
                let pieces = [IoSlice::new(head), IoSlice::new(tail)];
                self.link.send_vectored(&pieces, false)
            };
            match more {
                Ok(more) => {
                    sent += more;
                    stuck = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && !patient => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let since = stuck.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.timeo {
                        return Err(io::Error::new(
                            ErrorKind::TimedOut,
                            "the server does not receive requests",
                        ));
                    }
                    if !self.await_room()? {
                        return Ok(whole);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Waits for a short while until more can be sent. If no thread receives, this one does, as the
    /// server may read only after its replies are read. Returns `false` if the connection has
    /// failed.
    fn await_room(&self) -> io::Result<bool> {
        let mut state = self.state();
        let input = state.input.take();
        state.stuck = input.is_none();
        drop(state);
        let interest = Interest {
            read: input.is_some(),
            write: true,
        };
        let ready = self
            .link
            .wait(interest, self.wake.as_fd(), Some(transports::RECV_INTERVAL));
        if ready.as_ref().is_ok_and(|ready| ready.woken) {
            self.wake.clear();
        }
        let mut state = self.state();
        state.stuck = false;
        if let Some(mut input) = input {
            if ready.as_ref().is_ok_and(|ready| ready.read) {
                state = self.recv(state, &mut input, false, false);
            }
            self.check_timeouts(&mut state);
            self.pass_role(&mut state, input);
        }
        ready.map(|_| !state.is_failed())
    }

    pub(super) fn wake_sender(&self) {
        self.wake.set();
    }
}
