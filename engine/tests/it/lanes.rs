//! Lanes over an in-memory link, driven by a session whose requests do as their first byte says.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::time::Duration;

use engine::{Engine, Service, Tuning};
use transports::{Link, StreamLink, pair};
use vfs::{Call, Patience};
use wire::{Answer, Incoming, Malformed, Outgoing, Role, Session};

/// Messages are `len[1] id[1] what[1] more…`; a reply repeats its message.
#[derive(Default)]
struct Fake {
    /// Requests `w` wait here on their worker's thread, `p` and `n` by parking.
    gates: Mutex<HashMap<u8, Gate>>,
    opened: Condvar,
    sessions: AtomicUsize,
    served: AtomicUsize,
}

#[derive(Default)]
struct Gate {
    open: bool,
    reached: bool,
    waker: Option<Waker>,
}

impl Fake {
    fn open(&self, id: u8) {
        let mut gates = self.gates.lock().expect("no panic holds it");
        let gate = gates.entry(id).or_default();
        gate.open = true;
        if let Some(waker) = gate.waker.take() {
            waker.wake();
        }
        self.opened.notify_all();
    }

    fn await_reached(&self, id: u8) {
        let gates = self.gates.lock().expect("no panic holds it");
        drop(
            self.opened
                .wait_while(gates, |gates| {
                    !gates.get(&id).is_some_and(|gate| gate.reached)
                })
                .expect("no panic holds it"),
        );
    }
}

struct FakeSession(Arc<Fake>);

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Session for FakeSession {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        match head.first() {
            Some(len) if *len < 3 => Err(Malformed::new("expected 3 bytes at least")),
            len => Ok(len.map(|len| (*len).into())),
        }
    }

    fn role(&self, message: &[u8]) -> Result<Role, Malformed> {
        let id = message[1].into();
        Ok(match message[2] {
            b'c' => Role::Cancel {
                id,
                target: message[3].into(),
            },
            b'r' => Role::Reset { id },
            _ => Role::Request { id },
        })
    }

    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<Answer, Malformed> {
        let fake = &*self.0;
        fake.served.fetch_add(1, Ordering::SeqCst);
        let message = message.bytes();
        let (id, what) = (message[1], message[2]);
        let mut gates = fake.gates.lock().expect("no panic holds it");
        match what {
            b'w' | b'p' | b'n' if patience < Patience::Full => return Ok(Answer::WouldBlock),
            b'w' => {
                gates.entry(id).or_default().reached = true;
                fake.opened.notify_all();
                drop(
                    fake.opened
                        .wait_while(gates, |gates| !gates[&id].open)
                        .expect("no panic holds it"),
                );
            }
            b'p' | b'n' => {
                let gate = gates.entry(id).or_default();
                gate.reached = true;
                fake.opened.notify_all();
                if call.check().is_err() {
                    out.bytes(&[3, id, b'i']);
                    return Ok(Answer::Done);
                }
                if !gate.open {
                    if what == b'p' {
                        gate.waker = call.waker().cloned();
                    } else {
                        call.wake_within(Duration::from_millis(1));
                    }
                    return Ok(Answer::Parked);
                }
            }
            b'x' => return Err(Malformed::new("expected anything but x")),
            _ => {}
        }
        out.bytes(message);
        Ok(Answer::Done)
    }
}

struct FakeService(Arc<Fake>);

impl Service for FakeService {
    fn session(&self) -> Box<dyn Session> {
        self.0.sessions.fetch_add(1, Ordering::SeqCst);
        Box::new(FakeSession(self.0.clone()))
    }
}

struct Rig {
    fake: Arc<Fake>,
    engine: Arc<Engine>,
}

impl Rig {
    fn new(tuning: Tuning) -> Rig {
        Rig {
            fake: Arc::default(),
            engine: Engine::new(tuning).expect("an engine"),
        }
    }

    fn connect(&self) -> StreamLink {
        let (client, server) = pair().expect("a pair");
        self.engine
            .connect(Box::new(server), &FakeService(self.fake.clone()))
            .expect("connected");
        client
    }
}

fn send(link: &StreamLink, messages: &[&[u8]]) {
    for message in messages {
        let len = [message.len() as u8 + 1];
        link.send(&[&len, *message].concat(), true).expect("sent");
    }
}

/// The next reply, without its length.
fn reply(link: &StreamLink) -> Vec<u8> {
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
    // What is not in flight any more needs no cancelling, and its name is free.
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
fn beyond_the_limit_in_flight_a_client_is_not_heard() {
    let rig = Rig::new(Tuning {
        in_flight: 2,
        ..Tuning::default()
    });
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
