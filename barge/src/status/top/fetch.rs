//! Request for the status of a server.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use transports::{Addr, Link, dial};

use super::StatusResult;
use crate::Failure;

/// Timeout of a reply.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a reply, bytes: ten times that with 256 clients and all operations of all
/// protocols.
const MAX_REPLY: usize = 4 << 20;

pub(super) fn status(addr: &Addr) -> StatusResult {
    let failed = |error: io::Error| {
        let hint = match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                " (is a server running there with --http?)"
            }
            _ => "",
        };
        Failure::new(format!("{addr}: {error}{hint}"))
    };
    let answer = get(addr).map_err(failed)?;
    let bad = |what: &dyn std::fmt::Display| Failure::new(format!("{addr}: {what}"));
    let body = body(&answer).map_err(|what| bad(&what))?;
    serde_json::from_slice(body).map_err(|error| bad(&format!("invalid status: {error}")))
}

fn get(addr: &Addr) -> io::Result<Vec<u8>> {
    let host = match addr {
        Addr::Tcp { host, .. } if host.contains(':') => format!("[{host}]"),
        Addr::Tcp { host, .. } => host.clone(),
        _ => "localhost".into(),
    };
    let link = dial(addr)?;
    let request = format!("GET /status.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    link.send(request.as_bytes(), true)?;
    let deadline = Instant::now() + TIMEOUT;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match link.recv(&mut buffer, true) {
            Ok(0) => return Ok(answer),
            Ok(len) if answer.len() + len <= MAX_REPLY => answer.extend_from_slice(&buffer[..len]),
            Ok(_) => {
                return Err(io::Error::other(format!(
                    "expected at most {MAX_REPLY} bytes"
                )));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if Instant::now() > deadline {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

/// Returns the body of a complete and successful response.
fn body(answer: &[u8]) -> Result<&[u8], String> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    match head.parse(answer) {
        Ok(httparse::Status::Complete(len)) if head.code == Some(200) => Ok(&answer[len..]),
        Ok(httparse::Status::Complete(len)) => Err(format!(
            "expected the status, got {} {}: {}",
            head.code.unwrap_or(0),
            head.reason.unwrap_or(""),
            answer[len..]
                .escape_ascii()
                .to_string()
                .trim_end_matches("\\n")
        )),
        _ => Err("expected an HTTP response".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::body;

    #[test]
    fn an_answer_is_taken_for_what_it_says() {
        assert_eq!(body(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}"), Ok(&b"{}"[..]));
        let refused = body(b"HTTP/1.1 421 Misdirected Request\r\n\r\nanother\x1b name\n");
        let expected = "expected the status, got 421 Misdirected Request: another\\x1b name";
        assert_eq!(refused, Err(expected.into()));
        assert!(body(b"SSH-2.0\r\n").is_err() && body(b"").is_err());
    }
}
