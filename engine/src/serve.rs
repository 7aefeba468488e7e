//! Service of one request, isolating panics of a source or a protocol.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vfs::{Call, Patience};
use wire::{Incoming, Malformed, Outgoing, ServeOutcome, Session};

/// Calls [`Session::serve`]. A request that panics is answered with [`Session::answer_failure`], or
/// closes its connection if the protocol has no such answer; `peer` names the client in the log.
pub(crate) fn serve(
    session: &dyn Session,
    call: &Call,
    patience: Patience,
    message: &dyn Incoming,
    out: &mut dyn Outgoing,
    peer: &str,
) -> Result<ServeOutcome, Malformed> {
    call.note_export(0);
    if patience < Patience::Full {
        // A lane has one call for all requests that it serves inline.
        call.forget_admission();
    }
    call.forget_answer_notes();
    let served = catch_unwind(AssertUnwindSafe(|| {
        session.serve(call, patience, message, out)
    }));
    served.unwrap_or_else(|_| {
        tracing::error!(peer, "a request panicked; the reply is an error");
        out.truncate(0);
        match session.answer_failure(message, out) {
            true => Ok(ServeOutcome::Done),
            false => Err(Malformed::new("a request has panicked")),
        }
    })
}
