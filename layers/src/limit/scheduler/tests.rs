use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::super::Rates;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn rates(ops: u64, bytes: u64) -> Rates {
    Rates {
        ops: NonZeroU64::new(ops),
        bytes: NonZeroU64::new(bytes),
        burst: Rates::DEFAULT_BURST,
    }
}

fn share(ops: u64, bytes: u64) -> Limits {
    Limits {
        share: rates(ops, bytes),
        client: Rates::UNLIMITED,
    }
}

fn each(ops: u64, bytes: u64) -> Limits {
    Limits {
        share: Rates::UNLIMITED,
        client: rates(ops, bytes),
    }
}

/// A waker that counts.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A client that has `depth` requests of `bytes` in flight all the time.
struct Load {
    client: PeerKey,
    bytes: u64,
    tickets: Vec<Option<Ticket>>,
    admitted: u64,
    /// The longest time that one of its requests waited.
    longest: Duration,
    since: Vec<Duration>,
}

impl Load {
    fn new(client: u32, bytes: u64, depth: usize) -> Load {
        Load {
            client: PeerKey::User(client),
            bytes,
            tickets: vec![None; depth],
            admitted: 0,
            longest: Duration::ZERO,
            since: vec![Duration::ZERO; depth],
        }
    }

    /// Replaces admitted requests by new ones until all wait. Returns whether any was admitted.
    fn step(&mut self, scheduler: &mut Scheduler, now: Duration) -> bool {
        let (mut any, mut woken) = (false, Vec::new());
        for (ticket, since) in self.tickets.iter_mut().zip(&mut self.since) {
            loop {
                if let Some(waiting) = *ticket {
                    if scheduler.is_waiting(waiting) {
                        break;
                    }
                    any = true;
                    self.admitted += 1;
                    self.longest = self.longest.max(now - *since);
                    *ticket = None;
                }
                *since = now;
                let arrival = Arrival {
                    client: self.client,
                    ops: 1,
                    bytes: self.bytes,
                    wait: Wait::Until(Waker::noop()),
                };
                match scheduler.arrive(&arrival, now, &mut woken) {
                    Decision::Waits(new) => *ticket = Some(new),
                    Decision::Admitted => {
                        any = true;
                        self.admitted += 1;
                    }
                    Decision::Refused => panic!("it may wait"),
                }
            }
        }
        any
    }
}

/// Runs `loads` from `from` until `to`, and returns how often requests were admitted.
fn simulate(scheduler: &mut Scheduler, loads: &mut [Load], from: Duration, to: Duration) -> usize {
    let (mut now, mut rounds, mut woken) = (from, 0, Vec::new());
    while now < to {
        rounds += 1;
        scheduler.pump(now, &mut woken);
        let mut any = true;
        while any {
            any = false;
            for load in &mut *loads {
                any |= load.step(scheduler, now);
            }
        }
        check(scheduler);
        now = scheduler.next_due(now).expect("all wait").max(now);
    }
    rounds
}

/// Asserts what holds at all times.
fn check(scheduler: &Scheduler) {
    let queues = scheduler.clients.values().flat_map(|it| &it.queues);
    let waiting: usize = queues.map(|queue| queue.waiting.len()).sum();
    assert_eq!(waiting, scheduler.waiting);
    for (number, client) in &scheduler.clients {
        for (moves_bytes, queue) in [false, true].into_iter().zip(&client.queues) {
            let own =
                |ticket: &Ticket| (ticket.client, ticket.moves_bytes) == (*number, moves_bytes);
            let limited = scheduler.limited.iter().filter(|(_, it)| own(it));
            let ready = scheduler.ready.iter().flatten().filter(|(_, it)| own(it));
            let places = limited.count() + ready.count();
            assert_eq!(places, usize::from(!queue.waiting.is_empty()));
        }
        assert_eq!(scheduler.numbers.get(&client.key), Some(number));
    }
}

