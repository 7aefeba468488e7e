//! Lanes over an in-memory link.

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{MemoryBudget, Timeouts, Tuning};
use transports::{Link, StreamLink, pair};
use vfs_testkit::wait_until;

use crate::fake::{FakeService, LARGE, Rig};

pub(crate) fn send(link: &StreamLink, messages: &[&[u8]]) {
    for message in messages {
        let len = [message.len() as u8 + 1];
        link.send(&[&len, *message].concat(), true).expect("sent");
    }
}

/// Receives the next reply, and returns it without its length.
pub(crate) fn reply(link: &StreamLink) -> Vec<u8> {
    let mut len = [0];
    assert_eq!(link.recv(&mut len, true).expect("received"), 1, "a reply");
    let mut rest = vec![0; usize::from(len[0]) - 1];
    let mut filled = 0;
    while filled < rest.len() {
        filled += link.recv(&mut rest[filled..], true).expect("received");
    }
    rest
}

fn at_end(link: &StreamLink) -> bool {
    matches!(link.recv(&mut [0; 16], true), Ok(0) | Err(_))
}

#[test]
fn quick_requests_are_answered_in_order_inline() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01e", b"\x02e more", b"\x03e"]);
    assert_eq!(reply(&link), b"\x01e");
    assert_eq!(reply(&link), b"\x02e more");
    assert_eq!(reply(&link), b"\x03e");
    assert_eq!(rig.engine.stats().1.offloaded, 0);
}

#[test]
fn a_session_says_something_of_its_own_while_its_lane_waits() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    let other = rig.connect();
    send(&other, &[b"\x01e"]);
    assert_eq!(reply(&other), b"\x01e");
    let voices = std::mem::take(&mut *rig.fake.voices.lock().expect("no panic holds it"));
    for waits in [2, 4] {
        assert!(voices[0].send(b"\x05said"));
        assert_eq!(reply(&link), b"said");
        send(&link, &[&[waits, b'w'], &[waits + 1, b'e']]);
        assert!(voices[1].send(b"\x05also"));
        assert_eq!(reply(&other), b"also");
        assert_eq!(reply(&link), [waits + 1, b'e']);
        rig.fake.open(waits);
        assert_eq!(reply(&link), [waits, b'w']);
    }
    drop(link);
    wait_until("nothing is sent to a client that has left", || {
        !voices[0].send(b"\x05gone")
    });
}

#[test]
fn nothing_is_said_to_a_client_that_leaves_it_lying() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01e"]);
    assert_eq!(reply(&link), b"\x01e");
    let voice = rig.fake.voices.lock().expect("no panic holds it")[0].clone();
    let message = [0xff; 0xff];
    let said = (0..1 << 16).take_while(|_| voice.send(&message)).count();
    assert!(said < 1 << 16, "it is bounded");
    // The messages arrive, and the reply to a later request after them.
    send(&link, &[b"\x02e"]);
    for _ in 0..said {
        assert_eq!(reply(&link), &message[1..]);
    }
    assert_eq!(reply(&link), b"\x02e");
}

#[test]
fn a_request_that_blocks_stops_no_other() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01w", b"\x02e"]);
    assert_eq!(reply(&link), b"\x02e");
    send(&link, &[b"\x03p", b"\x04e"]);
    assert_eq!(reply(&link), b"\x04e");
    rig.fake.await_reached(3);
    rig.fake.open(3);
    assert_eq!(reply(&link), b"\x03p");
    rig.fake.open(1);
    assert_eq!(reply(&link), b"\x01w");
}

#[test]
fn a_parked_request_can_ask_to_be_tried_again() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01n"]);
    rig.fake.await_reached(1);
    rig.fake
        .gates
        .lock()
        .expect("no panic holds it")
        .entry(1)
        .or_default()
        .open = true;
    assert_eq!(reply(&link), b"\x01n");
}

#[test]
fn a_parked_request_is_tried_again_while_others_hang() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01n"]);
    rig.fake.await_reached(1);
    send(&link, &[b"\x02w", b"\x03w", b"\x04w"]);
    (2..=4).for_each(|id| rig.fake.await_reached(id));
    rig.fake.open(1);
    assert_eq!(reply(&link), b"\x01n");
    (2..=4).for_each(|id| rig.fake.open(id));
    (2..=4).for_each(|_| drop(reply(&link)));
}

