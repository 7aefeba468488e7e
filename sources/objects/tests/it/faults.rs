//! Reads return correct bytes or an error, after no more requests than configured.

use std::io;
use std::time::Duration;

use image::{Piece, RangeSource};
use objects::{Object, Tuning, Url};
use vfs::Errno;

use crate::server::{Answer, Server};

/// Returns the default configuration with short pauses.
pub(crate) fn tuning() -> Tuning {
    Tuning {
        attempts: 4,
        initial_backoff: Duration::from_millis(2),
        max_backoff: Duration::from_millis(10),
        request_timeout: Duration::from_millis(300),
        ..Tuning::default()
    }
}

pub(crate) fn object_of(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn url(server: &Server) -> Url {
    server.url().parse().expect("a URL")
}

fn connect(server: &Server) -> Object {
    let object = Object::connect(&url(server), tuning(), None).expect("connected");
    server.requests();
    object
}

/// Reads ranges and compares them with `bytes`.
pub(crate) fn read(
    source: &dyn RangeSource,
    bytes: &[u8],
    ranges: &[(u64, usize)],
) -> io::Result<()> {
    let mut buffers: Vec<_> = ranges.iter().map(|&(_, len)| vec![0; len]).collect();
    let mut pieces: Vec<_> = ranges
        .iter()
        .zip(&mut buffers)
        .map(|(&(at, _), into)| Piece {
            offset: at,
            buffer: into,
        })
        .collect();
    source.read(&mut pieces)?;
    for (&(at, len), buffer) in ranges.iter().zip(&buffers) {
        assert!(buffer[..] == bytes[at as usize..][..len], "{len} at {at}");
    }
    Ok(())
}

const FAR: u64 = 1 << 20;

#[test]
fn ranges_are_read_in_few_requests() {
    let bytes = object_of(9 << 20);
    let server = Server::new(bytes.clone());
    let object = connect(&server);
    assert_eq!(object.len(), 9 << 20);
    // Bytes fetched on opening.
    read(&object, &bytes, &[(0, 100), (16_000, 384)]).expect("read");
    assert_eq!(server.requests().len(), 0);
    read(
        &object,
        &bytes,
        &[(20_000, 5000), (25_000, 10), (60_000, 1)],
    )
    .expect("read");
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].range, Some(20_000..60_001));
    assert_eq!(requests[0].if_match.as_deref(), Some("\"first\""));
    read(&object, &bytes, &[(0, 10), (FAR, 10), (3 * FAR, 6 << 20)]).expect("read");
    assert_eq!(server.requests().len(), 4);
    let beyond = read(&object, &bytes, &[(9 << 20, 1)]);
    assert!(beyond.is_err());
    assert_eq!(object.transfer_stats().requests, 1 + 1 + 4 + 1);
}

#[test]
fn what_passes_is_asked_for_again() {
    let bytes = object_of(3 << 20);
    let server = Server::new(bytes.clone());
    let object = connect(&server);
    for answer in [
        Answer::Status(429, Some(0)),
        Answer::Status(503, Some(3600)),
        Answer::Status(500, None),
        Answer::Status(408, None),
        Answer::Reset,
        Answer::Cut,
        Answer::Short,
        Answer::Long,
        Answer::Stalled,
        Answer::Shifted,
    ] {
        server.next([answer.clone(), answer.clone()]);
        let done = read(&object, &bytes, &[(FAR, 100_000)]);
        done.unwrap_or_else(|error| panic!("{answer:?}: {error}"));
        assert_eq!(server.requests().len(), 3, "{answer:?}");
    }
}

