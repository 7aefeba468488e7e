//! The context of a call: on whose behalf, with how much patience, and how it ends early.

use core::task::Waker;
use core::time::Duration;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::{Account, Errno, Peer, Result};

/// What every operation is given.
#[derive(Clone, Copy)]
pub struct Cx<'a> {
    /// Who asks.
    pub caller: &'a Caller,
    /// How long the operation may keep the thread.
    pub patience: Patience,
    /// The request that this operation is part of.
    pub call: &'a Call,
}

impl<'a> Cx<'a> {
    /// A context that may wait, on behalf of `caller`, for a request that nobody cancels: what
    /// programs use that are not driven by an engine.
    pub fn new(caller: &'a Caller, call: &'a Call) -> Cx<'a> {
        Cx {
            caller,
            patience: Patience::Full,
            call,
        }
    }

    /// The same request, on behalf of another.
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

    /// `WOULD_BLOCK` unless the operation may wait: the first line of whatever waits by nature.
    pub fn may_wait(&self) -> Result<()> {
        if self.patience == Patience::Full {
            Ok(())
        } else {
            Err(Errno::WOULD_BLOCK)
        }
    }
}

/// How long an operation may keep its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Patience {
    /// Only what certainly stays in memory: cached pages, cached names, attributes of what is open.
    None,
    /// Also what a local file system normally does in memory within microseconds (creating,
    /// renaming, buffered writes), though it may have to wait for a disk now and then.
    Brief,
    /// Whatever it takes.
    Full,
}

/// Whose permissions count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// User id. 0 is the super-user, unless a layer maps it.
    pub uid: u32,
    /// Group id: the group of what is created, and one of those that permissions are checked by.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl Caller {
    /// The super-user, group 0, no supplementary groups.
    pub const ROOT: Caller = Caller {
        uid: 0,
        gid: 0,
        groups: Groups::Unknown,
    };

    /// A caller of whom a protocol tells no groups.
    pub const fn new(uid: u32, gid: u32) -> Caller {
        Caller {
            uid,
            gid,
            groups: Groups::Unknown,
        }
    }
}

/// What a protocol says of the caller's supplementary groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Groups {
    /// Nothing (9P): the source goes by its own user database.
    Unknown,
    /// Exactly these (AUTH_SYS, FUSE with supplementary groups).
    Known(Arc<[u32]>),
}

/// A request in flight, as operations see it: it can be cancelled, and it can be woken when
/// what it waits for has come. Shared by the thread that runs it and those that cancel it.
pub struct Call {
    cancelled: AtomicBool,
    waker: Option<Waker>,
    on_cancel: Mutex<Vec<Waker>>,
    wake_within_ms: AtomicU32,
    /// 0 is none.
    place: AtomicU64,
    polls: bool,
    peer: Option<Arc<Peer>>,
    /// Of a request that came over no connection.
    account: Account,
    ours: bool,
    /// [`Call::note_share`]'s; 0 is none.
    share: AtomicU64,
    /// [`Call::note`]'s; [`NOTHING`] is none.
    word: AtomicU16,
    /// [`Call::note_fault`]'s; 0 is none.
    fault: AtomicU16,
}

/// No protocol has so many words.
const NOTHING: u16 = u16::MAX;

/// What a protocol has noted of a request for those who count, in its own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Which of its words for requests.
    pub word: u16,
    /// Why it failed; 0 if it did not.
    pub fault: u16,
}

impl Call {
    /// A request that cannot be parked and that nobody cancels.
    pub const fn detached() -> Call {
        Call {
            cancelled: AtomicBool::new(false),
            waker: None,
            on_cancel: Mutex::new(Vec::new()),
            wake_within_ms: AtomicU32::new(0),
            place: AtomicU64::new(0),
            polls: false,
            peer: None,
            account: Account::OURS,
            ours: false,
            share: AtomicU64::new(0),
            word: AtomicU16::new(NOTHING),
            fault: AtomicU16::new(0),
        }
    }

    /// A request that `waker` has run again, after it answered [`Errno::PARKED`].
    pub fn parkable(waker: Waker) -> Call {
        Call {
            waker: Some(waker),
            ..Call::detached()
        }
    }

    /// Another request by the same connection, which `waker` has run again.
    pub fn woken_by(&self, waker: Waker) -> Call {
        Call {
            peer: self.peer.clone(),
            account: self.account.clone(),
            ..Call::parkable(waker)
        }
    }

    /// Another request by the same connection, of a client that comes again by itself, some time after `waker` was
    /// woken or without that: until then, or until it is cancelled, a [`crate::lock::LockTable`] keeps its place. Whoever
    /// makes it sees to it that one or the other happens.
    pub fn polled(&self, waker: Waker) -> Call {
        Call {
            polls: true,
            ..self.woken_by(waker)
        }
    }

    /// Whether it is [`Call::polled`].
    pub fn polls(&self) -> bool {
        self.polls
    }

    /// Where it stands among those that wait for the same, if it has waited: the lower, the longer.
    pub fn place(&self) -> Option<u64> {
        Some(self.place.load(Ordering::Relaxed)).filter(|&place| place != 0)
    }

    /// It begins to wait, behind all that have a lower number; none is 0.
    pub fn take_place(&self, place: u64) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// Another request by the same connection, that cannot be parked.
    pub fn beside(&self) -> Call {
        Call {
            peer: self.peer.clone(),
            account: self.account.clone(),
            ..Call::detached()
        }
    }

    /// The same request, by the connection to `peer`.
    pub fn coming_from(self, peer: Arc<Peer>) -> Call {
        Call {
            peer: Some(peer),
            ..self
        }
    }

