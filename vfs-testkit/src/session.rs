//! A driver of sessions for tests, in place of an engine: one request at a time, on the test's
//! thread.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use vfs::{Call, Patience};
use wire::{Incoming, Malformed, ServeOutcome, Session};

use crate::ReplyBuffer;

/// Serves `message` once, and returns the answer and the reply, of at most `most` bytes.
pub fn serve(
    session: &dyn Session,
    call: &Call,
    patience: Patience,
    message: &dyn Incoming,
    most: usize,
) -> Result<(ServeOutcome, Vec<u8>), Malformed> {
    let mut out = ReplyBuffer::new(most);
    let answer = session.serve(call, patience, message, &mut out);
    if !matches!(answer, Ok(ServeOutcome::Done | ServeOutcome::StartTls)) {
        assert_eq!(out.data(), b"", "{answer:?} leaves nothing behind");
    }
    Ok((answer?, out.into_data()))
}

/// Calls [`serve`] with increasing patience until that suffices.
pub fn serve_patiently(
    session: &dyn Session,
    call: &Call,
    message: &dyn Incoming,
    most: usize,
) -> Result<(ServeOutcome, Vec<u8>), Malformed> {
    for patience in [Patience::None, Patience::Brief, Patience::Full] {
        let served = serve(session, call, patience, message, most)?;
        if served.0 != ServeOutcome::WouldBlock {
            return Ok(served);
        }
    }
    panic!("a request that full patience is too short for");
}

/// A request that is parked or may be: its message, and the call that is woken.
pub struct Parked {
    call: Call,
    message: Vec<u8>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Parked {
    /// Creates a request that has not been served yet.
    pub fn new(message: Vec<u8>) -> Parked {
        let woken = Arc::new(Woken::default());
        Parked {
            call: Call::parkable(Waker::from(woken.clone())),
            message,
            woken,
        }
    }

    /// Serves it with `serve`, for the first time or again.
    pub fn serve<T>(&self, serve: impl FnOnce(&Call, &[u8]) -> T) -> T {
        self.woken.0.store(false, Ordering::SeqCst);
        serve(&self.call, &self.message)
    }

    /// Returns whether it has been woken since it was last served.
    pub fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    /// Cancels it; it must be served once more.
    pub fn cancel(&self) {
        self.call.cancel();
    }
}

/// The result of serving a request.
pub enum Served<R> {
    /// A reply.
    Reply(R),
    /// The request is parked.
    Parked(Parked),
}

impl<R: Debug> Served<R> {
    /// Returns the parked request; panics if there is a reply.
    #[track_caller]
    pub fn parked(self) -> Parked {
        match self {
            Served::Parked(parked) => parked,
            Served::Reply(reply) => panic!("expected it to wait, got {reply:?}"),
        }
    }

    /// Returns the reply; panics if the request is parked.
    #[track_caller]
    pub fn reply(self) -> R {
        match self {
            Served::Reply(reply) => reply,
            Served::Parked(_) => panic!("expected a reply, but it waits"),
        }
    }
}
