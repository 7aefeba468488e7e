//! A minimal HTTP server: one request and response per connection (RFC 9112).
//!
//! Time and size of requests and time of responses are limited, and so is the number of clients. If
//! the limit is reached, a new client replaces the oldest connection of the peer that has most:
//! slow clients cannot block a health check, whatever their number. The server is read-only, so
//! clients need no authentication; but pages of other sites must not read its data, so a request
//! has to use a name of this server: other names that resolve to it are refused (DNS rebinding).
//!
//! Deliberately absent: request bodies, persistent connections, TLS, methods other than GET and
//! HEAD.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use transports::{Addr, Interest, Link, Listener, StreamLink};
use vfs::peer::PeerKey;
use vfs::{LogLimit, Origin};

/// Maximum size of a request, bytes: browsers send less than one KiB.
const MAX_REQUEST: usize = 8 << 10;

/// Maximum number of header lines.
const MAX_HEADERS: usize = 64;

/// Time for a client to send its request, and to receive the response.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of clients. A browser opens six connections.
const MAX_CLIENTS: usize = 16;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Path without the query.
    pub(super) path: String,
    /// The query after `?`; empty without one.
    query: String,
    /// Whether the method is HEAD.
    head_only: bool,
}

impl Request {
    /// Returns whether the query has the key `name`.
    pub(super) fn has_key(&self, name: &str) -> bool {
        let mut pairs = self.query.split('&');
        pairs.any(|pair| pair.split('=').next() == Some(name))
    }
}

/// A response.
pub(super) struct Response {
    status: &'static str,
    content_type: &'static str,
    /// Further header lines, each with its line ending.
    headers: String,
    body: Vec<u8>,
}

impl Response {
    pub(super) fn new(kind: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response {
            status: "200 OK",
            content_type: kind,
            headers: String::new(),
            body: body.into(),
        }
    }

    /// Adds a header line.
    pub(super) fn header(mut self, line: &str) -> Response {
        self.headers.push_str(line);
        self.headers.push_str("\r\n");
        self
    }

    pub(super) fn error(status: &'static str, why: &str) -> Response {
        Response {
            status,
            ..Response::new("text/plain; charset=utf-8", format!("{why}\n"))
        }
    }

    /// Returns the status line's status and the body.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (&'static str, String) {
        let body = String::from_utf8(self.body.clone());
        (self.status, body.expect("text"))
    }

    fn encode(&self, head_only: bool) -> Vec<u8> {
        let Response {
            status,
            content_type: kind,
            headers: lines,
            body,
        } = self;
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n{lines}\r\n",
            body.len()
        );
        let body: &[u8] = if head_only { &[] } else { body };
        [head.as_bytes(), body].concat()
    }
}

/// The names of this server that requests may use.
#[derive(Clone, Debug)]
pub(super) struct HostNames {
    /// Whether any name is valid: browsers cannot connect to Unix sockets.
    any: bool,
    known: Vec<String>,
}

impl HostNames {
    /// Returns the names of a server at `addr`, and `more`.
    pub(super) fn new(addr: &Addr, more: &[String]) -> HostNames {
        let mut known = vec!["localhost".to_owned()];
        if let Addr::Tcp { host, .. } = addr {
            known.push(host.to_ascii_lowercase());
        }
        let here = rustix::system::uname();
        known.push(here.nodename().to_string_lossy().to_ascii_lowercase());
        known.extend(more.iter().map(|name| name.to_ascii_lowercase()));
        HostNames {
            any: !matches!(addr, Addr::Tcp { .. }),
            known,
        }
    }

    /// Returns whether `host`, the value of a Host header, is this server. Addresses always are:
    /// only names can be made to resolve elsewhere.
    fn contains(&self, host: &str) -> bool {
        if self.any {
            return true;
        }
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
            None => host.split_once(':').map_or(host, |(name, _)| name),
        };
        name.parse::<IpAddr>().is_ok() || self.known.contains(&name.to_ascii_lowercase())
    }
}

/// The connected clients, from the oldest to the newest.
#[derive(Default)]
struct Clients {
    all: Mutex<Vec<(PeerKey, Arc<StreamLink>)>>,
    removed: Condvar,
}

