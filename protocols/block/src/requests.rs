//! The parts of sessions that both protocols share.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::{Role, Vocabulary};

/// Numbers requests that have no ids, or ids that need not be unique; none can be cancelled.
#[derive(Default)]
pub(crate) struct Requests(AtomicU64);

impl Requests {
    /// Returns the role of the next request.
    pub(crate) fn next(&self) -> Role {
        let id = self.0.fetch_add(1, Ordering::Relaxed);
        Role::Request { id }
    }
}

/// Returns the vocabulary of `protocol`: `word` names each request number up to `last`.
pub(crate) fn vocabulary(
    protocol: &'static str,
    last: u32,
    word: impl Fn(u32) -> &'static str,
) -> Vocabulary {
    Vocabulary {
        protocol,
        operations: (0..=last).map(|number| word(number).into()).collect(),
        error: Vocabulary::errno,
    }
}
