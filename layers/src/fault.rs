//! Fault injection for tests: operations fail, are delayed or would block, at random or by count.
//!
//! The random numbers come from a seeded generator, so a run can be repeated. A delay waits until
//! its time has passed or the call is cancelled (`EINTR`); with less than full patience it is
//! `WOULD_BLOCK`.
//!
//! Lock order: its own mutex, held for the decision only, not while waiting.

use std::time::Duration;

use parking_lot::Mutex;
use vfs::{Call, Cx, Errno, NodeId, Op, Patience, Result};

use crate::{Clock, Layer, forward};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The operation fails without effect.
    Fail(Errno),
    /// The operation takes this much longer.
    Delay(Duration),
    /// The operation would block, unless patience is full.
    Block,
}

/// The calls that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    /// Every call.
    Always,
    /// The n-th call (from 1) of the operation.
    Nth(u64),
    /// Each call with this probability, 0 to 1.
    Chance(f64),
}

struct Rule {
    op: Option<Op>,
    trigger: Trigger,
    kind: FaultKind,
    calls: u64,
}

/// The layer. Without rules it changes nothing.
pub struct Fault {
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    random: u64,
    rules: Vec<Rule>,
}

impl Fault {
    /// Creates a layer without faults; it draws random numbers from `seed` and measures delays with
    /// `clock`.
    pub fn new(seed: u64, clock: Clock) -> Fault {
        Fault {
            clock,
            state: Mutex::new(State {
                // The generator is stuck at 0.
                random: seed | 1 << 63,
                rules: Vec::new(),
            }),
        }
    }

    /// Injects `what` into later calls of `op`, or of every operation. All matching rules apply, in
    /// the order of their addition.
    pub fn add(&self, op: impl Into<Option<Op>>, when: Trigger, what: FaultKind) -> &Fault {
        let rule = Rule {
            op: op.into(),
            trigger: when,
            kind: what,
            calls: 0,
        };
        self.lock().rules.push(rule);
        self
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.lock().rules.clear();
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    fn inject<T>(
        &self,
        op: Op,
        _node: NodeId,
        cx: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let drawn = self.lock().draw_faults(op, cx.patience);
        for what in drawn {
            match what {
                FaultKind::Fail(errno) => return Err(errno),
                FaultKind::Block => cx.check_may_block()?,
                FaultKind::Delay(time) => {
                    cx.check_may_block()?;
                    self.wait(cx.call, time)?;
                }
            }
        }
        run()
    }

    fn wait(&self, call: &Call, time: Duration) -> Result<()> {
        let end = (self.clock)() + time;
        call.wake_on_cancel(&vfs::cx::thread_waker());
        loop {
            call.check()?;
            let left = end.saturating_sub((self.clock)());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::park_timeout(left);
        }
    }
}

impl State {
    /// Returns the faults of this call. A call that would block is decided again when it is
    /// repeated with more patience, but counts once.
    fn draw_faults(&mut self, op: Op, patience: Patience) -> Vec<FaultKind> {
        let State { random, rules } = self;
        let mut drawn = Vec::new();
        for rule in rules
            .iter_mut()
            .filter(|rule| rule.op.is_none_or(|of| of == op))
        {
            let waits = !matches!(rule.kind, FaultKind::Fail(_));
            let nth = rule.calls + 1;
            let comes_back = waits && patience < Patience::Full;
            let strikes = match rule.trigger {
                Trigger::Always => true,
                Trigger::Nth(n) => n == nth,
                Trigger::Chance(chance) => next(random) < chance,
            };
            if !(strikes && comes_back) {
                rule.calls = nth;
            }
            if strikes {
                drawn.push(rule.kind);
            }
        }
        drawn
    }
}

/// Returns the next number from 0 to 1 (xorshift64*).
fn next(random: &mut u64) -> f64 {
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    let bits = random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

impl Layer for Fault {
    forward! { capabilities id above }

    forward! { with inject: all }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(seed: u64) -> Fault {
        Fault::new(seed, std::sync::Arc::new(|| Duration::ZERO))
    }

    fn failures(fault: &Fault, calls: usize) -> usize {
        let call = Call::detached();
        let cx = Cx::new(&vfs::Caller::ROOT, &call);
        (0..calls)
            .filter(|_| fault.inject(Op::Read, 1, &cx, || Ok(())).is_err())
            .count()
    }

    #[test]
    fn chance_keeps_to_its_odds_and_its_seed() {
        let chance = |seed, odds| {
            let fault = fault(seed);
            fault.add(Op::Read, Trigger::Chance(odds), FaultKind::Fail(Errno::EIO));
            failures(&fault, 10_000)
        };
        assert_eq!(chance(1, 0.0), 0);
        assert_eq!(chance(1, 1.0), 10_000);
        let quarter = chance(1, 0.25);
        assert!((2300..2700).contains(&quarter), "{quarter}");
        assert_eq!(chance(1, 0.25), quarter);
        assert_ne!(chance(2, 0.25), quarter);
    }

    #[test]
    fn the_nth_call_counts_calls_of_its_operation() {
        let fault = fault(0);
        fault
            .add(Op::Read, Trigger::Nth(3), FaultKind::Fail(Errno::EIO))
            .add(Op::Write, Trigger::Always, FaultKind::Fail(Errno::ENOSPC));
        assert_eq!(failures(&fault, 2), 0);
        assert_eq!(failures(&fault, 1), 1);
        assert_eq!(failures(&fault, 100), 0);
    }
}
