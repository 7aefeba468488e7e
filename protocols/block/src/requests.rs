//! What the requests of both protocols are alike in, to those who drive sessions.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::{Role, Vocabulary};

/// Tells requests apart that have no names of their own, or names of which several may be the same; none can be cancelled.
#[derive(Default)]
pub(crate) struct Requests(AtomicU64);

impl Requests {
    /// The next one's.
    pub(crate) fn next(&self) -> Role {
        let id = self.0.fetch_add(1, Ordering::Relaxed);
        Role::Request { id }
    }
}

/// The words of `protocol`: `word` says that of a request's number, of which the last is `last`.
pub(crate) fn vocabulary(
    protocol: &'static str,
    last: u32,
    word: impl Fn(u32) -> &'static str,
) -> Vocabulary {
    Vocabulary {
        protocol,
        words: (0..=last).map(|number| word(number).into()).collect(),
        fault: Vocabulary::errno,
    }
}