#[test]
fn the_rate_of_a_share_is_held_whatever_the_depth() {
    for depth in [1, 64] {
        let mut scheduler = Scheduler::new(share(1000, 0), Duration::ZERO);
        let mut loads = [Load::new(1, 4096, depth)];
        simulate(&mut scheduler, &mut loads, Duration::ZERO, 10 * SECOND);
        let admitted = loads[0].admitted;
        assert!((10_000..=10_101).contains(&admitted), "{admitted}");
    }
}

#[test]
fn the_rate_of_a_client_is_its_own() {
    let mut scheduler = Scheduler::new(each(100, 0), Duration::ZERO);
    let mut loads = [1, 2, 3].map(|client| Load::new(client, 0, 4));
    simulate(&mut scheduler, &mut loads, Duration::ZERO, 10 * SECOND);
    for load in &loads {
        assert!((1000..=1011).contains(&load.admitted), "{}", load.admitted);
    }
}

#[test]
fn a_client_with_small_requests_gets_as_many_bytes_as_one_with_large_ones() {
    let mut scheduler = Scheduler::new(share(0, 64 << 20), Duration::ZERO);
    let mut loads = [Load::new(1, 1 << 20, 64), Load::new(2, 4096, 64)];
    simulate(&mut scheduler, &mut loads, Duration::ZERO, 10 * SECOND);
    let bytes = loads.each_ref().map(|load| load.admitted * load.bytes);
    let ratio = bytes[1] as f64 / bytes[0] as f64;
    assert!((0.9..1.1).contains(&ratio), "{bytes:?}");
}

#[test]
fn a_client_with_one_small_request_does_not_wait_for_two_large_ones() {
    let mut scheduler = Scheduler::new(share(0, 16 << 20), Duration::ZERO);
    let mut loads = [Load::new(1, 1 << 20, 64), Load::new(2, 4096, 1)];
    simulate(&mut scheduler, &mut loads, Duration::ZERO, 10 * SECOND);
    // A request of a MiB takes 62.5 ms.
    assert!(
        loads[1].longest <= Duration::from_millis(90),
        "{:?}",
        loads[1].longest
    );
    assert!(loads[1].admitted > 100, "{}", loads[1].admitted);
}

#[test]
fn operations_are_divided_among_many_clients() {
    let mut scheduler = Scheduler::new(share(1000, 0), Duration::ZERO);
    let mut loads: Vec<_> = (0..10)
        .map(|client| Load::new(client, 0, 1 + client as usize * 7))
        .collect();
    simulate(&mut scheduler, &mut loads, Duration::ZERO, 10 * SECOND);
    for load in &loads[1..] {
        assert!((950..=1130).contains(&load.admitted), "{}", load.admitted);
    }
}

#[test]
fn requests_without_bytes_do_not_wait_for_a_debt_of_bytes() {
    let mut scheduler = Scheduler::new(share(1000, 1024), Duration::ZERO);
    let mut loads = [Load::new(1, 1 << 20, 8), Load::new(2, 0, 1)];
    simulate(&mut scheduler, &mut loads, Duration::ZERO, SECOND);
    assert!(loads[1].admitted >= 999, "{}", loads[1].admitted);
    assert_eq!(loads[0].admitted, 1);
}

#[test]
fn requests_without_bytes_do_not_wait_for_those_of_their_client_that_move_some() {
    let mut scheduler = Scheduler::new(share(1000, 1024), Duration::ZERO);
    let mut loads = [Load::new(1, 1 << 20, 64), Load::new(1, 0, 1)];
    simulate(&mut scheduler, &mut loads, Duration::ZERO, SECOND);
    assert!(loads[1].admitted >= 999, "{}", loads[1].admitted);
    // Nor do they starve them.
    let mut scheduler = Scheduler::new(share(1000, 1 << 30), Duration::ZERO);
    let mut loads = [Load::new(1, 1024, 4), Load::new(1, 0, 4)];
    simulate(&mut scheduler, &mut loads, Duration::ZERO, SECOND);
    let counts = loads.each_ref().map(|load| load.admitted);
    assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
}

