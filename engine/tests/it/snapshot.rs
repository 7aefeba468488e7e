//! Snapshots of an engine.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::{EngineStatus, Tuning};
use vfs_testkit::wait_until;

use crate::fake::Rig;
use crate::lanes::{reply, send};

fn counts(status: &EngineStatus) -> BTreeMap<&'static str, u64> {
    let operations = status.operations.iter();
    let counts = operations.map(|((protocol, word), operation)| {
        assert_eq!(*protocol, "fake");
        (*word, operation.latencies.count())
    });
    counts.collect()
}

fn counting() -> Rig {
    Rig::new(Tuning {
        operation_stats: true,
        ..Tuning::default()
    })
}

#[test]
fn each_request_is_counted_once_wherever_it_was_answered() {
    let rig = counting();
    let link = rig.connect();
    send(&link, &[b"\x01e", b"\x02e", b"\x03f", b"\x04w", b"\x05p"]);
    for _ in 0..3 {
        reply(&link);
    }
    rig.fake.await_reached(4);
    rig.fake.await_reached(5);
    let mut now = rig.engine.snapshot();
    wait_until("a request is parked", || {
        now = rig.engine.snapshot();
        now.lanes[0].parked == 1
    });
    assert_eq!(counts(&now), [("e", 2), ("f", 1)].into());
    let errors = &now.operations[&("fake", "f")].errors;
    assert_eq!(*errors, [("ENOENT".to_owned(), 1)].into());
    let lane = &now.lanes[0];
    assert_eq!((lane.protocol, lane.facts.version.as_str()), ("fake", "1"));
    assert_eq!((lane.in_flight, lane.totals.requests), (2, 5));
    rig.fake.open(4);
    rig.fake.open(5);
    reply(&link);
    reply(&link);
    let all = [("e", 2), ("f", 1), ("p", 1), ("w", 1)].into();
    assert_eq!(counts(&rig.engine.snapshot()), all);
    assert_eq!(rig.engine.snapshot().lanes[0].parked, 0);
    // A lane that ended still counts.
    drop(link);
    wait_until("the lane has ended", || {
        rig.engine.snapshot().lanes.is_empty()
    });
    rig.fake.await_no_session();
    let other = rig.connect();
    send(&other, &[b"\x01e"]);
    reply(&other);
    let now = counts(&rig.engine.snapshot());
    assert_eq!(now, [("e", 3), ("f", 1), ("p", 1), ("w", 1)].into());
}

#[test]
fn what_is_cancelled_and_what_cancels_are_counted() {
    let rig = counting();
    let link = rig.connect();
    send(&link, &[b"\x01s"]);
    rig.fake.await_reached(1);
    send(&link, &[b"\x02c\x01"]);
    reply(&link);
    reply(&link);
    assert_eq!(counts(&rig.engine.snapshot()), [("c", 1), ("s", 1)].into());
}

#[test]
fn nothing_is_told_apart_unless_that_is_asked_for() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01e"]);
    reply(&link);
    let status = rig.engine.snapshot();
    assert!(status.operations.is_empty());
    assert_eq!((status.totals.requests, status.lanes.len()), (1, 1));
}

#[test]
fn slow_requests_are_counted_wherever_they_were_answered_and_only_if_that_is_asked_for() {
    for (slow, expected) in [(Duration::from_nanos(1), 3), (Duration::MAX, 0)] {
        let rig = Rig::new(Tuning {
            slow: Some(slow),
            ..Tuning::default()
        });
        let link = rig.connect();
        send(&link, &[b"\x01e", b"\x02f", b"\x03w"]);
        rig.fake.await_reached(3);
        rig.fake.open(3);
        for _ in 0..3 {
            reply(&link);
        }
        let status = rig.engine.snapshot();
        let counted = status.slow.get("fake").map_or(0, |slow| slow.requests);
        assert_eq!(counted, expected);
        assert!(status.operations.is_empty());
    }
}

#[test]
fn lines_about_slow_requests_are_limited_and_those_left_out_are_counted() {
    let rig = Rig::new(Tuning {
        slow: Some(Duration::from_nanos(1)),
        ..Tuning::default()
    });
    let link = rig.connect();
    for _ in 0..50 {
        send(&link, &[b"\x01e"]);
        reply(&link);
    }
    let slow = rig.engine.snapshot().slow["fake"];
    // A burst of lines, and perhaps one more if the test takes long.
    let logged = slow.requests - slow.suppressed;
    assert!(slow.requests == 50 && (1..50).contains(&logged), "{slow:?}");
}

#[test]
fn a_connection_that_is_not_read_because_of_a_limit_is_counted_by_the_limit() {
    let rig = Rig::new(Tuning {
        in_flight: 1,
        ..Tuning::default()
    });
    let throttled = || -> BTreeMap<_, _> { rig.engine.throttles().into_iter().collect() };
    let link = rig.connect();
    send(&link, &[b"\x01w"]);
    rig.fake.await_reached(1);
    assert_eq!(
        throttled(),
        [("memory", 0), ("in-flight", 0), ("replies", 0)].into()
    );
    send(&link, &[b"\x02w"]);
    wait_until("a request is throttled", || throttled()["in-flight"] > 0);
    rig.fake.open(1);
    rig.fake.open(2);
    reply(&link);
    reply(&link);
    assert_eq!(
        throttled(),
        [("memory", 0), ("in-flight", 1), ("replies", 0)].into()
    );
}
