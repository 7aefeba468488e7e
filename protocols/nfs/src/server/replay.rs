//! What calls were answered that must not be carried out twice: v3 and v4.0 have no sessions (RFC 1813 section 4.6,
//! RFC 7530 section 3.1.1).
//!
//! A client whose connection broke sends the same call again, byte for byte, by another. So a call is known by the address
//! that it came from and all its bytes: its id, who calls, and what for. What RPCSEC_GSS makes of those differs each time:
//! there it is what was opened.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use vfs::Patience;
use wire::Answer;

use super::{Stop, Turn};

/// Answers to calls.
#[derive(Default)]
pub(super) struct Replays {
    hasher: RandomState,
    calls: Mutex<Calls>,
}

/// A call: its id and a keyed hash of the rest.
type Key = (u32, u64);

#[derive(Default)]
struct Calls {
    /// No answer yet: it is being carried out.
    answers: HashMap<Key, Option<Arc<[u8]>>>,
    /// Those that have one, the oldest first.
    order: VecDeque<Key>,
}

impl Replays {
    /// How many answers are remembered: all calls that many connections have in flight. Each has some 300 bytes.
    const MOST: usize = 4096;

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("no panic holds it")
    }
}

/// A call that is being carried out. Dropped without an answer, it never came.
struct Running<'a> {
    replays: &'a Replays,
    key: Key,
    answer: Option<Arc<[u8]>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut calls = self.replays.calls();
        let Some(answer) = self.answer.take() else {
            calls.answers.remove(&self.key);
            return;
        };
        calls.answers.insert(self.key, Some(answer));
        calls.order.push_back(self.key);
        if calls.order.len() > Replays::MOST
            && let Some(oldest) = calls.order.pop_front()
        {
            calls.answers.remove(&oldest);
        }
    }
}

impl Turn<'_> {
    /// Answers by `answer`, which gives a copy of what it put into the reply if that can be kept; or by that copy when
    /// this very call came before.
    pub(super) fn once(
        &mut self,
        answer: impl FnOnce(&mut Self) -> Result<Option<Arc<[u8]>>, Stop>,
    ) -> Result<(), Stop> {
        /// How often a call is looked at again whose first coming is not answered yet.
        const AGAIN: Duration = Duration::from_millis(20);
        let server = self.server.clone();
        let replays = &server.replays;
        let known_by = (self.call.addr(), self.same);
        let key = (self.xid, replays.hasher.hash_one(known_by));
        let mut calls = replays.calls();
        match calls.answers.get(&key) {
            Some(Some(answer)) => {
                self.out.bytes(answer);
                return Ok(());
            }
            Some(None) if self.patience < Patience::Full => {
                return Err(Stop::Later(Answer::WouldBlock));
            }
            Some(None) => {
                self.call.wake_within(AGAIN);
                return Err(Stop::Later(Answer::Parked));
            }
            None => calls.answers.insert(key, None),
        };
        drop(calls);
        let mut running = Running {
            replays,
            key,
            answer: None,
        };
        running.answer = answer(self)?;
        Ok(())
    }
}
