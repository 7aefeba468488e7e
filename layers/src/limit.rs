//! Limits of operations and bytes per second, of a share and of each of its clients.
//!
//! An *operation* is a request of a client: a message of 9P or FUSE, a call of NFS, a request of a
//! block device. Each operation of a COMPOUND, each name of a walk ([`Call::begin_step`]) and each
//! entry that a listing returns with its attributes is one as well. It is charged when it first
//! calls the tree, except to find a node by its handle; locks and requests that call nothing are
//! free.
//! *Bytes* are those that reads, writes and copies moved. A request is charged for the bytes that
//! it asks for, and gets back those that were not moved. `barge`'s own calls are free
//! ([`Call::internal`]).
//!
//! A request over a limit waits, before its first call as an operation, and once more before it
//! first moves bytes if there is a debt: on a lane's thread it returns `WOULD_BLOCK`, on a worker
//! `PARKED`. It holds no thread, can be cancelled, and keeps its place among the requests of its
//! client; clients take turns (`scheduler`). It is charged when it is admitted, so that a rerun is
//! not charged again. A request that had an effect ([`Call::end_admission`]) does not wait: if it
//! would move bytes while there is a debt it gets `EAGAIN` (`NFS4ERR_DELAY`). Requests of threads
//! without an engine leave a debt that later ones wait for, and so do the steps of a request after
//! the first one, because it would begin anew after each wait.
//!
//! A request passes as long as there is no debt of bytes, whatever its size; so a rate can be lower
//! than the size of a request. Requests that move no bytes do not wait for a debt of bytes.
//!
//! While a limit is set, files are not passed to clients ([`vfs::File::backing`]): the kernel would
//! read and write them without the layer. A file that was passed before is not limited.
//!
//! Without a limit the layer costs a load for each operation.
//!
//! Lock order: the admission of a call, then the scheduler, then the timer. Requests are woken
//! without the scheduler's lock.

mod bucket;
mod rates;
mod scheduler;
mod timer;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use vfs::cx::AdmissionState;
use vfs::{
    Call, CopyMode, Cx, DirEntry, DirSink, Errno, File, NodeId, Op, Patience, Payload, PeerKey,
    ReaddirMode, RelaySink, Result, Sink,
};

pub use self::rates::{BadRates, Rates};
use self::scheduler::{Arrival, Decision, Scheduler, Ticket, Wait};
pub use self::timer::Timer;
use crate::{Clock, Layer, Opened, forward};

/// The limits of a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Those of all clients together.
    pub share: Rates,
    /// Those of each client.
    pub client: Rates,
}

impl Limits {
    /// Returns whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.share.is_unlimited() && self.client.is_unlimited()
    }
}

/// The layer, with limits that can change while the tree is served. All trees of a share have the
/// same one.
pub struct Limiter {
    /// Unique in this process.
    number: u64,
    /// Whether there are limits.
    is_limited: AtomicBool,
    state: Mutex<State>,
    clock: Clock,
    timer: Arc<Timer>,
    this: Weak<Limiter>,
}

struct State {
    scheduler: Scheduler,
    /// The time for which the timer is set.
    armed: Option<Duration>,
}

/// The figures of a [`Limiter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitStats {
    /// The limits.
    pub limits: Limits,
    /// The number of requests that had to wait and were admitted.
    pub delayed: u64,
    /// The sum of the times that they waited.
    pub waited: Duration,
    /// The number of requests that wait.
    pub waiting: usize,
    /// The number of clients with a state of their own.
    pub clients: usize,
}

/// The state of a request in its [`Call`]: an entry for each share that it uses, of which there is
/// hardly ever more than one.
#[derive(Default)]
struct Admissions {
    first: Option<Admission>,
    more: Vec<Admission>,
}

/// The state of a request with one limiter.
struct Admission {
    limiter: Arc<Limiter>,
    client: PeerKey,
    /// The operations that it was charged for.
    ops: u64,
    /// The first step that it was not charged for.
    next_step: u32,
    /// Whether it may move bytes without waiting again.
    waited_for_bytes: bool,
    /// The bytes that it was charged for and has not moved yet.
    reserved: u64,
    /// The charge that it waits for.
    pending: Option<Pending>,
}

struct Pending {
    ticket: Ticket,
    ops: u64,
    bytes: u64,
}

