//! The context of a call: its caller, its patience and its cancellation.

use core::any::Any;
use core::task::Waker;
use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{Account, Errno, Peer, Result};

/// The context of an operation.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// The user that the operation acts as.
    pub caller: &'a Caller,
    /// The limit on how long the operation may block its thread.
    pub patience: Patience,
    /// The request that this operation is part of.
    pub call: &'a Call,
}

impl<'a> Cx<'a> {
    /// Creates a context with full patience for `caller`, for programs that no engine drives.
    pub fn new(caller: &'a Caller, call: &'a Call) -> Cx<'a> {
        Cx {
            caller,
            patience: Patience::Full,
            call,
        }
    }

    /// Returns a context of the same request that acts as another caller.
    pub fn on_behalf_of<'b>(&self, caller: &'b Caller) -> Cx<'b>
    where
        'a: 'b,
    {
        Cx {
            caller,
            patience: self.patience,
            call: self.call,
        }
    }

    /// Returns `WOULD_BLOCK` unless the operation may block: the first line of every operation that
    /// inherently blocks.
    pub fn check_may_block(&self) -> Result<()> {
        if self.patience == Patience::Full {
            Ok(())
        } else {
            Err(Errno::WOULD_BLOCK)
        }
    }
}

/// The limit on how long an operation may block its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Patience {
    /// Only operations that certainly complete in memory: cached pages, cached names, attributes of
    /// open files.
    None,
    /// Also operations that a local file system normally completes in memory within microseconds
    /// (creating, renaming, buffered writes), though they may occasionally wait for a disk.
    Brief,
    /// No limit.
    Full,
}

/// The credentials that permission checks use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// User id. 0 is the superuser, unless a layer maps it.
    pub uid: u32,
    /// Group id: the group of new nodes, and one of those that permissions are checked against.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl Caller {
    /// The superuser, group 0, no supplementary groups.
    pub const ROOT: Caller = Caller {
        uid: 0,
        gid: 0,
        groups: Groups::Unknown,
    };

    /// Creates a caller whose supplementary groups the protocol does not transmit.
    pub const fn new(uid: u32, gid: u32) -> Caller {
        Caller {
            uid,
            gid,
            groups: Groups::Unknown,
        }
    }
}

/// The caller's supplementary groups, as the protocol transmits them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Groups {
    /// Not transmitted (9P): the source uses its own user database.
    Unknown,
    /// Exactly these (AUTH_SYS, FUSE with supplementary groups).
    Known(Arc<[u32]>),
}

/// A request in flight, as operations see it: it can be cancelled, and woken when the event that it
/// waits for occurs. Shared by the thread that runs the request and those that cancel it.
pub struct Call {
    cancelled: AtomicBool,
    /// Whether [`Call::interrupt`] was called.
    interrupted: AtomicBool,
    /// Whether [`Call::note_effect`] was called.
    effective: AtomicBool,
    waker: Option<Waker>,
    on_cancel: Mutex<Vec<Waker>>,
    wake_within_ms: AtomicU32,
    /// The position among waiters; 0 is none.
    queue_position: AtomicU64,
    retried_by_client: bool,
    peer: Option<Arc<Peer>>,
    /// The account of a request that came without a connection.
    account: Account,
    internal: bool,
    /// The share of [`Call::note_export`]; 0 is none.
    export_number: AtomicU64,
    /// The word of [`Call::note_operation`]; [`NO_OPERATION`] is none.
    operation: AtomicU16,
    /// The fault of [`Call::note_error`]; 0 is none.
    error: AtomicU16,
    /// The limiter of [`Call::admit`]; 0 is none.
    admitted_by: AtomicU64,
    /// See [`Call::begin_step`].
    step: AtomicU32,
    /// See [`Call::end_admission`].
    admission_ended: AtomicBool,
    /// See [`Call::note_awaits_admission`].
    awaits_admission: AtomicBool,
    /// The state of [`Call::with_admission`].
    admission: Mutex<Option<Box<dyn AdmissionState>>>,
    /// Whether [`Call::note_existing`] was called.
    existing: AtomicBool,
    /// Whether [`Call::note_uncacheable`] was called.
    uncacheable: AtomicBool,
}

/// The state of limiters in a [`Call`].
pub trait AdmissionState: Any + Send {
    /// Forgets the request, and keeps what speeds up the next one of the same call.
    fn reset(&mut self);
}

