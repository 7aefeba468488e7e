//! Data transfer in both directions.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use transports::{Interest, Link, Ready, pair};

use crate::sides::{Authority, acceptor, links};

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn all(link: &dyn Link, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    link.recv_exact(&mut bytes).expect("received");
    bytes
}

#[test]
fn plain_until_it_is_secured() {
    let authority = Authority::new();
    let (one, other) = pair().expect("a pair");
    let server = tls::TlsLink::server(
        other,
        acceptor(&authority.server(), tls::ClientAuth::Optional),
    );
    assert_eq!(one.send(b"ping", true).expect("sent"), 4);
    assert_eq!(all(&server, 4), b"ping");
    assert_eq!(server.send(b"pong", true).expect("sent"), 4);
    assert_eq!(all(&one, 4), b"pong");
}

#[test]
fn what_is_secured_is_no_longer_plain() {
    let authority = Authority::new();
    let (one, seen) = pair().expect("a pair");
    let (relay, other) = pair().expect("a pair");
    let acceptor = acceptor(&authority.server(), tls::ClientAuth::Optional);
    let connector = crate::sides::connector(&authority.nobody());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = tls::TlsLink::server(other, acceptor);
            server.start_tls().expect("secured");
            server
                .send(b"a secret that is long enough", true)
                .expect("sent");
        });
        let (seen, relay) = (&seen, &relay);
        scope.spawn(move || {
            let mut buf = [0; 4096];
            while let Ok(got @ 1..) = seen.recv(&mut buf, true) {
                // Either end may be gone.
                let _ = relay.send(&buf[..got], true);
            }
        });
        let onlooker = scope.spawn(move || {
            let (mut buf, mut all) = ([0; 4096], Vec::new());
            while let Ok(got @ 1..) = relay.recv(&mut buf, true) {
                all.extend_from_slice(&buf[..got]);
                let _ = seen.send(&buf[..got], true);
            }
            all
        });
        let client = tls::TlsLink::client(one, connector);
        client.start_tls().expect("secured");
        assert_eq!(all(&client, 28), b"a secret that is long enough");
        client.hang_up();
        let seen = onlooker.join().expect("no panic");
        assert!(!seen.windows(8).any(|at| at == b"a secret"));
    });
}

#[test]
fn pieces_arrive_in_a_row_however_many_go_at_once() {
    let (client, server) = links();
    let large = bytes(5 << 20);
    let pieces = [&b"head"[..], b"", &large, b"tail"];
    for (from, to) in [(&client, &server), (&server, &client)] {
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| from.send_vectored(&pieces.map(IoSlice::new), true));
            let got = all(to, large.len() + 8);
            assert_eq!(sent.join().expect("no panic").expect("sent"), got.len());
            assert!(got == pieces.concat());
        });
    }
}

#[test]
fn both_directions_at_once() {
    let (client, server) = links();
    let large = bytes(3 << 20);
    std::thread::scope(|scope| {
        for link in [&client, &server] {
            scope.spawn(|| assert_eq!(link.send(&large, true).expect("sent"), large.len()));
            scope.spawn(|| assert!(all(link, large.len()) == large));
        }
    });
}

#[test]
fn what_did_not_go_at_once_goes_later_and_only_once() {
    let (client, server) = links();
    let large = bytes(9 << 20);
    let mut sent = 0;
    std::thread::scope(|scope| {
        let mut received = None;
        while sent < large.len() {
            // A different amount each time, in two buffers.
            let rest = &large[sent..];
            let (one, other) = rest.split_at(rest.len().min(7));
            match server.send_vectored(&[IoSlice::new(one), IoSlice::new(other)], false) {
                Ok(more) => sent += more,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    // The receiver starts only now.
                    received.get_or_insert_with(|| scope.spawn(|| all(&client, large.len())));
                    std::thread::yield_now();
                }
            }
        }
        let received = received.expect("it had to wait").join().expect("no panic");
        assert!(received == large);
    });
}

#[test]
fn who_waits_is_told_of_what_has_been_opened_already() {
    let (client, server) = links();
    let never = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let read = Interest {
        read: true,
        write: false,
    };
    let wait = |time| server.wait(read, never.as_fd(), time).expect("waited");
    client.send(b"0123456789", true).expect("sent");
    assert!(wait(None).read);
    assert_eq!(all(&server, 4), b"0123");
    // The socket is empty.
    assert!(wait(None).read);
    assert_eq!(all(&server, 6), b"456789");
    let mut buf = [0; 8];
    let none = server.recv(&mut buf, false).map_err(|error| error.kind());
    assert_eq!(none, Err(ErrorKind::WouldBlock));
    assert_eq!(wait(Some(Duration::ZERO)), Ready::default());
}

#[test]
fn an_empty_buffer_receives_nothing_and_loses_nothing() {
    let (client, server) = links();
    client.send(b"data", true).expect("sent");
    for wait in [false, true] {
        assert_eq!(server.recv(&mut [], wait).expect("received"), 0);
    }
    assert_eq!(all(&server, 4), b"data");
}

#[test]
fn the_end_is_said_and_heard() {
    let (client, server) = links();
    client.send(b"last", true).expect("sent");
    client.hang_up();
    assert_eq!(all(&server, 4), b"last");
    assert_eq!(server.recv(&mut [0; 8], true).expect("the end"), 0);
}
