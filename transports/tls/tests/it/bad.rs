//! Misbehaving peers: their connection ends, and no other.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;

use tls::{ClientAuth, TlsLink};
use transports::{Link, StreamLink};

use crate::sides::{Authority, acceptor, connector, half, links};

/// Returns the error of a handshake with a peer that sends `bytes` and disconnects.
fn shaken(bytes: &[u8]) -> ErrorKind {
    let (peer, server) = half();
    peer.send(bytes, true).expect("sent");
    peer.hang_up();
    server.start_tls().expect_err("no handshake").kind()
}

#[test]
fn garbage_is_no_handshake() {
    assert_eq!(shaken(&[0x80; 100]), ErrorKind::InvalidData);
    assert_eq!(shaken(b"GET / HTTP/1.1\r\n\r\n"), ErrorKind::InvalidData);
    // A record longer than the maximum, and one of an unknown type.
    assert_eq!(shaken(&[22, 3, 1, 0xff, 0xff]), ErrorKind::InvalidData);
    assert_eq!(shaken(&[99, 3, 3, 0, 1, 0]), ErrorKind::InvalidData);
}

#[test]
fn half_a_handshake_is_none() {
    assert_eq!(shaken(b""), ErrorKind::UnexpectedEof);
    assert_eq!(shaken(&[22, 3, 1, 1, 0, 1, 0, 0]), ErrorKind::UnexpectedEof);
}

#[test]
fn plain_bytes_where_records_are_due_end_the_connection() {
    let authority = Authority::new();
    let (mut plain, other) = UnixStream::pair().expect("a pair");
    let stream = |end: UnixStream| StreamLink::new(end.into(), "in-memory").expect("a link");
    let client = stream(plain.try_clone().expect("another"));
    let client = TlsLink::client(client, connector(&authority.nobody()));
    let acceptor = acceptor(&authority.server(), ClientAuth::Optional);
    let server = TlsLink::server(stream(other), acceptor);
    std::thread::scope(|scope| {
        scope.spawn(|| server.start_tls().expect("secured"));
        client.start_tls().expect("secured");
    });
    plain
        .write_all(&[0x80, 0, 0, 40, 0, 0, 0, 1])
        .expect("sent");
    let error = server.recv(&mut [0; 8], true).expect_err("no record");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[test]
fn a_connection_is_secured_once() {
    let (client, _server) = links();
    let again = client.start_tls().map_err(|error| error.kind());
    assert_eq!(again, Err(ErrorKind::Unsupported));
}
