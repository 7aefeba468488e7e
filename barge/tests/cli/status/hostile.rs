//! Malicious and malformed HTTP clients.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{ask, get, http};
use crate::served::ServerProcess;

#[test]
fn what_is_no_good_request_is_refused_and_the_next_is_answered() {
    let served = ServerProcess::start(&["mem:", "--http", "0", "--http-name", "barge.test"]);
    let at = &http(&served);
    let long = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a".repeat(9000)
    );
    let many = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "a: b\r\n".repeat(100)
    );
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421"),
        ("GET / HTTP/1.1\r\nHost: barge.test\r\n\r\n", "200"),
        (
            "GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "404",
        ),
        ("DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
        (
            "POST /status.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
            "405",
        ),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("\x16\x03\x01\x02\x00\x01\x00", "400"),
        ("GET / HTTP/9\r\n\r\n", "400"),
        (&long, "431"),
        (&many, "431"),
    ] {
        let answer = ask(at, request.as_bytes());
        let expected = format!("HTTP/1.1 {status} ");
        assert!(
            answer.starts_with(&expected),
            "{request:.60}: {answer:.200}"
        );
        assert!(answer.contains("\r\nContent-Length: "));
    }
    // A request that ends early gets no reply.
    assert_eq!(ask(at, b"GET / HTTP/1.1\r\nHost: local"), "");
    let head = ask(at, b"HEAD /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    assert_eq!(get(at, "/healthz?x=y"), "ok\n");
}

#[test]
fn those_that_do_nothing_are_few_and_do_not_stay() {
    let served = ServerProcess::start(&["mem:", "--http", "0"]);
    let at = http(&served);
    let mut idle: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(&at).expect("connected");
            // A client that is refused at once may be unable to write this.
            let _ = stream.write_all(b"GET / HT");
            stream
        })
        .collect();
    // All are closed without a reply; meanwhile files are served.
    assert!(served.barge(&["ls", "{}"], "").status.success());
    for stream in &mut idle {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
    }
    assert_eq!(get(&at, "/healthz"), "ok\n");
    let _idle = TcpStream::connect(&at).expect("connected");
    // Waiting clients do not delay the server's end.
    assert!(served.stop().success());
}

#[test]
fn slow_clients_do_not_keep_a_health_check_away() {
    let served = ServerProcess::start(&["mem:", "--http", "0"]);
    let at = http(&served);
    let mut slow: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(&at).expect("connected");
            let _ = stream.write_all(b"GET / HT");
            stream
        })
        .collect();
    assert_eq!(get(&at, "/healthz"), "ok\n");
    // The oldest of the connections was closed early to make room.
    slow[0].set_nonblocking(true).expect("set");
    assert!(matches!(slow[0].read(&mut [0]), Ok(0) | Err(_)));
    slow[39].set_nonblocking(true).expect("set");
    let newest = slow[39].read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(newest, Err(std::io::ErrorKind::WouldBlock));
}
