//! Seeing inside: `--http` and `barge top`, by requests written here, and by a browser.

mod counts;
mod health;
mod hostile;
mod page;
mod replay;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::served::Served;

/// Where a server shows what it does.
pub(crate) fn http(served: &Served) -> String {
    let page = served
        .said
        .iter()
        .find_map(|line| line.strip_prefix("http://"));
    let page = page.unwrap_or_else(|| panic!("a page in {:?}", served.said));
    page.trim_end_matches('/').to_owned()
}

/// What is answered to `request`, after which nothing more is sent: as much of it as comes.
pub(crate) fn ask(at: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).expect("connected");
    // It may have been refused before its end.
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

/// The body of a good answer.
pub(crate) fn get(at: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n");
    let answer = ask(at, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}
