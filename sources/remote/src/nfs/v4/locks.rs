//! Byte-range locks: each locked open file has a lock-owner of its own. A file's lock operations
//! must be serialised by the caller, so that v4.0's sequence IDs follow each other.
//!
//! A server takes a request of v4.0 for a repetition if it has the sequence ID of the one before,
//! and only the same request gets the right reply then. So a request whose caller has given up
//! waiting is sent again before the next one, and a lock that nobody waits for is unlocked.

use std::cell::Cell;

use ::nfs::client::v4::{Lock, LockRange, SeqidEffect, TestLock, Unlock};
use vfs::lock::{ForeignLock, LockKind, LockRange as Range};
use vfs::{Cx, Errno, Result};

use super::client_state::ClientState;
use super::core::Core;
use super::open_state::{LockRequest, OpenState, Standing, Stateids};

/// The lock state of an open file, and the counting of its sequence IDs.
struct LockSeqid<'a> {
    opening: &'a OpenState,
    effect: Cell<SeqidEffect>,
    first: Cell<bool>,
}

impl<'a> LockSeqid<'a> {
    fn new(opening: &'a OpenState) -> LockSeqid<'a> {
        LockSeqid {
            opening,
            effect: Cell::default(),
            first: Cell::new(false),
        }
    }

    /// The current lock state.
    fn current(&self) -> Result<parking_lot::MutexGuard<'a, Stateids>> {
        let mut held = self.opening.stateids();
        held.count_lock(self.first.take(), self.effect.take());
        held.valid()?;
        Ok(held)
    }

    /// Notes whether `request` is without a reply.
    fn note_end(&self, core: &Core, request: LockRequest) {
        let is_unknown = core.minor == 0 && self.effect.get() == SeqidEffect::Unknown;
        self.opening.stateids().abandoned = is_unknown.then_some(request);
    }
}

pub(super) fn lock(
    core: &Core,
    cx: &Cx<'_>,
    opening: &OpenState,
    range: &Range,
    kind: LockKind,
) -> Result<()> {
    finish_abandoned(core, cx, opening)?;
    send_lock(core, cx, opening, bounds(range), kind)
}

pub(super) fn unlock(core: &Core, cx: &Cx<'_>, opening: &OpenState, range: &Range) -> Result<()> {
    finish_abandoned(core, cx, opening)?;
    send_unlock(core, cx, opening, bounds(range))
}

/// Sends the last request again if there was no reply to it.
fn finish_abandoned(core: &Core, cx: &Cx<'_>, opening: &OpenState) -> Result<()> {
    let (request, was_held) = {
        let held = opening.stateids();
        let Some(LockRequest { range, kind }) = held.abandoned else {
            return Ok(());
        };
        let mut ranges = held.ranges.iter();
        let was_held = ranges.any(|(it, _)| it.start <= range.end && range.start <= it.end);
        (LockRequest { range, kind }, was_held)
    };
    let Some(kind) = request.kind else {
        return send_unlock(core, cx, opening, request.range);
    };
    match send_lock(core, cx, opening, request.range, kind) {
        // Its caller was told that it has no lock.
        Ok(()) if !was_held => send_unlock(core, cx, opening, request.range),
        Ok(()) | Err(Errno::EAGAIN) => Ok(()),
        Err(error) => Err(error),
    }
}

fn send_lock(
    core: &Core,
    cx: &Cx<'_>,
    opening: &OpenState,
    range: LockRange,
    kind: LockKind,
) -> Result<()> {
    let name = owner(opening)?;
    let counting = LockSeqid::new(opening);
    let make = |client_state: &ClientState| {
        let held = counting.current()?;
        counting.first.set(held.lock.is_none());
        Ok(Lock {
            handle: &opening.handle,
            kind,
            range,
            reclaim: false,
            owner: (client_state.client, &name),
            open: (held.state, held.owner.map_or(0, |owner| owner.seqid)),
            state: held.lock,
            seqid: held.lock_seqid,
            seqid_effect: &counting.effect,
        })
    };
    let done = core.call(cx, make, |state| state);
    counting.note_end(
        core,
        LockRequest {
            range,
            kind: Some(kind),
        },
    );
    let mut held = counting.current()?;
    held.lock = Some(done?.ok_or(Errno::EAGAIN)?);
    held.ranges.retain_outside(range);
    held.ranges.push((range, kind));
    Ok(())
}

fn send_unlock(core: &Core, cx: &Cx<'_>, opening: &OpenState, range: LockRange) -> Result<()> {
    let counting = LockSeqid::new(opening);
    {
        let held = opening.stateids();
        // A lost open has no locks, and its programs end theirs as if it had.
        if held.standing == Standing::Lost || held.lock.is_none() {
            return Ok(());
        }
    }
    let make = |_: &ClientState| {
        let held = counting.current()?;
        Ok(Unlock {
            handle: &opening.handle,
            range,
            // `None` only if the server has restarted and there was no lock to reclaim.
            state: held.lock.ok_or(Errno::EIO)?,
            seqid: held.lock_seqid,
            seqid_effect: &counting.effect,
        })
    };
    let done = core.call(cx, make, |state| state);
    counting.note_end(core, LockRequest { range, kind: None });
    let mut held = counting.current()?;
    held.lock = Some(done?);
    held.ranges.retain_outside(range);
    Ok(())
}

pub(super) fn find(
    core: &Core,
    cx: &Cx<'_>,
    opening: &OpenState,
    range: &Range,
    kind: LockKind,
) -> Result<Option<ForeignLock>> {
    let name = owner(opening)?;
    let make = |client_state: &ClientState| {
        Ok(TestLock {
            handle: &opening.handle,
            kind,
            range: bounds(range),
            owner: (client_state.client, &name),
        })
    };
    core.call(cx, make, |found| found)
}

/// Returns the lock-owner's name, or `ENOLCK` if the file could not be opened by handle.
fn owner(opening: &OpenState) -> Result<[u8; 9]> {
    let owner = opening.stateids().owner.ok_or(Errno::ENOLCK)?;
    Ok(owner.lock_name())
}

fn bounds(range: &Range) -> LockRange {
    LockRange {
        start: range.start,
        end: range.end,
    }
}

/// Locked ranges.
trait Ranges {
    /// Removes the parts that lie within `range`.
    fn retain_outside(&mut self, range: LockRange);
}

impl Ranges for Vec<(LockRange, LockKind)> {
    fn retain_outside(&mut self, range: LockRange) {
        let mut rest = Vec::new();
        self.retain(|&(held, kind)| {
            if held.end < range.start || range.end < held.start {
                return true;
            }
            if held.start < range.start {
                let end = range.start - 1;
                rest.push((LockRange { end, ..held }, kind));
            }
            if range.end < held.end {
                let start = range.end + 1;
                rest.push((LockRange { start, ..held }, kind));
            }
            false
        });
        self.extend(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unlocked_in_the_middle_leaves_both_ends() {
        let range = |start, end| LockRange { start, end };
        let mut held = vec![(range(0, 99), LockKind::Shared)];
        held.retain_outside(range(40, 59));
        let want = [
            (range(0, 39), LockKind::Shared),
            (range(60, 99), LockKind::Shared),
        ];
        assert_eq!(held, want);
        held.retain_outside(range(0, u64::MAX));
        assert_eq!(held, []);
    }
}
