//! A client for one POST over a connection that it is given: HTTP/1.1, with or without TLS.
//!
//! A confined process opens no socket, so the libraries that connect themselves are of no use
//! here. Each request has a connection of its own.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use super::config::Endpoint;
use crate::version::VERSION;

/// Maximum size of the head of a response, and of its body, in bytes. The rest is not read.
const MAX_HEAD: usize = 16 << 10;
const MAX_BODY: usize = 64 << 10;

/// The failure of a request.
#[derive(Debug)]
pub(super) enum PostError {
    /// It may succeed later: after this time, if the server has set one.
    Later {
        why: String,
        after: Option<Duration>,
    },
    /// It would fail again.
    Refused(String),
}

impl From<io::Error> for PostError {
    fn from(error: io::Error) -> PostError {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no reply in time".into(),
            _ => error.to_string(),
        };
        PostError::Later { why, after: None }
    }
}

/// Sends `body` to `endpoint` over `stream`, and returns the body of the reply. Ends at `deadline`,
/// also if the server sends single bytes.
pub(super) fn post(
    endpoint: &Endpoint,
    stream: TcpStream,
    body: &[u8],
    deadline: Instant,
) -> Result<Vec<u8>, PostError> {
    let mut stream = DeadlineStream { stream, deadline };
    match &endpoint.tls {
        None => exchange(endpoint, &mut stream, body),
        Some(tls) => {
            let config = tls.client.clone();
            let config = config.ok_or_else(|| PostError::Refused("no authorities".into()))?;
            let client = ClientConnection::new(config, tls.name.clone());
            let client = client.map_err(io::Error::other)?;
            exchange(endpoint, &mut StreamOwned::new(client, stream), body)
        }
    }
}

/// A connection whose reads and writes fail after a deadline.
struct DeadlineStream {
    stream: TcpStream,
    deadline: Instant,
}

impl DeadlineStream {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn exchange(
    endpoint: &Endpoint,
    stream: &mut (impl Read + Write),
    body: &[u8],
) -> Result<Vec<u8>, PostError> {
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: barge/{VERSION}\r\n\
         Content-Type: application/x-protobuf\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n",
        endpoint.url.path(),
        endpoint.url.authority(),
        body.len(),
        endpoint.headers,
    );
    let mut send = || -> io::Result<()> {
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        stream.flush()
    };
    // A server may refuse a request before its end, and close the connection.
    let sent = send();
    let reply = receive(stream).map_err(|error| sent.err().unwrap_or(error))?;
    match reply.status {
        200..=299 => Ok(reply.body),
        status @ (429 | 502 | 503 | 504) => Err(PostError::Later {
            why: format!("HTTP status {status}"),
            after: reply.retry_after,
        }),
        status => Err(PostError::Refused(format!("HTTP status {status}"))),
    }
}

struct Reply {
    status: u16,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}

/// Receives a reply, whose body ends as its length says, or with the connection.
fn receive(stream: &mut impl Read) -> io::Result<Reply> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    let mut read = |received: &mut Vec<u8>| -> io::Result<bool> {
        let len = loop {
            match stream.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Servers close TLS without its alert.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break 0,
                other => break other?,
            }
        };
        received.extend_from_slice(&buffer[..len]);
        Ok(len > 0)
    };
    let (mut reply, start, length) = loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(&received);
        match parsed.map_err(|_| invalid("a malformed reply"))? {
            // 1xx comes before the reply.
            httparse::Status::Complete(len) if matches!(head.code, Some(100..=199)) => {
                received.drain(..len);
            }
            httparse::Status::Complete(len) => {
                let seconds = header(head.headers, "retry-after");
                let reply = Reply {
                    status: head.code.unwrap_or(0),
                    retry_after: seconds.map(Duration::from_secs),
                    body: Vec::new(),
                };
                break (reply, len, header(head.headers, "content-length"));
            }
            httparse::Status::Partial if received.len() > MAX_HEAD => {
                return Err(invalid("a reply whose head is too long"));
            }
            httparse::Status::Partial => {
                if !read(&mut received)? {
                    return Err(invalid("the connection was closed without a reply"));
                }
            }
        }
    };
    let length = length.map_or(MAX_BODY, |length| {
        usize::try_from(length).map_or(MAX_BODY, |length| length.min(MAX_BODY))
    });
    // The status is known: spans that were accepted are not sent again because of the body.
    while received.len() - start < length && read(&mut received).unwrap_or(false) {}
    reply.body = received.split_off(start);
    reply.body.truncate(length);
    Ok(reply)
}

/// Returns the value of a header that is a number.
fn header(headers: &[httparse::Header<'_>], name: &str) -> Option<u64> {
    let mut headers = headers.iter();
    let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
    str::from_utf8(header.value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(text: &str) -> io::Result<Reply> {
        receive(&mut text.as_bytes())
    }

    #[test]
    fn a_reply_ends_as_its_length_says_or_with_the_connection() {
        let reply = received("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc").expect("a reply");
        assert_eq!((reply.status, &*reply.body), (200, &b"ab"[..]));
        let reply = received("HTTP/1.1 200 OK\r\n\r\nabc").expect("a reply");
        assert_eq!(reply.body, b"abc");
        let reply =
            received("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nretry-after: 7\r\n\r\n");
        let reply = reply.expect("a reply");
        assert_eq!(reply.status, 503);
        assert_eq!(reply.retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_reply_whose_body_is_cut_short_counts_by_its_status() {
        struct Reset;
        impl Read for Reset {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab";
        let reply = receive(&mut text.as_bytes().chain(Reset)).expect("a reply");
        assert_eq!((reply.status, &*reply.body), (200, &b"ab"[..]));
        assert!(receive(&mut text.as_bytes()[..20].chain(Reset)).is_err());
    }

    #[test]
    fn no_reply_is_read_without_bound() {
        let long = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(MAX_HEAD));
        let body = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(2 * MAX_BODY));
        assert!(received(&long).is_err());
        assert_eq!(received(&body).expect("a reply").body.len(), MAX_BODY);
        for bad in ["", "HTTP/1.1 200", "SSH-2.0-x\r\n\r\n"] {
            assert!(received(bad).is_err(), "{bad}");
        }
    }
}
