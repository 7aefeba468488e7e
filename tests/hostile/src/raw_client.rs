//! A byte-level 9P client.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use p9::message::{HEADER, Header};
use p9::{Data, Dialect, Fid, Kind, Names, Qid, Rmessage, Tag, Tmessage, Uid};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use transports::Addr;
use vfs::Errno;

/// The fid of the root in every attach.
pub const ROOT: Fid = Fid(0);

/// Timeout of a test's reads and writes: far longer than any machine takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a server, over a Unix socket or TCP.
pub struct RawClient {
    stream: Box<dyn Stream>,
    dialect: Dialect,
}

/// The common operations of Unix and TCP sockets.
pub trait Stream: Read + Write + Send {
    /// Shuts down one or both directions.
    fn shut_down(&self, how: Shutdown) -> io::Result<()>;
    /// Sets non-blocking mode.
    fn nonblocking(&self, on: bool) -> io::Result<()>;
    /// Duplicates the socket.
    fn duplicate(&self) -> io::Result<Box<dyn Stream>>;
}

impl Stream for TcpStream {
    fn shut_down(&self, how: Shutdown) -> io::Result<()> {
        self.shutdown(how)
    }

    fn nonblocking(&self, on: bool) -> io::Result<()> {
        self.set_nonblocking(on)
    }

    fn duplicate(&self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.try_clone()?))
    }
}

impl Stream for UnixStream {
    fn shut_down(&self, how: Shutdown) -> io::Result<()> {
        self.shutdown(how)
    }

    fn nonblocking(&self, on: bool) -> io::Result<()> {
        self.set_nonblocking(on)
    }

    fn duplicate(&self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(self.try_clone()?))
    }
}

/// Connects to `addr`, with a timeout of reads and writes.
///
/// # Panics
/// If the connection fails.
pub fn connect_stream(addr: &Addr) -> Box<dyn Stream> {
    match addr {
        Addr::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).expect("connected");
            stream.set_nodelay(true).expect("a TCP socket");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            stream.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
            Box::new(stream)
        }
        Addr::Unix(path) => {
            let stream = UnixStream::connect(path).expect("connected");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            stream.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
            Box::new(stream)
        }
        other => panic!("{other} is nothing to connect to"),
    }
}

impl RawClient {
    /// Connects without sending anything.
    pub fn connect(addr: &Addr) -> RawClient {
        RawClient {
            stream: connect_stream(addr),
            dialect: Dialect::Linux,
        }
    }

