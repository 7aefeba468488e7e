use std::sync::atomic::AtomicBool;
use std::task::Wake;

use transports::Outbox;
use vfs::PeerKey;
use vfs_testkit::wait_until;
use wire::Vocabulary;

use super::*;
use crate::Tuning;
use crate::request::RunOutcome;
use crate::slow_log::SlowLog;
use crate::stats::{LaneStats, Stats, StatsRegistry};
use crate::workers::Run;

struct Lane {
    in_flight: InFlight<Test>,
    stats: LaneStats,
    /// Whether requests may start.
    open: AtomicBool,
    /// The ids of answered requests, in order.
    answered: Mutex<Vec<u64>>,
    /// The ids of requests that were to be put back, and those that their client has cancelled.
    noted: Mutex<[Vec<u64>; 2]>,
}

impl Lane {
    /// A lane's share is half of them.
    const WORKERS: usize = 4;

    fn new() -> Arc<Lane> {
        let workers = Workers::new(Lane::WORKERS, Workers::STUCK_AFTER).expect("a thread");
        let limits = Limits {
            requests: 3,
            bytes: 100,
        };
        Arc::new(Lane {
            in_flight: InFlight::new(workers, limits),
            stats: StatsRegistry::new(false, SlowLog::new(&Tuning::default()))
                .add_lane(Vocabulary::none()),
            open: AtomicBool::new(true),
            answered: Mutex::default(),
            noted: Mutex::default(),
        })
    }

    fn request(self: &Arc<Self>, id: u64, parks: bool) -> Arc<Request<Test>> {
        let lane = self.clone();
        Request::new(None, Test { lane, id, parks })
    }

    /// Begins a request that the calling thread is to run.
    fn begin(self: &Arc<Self>, id: u64) -> Arc<Request<Test>> {
        let request = self.request(id, false);
        assert!(self.in_flight.begin_on_this_thread(&request));
        request
    }

    fn begin_follower(self: &Arc<Self>, id: u64) -> Follower<Test> {
        self.in_flight.begin_follower(self.request(id, false))
    }

    fn answered(&self) -> Vec<u64> {
        std::mem::take(&mut *self.answered.lock())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.in_flight.workers().close();
    }
}

/// A request that is answered at once, or parks until it is cancelled.
struct Test {
    lane: Arc<Lane>,
    id: u64,
    parks: bool,
}

impl Job for Test {
    fn run(request: &Arc<Request<Test>>, _: &mut Outbox) -> RunOutcome {
        if request.job.parks && request.call.check().is_ok() {
            return RunOutcome::Parked;
        }
        complete(request, reply);
        RunOutcome::Answered
    }

    fn schedule(request: Arc<Request<Test>>) {
        request.job.lane.clone().in_flight.schedule(request);
    }

    fn leave_worker(request: &Request<Test>) {
        request.job.lane.in_flight.leave_worker(request);
    }

    fn workers(&self) -> &Arc<Workers> {
        self.lane.in_flight.workers()
    }

    fn stats(&self) -> &Stats {
        &self.lane.stats
    }

    fn owner(&self) -> PeerKey {
        PeerKey::Device(0)
    }
}

impl Entry for Test {
    fn in_flight(&self) -> &InFlight<Test> {
        &self.lane.in_flight
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn bytes(&self) -> usize {
        40
    }

    fn may_start(&self) -> bool {
        self.lane.open.load(Ordering::SeqCst)
    }

    fn put_back(&self) {
        self.lane.noted.lock()[0].push(self.id);
    }

    fn note_client_cancel(&self) {
        self.lane.noted.lock()[1].push(self.id);
    }
}

/// Records what is noted of a lane's requests when a cancellation becomes visible.
struct AtCancel {
    lane: Arc<Lane>,
    seen: Mutex<Vec<[Vec<u64>; 2]>>,
}

impl Wake for AtCancel {
    fn wake(self: Arc<Self>) {
        self.seen.lock().push(self.lane.noted.lock().clone());
    }
}

#[test]
fn a_request_knows_why_it_is_cancelled_before_it_is() {
    let lane = Lane::new();
    let seen = Arc::new(AtCancel {
        lane: lane.clone(),
        seen: Mutex::default(),
    });
    let requests = [lane.begin(1), lane.begin(2)];
    for request in &requests {
        request.call.wake_on_cancel(&Waker::from(seen.clone()));
    }
    lane.in_flight.cancel(1);
    lane.in_flight.cancel_all_from_now_on();
    // The second cancellation of the first request wakes nobody.
    let seen = std::mem::take(&mut *seen.seen.lock());
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0], [vec![], vec![1]]);
    assert!(seen[1][0].contains(&2) && !seen[1][1].contains(&2));
    assert_eq!(lane.stats.totals().cancelled, 2);
    requests.iter().for_each(run);
}