#[test]
fn a_cancelled_request_is_answered_once_and_before_its_cancellation() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01p", b"\x02c\x01", b"\x03e"]);
    let mut replies = [reply(&link), reply(&link), reply(&link)];
    replies.sort_by_key(|reply| reply[0] == 3);
    assert_eq!(
        replies,
        [b"\x01i".to_vec(), b"\x02c\x01".to_vec(), b"\x03e".to_vec()]
    );
    // A request that is no longer in flight needs no cancelling, and its id is free.
    send(&link, &[b"\x04c\x01", b"\x01e"]);
    assert_eq!(reply(&link), b"\x04c\x01");
    assert_eq!(reply(&link), b"\x01e");
}

#[test]
fn a_cancellation_can_be_cancelled() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01w"]);
    rig.fake.await_reached(1);
    send(&link, &[b"\x02c\x01", b"\x03c\x02", b"\x04e"]);
    assert_eq!(reply(&link), b"\x04e");
    rig.fake.open(1);
    assert_eq!(reply(&link), b"\x01w");
    assert_eq!(reply(&link), b"\x02c\x01");
    assert_eq!(reply(&link), b"\x03c\x02");
}

#[test]
fn a_reset_comes_after_all_that_was_in_flight() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01p", b"\x02p", b"\x03r", b"\x04e"]);
    let mut first = [reply(&link), reply(&link)];
    first.sort();
    assert_eq!(first, [b"\x01i".to_vec(), b"\x02i".to_vec()]);
    assert_eq!(reply(&link), b"\x03r");
    assert_eq!(reply(&link), b"\x04e");
}

#[test]
fn a_name_in_flight_cannot_be_used_again() {
    let rig = Rig::new(Tuning::default());
    let (link, other) = (rig.connect(), rig.connect());
    send(&link, &[b"\x01p", b"\x01e"]);
    assert!(at_end(&link));
    send(&other, &[b"\x01e"]);
    assert_eq!(reply(&other), b"\x01e");
}

#[test]
fn nonsense_closes_that_connection_alone() {
    let rig = Rig::new(Tuning::default());
    let (link, other) = (rig.connect(), rig.connect());
    link.send(&[1], true).expect("sent");
    assert!(at_end(&link));
    let third = rig.connect();
    send(&third, &[b"\x01x"]);
    assert!(at_end(&third));
    send(&other, &[b"\x01e"]);
    assert_eq!(reply(&other), b"\x01e");
}

#[test]
fn a_lane_at_its_limits_of_requests_in_flight_does_not_receive() {
    // Two requests, or as many bytes.
    for (in_flight, in_flight_bytes) in [(2, usize::MAX), (usize::MAX, 6)] {
        within_limits(Tuning {
            in_flight,
            in_flight_bytes,
            ..Tuning::default()
        });
    }
}

fn within_limits(tuning: Tuning) {
    let rig = Rig::new(tuning);
    let link = rig.connect();
    send(&link, &[b"\x01w", b"\x02w", b"\x03w", b"\x04e"]);
    rig.fake.await_reached(1);
    rig.fake.await_reached(2);
    let mut byte = [0];
    assert!(
        link.recv(&mut byte, false).is_err(),
        "nothing is answered yet"
    );
    rig.fake.open(1);
    assert_eq!(reply(&link), b"\x01w");
    assert_eq!(reply(&link), b"\x04e");
    rig.fake.open(2);
    rig.fake.open(3);
    let mut last = [reply(&link), reply(&link)];
    last.sort();
    assert_eq!(last, [b"\x02w".to_vec(), b"\x03w".to_vec()]);
}

#[test]
fn one_client_cannot_have_all_workers() {
    let rig = Rig::new(Tuning {
        workers: 4,
        ..Tuning::default()
    });
    let (greedy, other) = (rig.connect(), rig.connect());
    let hang: Vec<[u8; 2]> = (1..=8).map(|id| [id, b'w']).collect();
    send(
        &greedy,
        &hang.iter().map(|message| &message[..]).collect::<Vec<_>>(),
    );
    rig.fake.await_reached(1);
    rig.fake.await_reached(2);
    rig.fake.open(9);
    send(&other, &[b"\x09w"]);
    assert_eq!(reply(&other), b"\x09w");
    (1..=8).for_each(|id| rig.fake.open(id));
    for _ in 1..=8 {
        reply(&greedy);
    }
}