impl Admissions {
    /// Returns the entry of `limiter`, which is added if there is none.
    fn of(&mut self, limiter: &Limiter, client: PeerKey) -> Option<&mut Admission> {
        let is_own = |one: &Admission| std::ptr::eq(&*one.limiter, limiter);
        let new = || {
            Some(Admission {
                limiter: limiter.this.upgrade()?,
                client,
                ops: 0,
                next_step: 0,
                waited_for_bytes: false,
                reserved: 0,
                pending: None,
            })
        };
        if self
            .first
            .as_ref()
            .is_none_or(|one| !is_own(one) && one.is_unused())
        {
            self.first = new();
        }
        if self.first.as_ref().is_some_and(is_own) {
            return self.first.as_mut();
        }
        if !self.more.iter().any(is_own) {
            self.more.push(new()?);
        }
        self.more.iter_mut().find(|one| is_own(one))
    }

    /// Returns all charges: the attempt had no effect, and the next one is charged.
    fn undo(&mut self) {
        for admission in self.first.iter_mut().chain(&mut self.more) {
            admission.give_back(admission.ops);
        }
        self.reset();
    }
}

impl AdmissionState for Admissions {
    fn reset(&mut self) {
        self.more.clear();
        if let Some(admission) = &mut self.first {
            admission.give_back(0);
            admission.ops = 0;
            admission.next_step = 0;
            admission.waited_for_bytes = false;
        }
    }
}

impl Admission {
    fn is_unused(&self) -> bool {
        self.ops == 0 && self.reserved == 0 && self.pending.is_none()
    }

    /// Charges the request for `ops` and `bytes`, if it may pass, or lets it wait.
    fn arrive(&mut self, cx: &Cx<'_>, ops: u64, bytes: u64) -> Result<()> {
        let wait = match (cx.patience, cx.call.waker()) {
            _ if cx.call.admission_ended() && bytes == 0 => Wait::Never,
            _ if cx.call.admission_ended() => Wait::Refuse,
            (Patience::None | Patience::Brief, _) => Wait::Refuse,
            (Patience::Full, Some(waker)) => Wait::Until(waker),
            (Patience::Full, None) => Wait::Never,
        };
        let arrival = Arrival {
            client: self.client,
            ops,
            bytes,
            wait,
        };
        let decision = self
            .limiter
            .with_scheduler(|scheduler, now, woken| scheduler.arrive(&arrival, now, woken));
        match decision {
            // A request that had an effect cannot be run again.
            Decision::Refused if cx.call.admission_ended() => Err(Errno::EAGAIN),
            Decision::Refused => Err(Errno::WOULD_BLOCK),
            Decision::Admitted => {
                self.admitted(ops, bytes);
                self.charged_for(cx.call.step());
                Ok(())
            }
            Decision::Waits(ticket) => {
                self.pending = Some(Pending { ticket, ops, bytes });
                self.wait(cx)
            }
        }
    }

    /// Charges the request for `ops` more without a wait.
    fn charge(&mut self, ops: u64) {
        self.ops += ops;
        let client = self.client;
        self.limiter.with_scheduler(|scheduler, now, woken| {
            scheduler.charge(client, ops, 0, now);
            scheduler.pump(now, woken);
        });
    }

    /// Notes that the request was charged for its steps up to `step`.
    fn charged_for(&mut self, step: u32) {
        self.next_step = self.next_step.max(step.saturating_add(1));
    }

    fn admitted(&mut self, ops: u64, bytes: u64) {
        self.ops += ops;
        self.reserved += bytes;
        self.waited_for_bytes |= bytes > 0;
    }

    /// Returns the error of a request that waits, or that was cancelled meanwhile.
    fn wait(&mut self, cx: &Cx<'_>) -> Result<()> {
        if let Err(cancelled) = cx.call.check() {
            self.give_back(0);
            return Err(cancelled);
        }
        if self.limiter.state.lock().armed.is_none() {
            cx.call.wake_within(RETRY);
        }
        cx.call.note_awaits_admission();
        Err(Errno::PARKED)
    }

    /// Ends a wait, and returns `ops` operations and the bytes that were not moved.
    fn give_back(&mut self, ops: u64) {
        let pending = self.pending.take();
        let bytes = std::mem::take(&mut self.reserved);
        let client = self.client;
        self.ops -= ops;
        if pending.is_none() && ops == 0 && bytes == 0 {
            return;
        }
        self.limiter.with_scheduler(|scheduler, now, woken| {
            if let Some(Pending { ticket, ops, bytes }) = pending
                && !scheduler.cancel(ticket, now)
            {
                // It was admitted meanwhile.
                scheduler.refund(client, ops, bytes, now);
            }
            scheduler.refund(client, ops, bytes, now);
            scheduler.pump(now, woken);
        });
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.give_back(0);
    }
}

/// The bytes that a copy is charged for in advance: it moves as many as it can within a step.
const COPY_STEP: u64 = 1 << 20;

/// The most bytes that a copy moves at once: a source that shares blocks could copy any number, for
/// which all other clients would wait.
const MAX_COPY: u64 = 16 << 20;