#[test]
fn a_client_that_waits_for_its_own_limit_delays_no_other() {
    let limits = Limits {
        share: rates(1000, 0),
        client: rates(10, 0),
    };
    let mut scheduler = Scheduler::new(limits, Duration::ZERO);
    let mut loads = [Load::new(1, 0, 64)];
    simulate(&mut scheduler, &mut loads, Duration::ZERO, SECOND);
    let arrival = Arrival {
        client: PeerKey::User(2),
        ops: 1,
        bytes: 0,
        wait: Wait::Refuse,
    };
    let decision = scheduler.arrive(&arrival, SECOND, &mut Vec::new());
    assert_eq!(decision, Decision::Admitted);
}

#[test]
fn requests_of_a_client_are_admitted_in_their_order() {
    let mut scheduler = Scheduler::new(share(10, 0), Duration::ZERO);
    let mut woken = Vec::new();
    let arrive = |scheduler: &mut Scheduler, waker: &Waker, now| {
        let arrival = Arrival {
            client: PeerKey::User(1),
            ops: 1,
            bytes: 0,
            wait: Wait::Until(waker),
        };
        scheduler.arrive(&arrival, now, &mut Vec::new())
    };
    assert_eq!(
        arrive(&mut scheduler, Waker::noop(), Duration::ZERO),
        Decision::Admitted
    );
    let wakes: Vec<_> = (0..3).map(|_| Arc::new(Wakes::default())).collect();
    let tickets: Vec<_> = wakes
        .iter()
        .map(|it| arrive(&mut scheduler, &it.clone().into(), Duration::ZERO))
        .collect();
    assert!(tickets.iter().all(|it| matches!(it, Decision::Waits(_))));
    for (at, expected) in [(1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1])] {
        let now = Duration::from_millis(at * 100);
        assert_eq!(
            scheduler.next_due(now - Duration::from_millis(50)),
            Some(now)
        );
        scheduler.pump(now, &mut woken);
        woken.drain(..).for_each(Waker::wake);
        let counts: Vec<_> = wakes.iter().map(|it| it.0.load(Ordering::SeqCst)).collect();
        assert_eq!(counts, expected);
    }
    assert_eq!(scheduler.next_due(SECOND), None);
    let totals = Totals {
        delayed: 3,
        waited: Duration::from_millis(600),
    };
    assert_eq!(scheduler.totals(), totals);
}

#[test]
fn a_cancelled_request_makes_room_and_is_not_charged() {
    let mut scheduler = Scheduler::new(share(10, 0), Duration::ZERO);
    let mut load = Load::new(1, 0, 2);
    load.step(&mut scheduler, Duration::ZERO);
    let [first, second] = [0, 1].map(|at| load.tickets[at].expect("it waits"));
    assert!(scheduler.cancel(first, Duration::ZERO));
    assert!(!scheduler.cancel(first, Duration::ZERO), "only once");
    check(&scheduler);
    scheduler.pump(Duration::from_millis(100), &mut Vec::new());
    assert!(!scheduler.is_waiting(second));
    assert!(!scheduler.cancel(second, Duration::from_millis(100)));
    assert_eq!((scheduler.waiting(), scheduler.totals().delayed), (0, 1));
}

#[test]
fn waiting_requests_follow_a_change_of_the_limits() {
    let mut scheduler = Scheduler::new(share(1, 0), Duration::ZERO);
    let mut loads = [Load::new(1, 0, 4), Load::new(2, 0, 4)];
    simulate(&mut scheduler, &mut loads, Duration::ZERO, SECOND);
    let mut woken = Vec::new();
    // A limit of each client that takes longer.
    scheduler.set(each(1, 0), SECOND, &mut woken);
    check(&scheduler);
    assert_eq!(woken.len(), 2, "each has a token");
    woken.clear();
    let before = scheduler.waiting();
    scheduler.set(Limits::default(), SECOND, &mut woken);
    assert_eq!((woken.len(), scheduler.waiting()), (before, 0));
    assert_eq!(scheduler.next_due(SECOND), None);
    check(&scheduler);
}

