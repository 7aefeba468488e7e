//! A store of one object, in this process and behind a link that takes its time: it answers GET of ranges as S3 does, to whoever asks, and counts.
//!
//! What it lacks on purpose: looking at signatures, several objects, and any other request.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// How long a request and its answer are on their way.
pub(super) const LATENCY: Duration = Duration::from_millis(20);

/// Bytes a second of all answers together: a Gbit.
const BANDWIDTH: u64 = 125_000_000;

/// A store, until the process ends.
#[derive(Clone)]
pub(super) struct Store {
    addr: SocketAddr,
    object: Arc<Mutex<Object>>,
}

#[derive(Default)]
struct Object {
    bytes: Arc<Vec<u8>>,
    /// Counts objects.
    version: u32,
    asked: Asked,
    /// When the link has carried all that was answered.
    free: Option<Instant>,
}

/// What was asked of it.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked {
    pub(super) requests: u32,
    pub(super) bytes: usize,
}

struct Request {
    /// Both ends, the last byte included.
    range: Option<(usize, usize)>,
    unless: Option<String>,
}

impl Store {
    /// One that answers at `listener`, with nothing in it.
    pub(super) fn at(listener: TcpListener) -> io::Result<Store> {
        let store = Store {
            addr: listener.local_addr()?,
            object: Arc::default(),
        };
        let ours = store.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let store = ours.clone();
                // A client goes when it likes.
                thread::spawn(move || store.serve(&stream).ok());
            }
        });
        Ok(store)
    }

    /// Its only object from now on.
    pub(super) fn put(&self, bytes: Vec<u8>) {
        let mut object = self.lock();
        object.bytes = Arc::new(bytes);
        object.version += 1;
    }

    /// A SOURCE that names it.
    pub(super) fn url(&self) -> String {
        let addr = self.addr;
        format!(
            "s3://images/image?endpoint=http://{addr}&region=here&access_key_id=me&secret_access_key=mine"
        )
    }

    /// What was asked of it since this was called last.
    pub(super) fn asked(&self) -> Asked {
        std::mem::take(&mut self.lock().asked)
    }

    fn lock(&self) -> MutexGuard<'_, Object> {
        self.object.lock().expect("no panic holds it")
    }

    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = Request::read(&mut reader)? {
            let (head, bytes, range) = self.answer(&request);
            thread::sleep(self.takes(range.len()));
            stream.write_all(head.as_bytes())?;
            stream.write_all(&bytes[range])?;
        }
        Ok(())
    }

    /// How long it is until the link has carried so many bytes more.
    fn takes(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let mut object = self.lock();
        let begins = object
            .free
            .map_or(now + LATENCY, |free| free.max(now + LATENCY));
        let ends = begins + Duration::from_nanos(bytes as u64 * 1_000_000_000 / BANDWIDTH);
        object.free = Some(ends);
        ends - now
    }

    /// The head of an answer, and the bytes behind it.
    fn answer(&self, request: &Request) -> (String, Arc<Vec<u8>>, Range<usize>) {
        let mut object = self.lock();
        object.asked.requests += 1;
        let (bytes, tag) = (object.bytes.clone(), format!("\"{}\"", object.version));
        if request.unless.as_ref() == Some(&tag) {
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
        object.asked.bytes += range.len();
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
    /// The next one; nothing if the client has gone.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
        let mut request = Request {
            range: None,
            unless: None,
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
                request.unless = Some(value.to_owned());
            }
        }
    }
}