/// A number above those of all protocols' words.
const NO_OPERATION: u16 = u16::MAX;

/// The statistics that a protocol noted for a request, as its own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOutcome {
    /// The type of the request.
    pub operation: u16,
    /// The error number; 0 for success.
    pub error: u16,
}

impl Call {
    /// Creates a request that cannot be parked, and that no other thread cancels.
    pub const fn detached() -> Call {
        Call {
            cancelled: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            effective: AtomicBool::new(false),
            waker: None,
            on_cancel: Mutex::new(Vec::new()),
            wake_within_ms: AtomicU32::new(0),
            queue_position: AtomicU64::new(0),
            retried_by_client: false,
            peer: None,
            account: Account::INTERNAL,
            internal: false,
            export_number: AtomicU64::new(0),
            operation: AtomicU16::new(NO_OPERATION),
            error: AtomicU16::new(0),
            admitted_by: AtomicU64::new(0),
            step: AtomicU32::new(0),
            admission_ended: AtomicBool::new(false),
            awaits_admission: AtomicBool::new(false),
            admission: Mutex::new(None),
            existing: AtomicBool::new(false),
            uncacheable: AtomicBool::new(false),
        }
    }

    /// Creates a request that `waker` reruns after it returned [`Errno::PARKED`].
    pub fn parkable(waker: Waker) -> Call {
        Call {
            waker: Some(waker),
            ..Call::detached()
        }
    }

    /// Creates another request of the same connection, which `waker` reruns.
    pub fn woken_by(&self, waker: Waker) -> Call {
        Call {
            peer: self.peer.clone(),
            account: self.account.clone(),
            ..Call::parkable(waker)
        }
    }

    /// Creates another request of the same connection, from a client that retries by itself some
    /// time after `waker` was woken, or without that. Until the retry or the cancellation, a
    /// [`crate::lock::LockTable`] keeps its position in the queue; the creator ensures that one of
    /// the two happens.
    pub fn retried_by_client(&self, waker: Waker) -> Call {
        Call {
            retried_by_client: true,
            ..self.woken_by(waker)
        }
    }

    /// Returns whether it is [`Call::retried_by_client`].
    pub fn is_retried_by_client(&self) -> bool {
        self.retried_by_client
    }

    /// Returns its position among the requests that wait for the same resource, if it has waited:
    /// the lower, the longer.
    pub fn queue_position(&self) -> Option<u64> {
        Some(self.queue_position.load(Ordering::Relaxed)).filter(|&position| position != 0)
    }

    /// Sets its position in the queue, after all lower ones; never 0.
    pub fn set_queue_position(&self, position: u64) {
        self.queue_position.store(position, Ordering::Relaxed);
    }

    /// Creates another request of the same connection that cannot be parked.
    pub fn sibling(&self) -> Call {
        Call {
            peer: self.peer.clone(),
            account: self.account.clone(),
            ..Call::detached()
        }
    }

    /// Returns the same request, with `peer` as the origin of its connection.
    pub fn with_peer(self, peer: Arc<Peer>) -> Call {
        Call {
            peer: Some(peer),
            ..self
        }
    }

    /// Returns the same request, from a guest's queues, charged to `account`.
    pub fn with_account(self, account: Account) -> Call {
        Call { account, ..self }
    }

    /// Creates a request of barge itself, made in order to answer this one: layers leave its caller
    /// unmapped, while access control still applies to the connection. It cannot be parked. For
    /// operations of which the client only sees the result.
    pub fn internal(&self) -> Call {
        Call {
            peer: self.peer.clone(),
            account: self.account.clone(),
            internal: true,
            ..Call::detached()
        }
    }

    /// Returns whether its caller is barge itself ([`Call::internal`]), which no layer maps.
    pub fn is_internal(&self) -> bool {
        self.internal
    }

