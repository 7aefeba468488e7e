//! Connections that continue in another engine.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use engine::{SuspendedConnection, Tuning};
use transports::{Addr, Link, Listener, StreamLink, dial};

use crate::fake::{FakeService, Rig};

/// Returns the address of a Unix socket without a file, which nobody uses.
fn unused() -> Addr {
    // The random name of a directory is unused as an abstract one.
    let dir = tempfile::tempdir().expect("a directory");
    let addr = format!("unix:@{}", dir.path().display());
    addr.parse().expect("an address")
}

/// Listens at `addr`.
fn listen(rig: &Rig, addr: &Addr) {
    let listener = Listener::bind(addr).expect("bound");
    let service = Arc::new(FakeService(rig.fake.clone()));
    rig.engine.listen(listener, service).expect("listening");
}

fn receive(client: &StreamLink) -> [u8; 3] {
    let mut reply = [0; 3];
    client.recv_exact(&mut reply).expect("a reply");
    reply
}

/// Suspends the connections, and returns them. `meanwhile` runs before the engine has ended.
fn hand_over(rig: &Rig, meanwhile: impl FnOnce()) -> Vec<SuspendedConnection> {
    rig.engine.hand_over();
    meanwhile();
    rig.engine.wait();
    let handed = rig.engine.suspended();
    rig.fake.await_no_session();
    handed
}

#[test]
fn a_connection_continues_with_what_was_received_and_not_served() {
    let first = Rig::new(Tuning::default());
    let addr = unused();
    listen(&first, &addr);
    let client = dial(&addr).expect("connected");
    client
        .send(&[3, 1, b'w', 3, 2, b'e', 3, 3], true)
        .expect("sent");
    first.fake.await_reached(1);
    assert_eq!(receive(&client), [3, 2, b'e']);
    let handed = hand_over(&first, || {
        // A request in flight is answered first.
        first.fake.open(1);
    });
    assert_eq!(receive(&client), [3, 1, b'w']);
    let [connection] = &handed[..] else {
        panic!("{handed:?}");
    };
    assert_eq!(connection.transport, [3, 3], "the beginning of a message");
    assert_eq!(connection.listener, addr.to_string());
    let second = Rig::new(Tuning::default());
    second.engine.adopt(handed);
    listen(&second, &addr);
    second.engine.end_resuming();
    client.send(&[b'e', 3, 4, b'e'], true).expect("sent");
    assert_eq!(receive(&client), [3, 3, b'e']);
    assert_eq!(receive(&client), [3, 4, b'e']);
    second.engine.stop();
    second.engine.wait();
}

#[test]
fn no_request_is_served_before_all_sessions_have_been_resumed() {
    let first = Rig::new(Tuning::default());
    let addr = unused();
    listen(&first, &addr);
    let client = dial(&addr).expect("connected");
    client.send(&[3, 1, b'e'], true).expect("sent");
    assert_eq!(receive(&client), [3, 1, b'e']);
    let handed = hand_over(&first, || {});
    assert_eq!(handed.len(), 1);
    let second = Rig::new(Tuning::default());
    second.engine.adopt(handed);
    listen(&second, &addr);
    let newcomer = dial(&addr).expect("connected");
    for link in [&client, &newcomer] {
        link.send(&[3, 2, b'e'], true).expect("sent");
        link.set_timeouts(Duration::from_millis(20), Duration::from_secs(60))
            .expect("set");
        assert!(link.recv(&mut [0; 3], true).is_err(), "a timeout");
    }
    let ends = thread::spawn({
        let engine = second.engine.clone();
        move || engine.end_resuming()
    });
    for link in [&client, &newcomer] {
        link.set_timeouts(Duration::from_secs(60), Duration::from_secs(60))
            .expect("set");
        assert_eq!(receive(link), [3, 2, b'e']);
    }
    ends.join().expect("no panic");
    second.engine.stop();
    second.engine.wait();
}

#[test]
fn connections_of_other_listeners_and_with_another_state_are_closed() {
    let first = Rig::new(Tuning::default());
    let addr = unused();
    listen(&first, &addr);
    let clients = [(); 3].map(|()| dial(&addr).expect("connected"));
    for client in &clients {
        client.send(&[3, 1, b'e'], true).expect("sent");
        assert_eq!(receive(client), [3, 1, b'e']);
    }
    let mut handed = hand_over(&first, || {});
    handed[0].listener = "unix:/elsewhere".into();
    handed[1].session.bytes.clear();
    let second = Rig::new(Tuning::default());
    second.engine.adopt(handed);
    listen(&second, &addr);
    second.engine.end_resuming();
    let mut open = 0;
    for client in &clients {
        // The end of a connection that was closed, or an error.
        if client.send(&[3, 2, b'e'], true).is_ok()
            && client.recv(&mut [0; 3], true).is_ok_and(|len| len == 3)
        {
            open += 1;
        }
    }
    assert_eq!(open, 1);
    second.engine.stop();
    second.engine.wait();
}

#[test]
fn a_request_that_waits_is_served_in_the_other_process() {
    let first = Rig::new(Tuning::default());
    let addr = unused();
    listen(&first, &addr);
    let client = dial(&addr).expect("connected");
    client.send(&[3, 1, b'p'], true).expect("sent");
    first.fake.await_reached(1);
    let handed = hand_over(&first, || {});
    assert_eq!(handed[0].transport, [3, 1, b'p']);
    let second = Rig::new(Tuning::default());
    second.fake.open(1);
    second.engine.adopt(handed);
    listen(&second, &addr);
    second.engine.end_resuming();
    assert_eq!(receive(&client), [3, 1, b'p']);
    second.engine.stop();
    second.engine.wait();
}

#[test]
fn a_request_that_is_not_answered_in_time_ends_its_connection() {
    let tuning = Tuning {
        grace: Duration::from_millis(20),
        ..Tuning::default()
    };
    let first = Rig::new(tuning);
    let addr = unused();
    listen(&first, &addr);
    let client = dial(&addr).expect("connected");
    client.send(&[3, 1, b'w'], true).expect("sent");
    first.fake.await_reached(1);
    let fake = first.fake.clone();
    let mut closed = None;
    let suspended = hand_over(&first, || {
        closed = Some(thread::spawn(move || {
            // Its end, at which the request ends, too.
            let end = client.recv(&mut [0; 3], true);
            fake.open(1);
            end.is_ok_and(|len| len == 0)
        }));
    });
    assert!(suspended.is_empty());
    assert!(closed.expect("started").join().expect("no panic"));
}