#[test]
fn a_client_that_takes_no_replies_holds_up_only_itself() {
    let rig = Rig::new(Tuning {
        workers: 4,
        ..Tuning::default()
    });
    let (deaf, other) = (rig.connect(), rig.connect());
    let long = [&[1, b'e'][..], &[b'.'; 250]].concat();
    let framed = [&[long.len() as u8 + 1][..], &long].concat();
    send(&deaf, &[b"\x02p"]);
    while deaf.send(&framed, false).is_ok() {}
    send(&other, &[b"\x01e"]);
    assert_eq!(reply(&other), b"\x01e");
    deaf.hang_up();
    drop(deaf);
    rig.fake.open(2);
    rig.engine.stop();
    rig.engine.wait();
    assert_eq!(rig.fake.sessions.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_that_leaves_cancels_what_it_left() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01p"]);
    rig.fake.await_reached(1);
    drop(link);
    rig.engine.wait();
    assert_eq!(rig.fake.sessions.load(Ordering::SeqCst), 0);
}

#[test]
fn stopping_answers_what_is_in_flight() {
    let rig = Rig::new(Tuning::default());
    let link = rig.connect();
    send(&link, &[b"\x01w"]);
    rig.fake.await_reached(1);
    rig.engine.stop();
    rig.fake.open(1);
    assert_eq!(reply(&link), b"\x01w");
    assert!(at_end(&link));
    rig.engine.wait();
}

#[test]
fn stopping_waits_no_longer_than_its_grace() {
    let rig = Rig::new(Tuning {
        grace: Duration::from_millis(1),
        ..Tuning::default()
    });
    let link = rig.connect();
    send(&link, &[b"\x01p"]);
    rig.fake.await_reached(1);
    rig.engine.stop();
    rig.engine.wait();
    assert_eq!(rig.fake.sessions.load(Ordering::SeqCst), 0);
}

#[test]
fn more_connections_than_allowed_are_refused() {
    let rig = Rig::new(Tuning {
        connections: 1,
        connections_per_client: Some(usize::MAX),
        ..Tuning::default()
    });
    let _first = rig.connect();
    let (_client, server) = pair().expect("a pair");
    assert!(
        rig.engine
            .connect(Box::new(server), &FakeService(rig.fake.clone()))
            .is_err()
    );
}

#[test]
fn a_request_that_panics_is_answered_and_its_worker_goes_on() {
    let rig = Rig::new(Tuning {
        workers: 2,
        ..Tuning::default()
    });
    let link = rig.connect();
    for id in 1..=8 {
        // On a worker, and on the lane's own thread.
        send(&link, &[&[id, b'k']]);
        assert_eq!(reply(&link), [id, b'!']);
        send(&link, &[&[id, b'K']]);
        assert_eq!(reply(&link), [id, b'!']);
    }
    rig.fake.open(9);
    send(&link, &[b"\x09w"]);
    assert_eq!(reply(&link), b"\x09w");
}

fn with_timeouts(change: impl FnOnce(&mut Timeouts)) -> Rig {
    let mut tuning = Tuning::default();
    change(&mut tuning.timeouts);
    Rig::new(tuning)
}

const SHORT: Duration = Duration::from_millis(20);

fn refused(rig: &Rig, reason: &str) -> u64 {
    let all = rig.engine.connection_refusals();
    let found = all.into_iter().find(|(name, _)| *name == reason);
    found.expect("a reason").1
}

#[test]
fn a_connection_without_a_first_message_is_closed() {
    let rig = with_timeouts(|timeouts| timeouts.handshake = SHORT);
    let link = rig.connect();
    assert!(at_end(&link));
    assert_eq!(refused(&rig, "timeout"), 1);
    // The deadline applies to the first message alone: the connection stays open while another
    // one's passes.
    let talks = rig.connect();
    send(&talks, &[b"\x01e"]);
    assert_eq!(reply(&talks), b"\x01e");
    assert!(at_end(&rig.connect()));
    send(&talks, &[b"\x02e"]);
    assert_eq!(reply(&talks), b"\x02e");
}

#[test]
fn a_message_whose_last_byte_never_comes_closes_its_connection() {
    let rig = with_timeouts(|timeouts| timeouts.message = SHORT);
    let (slow, other) = (rig.connect(), rig.connect());
    send(&slow, &[b"\x01e"]);
    assert_eq!(reply(&slow), b"\x01e");
    slow.send(b"\x03\x02", true).expect("sent");
    assert!(at_end(&slow));
    assert_eq!(refused(&rig, "timeout"), 1);
    // Also while a request of the same connection waits.
    send(&other, &[b"\x01p"]);
    rig.fake.await_reached(1);
    other.send(b"\x03", true).expect("sent");
    assert!(at_end(&other));
}

#[test]
fn an_idle_connection_is_closed_only_where_that_is_asked_for() {
    let rig = with_timeouts(|timeouts| timeouts.idle = Some(SHORT));
    let (idle, waits) = (rig.connect(), rig.connect());
    send(&waits, &[b"\x01p"]);
    rig.fake.await_reached(1);
    send(&idle, &[b"\x01e"]);
    assert_eq!(reply(&idle), b"\x01e");
    assert!(at_end(&idle));
    // A connection whose request waits is not idle.
    rig.fake.open(1);
    assert_eq!(reply(&waits), b"\x01p");
}

#[test]
fn a_client_that_does_not_take_its_replies_is_closed() {
    let rig = with_timeouts(|timeouts| timeouts.send = SHORT);
    let long = [&[1, b'e'][..], &[b'.'; 250]].concat();
    let framed = [&[long.len() as u8 + 1][..], &long].concat();
    // With nothing else in flight, and with a waiting request, whose reply goes into a backlog.
    for waits in [false, true] {
        let deaf = rig.connect();
        if waits {
            send(&deaf, &[b"\x02p"]);
            rig.fake.await_reached(2);
        }
        // Fails once the server has closed the connection.
        while deaf.send(&framed, true).is_ok() {}
    }
    wait_until("both clients have timed out", || {
        refused(&rig, "timeout") >= 2
    });
    rig.fake.open(2);
    rig.fake.await_no_session();
}

#[test]
fn one_client_leaves_half_of_the_connections_to_others() {
    let rig = Rig::new(Tuning {
        connections: 8,
        ..Tuning::default()
    });
    let service = FakeService(rig.fake.clone());
    let connect = || {
        let (client, server) = pair().expect("a pair");
        let connected = rig.engine.connect(Box::new(server), &service);
        connected.map(|()| client)
    };
    let mut first: Vec<_> = (0..4).map(|_| connect().expect("connected")).collect();
    assert!(connect().is_err());
    assert_eq!(refused(&rig, "client-connections"), 1);
    // Another client: a connection that is not a socket has no user.
    let (input, _output) = rustix::pipe::pipe().expect("a pipe");
    let (_input, output) = rustix::pipe::pipe().expect("a pipe");
    let other = StreamLink::two_way(input, output, "other").expect("a link");
    rig.engine
        .connect(Box::new(other), &service)
        .expect("connected");
    drop(first.pop());
    // The slot is free once the server has noticed the disconnection.
    wait_until("the slot is free", || rig.engine.stats().0 != 5);
    connect().expect("connected");
}

#[test]
fn an_idle_connection_has_one_descriptor() {
    let rig = Rig::new(Tuning::default());
    let links: Vec<_> = (0..50).map(|_| rig.connect()).collect();
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
    let before = descriptors();
    for (link, id) in links.iter().zip(1..) {
        send(link, &[&[id, b'p']]);
        rig.fake.await_reached(id);
    }
    for (link, id) in links.iter().zip(1..) {
        rig.fake.open(id);
        assert_eq!(reply(link), [id, b'p']);
    }
    // The resources for waiting are released.
    wait_until("the descriptors are closed", || {
        descriptors() <= before + 10
    });
}

/// The memory of a worker's reply counts while it is made, while the client does not read it, and
/// for as long as the worker keeps its buffer.
#[test]
fn replies_of_workers_are_part_of_the_budget() {
    const EACH: usize = LARGE - MemoryBudget::SMALL_MESSAGES;
    let rig = Rig::new(Tuning::default());
    let budget = rig.engine.budget();
    let client = rig.connect();
    for id in 1..=4 {
        client.send(&[3, id, b'l'], true).expect("sent");
    }
    (1..=4).for_each(|id| rig.fake.await_reached(id));
    assert!(budget.used() >= 4 * EACH, "{} bytes", budget.used());
    (1..=4).for_each(|id| rig.fake.open(id));
    let mut buffer = vec![0; LARGE];
    let mut left = 4 * LARGE;
    while left > 0 {
        left -= client.recv(&mut buffer, true).expect("a reply");
    }
    // Idle workers release their buffers after a while.
    wait_until("the workers' buffers are released", || {
        budget.used() <= MemoryBudget::CONNECTION
    });
    drop(client);
    wait_until("the client's memory is released", || budget.used() == 0);
}
