//! Payloads received into the caller's memory: the head is received first and identifies the
//! request.
//!
//! Only payloads of the receiving thread land so. Those of other threads are received as whole
//! messages, as no thread may write to memory lent to another. Errors of any length are received as
//! whole messages, too: only payloads are written to lent memory.

use std::collections::VecDeque;

use vfs::{Cx, Result};

use super::input::Input;
use super::state::Guard;
use super::{ClientCodec, Connection, ECONNRESET, Outcome, PayloadLayout, Ticket};

/// A request in flight, and memory for its payload.
pub(crate) struct DirectReceive<'p, 'm, H: ClientCodec> {
    ticket: Ticket<'p, H>,
    memory: &'m mut [u8],
}

impl<'p, 'm, H: ClientCodec> DirectReceive<'p, 'm, H> {
    /// Lends memory for a payload of at most its length; empty memory disables landing.
    pub(crate) fn new(ticket: Ticket<'p, H>, memory: &'m mut [u8]) -> DirectReceive<'p, 'm, H> {
        DirectReceive { ticket, memory }
    }
}

/// Returns whether any memory is lent.
pub(super) fn has_memory<H: ClientCodec>(landings: &[DirectReceive<'_, '_, H>]) -> bool {
    landings.iter().any(|landing| !landing.memory.is_empty())
}

/// The memory for this payload.
pub(super) fn memory_for<'l, H: ClientCodec>(
    landings: &'l mut [DirectReceive<'_, '_, H>],
    apart: PayloadLayout,
) -> Option<&'l mut [u8]> {
    let landing = landings
        .iter_mut()
        .find(|landing| landing.ticket.number == apart.number)?;
    landing.memory.get_mut(..apart.len)
}

impl<H: ClientCodec> Connection<H> {
    /// Removes the first of `landings` and waits for its reply as [`Connection::wait_in`] does,
    /// while the payloads of the others may land, too. Returns `None` if there are none.
    pub(crate) fn wait_direct<'m>(
        &self,
        cx: &Cx<'_>,
        landings: &mut VecDeque<DirectReceive<'_, 'm, H>>,
    ) -> Option<Result<(Outcome<H>, &'m mut [u8])>> {
        let first = &landings.front()?.ticket;
        self.cancel_with(cx.call, first);
        let outcome = self.wait_for(first.number, landings.make_contiguous());
        let DirectReceive { ticket, memory } = landings.pop_front()?;
        std::mem::forget(ticket);
        Some(outcome.map(|outcome| (outcome, memory)))
    }

    /// Does [`Connection::wait_direct`] for a single request.
    pub(super) fn wait_one_direct(
        &self,
        cx: &Cx<'_>,
        one: DirectReceive<'_, '_, H>,
    ) -> Result<Outcome<H>> {
        self.cancel_with(cx.call, &one.ticket);
        let number = one.ticket.number;
        let mut landings = [one];
        let outcome = self.wait_for(number, &mut landings);
        let [DirectReceive { ticket, .. }] = landings;
        std::mem::forget(ticket);
        outcome
    }

    /// Receives the payload of a request whose head is pending.
    pub(super) fn receive_direct<'a>(
        &'a self,
        state: Guard<'a, H>,
        input: &mut Input<H>,
        apart: PayloadLayout,
        memory: &mut [u8],
    ) -> Guard<'a, H> {
        drop(state);
        let landed = input.receive_payload(&*self.link, apart, memory);
        let mut state = self.state();
        match landed {
            Ok(true) => {
                state.payload_received(apart, &input.pending()[..apart.head]);
                input.skip(input.pending().len());
            }
            Ok(false) => self.fail(&mut state, ECONNRESET, &"the server closed the connection"),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => input.restart(),
            Err(error) => self.fail(&mut state, ECONNRESET, &error),
        }
        state
    }
}