impl Clients {
    /// Waits until there is room for the client of `link`, and adds it. Disconnects another client
    /// if needed.
    fn admit(&self, link: &Arc<StreamLink>) {
        let key = link.origin().key();
        let mut all = self.lock();
        if all.len() >= MAX_CLIENTS {
            let of = |key: PeerKey| all.iter().filter(|(other, _)| *other == key).count();
            // The last maximum in reverse order, so the oldest.
            let victim = (0..all.len()).rev().max_by_key(|&at| of(all[at].0));
            if let Some((_, link)) = victim.map(|at| &all[at]) {
                tracing::debug!(peer = link.peer(), "disconnected to serve another client");
                link.hang_up();
            }
            self.removed
                .wait_while(&mut all, |all| all.len() >= MAX_CLIENTS);
        }
        all.push((key, link.clone()));
    }

    fn remove(&self, link: &Arc<StreamLink>) {
        self.lock().retain(|(_, other)| !Arc::ptr_eq(other, link));
        self.removed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(PeerKey, Arc<StreamLink>)>> {
        self.all.lock()
    }
}

/// Removes a client when its thread ends, even by a panic.
struct ClientGuard<'a> {
    clients: &'a Clients,
    link: Arc<StreamLink>,
}

impl Drop for ClientGuard<'_> {
    fn drop(&mut self) {
        self.clients.remove(&self.link);
    }
}

/// The requests that are answered, and how.
#[derive(Clone, Copy)]
pub(super) struct Service<'a> {
    pub(super) names: &'a HostNames,
    /// Returns whether a client may see the responses.
    pub(super) admits: &'a (dyn Fn(Origin) -> bool + Sync),
    pub(super) answer: &'a (dyn Fn(&Request) -> Response + Sync),
}

/// Responds to the clients of `listener` until `stop` is readable. Returns early if accepting
/// fails.
pub(super) fn serve(
    listener: &Listener,
    service: &Service<'_>,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    let clients = &Clients::default();
    std::thread::scope(|scope| {
        while let Some(link) = listener.accept(stop)? {
            let link = Arc::new(link);
            clients.admit(&link);
            let served = ClientGuard { clients, link };
            let client = move || {
                if let Err(error) = serve_client(&*served.link, service, stop) {
                    tracing::debug!(peer = served.link.peer(), "request failed: {error}");
                }
            };
            let thread = std::thread::Builder::new().name("barge-http".into());
            if let Err(error) = thread.spawn_scoped(scope, client) {
                static REFUSED: LogLimit<()> = LogLimit::new();
                if let Some(suppressed) = REFUSED.permit(()) {
                    tracing::warn!(suppressed, "HTTP connection refused: {error}");
                }
            }
        }
        Ok(())
    })
}

