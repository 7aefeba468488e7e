//! An HTTP server of one object that misbehaves on request.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// The kind of response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A correct response.
    Good,
    /// An error status, optionally with `Retry-After` in seconds.
    Status(u16, Option<u64>),
    /// The connection is closed instead of a response.
    Reset,
    /// The connection is closed in the middle of the body.
    Cut,
    /// The body is too short, and the headers agree with it except for the range.
    Short,
    /// The body is longer than the range.
    Long,
    /// The body stalls in the middle.
    Stalled,
    /// The range is not the requested one.
    Shifted,
    /// The object's length in `Content-Range` is larger than before.
    Grown,
    /// The whole object, regardless of the requested range.
    Whole,
    /// The range header is missing.
    Unnamed,
    /// The response is from another object.
    Replaced,
}

/// A received request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) range: Option<Range<u64>>,
    pub(crate) if_match: Option<String>,
    pub(crate) if_none_match: Option<String>,
    pub(crate) authorization: Option<String>,
}

/// A server that runs until it is dropped.
pub(crate) struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    link: Option<Link>,
}

/// A simulated link: latency of a request, and bandwidth in bytes per second of all responses
/// together.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) latency: Duration,
    pub(crate) bandwidth: u32,
}

struct State {
    path: String,
    bytes: Arc<Vec<u8>>,
    /// The ETag, without quotes, if one is sent.
    etag: Option<String>,
    weak: bool,
    modified: bool,
    /// The next responses.
    next: VecDeque<Answer>,
    /// The response when `next` is empty.
    always: Answer,
    requests: Vec<Request>,
    /// When the link is free.
    free: Instant,
    gone: bool,
}

impl Server {
    /// Starts a server of `bytes` at `/dir/image`, optionally with a simulated link.
    pub(crate) fn behind(link: Option<Link>, bytes: Vec<u8>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                path: "/dir/image".into(),
                bytes: Arc::new(bytes),
                etag: Some("first".into()),
                weak: false,
                modified: false,
                next: VecDeque::new(),
                always: Answer::Good,
                requests: Vec::new(),
                free: Instant::now(),
                gone: false,
            }),
            link,
        });
        let ours = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ours.lock().gone {
                    return;
                }
                let (stream, ours) = (stream.expect("accepted"), ours.clone());
                // A client may disconnect at any time.
                thread::spawn(move || ours.serve(&stream).ok());
            }
        });
        Server { addr, shared }
    }

    pub(crate) fn new(bytes: Vec<u8>) -> Server {
        Server::behind(None, bytes)
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/dir/image", self.base())
    }

    /// Returns the beginning of its URLs.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Moves the object to another path.
    pub(crate) fn call(&self, path: &str) {
        self.shared.lock().path = path.into();
    }

    /// Sets the kinds of the next responses.
    pub(crate) fn next(&self, answers: impl IntoIterator<Item = Answer>) {
        self.shared.lock().next.extend(answers);
    }

    /// Sets the default kind of response.
    pub(crate) fn always(&self, answer: Answer) {
        self.shared.lock().always = answer;
    }

    /// Replaces the object.
    pub(crate) fn replace(&self, bytes: Vec<u8>, etag: &str) {
        let mut state = self.shared.lock();
        state.bytes = Arc::new(bytes);
        state.etag = Some(etag.into());
    }

    /// Sets the headers that identify the object: an ETag, which may be weak, or none, and a
    /// modification time.
    pub(crate) fn tell(&self, etag: Option<&str>, weak: bool, modified: bool) {
        let mut state = self.shared.lock();
        (state.etag, state.weak, state.modified) = (etag.map(str::to_owned), weak, modified);
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.lock().requests)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.lock().gone = true;
        // A connection wakes the server's accept loop.
        drop(TcpStream::connect(self.addr));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader)? {
            let (answer, state) = self.take(&request);
            self.delay(&request);
            let goes_on = respond(&mut stream, &request, &answer, &state)?;
            if answer == Answer::Stalled {
                // Waits until the client disconnects.
                return reader.read_exact(&mut [0]);
            }
            if !goes_on {
                return stream.shutdown(Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Sleeps as long as the link would take.
    fn delay(&self, request: &Request) {
        let Some(Link { latency, bandwidth }) = self.link else {
            return;
        };
        let bytes = request
            .range
            .as_ref()
            .map_or(0, |range| range.end - range.start);
        let takes = Duration::from_secs(1) * bytes as u32 / bandwidth;
        let done = {
            let mut state = self.lock();
            let start = state.free.max(Instant::now() + latency);
            state.free = start + takes;
            state.free
        };
        thread::sleep(done.saturating_duration_since(Instant::now()));
    }

    /// Records a request, and returns the kind of response and the state to respond from.
    fn take(&self, request: &Request) -> (Answer, State) {
        let mut state = self.lock();
        state.requests.push(request.clone());
        let answer = state.next.pop_front().unwrap_or(state.always.clone());
        let (path, bytes) = (state.path.clone(), state.bytes.clone());
        let object = State {
            path,
            bytes,
            etag: state.etag.clone(),
            next: VecDeque::new(),
            always: Answer::Good,
            requests: Vec::new(),
            ..*state
        };
        (answer, object)
    }
}

/// Reads the next request, or nothing if the client disconnected.
fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut request = Request::default();
    let mut line = String::new();
    reader.read_line(&mut line)?;
    match line.split(' ').nth(1) {
        Some(path) => request.path = path.to_owned(),
        None => return Ok(None),
    }
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            return Ok(Some(request));
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let range = value
                    .strip_prefix("bytes=")
                    .and_then(|range| range.split_once('-'));
                let (start, last) = range.expect("a range with two ends");
                let number = |text: &str| text.parse::<u64>().expect("a number");
                request.range = Some(number(start)..number(last) + 1);
            }
            "if-match" => request.if_match = Some(value.to_owned()),
            "authorization" => request.authorization = Some(value.to_owned()),
            "if-none-match" => request.if_none_match = Some(value.to_owned()),
            _ => {}
        }
    }
}