fn reply(request: &Arc<Request<Test>>, _: Follows) {
    let mut answered = request.job.lane.answered.lock();
    answered.push(request.job.id);
}

fn run(request: &Arc<Request<Test>>) {
    request.clone().run(&mut Outbox::default());
}

#[test]
fn followers_are_answered_after_their_targets() {
    let (lane, other) = (Lane::new(), Lane::new());
    let target = lane.begin(1);
    for (id, of) in [(2, 1), (3, 2), (4, 1)] {
        let follower = lane.begin_follower(id);
        assert!(lane.in_flight.follow(of, follower).is_none());
    }
    let far = other.begin_follower(5);
    assert!(lane.in_flight.follow(1, far).is_none());
    assert_eq!((lane.in_flight.count(), other.in_flight.count()), (4, 1));
    assert!(target.call.check().is_err());
    run(&target);
    assert_eq!(lane.answered(), [1, 2, 4, 3]);
    assert_eq!(other.answered(), [5]);
    assert_eq!((lane.in_flight.count(), other.in_flight.count()), (0, 0));
    assert!(!lane.in_flight.contains(1));
    assert_eq!(lane.stats.totals().cancelled, 2);
}

#[test]
fn an_id_may_be_reused_once_its_reply_is_sent_and_no_follower_is_lost() {
    let lane = Lane::new();
    let first = lane.begin(1);
    assert!(lane.in_flight.uses(1));
    let mut second = None;
    complete(&first, |request, follows| {
        if follows == Follows::No {
            assert!(lane.in_flight.contains(1) && !lane.in_flight.uses(1));
            let late = lane.begin_follower(2);
            assert!(lane.in_flight.follow(1, late).is_none());
            lane.in_flight.cancel(1);
            second = Some(lane.begin(1));
        } else {
            assert!(!lane.in_flight.uses(2));
            lane.in_flight.cancel(2);
        }
        reply(request, follows);
    });
    assert_eq!(lane.answered(), [1, 2]);
    let cancelled = lane.stats.totals().cancelled;
    assert_eq!(cancelled, 0, "an answered request is not cancelled");
    assert!(lane.in_flight.uses(1));
    run(&second.expect("begun"));
    assert_eq!((lane.answered(), lane.in_flight.count()), (vec![1], 0));
}

#[test]
fn no_follower_follows_itself_whatever_its_id() {
    let lane = Lane::new();
    let targets = [lane.begin(1), lane.begin(2)];
    let (one, two, three) = (
        lane.begin_follower(1),
        lane.begin_follower(2),
        lane.begin_follower(3),
    );
    for (target, follower) in [(2, one), (1, two), (3, three)] {
        let refused = lane.in_flight.follow(target, follower);
        complete_follower(refused.expect("refused"), reply);
    }
    lane.in_flight.cancel_all();
    for target in &targets {
        assert!(target.call.check().is_err());
        run(target);
    }
    assert_eq!(lane.in_flight.count(), 0);
    let mut all = lane.answered();
    all.sort_unstable();
    assert_eq!(all, [1, 1, 2, 2, 3]);
}

#[test]
fn number_and_size_are_limited_except_for_a_single_request() {
    let lane = Lane::new();
    assert!(lane.in_flight.has_room(1000));
    let first = lane.begin(1);
    assert!(lane.in_flight.has_room(60) && !lane.in_flight.has_room(61));
    let second = lane.begin(2);
    assert!(lane.in_flight.has_room(20) && !lane.in_flight.has_room(21));
    let third = lane.request(3, true);
    assert!(
        !lane.in_flight.begin_on_this_thread(&third),
        "the share is used up"
    );
    assert!(!lane.in_flight.has_room(0));
    lane.in_flight.cancel(3);
    run(&first);
    run(&second);
    lane.in_flight.wait_until_idle();
    assert!(lane.in_flight.has_room(1000));
}