    /// Attaches like [`RawClient::connect_attached`], over TCP from another loopback address.
    pub fn connect_attached_from(from: Ipv4Addr, addr: &Addr, msize: u32) -> RawClient {
        let Addr::Tcp { host, port } = addr else {
            panic!("{addr} is no TCP address");
        };
        let to = SocketAddrV4::new(host.parse().expect("an IPv4 address"), *port);
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddrV4::new(from, 0)).expect("the loopback has it");
        connect(&socket, &to).expect("connected");
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).expect("a TCP socket");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut peer = RawClient {
            stream: Box::new(stream),
            dialect: Dialect::Linux,
        };
        peer.start_session(msize);
        peer
    }

    /// Connects in a 9P2000.L session with messages of up to `msize` bytes, and attaches [`ROOT`]
    /// as root.
    pub fn connect_attached(addr: &Addr, msize: u32) -> RawClient {
        let mut peer = RawClient::connect(addr);
        peer.start_session(msize);
        peer
    }

    /// Sends Tversion and Tattach.
    pub fn start_session(&mut self, msize: u32) {
        assert_eq!(self.version(msize), msize);
        self.attach(b"");
    }

    /// Does the same as [`RawClient::connect_attached`], but returns `None` if the server has no
    /// memory for another connection: it closes the connection, or replies `EMFILE`.
    pub fn try_connect_attached(addr: &Addr, msize: u32) -> Option<RawClient> {
        let mut peer = RawClient::connect(addr);
        let version = peer.version_request(msize);
        if peer.try_send(&version).is_err() || peer.receive().is_none() {
            return None;
        }
        match errno(&peer.rpc(&attach(b""))) {
            None => Some(peer),
            Some(Errno::EMFILE) => None,
            Some(errno) => panic!("{errno}"),
        }
    }

    fn version_request(&self, msize: u32) -> Vec<u8> {
        let version = self.dialect.version().as_bytes();
        encode_request(Tag::NONE, &Tmessage::Version { msize, version })
    }

    /// Sends Tversion; returns the negotiated message size.
    pub fn version(&mut self, msize: u32) -> u32 {
        self.send(&self.version_request(msize));
        match self.reply() {
            (Tag::NONE, Rmessage::Version { msize, version }) => {
                assert_eq!(version, self.dialect.version().as_bytes());
                msize
            }
            other => panic!("{other:?}"),
        }
    }

    /// Attaches [`ROOT`] as root.
    pub fn attach(&mut self, aname: &[u8]) {
        self.expect_ok(&attach(aname));
    }

    /// Sends all of `bytes`.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("sent");
    }

    /// Sends all of `bytes`, or returns an error if the server has disconnected.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends a request.
    pub fn send_request(&mut self, tag: u16, request: &Tmessage<'_>) {
        self.send(&encode_request(Tag(tag), request));
    }

    /// Sends `bytes` repeatedly until the socket's buffer is full, up to `most` times, and returns
    /// how many were sent completely. The bytes sent next continue the last, incomplete repetition.
    pub fn fill_socket(&mut self, bytes: &[u8], most: usize) -> usize {
        // Many repetitions per call: a socket's buffer also accounts for the overhead of each call.
        let batch = bytes.repeat((16 << 10) / bytes.len() + 1);
        self.stream.nonblocking(true).expect("a socket");
        let mut sent = 0;
        while sent < most * bytes.len() {
            match self.stream.write(&batch[sent % bytes.len()..]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.stream.nonblocking(false).expect("a socket");
        sent / bytes.len()
    }

    /// Receives a whole message, or nothing at the end of the connection.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let mut message = vec![0; HEADER];
        if !self.fill(&mut message) {
            return None;
        }
        let size = Header::decode(&message).expect("a header").size as usize;
        assert!((HEADER..=32 << 20).contains(&size), "a reply of {size}");
        message.resize(size, 0);
        assert!(self.fill(&mut message[HEADER..]), "half a reply");
        Some(message)
    }

    /// Receives a reply, which may be an error.
    pub fn reply(&mut self) -> (Tag, Rmessage<'static>) {
        let message = self.receive().expect("a reply, not the end");
        // Leaks the message: tests are short.
        Rmessage::decode(self.dialect, Vec::leak(message)).expect("a reply of its dialect")
    }

    /// Sends a request and receives its reply, with no other request in flight.
    pub fn rpc(&mut self, request: &Tmessage<'_>) -> Rmessage<'static> {
        const TAG: u16 = 0x7777;
        self.send_request(TAG, request);
        let (tag, reply) = self.reply();
        assert_eq!(tag, Tag(TAG), "{reply:?}");
        reply
    }

    /// Sends a request, and panics if it fails.
    #[track_caller]
    pub fn expect_ok(&mut self, request: &Tmessage<'_>) -> Rmessage<'static> {
        let reply = self.rpc(request);
        if let Some(errno) = errno(&reply) {
            panic!("{request:?}: {errno}");
        }
        reply
    }

    /// Sends a request, and panics if it succeeds.
    #[track_caller]
    pub fn expect_err(&mut self, request: &Tmessage<'_>) -> Errno {
        let reply = self.rpc(request);
        errno(&reply).unwrap_or_else(|| panic!("{request:?}: {reply:?}"))
    }

    /// Walks, possibly not to the end.
    pub fn try_walk(&mut self, fid: Fid, newfid: Fid, names: &[&[u8]]) -> Result<Vec<Qid>, Errno> {
        let names = Names::new(names);
        let reply = self.rpc(&Tmessage::Walk { fid, newfid, names });
        match (errno(&reply), reply) {
            (Some(errno), _) => Err(errno),
            (None, Rmessage::Walk { qids }) => Ok(qids.iter().collect()),
            (None, other) => panic!("{other:?}"),
        }
    }

    /// Walks, and panics unless it reaches the end.
    #[track_caller]
    pub fn walk(&mut self, fid: Fid, newfid: Fid, names: &[&[u8]]) -> Vec<Qid> {
        let qids = self.try_walk(fid, newfid, names).expect("there");
        assert_eq!(qids.len(), names.len(), "{names:?}");
        qids
    }

    /// Creates a file in [`ROOT`] and opens it for reading and writing.
    #[track_caller]
    pub fn create(&mut self, fid: Fid, name: &[u8]) {
        self.walk(ROOT, fid, &[]);
        self.expect_ok(&create(fid, name));
    }

    /// Creates a file in the directory of `fid`, and opens it as `fid` for reading and writing.
    pub fn try_create(&mut self, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        errno(&self.rpc(&create(fid, name))).map_or(Ok(()), Err)
    }

    /// Opens the file of a fid.
    pub fn try_open(&mut self, fid: Fid, flags: u32) -> Result<(), Errno> {
        errno(&self.rpc(&Tmessage::Lopen { fid, flags })).map_or(Ok(()), Err)
    }

    /// Opens a file for reading and writing.
    #[track_caller]
    pub fn open(&mut self, fid: Fid, names: &[&[u8]]) {
        self.walk(ROOT, fid, names);
        self.expect_ok(&Tmessage::Lopen { fid, flags: 2 });
    }

    /// Shuts down sending. The server may have disconnected before.
    pub fn shut_down_sending(&mut self) {
        let _ = self.stream.shut_down(Shutdown::Write);
    }

    /// Duplicates the connection, to send on one and receive on the other.
    pub fn duplicate(&self) -> RawClient {
        RawClient {
            stream: self.stream.duplicate().expect("a descriptor"),
            dialect: self.dialect,
        }
    }

    /// Asserts that the server closes the connection after nothing but replies; returns their
    /// number.
    #[track_caller]
    pub fn assert_closed(&mut self) -> usize {
        let mut replies = 0;
        while let Some(reply) = self.receive() {
            let header = Header::decode(&reply).expect("a header");
            assert_eq!(header.number % 2, 1, "no reply: {header:?}");
            replies += 1;
        }
        replies
    }

    /// Fills `buffer`. Returns `false` at the end of the connection, which may be a reset if the
    /// server had not read everything.
    fn fill(&mut self, buffer: &mut [u8]) -> bool {
        let mut have = 0;
        while have < buffer.len() {
            match self.stream.read(&mut buffer[have..]) {
                Ok(0) if have == 0 => return false,
                Ok(0) => panic!("the connection ends within a reply"),
                Ok(n) => have += n,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                Err(error) => panic!("expected a reply or the end: {error}"),
            }
        }
        true
    }
}

/// A well-behaved client that must not be affected by another.
pub struct Bystander {
    client: RawClient,
    name: String,
}

impl Bystander {
    /// The contents of its file.
    const CONTENTS: &[u8] = b"as it was";

    /// Attaches a client, and opens a file of its own.
    pub fn new(addr: &Addr) -> Bystander {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut peer = RawClient::connect_attached(addr, 8192);
        let name = format!("bystander-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        peer.create(Fid(1), name.as_bytes());
        let (fid, offset) = (Fid(1), 0);
        let data = Data(Bystander::CONTENTS);
        peer.expect_ok(&Tmessage::Write { fid, offset, data });
        Bystander { client: peer, name }
    }

    /// Asserts that its fid is valid, and that it can create another.
    #[track_caller]
    pub fn assert_unaffected(&mut self) {
        self.assert_reads();
        let Bystander { client: peer, name } = self;
        peer.open(Fid(2), &[name.as_bytes()]);
        peer.expect_ok(&Tmessage::Clunk { fid: Fid(2) });
    }

    /// Asserts that its fid is valid.
    #[track_caller]
    pub fn assert_reads(&mut self) {
        let (fid, offset, count) = (Fid(1), 0, 100);
        let Rmessage::Read { data } = self
            .client
            .expect_ok(&Tmessage::Read { fid, offset, count })
        else {
            panic!("not read");
        };
        assert_eq!(data.0, Bystander::CONTENTS);
    }
}

/// Returns a Tattach of [`ROOT`] as root.
pub fn attach(aname: &[u8]) -> Tmessage<'_> {
    Tmessage::Attach {
        fid: ROOT,
        afid: Fid::NONE,
        uname: b"",
        aname,
        n_uname: Uid(0),
    }
}

/// Returns a Tlcreate for reading and writing.
pub fn create(fid: Fid, name: &[u8]) -> Tmessage<'_> {
    Tmessage::Lcreate {
        fid,
        name,
        flags: 2,
        mode: 0o644,
        gid: 0,
    }
}

/// Returns a blocking Tlock of a whole file by process `proc_id`.
pub fn lock_exclusive(fid: Fid, proc_id: u32) -> Tmessage<'static> {
    Tmessage::Lock {
        fid,
        kind: 1,
        flags: 1,
        start: 0,
        length: 0,
        proc_id,
        client_id: b"hostile",
    }
}

/// Returns the Tlock that releases it.
pub fn unlock(fid: Fid, proc_id: u32) -> Tmessage<'static> {
    Tmessage::Lock {
        fid,
        kind: 2,
        flags: 0,
        start: 0,
        length: 0,
        proc_id,
        client_id: b"hostile",
    }
}

/// Encodes a request of 9P2000.L.
pub fn encode_request(tag: Tag, request: &Tmessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(Dialect::Linux, tag, &mut bytes);
    bytes
}

/// Returns the errno of an error reply, nothing for other replies. Panics on 9P2000's Rerror, which
/// occurs only before a session.
pub fn errno(reply: &Rmessage<'_>) -> Option<Errno> {
    match reply {
        Rmessage::Lerror { errno } => Some(Errno::from_raw(*errno as i32)),
        _ => {
            assert!(!matches!(reply.kind(), Kind::Error | Kind::Lerror));
            None
        }
    }
}