/// Sends a response and returns whether the connection stays open.
fn respond(
    stream: &mut impl Write,
    request: &Request,
    answer: &Answer,
    state: &State,
) -> std::io::Result<bool> {
    let mut etag = state.etag.as_ref().map(|etag| {
        let weak = if state.weak { "W/" } else { "" };
        format!("{weak}\"{etag}\"")
    });
    let plain = |stream: &mut dyn Write, status: u16, more: &str| {
        write!(
            stream,
            "HTTP/1.1 {status} Told\r\n{more}Content-Length: 4\r\n\r\ntold"
        )
    };
    match answer {
        Answer::Status(status, wait) => {
            let wait = wait.map(|wait| format!("Retry-After: {wait}\r\n"));
            plain(stream, *status, &wait.unwrap_or_default())?;
            return Ok(true);
        }
        Answer::Reset => return Ok(false),
        Answer::Replaced => etag = Some("\"another\"".into()),
        _ => {}
    }
    if request.path.split('?').next() != Some(&state.path) {
        plain(stream, 404, "")?;
        return Ok(true);
    }
    if request.if_match.is_some() && request.if_match != etag && *answer != Answer::Replaced {
        plain(stream, 412, "")?;
        return Ok(true);
    }
    if request.if_none_match.is_some() && request.if_none_match == etag {
        write!(stream, "HTTP/1.1 304 Not Modified\r\n\r\n")?;
        return Ok(true);
    }
    let len = state.bytes.len() as u64;
    let asked = request.range.clone().unwrap_or(0..len);
    let mut range = asked.start..asked.end.min(len);
    if range.is_empty() {
        plain(stream, 416, &format!("Content-Range: bytes */{len}\r\n"))?;
        return Ok(true);
    }
    if *answer == Answer::Whole {
        range = 0..len;
    }
    let body = &state.bytes[range.start as usize..range.end as usize];
    let half = &body[..body.len() / 2];
    let mut body = body.to_vec();
    let mut said = range.clone();
    let mut size = len;
    match answer {
        Answer::Short => body = half.to_vec(),
        Answer::Long => body.extend_from_slice(b"more than was asked for"),
        Answer::Shifted => said = range.start + 1..range.end + 1,
        Answer::Grown => size += 1,
        _ => {}
    }
    let mut head = match answer {
        Answer::Whole => "HTTP/1.1 200 OK\r\n".to_owned(),
        Answer::Unnamed => "HTTP/1.1 206 Partial Content\r\n".to_owned(),
        _ => format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{size}\r\n",
            said.start,
            said.end - 1
        ),
    };
    if let Some(etag) = etag {
        head += &format!("ETag: {etag}\r\n");
    }
    if state.modified {
        head += "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n";
    }
    write!(stream, "{head}Content-Length: {}\r\n\r\n", body.len())?;
    if matches!(answer, Answer::Cut | Answer::Stalled) {
        body.truncate(body.len() / 2);
    }
    stream.write_all(&body)?;
    Ok(!matches!(answer, Answer::Cut | Answer::Stalled))
}