#[test]
fn a_refund_is_used_by_others() {
    let mut scheduler = Scheduler::new(share(0, 1000), Duration::ZERO);
    let mut woken = Vec::new();
    let mut loads = [Load::new(1, 1_000_000, 1), Load::new(2, 1, 1)];
    for load in &mut loads {
        load.step(&mut scheduler, Duration::ZERO);
    }
    assert!(scheduler.next_due(Duration::ZERO) > Some(900 * SECOND));
    // The first one was at the end of its file.
    scheduler.refund(PeerKey::User(1), 0, 1_000_000, Duration::ZERO);
    scheduler.pump(Duration::ZERO, &mut woken);
    assert_eq!(woken.len(), 1);
    check(&scheduler);
}

#[test]
fn the_table_of_clients_is_bounded_and_drops_idle_ones() {
    let mut scheduler = Scheduler::new(each(1000, 0), Duration::ZERO);
    let arrive = |scheduler: &mut Scheduler, client, now| {
        let arrival = Arrival {
            client: PeerKey::User(client),
            ops: 1,
            bytes: 0,
            wait: Wait::Never,
        };
        scheduler.arrive(&arrival, now, &mut Vec::new())
    };
    // Each has used a part of its burst.
    for client in 0..10_000 {
        arrive(&mut scheduler, client, Duration::ZERO);
        assert!(scheduler.clients() <= MAX_CLIENTS + 1);
    }
    assert_eq!(scheduler.clients(), MAX_CLIENTS + 1);
    check(&scheduler);
    // All buckets are full again, also that of the clients for which there was no room.
    arrive(&mut scheduler, 20_000, 10 * SECOND);
    assert_eq!(scheduler.clients(), 1);
    check(&scheduler);
    // A table that is not full drops them, too.
    for client in 0..10_000 {
        let now = 20 * SECOND + Duration::from_millis(client.into());
        arrive(&mut scheduler, client, now);
    }
    assert!(scheduler.clients() <= MIN_SWEEP, "{}", scheduler.clients());
}

proptest! {
    /// The sets stay consistent through any sequence of events, and all requests are admitted in
    /// the end.
    #[test]
    fn no_request_is_lost(
        steps in proptest::collection::vec((0u32..5, 0u64..100_000, 0u8..12, 0u64..50), 1..200),
    ) {
        let mut scheduler = Scheduler::new(share(100, 0), Duration::ZERO);
        let (mut now, mut tickets, mut woken) = (Duration::ZERO, Vec::new(), Vec::new());
        for (client, bytes, action, ms) in steps {
            let key = PeerKey::User(client);
            now += Duration::from_millis(ms);
            match action {
                0 => scheduler.set(each(50, 100_000), now, &mut woken),
                1 => scheduler.set(share(200, 1_000_000), now, &mut woken),
                2 => scheduler.set(Limits { share: rates(100, 0), client: rates(0, 50_000) }, now, &mut woken),
                3 => scheduler.charge(key, 0, bytes, now),
                4 => scheduler.refund(key, 1, bytes, now),
                5 => if let Some(ticket) = tickets.pop() {
                    scheduler.cancel(ticket, now);
                },
                6 => scheduler.pump(now, &mut woken),
                _ => {
                    let wait = match action {
                        7 => Wait::Refuse,
                        8 => Wait::Never,
                        _ => Wait::Until(Waker::noop()),
                    };
                    let ops = u64::from(bytes % 3 > 0);
                    let arrival = Arrival { client: key, ops, bytes, wait };
                    if let Decision::Waits(ticket) = scheduler.arrive(&arrival, now, &mut woken) {
                        tickets.push(ticket);
                    }
                }
            }
            check(&scheduler);
        }
        while let Some(due) = scheduler.next_due(now) {
            prop_assert!(due > now || scheduler.waiting() > 0);
            let before = scheduler.waiting();
            now = due.max(now);
            scheduler.pump(now, &mut woken);
            check(&scheduler);
            // A due time may be that of a client whose share is used up.
            prop_assert!(scheduler.waiting() < before || scheduler.next_due(now) > Some(now));
        }
        prop_assert_eq!(scheduler.waiting(), 0);
    }
}