/// The time after which a request checks whether it is admitted if there is no timer.
const RETRY: Duration = Duration::from_millis(10);

impl Limiter {
    /// Creates the layer. Waiting requests are admitted by the thread of `timer`, at times of
    /// `clock`.
    pub fn new(limits: Limits, clock: Clock, timer: Arc<Timer>) -> Arc<Limiter> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let scheduler = Scheduler::new(limits, clock());
        Arc::new_cyclic(|this| Limiter {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            is_limited: AtomicBool::new(!limits.is_unlimited()),
            state: Mutex::new(State {
                scheduler,
                armed: None,
            }),
            clock,
            timer,
            this: this.clone(),
        })
    }

    /// Replaces the limits for all later requests and for those that wait. A rate that changes
    /// starts without a debt.
    pub fn set(&self, limits: Limits) {
        self.with_scheduler(|scheduler, now, woken| {
            let is_limited = !limits.is_unlimited();
            self.is_limited.store(is_limited, Ordering::Relaxed);
            scheduler.set(limits, now, woken);
        });
    }

    /// Returns the limits.
    pub fn limits(&self) -> Limits {
        self.state.lock().scheduler.limits()
    }

    /// Returns the figures.
    pub fn stats(&self) -> LimitStats {
        let state = self.state.lock();
        let totals = state.scheduler.totals();
        LimitStats {
            limits: state.scheduler.limits(),
            delayed: totals.delayed,
            waited: totals.waited,
            waiting: state.scheduler.waiting(),
            clients: state.scheduler.clients(),
        }
    }

    /// Admits the requests whose time has come.
    fn admit_due(&self) {
        self.state.lock().armed = None;
        self.with_scheduler(|scheduler, now, woken| scheduler.pump(now, woken));
    }

    /// Calls `change`, then sets the timer, and wakes the requests that were admitted.
    fn with_scheduler<T>(
        &self,
        change: impl FnOnce(&mut Scheduler, Duration, &mut Vec<Waker>) -> T,
    ) -> T {
        let mut woken = Vec::new();
        let now = (self.clock)();
        let mut state = self.state.lock();
        let done = change(&mut state.scheduler, now, &mut woken);
        if state.scheduler.waiting() > 0
            && let Some(due) = state.scheduler.next_due(now)
            && state.armed.is_none_or(|armed| due < armed)
            && let Some(this) = self.this.upgrade()
        {
            let time = due.saturating_sub(now);
            state.armed = self.timer.schedule(&this, time).then_some(due);
        }
        drop(state);
        woken.iter().for_each(Waker::wake_by_ref);
        done
    }

    /// Returns the client to charge for `call`, if there are limits and it is not free.
    #[inline]
    fn client_of(&self, call: &Call) -> Option<PeerKey> {
        if !self.is_limited.load(Ordering::Relaxed) || call.is_internal() {
            return None;
        }
        call.account().client()
    }

    /// Admits the request of `cx` as an operation and, unless `bytes` is 0, to move as many bytes.
    /// Returns `WOULD_BLOCK` or `PARKED` if it waits, and `EINTR` if it was cancelled.
    fn admit(&self, client: PeerKey, cx: &Cx<'_>, bytes: u64) -> Result<()> {
        if bytes == 0 && cx.call.admitted_by() == self.number {
            return Ok(());
        }
        let admitted = cx.call.with_admission(|slot| {
            let Some(admission) = admissions(slot).of(self, client) else {
                return Ok(());
            };
            if let Some(Pending { ticket, ops, bytes }) = admission.pending {
                if self.is_waiting(ticket) {
                    return admission.wait(cx);
                }
                admission.pending = None;
                admission.admitted(ops, bytes);
                admission.charged_for(cx.call.step());
            }
            let mut ops = u64::from(admission.next_step <= cx.call.step());
            if ops > 0 && admission.ops > 0 {
                admission.charge(ops);
                admission.charged_for(cx.call.step());
                ops = 0;
            }
            match admission.waited_for_bytes {
                false if ops > 0 || bytes > 0 => admission.arrive(cx, ops, bytes),
                _ => Ok(()),
            }
        });
        match admitted {
            Ok(()) => cx.call.admit(self.number),
            Err(Errno::WOULD_BLOCK) => undo(cx.call),
            Err(_) => {}
        }
        admitted
    }

    fn is_waiting(&self, ticket: Ticket) -> bool {
        self.with_scheduler(|scheduler, now, woken| {
            scheduler.pump(now, woken);
            scheduler.is_waiting(ticket)
        })
    }

    /// Runs an operation that moves no bytes itself.
    #[inline]
    fn limited<T>(
        &self,
        _op: Op,
        _node: NodeId,
        cx: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(client) = self.client_of(cx.call) else {
            return run();
        };
        self.admit(client, cx, 0)?;
        let result = run();
        if let Err(Errno::WOULD_BLOCK) = result {
            undo(cx.call);
        }
        result
    }

    /// Runs an operation that moves at most `bytes`, and returns how many it moved.
    fn transfer<T: Copy + TryInto<u64>>(
        &self,
        client: PeerKey,
        cx: &Cx<'_>,
        bytes: u64,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.admit(client, cx, bytes)?;
        let result = run();
        match result {
            Ok(moved) => self.settle(client, cx.call, moved.try_into().unwrap_or(u64::MAX)),
            Err(Errno::WOULD_BLOCK) => undo(cx.call),
            // It is run again.
            Err(Errno::PARKED) => {}
            Err(_) => self.settle(client, cx.call, 0),
        }
        result
    }

    /// Charges a request for the bytes that it moved beyond those that it was charged for already,
    /// or returns the rest of these.
    fn settle(&self, client: PeerKey, call: &Call, moved: u64) {
        let reserved = call.with_admission(|slot| {
            let admission = admissions(slot).of(self, client);
            admission.map_or(0, |admission| std::mem::take(&mut admission.reserved))
        });
        if moved != reserved {
            self.with_scheduler(|scheduler, now, woken| {
                match moved.checked_sub(reserved) {
                    Some(more) => scheduler.charge(client, 0, more, now),
                    None => scheduler.refund(client, 0, reserved - moved, now),
                }
                scheduler.pump(now, woken);
            });
        }
    }
}