#[test]
fn requests_for_an_export_that_hangs_leave_the_share_of_others() {
    let lane = Lane::new();
    let begin = |id, export| {
        let request = lane.request(id, false);
        request.call.note_export(export);
        (lane.in_flight.begin_on_this_thread(&request), request)
    };
    let hanging = [1, 2, 3].map(|id| begin(id, 1));
    assert_eq!(hanging.each_ref().map(|it| it.0), [true, true, false]);
    let (runs, other) = begin(4, 2);
    assert!(runs, "another export has a share of its own");
    lane.in_flight.begin_on_worker({
        let request = lane.request(5, false);
        request.call.note_export(2);
        request
    });
    wait_until("it overtakes the queued one", || lane.answered() == [5]);
    // It notes another export while it runs.
    other.call.note_export(3);
    [&hanging[0].1, &hanging[1].1, &other]
        .into_iter()
        .for_each(run);
    lane.in_flight.wait_until_idle();
    assert!(lane.in_flight.table().running.is_empty());
}

#[test]
fn queued_requests_start_when_share_and_lane_allow() {
    let lane = Lane::new();
    let [first, second] = [1, 2].map(|id| lane.begin(id));
    lane.in_flight.begin_on_worker(lane.request(3, false));
    lane.open.store(false, Ordering::SeqCst);
    run(&first);
    run(&second);
    assert_eq!((lane.answered(), lane.in_flight.count()), (vec![1, 2], 1));
    lane.open.store(true, Ordering::SeqCst);
    lane.in_flight.start_queued();
    lane.in_flight.wait_until_idle();
    assert_eq!(lane.answered(), [3]);
}

#[test]
fn completions_wake_until_the_registration_is_dropped() {
    struct Counts(AtomicUsize);
    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let lane = Lane::new();
    let counts = Arc::new(Counts(AtomicUsize::new(0)));
    let wakes = lane.in_flight.wake_on_completion(counts.clone().into());
    run(&lane.begin(1));
    run(&lane.begin(2));
    assert_eq!(counts.0.load(Ordering::SeqCst), 2);
    drop(wakes);
    run(&lane.begin(3));
    assert_eq!(counts.0.load(Ordering::SeqCst), 2);
}

#[test]
fn cancelling_while_a_request_completes_loses_no_reply() {
    let lane = Lane::new();
    for _ in 0..500 {
        let target = lane.begin(1);
        let follows = std::thread::scope(|scope| {
            scope.spawn(|| run(&target));
            let follows = lane.in_flight.contains(1);
            if follows {
                let follower = lane.begin_follower(2);
                if let Some(follower) = lane.in_flight.follow(1, follower) {
                    complete_follower(follower, reply);
                }
            }
            follows
        });
        assert_eq!(lane.in_flight.count(), 0);
        assert_eq!(
            lane.answered(),
            [&[1][..], &[2][..usize::from(follows)]].concat()
        );
    }
}

#[test]
fn a_parked_request_is_answered_whenever_it_is_cancelled() {
    let lane = Lane::new();
    for _ in 0..300 {
        lane.in_flight.begin_on_worker(lane.request(1, true));
        lane.in_flight.cancel(1);
        lane.in_flight.wait_until_idle();
        assert_eq!(lane.answered(), [1]);
    }
}

#[test]
fn a_table_becomes_quiet_although_requests_begin_while_it_is_cancelled() {
    const COUNT: u64 = 20;
    for _ in 0..50 {
        let lane = Lane::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 0..COUNT {
                    lane.in_flight.begin_on_worker(lane.request(id, true));
                }
            });
            scope.spawn(|| lane.in_flight.cancel_all_from_now_on());
        });
        std::thread::scope(|scope| {
            scope.spawn(|| lane.in_flight.wait_until_idle());
            lane.in_flight.wait_until_idle();
        });
        assert_eq!(lane.in_flight.count(), 0);
        assert_eq!(lane.answered().len() as u64, COUNT);
    }
}