/// Reads one request and sends the response.
fn serve_client(link: &dyn Link, service: &Service<'_>, stop: BorrowedFd<'_>) -> io::Result<()> {
    // The owner of a socket that the client has closed is unknown.
    let is_admitted = (service.admits)(link.origin());
    let mut buffer = vec![0; MAX_REQUEST];
    let mut len = 0;
    let deadline = Instant::now() + TIMEOUT;
    let read = loop {
        if let Some(read) = parse(&buffer[..len], service.names) {
            break read;
        }
        if len == MAX_REQUEST {
            let most = format!("expected a request of less than {MAX_REQUEST} bytes");
            break Err(Response::error(
                "431 Request Header Fields Too Large",
                &most,
            ));
        }
        wait_ready(
            link,
            Interest {
                read: true,
                write: false,
            },
            deadline,
            stop,
        )?;
        match link.recv(&mut buffer[len..], false) {
            Ok(0) => return Ok(()),
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    };
    let bytes = match &read {
        Ok(request) if !is_admitted => {
            let why = "another user of this host: expected one that --admit or --http-admit (of barge mount, http_admit=) names";
            Response::error("403 Forbidden", why).encode(request.head_only)
        }
        Ok(request) => (service.answer)(request).encode(request.head_only),
        Err(refusal) => {
            drain(link);
            refusal.encode(false)
        }
    };
    // Input that has ended must not wake the wait for room in the send buffer.
    link.end_input();
    send(link, &bytes, stop)
}

/// Discards pending input: closing the connection with unread input would reset it, and the
/// response might be lost.
fn drain(link: &dyn Link) {
    /// Maximum number of reads: a client that sends more does not wait for a response.
    const MAX_READS: usize = 64;
    let mut buffer = vec![0; MAX_REQUEST];
    for _ in 0..MAX_READS {
        if !matches!(link.recv(&mut buffer, false), Ok(1..)) {
            return;
        }
    }
}

fn send(link: &dyn Link, bytes: &[u8], stop: BorrowedFd<'_>) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let mut sent = 0;
    while sent < bytes.len() {
        match link.send(&bytes[sent..], false) {
            Ok(more) => sent += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_ready(
                    link,
                    Interest {
                        read: false,
                        write: true,
                    },
                    deadline,
                    stop,
                )?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_ready(
    link: &dyn Link,
    interest: Interest,
    deadline: Instant,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    let ready = link.wait(interest, stop, Some(left))?;
    match ready.woken {
        true => Err(ErrorKind::Interrupted.into()),
        false => Ok(()),
    }
}

/// Parses a request. Returns the response if it is refused, or `None` if it is incomplete.
fn parse(bytes: &[u8], names: &HostNames) -> Option<Result<Request, Response>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let bad = |why: &str| Some(Err(Response::error("400 Bad Request", why)));
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return None,
        Err(httparse::Error::TooManyHeaders) => {
            let most = format!("expected at most {MAX_HEADERS} header lines");
            let status = "431 Request Header Fields Too Large";
            return Some(Err(Response::error(status, &most)));
        }
        Err(error) => return bad(&format!("expected an HTTP request: {error}")),
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => {
            let refusal = Response::error("405 Method Not Allowed", "expected GET or HEAD");
            return Some(Err(refusal.header("Allow: GET, HEAD")));
        }
    };
    let of_name = |name: &'static str| {
        let named = move |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case(name);
        request.headers.iter().filter(named)
    };
    if of_name("transfer-encoding").next().is_some()
        || of_name("content-length").any(|length| length.value != b"0")
    {
        return bad("expected a request without a body");
    }
    let mut hosts = of_name("host").map(|host| str::from_utf8(host.value));
    match (hosts.next(), hosts.next()) {
        // HTTP/1.0, which no browser uses.
        (None, None) if request.version == Some(0) => {}
        (Some(Ok(host)), None) if names.contains(host) => {}
        (Some(Ok(_)), None) => {
            let why = "expected a name of this server in the Host header: an address, localhost or a name of --http-name";
            return Some(Err(Response::error("421 Misdirected Request", why)));
        }
        _ => return bad("expected one Host header"),
    }
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Some(Ok(Request {
        path: path.into(),
        query: query.into(),
        head_only,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> HostNames {
        let addr = "tcp:10.0.0.7:9100".parse().expect("an address");
        HostNames::new(&addr, &["Barge.Example".into()])
    }

    fn status(request: &str) -> &'static str {
        match parse(request.as_bytes(), &names()) {
            None => "more",
            Some(Ok(_)) => "asked",
            Some(Err(refusal)) => &refusal.status[..3],
        }
    }

    #[test]
    fn whole_requests_are_told_from_beginnings_and_from_what_is_none() {
        let whole = "GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:9100\r\n\r\n";
        let request = Request {
            path: "/metrics".into(),
            query: "x=1".into(),
            head_only: false,
        };
        assert!(request.has_key("x") && !request.has_key("1"));
        assert_eq!(
            parse(whole.as_bytes(), &names()).and_then(Result::ok),
            Some(request)
        );
        for len in 0..whole.len() {
            assert_eq!(status(&whole[..len]), "more", "{len}");
        }
        for (request, expected) in [
            ("\x16\x03\x01\x02", "400"),
            ("GET / HTTP/1.1\r\n\r\n", "400"),
            ("GET / HTTP/1.0\r\n\r\n", "asked"),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n",
                "400",
            ),
            ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
            (
                "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
                "400",
            ),
            (
                "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
                "400",
            ),
            ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421"),
            (
                "GET / HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n",
                "421",
            ),
            ("GET / HTTP/1.1\r\nHost: barge.example:80\r\n\r\n", "asked"),
            ("GET / HTTP/1.1\r\nHost: [::1]:9100\r\n\r\n", "asked"),
            ("GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", "asked"),
            ("GET / HTTP/1.1\r\nHost: [localhost\r\n\r\n", "421"),
        ] {
            assert_eq!(status(request), expected, "{request:?}");
        }
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(MAX_HEADERS + 1)
        );
        assert_eq!(status(&many), "431");
    }

    #[test]
    fn a_unix_socket_goes_by_any_name() {
        let addr = "unix:/run/a.sock".parse().expect("an address");
        assert!(HostNames::new(&addr, &[]).contains("whatever"));
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(bytes: Vec<u8>, line in "[ -~\r\n]{0,200}") {
            let _ = parse(&bytes, &names());
            let _ = parse(format!("GET / HTTP/1.1\r\nHost: {line}").as_bytes(), &names());
        }
    }
}