    /// Returns the peer of the connection that it came over; `None` for barge's own requests and
    /// those from a guest's queues.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_deref()
    }

    /// Returns the account that tables charge the state of this request to: its peer's, or its
    /// guest's.
    pub fn account(&self) -> &Account {
        match &self.peer {
            Some(peer) => peer.account(),
            None => &self.account,
        }
    }

    /// Returns the effective caller of a client that claims to be `claimed` without proof
    /// ([`Peer::acts_as`]). Requests without a connection act as they claim.
    pub fn acts_as(&self, claimed: Caller) -> Caller {
        match self.peer() {
            Some(peer) => peer.acts_as(claimed),
            None => claimed,
        }
    }

    /// Returns the IP address that it came from, if any.
    pub fn addr(&self) -> Option<IpAddr> {
        self.peer.as_ref()?.addr()
    }

    /// Notes for the statistics that this request is of type `word`, a number of its protocol,
    /// without a failure so far. The thread that serves the request both writes and reads the
    /// notes.
    pub fn note_operation(&self, word: u16) {
        self.operation.store(word, Ordering::Relaxed);
        self.error.store(0, Ordering::Relaxed);
    }

    /// Notes that it failed, with an errno or the protocol's own error number.
    pub fn note_error(&self, fault: u16) {
        self.error.store(fault, Ordering::Relaxed);
    }

    /// Returns the error of the last [`Call::note_error`]; 0 for success.
    pub fn noted_error(&self) -> u16 {
        self.error.load(Ordering::Relaxed)
    }

    /// Notes that the node that this request creates existed before, so that its number is not that
    /// of a removed node that is used again.
    pub fn note_existing(&self) {
        self.existing.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Call::note_existing`] was called since the last [`Call::take_existing`].
    pub fn is_existing(&self) -> bool {
        self.existing.load(Ordering::Relaxed)
    }

    /// Returns whether [`Call::note_existing`] was called since the last call, and clears the note.
    pub fn take_existing(&self) -> bool {
        self.is_existing() && self.existing.swap(false, Ordering::Relaxed)
    }

    /// Notes that the client must not cache the answer to this request: the next one may differ,
    /// and the client is not told.
    pub fn note_uncacheable(&self) {
        self.uncacheable.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Call::note_uncacheable`] was called since the last
    /// [`Call::forget_answer_notes`].
    pub fn is_uncacheable(&self) -> bool {
        self.uncacheable.load(Ordering::Relaxed)
    }

    /// Clears [`Call::note_existing`] and [`Call::note_uncacheable`] of an earlier request.
    pub fn forget_answer_notes(&self) {
        self.take_existing();
        if self.is_uncacheable() {
            self.uncacheable.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that this request uses the share numbered `share`, a number unique while the share is
    /// served; 0 is none. An engine reserves workers for other shares with it.
    pub fn note_export(&self, share: u64) {
        self.export_number.store(share, Ordering::Relaxed);
    }

    /// Returns the share that was noted last.
    pub fn export_number(&self) -> u64 {
        self.export_number.load(Ordering::Relaxed)
    }

    /// Returns the notes since the last call, and clears them.
    pub fn take_outcome(&self) -> Option<CallOutcome> {
        let word = self.operation.load(Ordering::Relaxed);
        self.operation.store(NO_OPERATION, Ordering::Relaxed);
        let fault = self.error.load(Ordering::Relaxed);
        (word != NO_OPERATION).then_some(CallOutcome {
            operation: word,
            error: fault,
        })
    }

    /// Notes that the limiter numbered `limiter`, never 0, has charged this request: it does so
    /// once for each request.
    pub fn admit(&self, limiter: u64) {
        self.admitted_by.store(limiter, Ordering::Relaxed);
    }

    /// Returns the limiter that [`Call::admit`] noted last; 0 is none.
    pub fn admitted_by(&self) -> u64 {
        self.admitted_by.load(Ordering::Relaxed)
    }

    /// Notes that the request goes on with its step `number`, from 0: an operation of a COMPOUND, a
    /// name of a walk. Limiters count each step that calls the tree as an operation. A request that
    /// is served again begins with step 0 again.
    pub fn begin_step(&self, number: u32) {
        self.step.store(number, Ordering::Relaxed);
        self.admit(0);
    }

    /// Returns the number of the present step; 0 if the request has no others.
    pub fn step(&self) -> u32 {
        self.step.load(Ordering::Relaxed)
    }

    /// Notes that limiters must not make this request wait any more, as it has had an effect and
    /// cannot be served again.
    pub fn end_admission(&self) {
        self.admission_ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Call::end_admission`] was called.
    pub fn admission_ended(&self) -> bool {
        self.admission_ended.load(Ordering::Relaxed)
    }

    /// Notes that a limiter makes the request wait, with [`Errno::PARKED`].
    pub fn note_awaits_admission(&self) {
        self.awaits_admission.store(true, Ordering::Relaxed);
    }

    /// Returns whether a limiter has made the request wait since the last call.
    pub fn take_awaits_admission(&self) -> bool {
        self.awaits_admission.swap(false, Ordering::Relaxed)
    }

    /// Calls `with` with the state that limiters store in this request until it is dropped, under a
    /// lock.
    pub fn with_admission<T>(
        &self,
        with: impl FnOnce(&mut Option<Box<dyn AdmissionState>>) -> T,
    ) -> T {
        with(&mut self.admission.lock())
    }

    /// Drops the limiters' state of a request that ends before its `Call` is dropped: it waits no
    /// more.
    pub fn abandon_admission(&self) {
        drop(self.with_admission(Option::take));
    }

    /// Forgets the limiters' state of the request before, for a `Call` that serves one request
    /// after the other without waiting.
    pub fn forget_admission(&self) {
        self.admission_ended.store(false, Ordering::Relaxed);
        if self.admitted_by() != 0 || self.step() != 0 {
            self.begin_step(0);
            if let Some(state) = &mut *self.admission.lock() {
                state.reset();
            }
        }
    }

    /// Cancels the request: every operation that waits returns `EINTR`. Idempotent; returns whether
    /// this was the first call.
    pub fn cancel(&self) -> bool {
        let first = !self.cancelled.swap(true, Ordering::SeqCst);
        let wakers = std::mem::take(&mut *self.on_cancel.lock());
        wakers.into_iter().for_each(Waker::wake);
        first
    }

    /// Returns `EINTR` if the request is cancelled.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::SeqCst) {
            Err(Errno::EINTR)
        } else {
            Ok(())
        }
    }

    /// Notes a signal for the client's thread that waits for the request: a wait for a lock that
    /// others hold ends. No other wait does, as programs that handle a signal expect no other calls
    /// to fail with `EINTR`. A signal that ends the thread also [cancels](Call::cancel) the
    /// request.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
    }

    /// Returns `EINTR` if the request is cancelled or interrupted: for waits for locks that others
    /// hold.
    pub fn check_lock_wait(&self) -> Result<()> {
        if self.interrupted.load(Ordering::SeqCst) {
            Err(Errno::EINTR)
        } else {
            self.check()
        }
    }

    /// Notes that a request to another server, which is part of this one, was carried out and has
    /// changed something. The following ones are sent and waited for even if this one is cancelled,
    /// so that the client gets the result of the whole.
    pub fn note_effect(&self) {
        self.effective.store(true, Ordering::SeqCst);
    }

    /// Returns whether [`Call::note_effect`] was called.
    pub fn has_effect(&self) -> bool {
        self.effective.load(Ordering::SeqCst)
    }

    /// Returns `EINTR` if the request is cancelled and has had no [effect](Call::note_effect):
    /// called before a request to another server is sent.
    pub fn check_begin(&self) -> Result<()> {
        if self.has_effect() {
            Ok(())
        } else {
            self.check()
        }
    }

    /// Returns the waker that reruns this request, if it can be parked. An operation that returns
    /// [`Errno::PARKED`] keeps a clone of it.
    pub fn waker(&self) -> Option<&Waker> {
        self.waker.as_ref()
    }

    /// Requests a rerun after `time` even without a wake-up; called before returning
    /// [`Errno::PARKED`]. The resolution is a millisecond.
    pub fn wake_within(&self, time: Duration) {
        self.wake_within_ms
            .store(time.as_millis().max(1) as u32, Ordering::Relaxed);
    }

    /// Returns and clears the time that [`Call::wake_within`] set.
    pub fn take_wake_within(&self) -> Option<Duration> {
        match self.wake_within_ms.swap(0, Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms.into())),
        }
    }

    /// Registers `waker` to be woken by [`Call::cancel`]; wakes it at once if the request is
    /// cancelled already.
    pub fn wake_on_cancel(&self, waker: &Waker) {
        self.on_cancel.lock().push(waker.clone());
        if self.check().is_err() {
            waker.wake_by_ref();
        }
    }
}

/// Runs `operation` on this thread to completion and sleeps while it is parked: for callers that no
/// engine drives.
pub fn block_on<T>(caller: &Caller, operation: impl FnMut(&Cx<'_>) -> Result<T>) -> Result<T> {
    block_on_call(caller, &Call::parkable(thread_waker()), operation)
}

/// Does the same as [`block_on`], with a `call` of [`thread_waker`] that another thread may cancel.
pub fn block_on_call<T>(
    caller: &Caller,
    call: &Call,
    mut operation: impl FnMut(&Cx<'_>) -> Result<T>,
) -> Result<T> {
    if let Some(waker) = call.waker() {
        call.wake_on_cancel(waker);
    }
    loop {
        match operation(&Cx::new(caller, call)) {
            Err(Errno::PARKED) => match call.take_wake_within() {
                Some(time) => std::thread::park_timeout(time),
                None => std::thread::park(),
            },
            done => return done,
        }
    }
}

/// Creates a waker that unparks the calling thread.
pub fn thread_waker() -> Waker {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_call_says_so_and_wakes_whom_it_concerns() {
        let call = Call::detached();
        let waker = thread_waker();
        call.wake_on_cancel(&waker);
        assert_eq!(call.check(), Ok(()));
        call.cancel();
        assert_eq!(call.check(), Err(Errno::EINTR));
        std::thread::park();
        call.wake_on_cancel(&waker);
        std::thread::park();
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_lock_and_a_cancellation_ends_what_has_had_no_effect() {
        let call = Call::detached();
        call.interrupt();
        assert_eq!(call.check_lock_wait(), Err(Errno::EINTR));
        assert_eq!((call.check(), call.check_begin()), (Ok(()), Ok(())));
        call.cancel();
        let interrupted = Err(Errno::EINTR);
        assert_eq!(
            (call.check(), call.check_begin()),
            (interrupted, interrupted)
        );
        call.note_effect();
        assert_eq!((call.check(), call.check_begin()), (interrupted, Ok(())));
    }

    #[test]
    fn a_parked_operation_is_run_again_when_woken() {
        let mut rounds = 0;
        let answer = block_on(&Caller::ROOT, |cx| {
            rounds += 1;
            if rounds == 1 {
                cx.call.waker().expect("parkable").wake_by_ref();
                return Err(Errno::PARKED);
            }
            Ok(rounds)
        });
        assert_eq!(answer, Ok(2));
    }

    #[test]
    fn nothing_but_what_is_derived_as_such_is_ours() {
        let peer = Arc::new(Peer::remote([10, 0, 0, 1].into(), 700));
        let call = Call::parkable(thread_waker()).with_peer(peer);
        let ours = call.internal();
        assert!(ours.is_internal() && ours.addr() == call.addr() && ours.waker().is_none());
        let theirs = [&call, &ours].map(|call| call.woken_by(thread_waker()));
        assert!(!theirs.iter().any(Call::is_internal) && !call.is_internal());
    }

    #[test]
    fn an_admission_is_forgotten_with_its_request() {
        struct Uses(u32);
        impl AdmissionState for Uses {
            fn reset(&mut self) {
                self.0 = 0;
            }
        }
        let call = Call::detached();
        let uses = || {
            call.with_admission(|slot| {
                let state: &mut dyn Any = &mut **slot.as_mut()?;
                state.downcast_ref().map(|Uses(uses)| *uses)
            })
        };
        call.with_admission(|slot| *slot = Some(Box::new(Uses(5))));
        // One that was not admitted may still wait.
        call.forget_admission();
        assert_eq!(uses(), Some(5));
        call.admit(7);
        call.end_admission();
        assert_eq!((call.admitted_by(), call.admission_ended()), (7, true));
        call.forget_admission();
        assert_eq!((call.admitted_by(), call.admission_ended()), (0, false));
        assert_eq!(uses(), Some(0));
        call.abandon_admission();
        assert_eq!(uses(), None);
    }

    #[test]
    fn patience_is_ordered() {
        assert!(Patience::None < Patience::Brief && Patience::Brief < Patience::Full);
        let call = Call::detached();
        let brief = Cx {
            patience: Patience::Brief,
            ..Cx::new(&Caller::ROOT, &call)
        };
        assert_eq!(brief.check_may_block(), Err(Errno::WOULD_BLOCK));
        assert_eq!(Cx::new(&Caller::ROOT, &call).check_may_block(), Ok(()));
    }
}
