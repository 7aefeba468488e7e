//! A registry that misbehaves on request, and records what it receives.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use pack::oci::Digest;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// A received request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path with the query.
    pub(crate) path: String,
    /// Values by lower-case name.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn authorization(&self) -> Option<&str> {
        self.headers.get("authorization").map(String::as_str)
    }
}

/// A response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the connection is closed in the middle of the body.
    pub(crate) cut: bool,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Reply {
        Reply {
            status,
            ..Reply::default()
        }
    }

    pub(crate) fn good(body: impl Into<Vec<u8>>) -> Reply {
        Reply {
            body: body.into(),
            ..Reply::status(200)
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Reply {
        self.headers.push((name, value.into()));
        self
    }
}

type Handler = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

/// A server that runs until it is dropped.
pub(crate) struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Blobs, and manifests by digest or tag, with their paths.
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Answers in place of the registry.
    handler: Mutex<Box<Handler>>,
    requests: Mutex<Vec<Request>>,
    gone: AtomicBool,
}

impl Server {
    /// Starts a registry without contents.
    pub(crate) fn new() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            files: Mutex::default(),
            handler: Mutex::new(Box::new(|_| None)),
            requests: Mutex::default(),
            gone: AtomicBool::new(false),
        });
        let ours = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ours.gone.load(Ordering::Relaxed) {
                    return;
                }
                let (stream, ours) = (stream.expect("accepted"), ours.clone());
                // A client may disconnect at any time.
                thread::spawn(move || ours.serve(&stream).ok());
            }
        });
        Server { addr, shared }
    }

    /// Returns the host with its port.
    pub(crate) fn host(&self) -> String {
        self.addr.to_string()
    }

    /// Returns the beginning of its URLs.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sets what answers requests first; the registry answers where it returns nothing.
    pub(crate) fn handle(
        &self,
        handler: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) {
        *self.shared.handler.lock() = Box::new(handler);
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.shared.requests.lock())
    }

    /// Adds a blob, and returns its descriptor.
    pub(crate) fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = Digest::sha256(bytes);
        let path = format!("/v2/dir/image/blobs/{digest}");
        self.put(path, bytes.to_vec());
        json!({"mediaType": media_type, "digest": digest.to_string(), "size": bytes.len()})
    }

    /// Adds a document, also under `tag`, and returns its descriptor.
    pub(crate) fn document(&self, tag: &str, document: &Value) -> Value {
        let text = document.to_string();
        let digest = Digest::sha256(text.as_bytes());
        for name in [tag, &digest.to_string()] {
            self.put(
                format!("/v2/dir/image/manifests/{name}"),
                text.clone().into(),
            );
        }
        json!({"mediaType": "document", "digest": digest.to_string(), "size": text.len()})
    }

    /// Adds the manifest of an image with these layers, under the tag `latest`.
    pub(crate) fn image(&self, layers: &[Value]) -> Value {
        self.document("latest", &json!({"schemaVersion": 2, "layers": layers}))
    }

    pub(crate) fn put(&self, path: String, bytes: Vec<u8>) {
        self.shared.files.lock().insert(path, bytes);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Relaxed);
        // A connection wakes the server's accept loop.
        drop(TcpStream::connect(self.addr));
    }
}

impl Shared {
    fn serve(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader)? {
            self.requests.lock().push(request.clone());
            let reply = (self.handler.lock())(&request);
            let reply = reply.unwrap_or_else(|| self.answer(&request));
            respond(&mut stream, &reply)?;
            if reply.cut {
                return stream.shutdown(std::net::Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Answers as a registry does.
    fn answer(&self, request: &Request) -> Reply {
        let path = request.path.split('?').next().unwrap_or_default();
        let Some(bytes) = self.files.lock().get(path).cloned() else {
            let error = json!({"errors": [{"code": "UNKNOWN", "message": "unknown to us"}]});
            return Reply {
                body: error.to_string().into(),
                ..Reply::status(404)
            };
        };
        ranged(request, &bytes)
    }
}

/// Returns the requested range of `bytes`.
pub(crate) fn ranged(request: &Request, bytes: &[u8]) -> Reply {
    let range = request.headers.get("range");
    let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((first, last)) = range else {
        return Reply::good(bytes);
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (first, last) = (number(first), number(last).min(bytes.len() - 1));
    let header = format!("bytes {first}-{last}/{}", bytes.len());
    Reply {
        body: bytes[first..=last].to_vec(),
        ..Reply::status(206)
    }
    .with("Content-Range", header)
}

/// Reads the next request, or nothing if the client disconnected.
fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut request = Request::default();
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split(' ');
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Ok(None);
    };
    (request.method, request.path) = (method.to_owned(), path.to_owned());
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        request
            .headers
            .insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let len = request.headers.get("content-length");
    let len = len.map_or(0, |len| len.parse().expect("a number"));
    let mut body = vec![0; len];
    reader.read_exact(&mut body)?;
    request.body = String::from_utf8(body).expect("text");
    Ok(Some(request))
}

fn respond(stream: &mut impl Write, reply: &Reply) -> std::io::Result<()> {
    let mut head = format!(
        "HTTP/1.1 {} Told\r\nContent-Length: {}\r\n",
        reply.status,
        reply.body.len()
    );
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    write!(stream, "{head}\r\n")?;
    let sent = match reply.cut {
        true => reply.body.len() / 2,
        false => reply.body.len(),
    };
    stream.write_all(&reply.body[..sent])
}
