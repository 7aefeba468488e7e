//! The status page (`--http`) and `barge top`, with hand-made requests and a browser.

mod counts;
mod health;
mod hostile;
mod monitoring;
#[cfg(feature = "otel")]
mod otel;
mod page;
mod slow;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

pub(crate) use self::health::probe;
use crate::served::ServerProcess;

/// Returns the address of the status page.
pub(crate) fn http(served: &ServerProcess) -> String {
    let page = served
        .output
        .iter()
        .find_map(|line| line.strip_prefix("http://"));
    let page = page.unwrap_or_else(|| panic!("a page in {:?}", served.output));
    page.trim_end_matches('/').to_owned()
}

/// Returns the reply to `request`, as much of it as arrives, after closing the sending side.
pub(crate) fn ask(at: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).expect("connected");
    // The server may have refused it before its end.
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

/// Returns the body of a successful reply.
pub(crate) fn get(at: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n");
    let answer = ask(at, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}
