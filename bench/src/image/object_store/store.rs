//! An object store with one object, in this process, over a simulated slow link: it answers GET
//! requests for ranges like S3, without access control, and counts them.
//!
//! Deliberately absent: signature checks, multiple objects, and any other request.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// The time that a request and its response are in transit together.
pub(super) const LATENCY: Duration = Duration::from_millis(20);

/// Bytes a second of all responses together: 1 Gbit/s.
const BANDWIDTH: u64 = 125_000_000;

/// A store that runs until the process exits.
#[derive(Clone)]
pub(super) struct Store {
    addr: SocketAddr,
    object: Arc<Mutex<Object>>,
}

#[derive(Default)]
struct Object {
    bytes: Arc<Vec<u8>>,
    /// The number of the current object, counted from 1.
    version: u32,
    counts: RequestCounts,
    /// The time when the link has carried all earlier responses.
    link_free_at: Option<Instant>,
}

/// The requests served.
#[derive(Clone, Copy, Default)]
pub(super) struct RequestCounts {
    pub(super) requests: u32,
    pub(super) bytes: usize,
}

struct Request {
    /// The first and the last byte, both included.
    range: Option<(usize, usize)>,
    if_none_match: Option<String>,
}

impl Store {
    /// Starts a store at `listener`, with an empty object.
    pub(super) fn at(listener: TcpListener) -> io::Result<Store> {
        let store = Store {
            addr: listener.local_addr()?,
            object: Arc::default(),
        };
        let ours = store.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let store = ours.clone();
                // An error means that the client has disconnected.
                thread::spawn(move || store.serve(&stream).ok());
            }
        });
        Ok(store)
    }

    /// Replaces the object.
    pub(super) fn put(&self, bytes: Vec<u8>) {
        let mut object = self.lock();
        object.bytes = Arc::new(bytes);
        object.version += 1;
    }

    /// Returns a SOURCE that names the object.
    pub(super) fn url(&self) -> String {
        let addr = self.addr;
        format!(
            "s3://images/image?endpoint=http://{addr}&region=here&access_key_id=me&secret_access_key=mine"
        )
    }

    /// Returns the requests since the last call.
    pub(super) fn take_counts(&self) -> RequestCounts {
        std::mem::take(&mut self.lock().counts)
    }

    fn lock(&self) -> MutexGuard<'_, Object> {
        self.object.lock()
    }

    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = Request::read(&mut reader)? {
            let (head, bytes, range) = self.respond(&request);
            thread::sleep(self.transfer_time(range.len()));
            stream.write_all(head.as_bytes())?;
            stream.write_all(&bytes[range])?;
        }
        Ok(())
    }

    /// Returns the time until the link has carried `bytes` more.
    fn transfer_time(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let mut object = self.lock();
        let begins = object
            .link_free_at
            .map_or(now + LATENCY, |free| free.max(now + LATENCY));
        let ends = begins + Duration::from_nanos(bytes as u64 * 1_000_000_000 / BANDWIDTH);
        object.link_free_at = Some(ends);
        ends - now
    }

    /// Returns the head of a response, and the bytes of its body.
    fn respond(&self, request: &Request) -> (String, Arc<Vec<u8>>, Range<usize>) {
        let mut object = self.lock();
        object.counts.requests += 1;
        let (bytes, tag) = (object.bytes.clone(), format!("\"{}\"", object.version));
        if request.if_none_match.as_ref() == Some(&tag) {
            let head = format!("HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\n\r\n");
            return (head, bytes, 0..0);
        }
        let len = bytes.len();
        let (first, last) = request.range.unwrap_or((0, len));
        let range = first.min(len)..len.min(last.saturating_add(1)).max(first.min(len));
        if range.is_empty() {
            let head = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n";
            return (head.into(), bytes, range);
        }
        object.counts.bytes += range.len();
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{len}\r\nContent-Length: {}\r\nETag: {tag}\r\n\
             Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n",
            range.start,
            range.end - 1,
            range.len()
        );
        (head, bytes, range)
    }
}

impl Request {
    /// Reads the next request; returns `None` if the client has disconnected.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
        let mut request = Request {
            range: None,
            if_none_match: None,
        };
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                return Ok(Some(request));
            };
            if name.eq_ignore_ascii_case("range") {
                let range = value.strip_prefix("bytes=").unwrap_or(value);
                let (first, last) = range.split_once('-').unwrap_or_default();
                request.range = first.parse().ok().zip(last.parse().ok());
            } else if name.eq_ignore_ascii_case("if-none-match") {
                request.if_none_match = Some(value.to_owned());
            }
        }
    }
}
