//! A session, driven by a test in place of an engine: one request at a time, in the test's own thread.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use vfs::{Call, Patience};
use wire::{Answer, Incoming, Malformed, Session};

use crate::Room;

/// Serves `message` once: what became of it, and its reply, of `most` bytes at most.
pub fn serve(
    session: &dyn Session,
    call: &Call,
    patience: Patience,
    message: &dyn Incoming,
    most: usize,
) -> Result<(Answer, Vec<u8>), Malformed> {
    let mut out = Room::new(most);
    let answer = session.serve(call, patience, message, &mut out);
    if !matches!(answer, Ok(Answer::Done | Answer::Secure)) {
        assert_eq!(out.data(), b"", "{answer:?} leaves nothing behind");
    }
    Ok((answer?, out.into_data()))
}

/// [`serve`], with more and more patience until that is enough.
pub fn serve_patiently(
    session: &dyn Session,
    call: &Call,
    message: &dyn Incoming,
    most: usize,
) -> Result<(Answer, Vec<u8>), Malformed> {
    for patience in [Patience::None, Patience::Brief, Patience::Full] {
        let served = serve(session, call, patience, message, most)?;
        if served.0 != Answer::WouldBlock {
            return Ok(served);
        }
    }
    panic!("a request that full patience is too short for");
}

/// A request that waits, or may have to: its message, and the call that is woken.
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
    /// One that was not served yet.
    pub fn new(message: Vec<u8>) -> Parked {
        let woken = Arc::new(Woken::default());
        Parked {
            call: Call::parkable(Waker::from(woken.clone())),
            message,
            woken,
        }
    }

    /// Has `serve` serve it, for the first time or again.
    pub fn serve<T>(&self, serve: impl FnOnce(&Call, &[u8]) -> T) -> T {
        self.woken.0.store(false, Ordering::SeqCst);
        serve(&self.call, &self.message)
    }

    /// Whether it has been woken since it was last served.
    pub fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    /// Cancels it: to be served once more.
    pub fn cancel(&self) {
        self.call.cancel();
    }
}

/// What a request came to.
pub enum Came<R> {
    /// It is answered.
    Reply(R),
    /// It waits.
    Parked(Parked),
}

impl<R: Debug> Came<R> {
    /// The request, which must wait.
    #[track_caller]
    pub fn parked(self) -> Parked {
        match self {
            Came::Parked(parked) => parked,
            Came::Reply(reply) => panic!("expected it to wait, got {reply:?}"),
        }
    }

    /// The reply, which must be there.
    #[track_caller]
    pub fn reply(self) -> R {
        match self {
            Came::Reply(reply) => reply,
            Came::Parked(_) => panic!("expected a reply, but it waits"),
        }
    }
}