    /// The same request, of a guest by its queues, on its `account`.
    pub fn on_account(self, account: Account) -> Call {
        Call { account, ..self }
    }

    /// What this program does of its own accord to answer this request: layers leave its caller as it is, while the
    /// connection is let in, or not, as ever. It cannot be parked. For what the client has no part in but by being told
    /// what came of it.
    pub fn of_ours(&self) -> Call {
        Call {
            peer: self.peer.clone(),
            account: self.account.clone(),
            ours: true,
            ..Call::detached()
        }
    }

    /// Whether its caller is this program itself ([`Call::of_ours`]), whom nobody makes somebody else.
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Who asked for it over a connection; nobody for what this program does of its own, or for a guest by its queues.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_deref()
    }

    /// The account that tables charge what they keep for this request to: its peer's, or its
    /// guest's.
    pub fn account(&self) -> &Account {
        match &self.peer {
            Some(peer) => peer.account(),
            None => &self.account,
        }
    }

    /// The caller that it is made for if its client claims to be `claimed`, without proof
    /// ([`Peer::acts_as`]). Requests that come over no connection are made for whom they say.
    pub fn acts_as(&self, claimed: Caller) -> Caller {
        match self.peer() {
            Some(peer) => peer.acts_as(claimed),
            None => claimed,
        }
    }

    /// The address that it came from, if it came from any.
    pub fn addr(&self) -> Option<IpAddr> {
        self.peer.as_ref()?.addr()
    }

    /// Notes for those who count that this request is what its protocol has the number `word` for, and no failure so far.
    /// Notes are made by the thread that serves the request, which is also who reads them.
    pub fn note(&self, word: u16) {
        self.word.store(word, Ordering::Relaxed);
        self.fault.store(0, Ordering::Relaxed);
    }

    /// Notes that it failed: by an errno, or what its protocol has instead.
    pub fn note_fault(&self, fault: u16) {
        self.fault.store(fault, Ordering::Relaxed);
    }

    /// Notes that this request is for the share that has the number `share`, which no other has
    /// while it is served; 0 is none. So that an engine can leave workers to other shares.
    pub fn note_share(&self, share: u64) {
        self.share.store(share, Ordering::Relaxed);
    }

    /// The share that was noted last.
    pub fn share(&self) -> u64 {
        self.share.load(Ordering::Relaxed)
    }

    /// What was noted since last asked.
    pub fn take_noted(&self) -> Option<Noted> {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(NOTHING, Ordering::Relaxed);
        let fault = self.fault.load(Ordering::Relaxed);
        (word != NOTHING).then_some(Noted { word, fault })
    }

    /// Cancels: every operation that waits gives up with `EINTR`. Idempotent; says whether it was the first time.
    pub fn cancel(&self) -> bool {
        let first = !self.cancelled.swap(true, Ordering::SeqCst);
        for waker in std::mem::take(&mut *self.on_cancel.lock().expect("no panic holds it")) {
            waker.wake();
        }
        first
    }

    /// `EINTR` once cancelled.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::SeqCst) {
            Err(Errno::EINTR)
        } else {
            Ok(())
        }
    }

    /// What runs this request again, if it can be parked at all; whoever answers
    /// [`Errno::PARKED`] has kept a clone.
    pub fn waker(&self) -> Option<&Waker> {
        self.waker.as_ref()
    }

    /// Before answering [`Errno::PARKED`]: run this request again after `time` even if nobody wakes
    /// it. Milliseconds count.
    pub fn wake_within(&self, time: Duration) {
        self.wake_within_ms
            .store(time.as_millis().max(1) as u32, Ordering::Relaxed);
    }

    /// What [`Call::wake_within`] asked for since last asked here.
    pub fn take_wake_within(&self) -> Option<Duration> {
        match self.wake_within_ms.swap(0, Ordering::Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms.into())),
        }
    }

    /// Has `waker` woken at [`Call::cancel`]; at once if that has been.
    pub fn wake_on_cancel(&self, waker: &Waker) {
        self.on_cancel
            .lock()
            .expect("no panic holds it")
            .push(waker.clone());
        if self.check().is_err() {
            waker.wake_by_ref();
        }
    }
}

/// Runs `operation` on this thread until it is done, sleeping while it is parked: for callers
/// that no engine drives.
pub fn block_on<T>(caller: &Caller, operation: impl FnMut(&Cx<'_>) -> Result<T>) -> Result<T> {
    block_on_call(caller, &Call::parkable(thread_waker()), operation)
}

/// [`block_on`], with a `call` of [`thread_waker`]'s that another thread may cancel.
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

/// A waker that unparks the calling thread.
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
        let call = Call::parkable(thread_waker()).coming_from(peer);
        let ours = call.of_ours();
        assert!(ours.is_ours() && ours.addr() == call.addr() && ours.waker().is_none());
        let theirs = [&call, &ours].map(|call| call.woken_by(thread_waker()));
        assert!(!theirs.iter().any(Call::is_ours) && !call.is_ours());
    }

    #[test]
    fn patience_is_ordered() {
        assert!(Patience::None < Patience::Brief && Patience::Brief < Patience::Full);
        let call = Call::detached();
        let brief = Cx {
            patience: Patience::Brief,
            ..Cx::new(&Caller::ROOT, &call)
        };
        assert_eq!(brief.may_wait(), Err(Errno::WOULD_BLOCK));
        assert_eq!(Cx::new(&Caller::ROOT, &call).may_wait(), Ok(()));
    }
}