#[test]
fn what_does_not_pass_is_an_error_after_few_requests() {
    let bytes = object_of(3 << 20);
    let server = Server::new(bytes.clone());
    let object = connect(&server);
    for (answer, requests, errno) in [
        (Answer::Status(503, None), 4, Errno::EIO),
        (Answer::Status(429, Some(3600)), 4, Errno::EIO),
        (Answer::Reset, 4, Errno::EIO),
        (Answer::Cut, 4, Errno::EIO),
        (Answer::Short, 4, Errno::EIO),
        (Answer::Long, 4, Errno::EIO),
        (Answer::Shifted, 4, Errno::EIO),
        (Answer::Stalled, 4, Errno::EIO),
        (Answer::Unnamed, 4, Errno::EIO),
        (Answer::Whole, 1, Errno::EIO),
        (Answer::Status(403, None), 1, Errno::EACCES),
        (Answer::Status(404, None), 1, Errno::ENOENT),
        (Answer::Status(400, None), 1, Errno::EIO),
        (Answer::Grown, 1, Errno::ESTALE),
        (Answer::Replaced, 1, Errno::ESTALE),
    ] {
        server.always(answer.clone());
        let done = read(&object, &bytes, &[(FAR, 100_000)]);
        let error = done.expect_err("no bytes");
        assert_eq!(Errno::from(error), errno, "{answer:?}");
        assert_eq!(server.requests().len(), requests, "{answer:?}");
    }
    server.always(Answer::Good);
    read(&object, &bytes, &[(FAR, 100_000)]).expect("read again");
}

#[test]
fn a_ping_asks_the_server_each_time_and_does_not_repeat_the_request() {
    let server = Server::new(object_of(100));
    let object = connect(&server);
    assert!(object.ping().is_ok() && object.ping().is_ok());
    assert_eq!(server.requests().len(), 2);
    server.always(Answer::Status(503, None));
    assert!(object.ping().is_err());
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let server = Server::new(object_of(100_000));
    for (answer, what) in [
        (Answer::Status(404, None), "404"),
        (Answer::Status(403, None), "403"),
        (Answer::Status(503, None), "503"),
        (Answer::Whole, "range"),
        (Answer::Unnamed, "Content-Range"),
        (Answer::Shifted, "got 1..16385"),
        (Answer::Short, "expected 16384 bytes, got 8192"),
    ] {
        server.always(answer.clone());
        let opened = Object::connect(&url(&server), tuning(), None);
        let error = opened.err().expect("not opened").to_string();
        assert!(error.contains(what), "{answer:?}: {error}");
    }
    server.always(Answer::Good);
    server.tell(None, false, false);
    let opened = Object::connect(&url(&server), tuning(), None);
    let error = opened.err().expect("not opened").to_string();
    assert!(error.contains("expected an ETag"), "{error}");
    let empty = Server::new(Vec::new());
    assert!(Object::connect(&url(&empty), tuning(), None).is_err());
}

#[test]
fn an_object_that_is_replaced_is_never_mixed() {
    let bytes = object_of(3 << 20);
    let mut other = bytes.clone();
    other.iter_mut().for_each(|byte| *byte ^= 0xff);
    for (etag, weak, modified) in [(Some("first"), false, false), (Some("first"), true, true)] {
        let server = Server::new(bytes.clone());
        server.tell(etag, weak, modified);
        let object = connect(&server);
        read(&object, &bytes, &[(FAR, 1000)]).expect("read");
        server.replace(other.clone(), "second");
        let error = read(&object, &bytes, &[(FAR, 1000)]).expect_err("another object");
        assert_eq!(Errno::from(error), Errno::ESTALE);
        assert_eq!(server.requests().len(), 2);
        // Nor between two attempts of one request.
        server.replace(bytes.clone(), "first");
        server.next([Answer::Cut, Answer::Replaced]);
        let error = read(&object, &bytes, &[(FAR, 1000)]).expect_err("another object");
        assert_eq!(Errno::from(error), Errno::ESTALE);
    }
    // Detected by time and length alone.
    let server = Server::new(bytes.clone());
    server.tell(None, false, true);
    let object = connect(&server);
    read(&object, &bytes, &[(FAR, 1000)]).expect("read");
    server.replace(other, "second");
    let error = read(&object, &bytes, &[(FAR, 1000)]).expect_err("another object");
    assert_eq!(Errno::from(error), Errno::ESTALE);
}

#[test]
fn a_query_stays_the_servers() {
    let server = Server::new(object_of(100));
    let url = format!("{}?X-Amz-Signature=a%2Fb&x", server.url());
    let url: Url = url.parse().expect("a URL");
    Object::connect(&url, tuning(), None).expect("connected");
    let path = server.requests().remove(0).path;
    assert_eq!(path, "/dir/image?X-Amz-Signature=a%2Fb&x");
}
