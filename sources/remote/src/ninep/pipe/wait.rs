//! How replies come: of the threads that wait for theirs, one receives for all.

use p9::Tag;
use p9::client::Received;
use vfs::{Errno, Result};

use super::input::{Input, Reply};
use super::state::{Guard, State};
use super::{ECONNRESET, POISON, Pipe, Ticket};

impl Pipe {
    /// Waits for the reply. Errs as the server says, or if the connection has failed.
    pub fn wait(&self, ticket: Ticket<'_>) -> Result<Reply> {
        assert!(std::ptr::eq(self, ticket.pipe), "a ticket of another pipe");
        let tag = ticket.tag;
        std::mem::forget(ticket);
        let mut state = self.state();
        loop {
            let slot = &mut state.slots[usize::from(tag.0)];
            if let Some(reply) = slot.reply.take() {
                state.client.release(tag);
                return reply;
            }
            if let Some((errno, _)) = state.failed {
                return Err(errno);
            }
            if !state.queue.is_empty() && !state.sending {
                state = self.send_queued(state, true);
            } else if let Some(input) = state.input.take() {
                state = self.lead(state, input, tag);
            } else {
                state = self.follow(state, tag);
            }
        }
    }

    /// Receives until the reply to `tag` has come, then hands the role on.
    fn lead<'a>(&'a self, mut state: Guard<'a>, mut input: Input, tag: Tag) -> Guard<'a> {
        loop {
            state = self.recv(state, &mut input, true);
            let done = state.slots[usize::from(tag.0)].reply.is_some();
            if done || state.failed.is_some() {
                break;
            }
            // What a canceller could not send. Not patiently: nobody would receive meanwhile.
            state = self.send_queued(state, false);
        }
        self.hand_over(&mut state, input);
        state
    }

    /// Receives once, and gives out what has come whole.
    pub(super) fn recv<'a>(&'a self, state: Guard<'a>, input: &mut Input, wait: bool) -> Guard<'a> {
        // Checked when it came.
        let begun = state.client.frame(input.pending()).unwrap_or(None);
        let next = (state.large.0 > 0).then_some(state.large.1);
        drop(state);
        let got = input.recv(&*self.link, begun, next, wait);
        let mut state = self.state();
        match got {
            Ok(0) => self.fail(&mut state, ECONNRESET, &"the server ended the connection"),
            Ok(_) => self.deliver(&mut state, input),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => self.fail(&mut state, ECONNRESET, &error),
        }
        state
    }

    fn deliver(&self, state: &mut State, input: &mut Input) {
        loop {
            let pending = input.pending();
            let len = match state.client.frame(pending) {
                Ok(Some(len)) if len <= pending.len() => len,
                Ok(_) => return,
                Err(what) => return self.fail(state, Errno::EIO, &what),
            };
            match state.client.receive(&pending[..len]) {
                Ok(Received::Answer { tag, result }) => state.answered(tag, result, input, len),
                Ok(Received::TooLate) => input.skip(len),
                Err(what) => return self.fail(state, Errno::EIO, &what),
            }
        }
    }

    /// Waits until there is a reply to `tag`, or nobody receives.
    fn follow<'a>(&'a self, mut state: Guard<'a>, tag: Tag) -> Guard<'a> {
        state.followers.push(tag);
        let slot = &mut state.slots[usize::from(tag.0)];
        slot.waits = true;
        let bell = slot.bell.get_or_insert_default().clone();
        let mut state = bell
            .wait_while(state, |state| {
                let slot = &state.slots[usize::from(tag.0)];
                slot.reply.is_none() && state.input.is_none() && state.failed.is_none()
            })
            .expect(POISON);
        state.slots[usize::from(tag.0)].waits = false;
        state.followers.retain(|&follower| follower != tag);
        state
    }

    /// Gives the receiving role back, to one who waits if there is any.
    pub(super) fn hand_over(&self, state: &mut State, input: Input) {
        state.input = Some(input);
        let next = state.followers.iter().find_map(|tag| {
            let slot = &state.slots[usize::from(tag.0)];
            slot.bell.as_ref().filter(|_| slot.reply.is_none())
        });
        match next {
            Some(bell) => bell.notify_one(),
            None if state.stuck => self.wake_sender(),
            None => {}
        }
    }
}