/// Returns the admissions in the slot of a call.
fn admissions(slot: &mut Option<Box<dyn AdmissionState>>) -> &mut Admissions {
    let slot = slot.get_or_insert_with(|| Box::new(Admissions::default()));
    let slot: &mut dyn Any = &mut **slot;
    slot.downcast_mut().expect("only limiters use the slot")
}

/// Refunds all charges of an attempt without an effect: the next attempt is charged.
fn undo(call: &Call) {
    call.admit(0);
    call.with_admission(|slot| admissions(slot).undo());
}

impl Layer for Limiter {
    /// A file that was passed to the host stays usable there, whatever the limits are later.
    fn allows_passthrough(&self) -> bool {
        !self.is_limited.load(Ordering::Relaxed)
    }

    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let Some(client) = self.client_of(cx.call) else {
            return inner.read(cx, offset, len, sink);
        };
        let read = || inner.read(cx, offset, len, sink);
        self.transfer(client, cx, len as u64, read)
    }

    fn write(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        data: &mut dyn Payload,
    ) -> Result<usize> {
        let Some(client) = self.client_of(cx.call) else {
            return inner.write(cx, offset, data);
        };
        let len = data.len() as u64;
        self.transfer(client, cx, len, || inner.write(cx, offset, data))
    }

    fn copy(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        let copy = |len| inner.copy(cx, offset, to, to_offset, len, how);
        match self.client_of(cx.call) {
            None => copy(len),
            // It moves no bytes.
            Some(_) if how == CopyMode::Clone => {
                self.limited(Op::Copy, inner.node.id(), cx, || copy(len))
            }
            Some(client) => {
                let len = len.min(MAX_COPY);
                self.transfer(client, cx, len.min(COPY_STEP), || copy(len))
            }
        }
    }

    /// An entry with its attributes costs as much as the request of a client that looks it up.
    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let client = match self.client_of(cx.call) {
            Some(client) if plus == ReaddirMode::Entries => client,
            _ => {
                let (op, id) = (Op::Readdir, inner.node.id());
                return self.limited(op, id, cx, || inner.readdir(cx, cookie, plus, sink));
            }
        };
        let mut looked_up = 0;
        let mut counting = RelaySink::new(sink, |sink, entry: DirEntry<'_>| {
            looked_up += u64::from(entry.entry.is_some());
            sink.entry(entry)
        });
        self.limited(Op::Readdir, inner.node.id(), cx, || {
            inner.readdir(cx, cookie, plus, &mut counting)
        })?;
        cx.call.with_admission(|slot| {
            if let Some(admission) = admissions(slot).of(self, client) {
                admission.charge(looked_up);
            }
        });
        Ok(())
    }

    forward! { capabilities id above root resolve handle host_lock host_lock_holder lease }

    forward! { with limited:
        sync attr setattr access statfs open readlink lookup parent create make tmpfile link unlink
        rename xattr xattrs set_xattr remove_xattr
        file_attr file_setattr fsync flush allocate seek extents
    }
}
