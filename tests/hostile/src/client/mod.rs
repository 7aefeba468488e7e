//! An ordinary client of every socket protocol, with a few byte-level operations.

mod nbd;
mod nfs;
mod p9;

use std::io::ErrorKind;
use std::net::Shutdown;

use transports::Addr;

use crate::raw_client::{Stream, connect_stream};

pub use self::nfs::Callbacks;

/// A protocol and, for NFS, its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Protocol {
    P9,
    P9Unix,
    Nfs3,
    Nfs40,
    Nfs41,
    Nfs42,
    Nbd,
}

impl Protocol {
    /// All but v4.2, whose sessions are those of v4.1.
    pub const ALL: [Protocol; 6] = [
        Protocol::P9,
        Protocol::P9Unix,
        Protocol::Nfs3,
        Protocol::Nfs40,
        Protocol::Nfs41,
        Protocol::Nbd,
    ];

    /// Returns the minor version of NFSv4; 0 for other protocols.
    fn minor(self) -> u32 {
        match self {
            Protocol::Nfs41 => 1,
            Protocol::Nfs42 => 2,
            _ => 0,
        }
    }
}

/// The file that every client reads and writes.
pub const FILE: &str = "file";

/// Size of [`FILE`] in bytes.
pub const SIZE: u32 = 1 << 20;

/// Maximum size of a 9P message in bytes.
const MSIZE: u32 = SIZE + 24;

/// Number of slots in a session.
const SLOTS: usize = 16;

/// A client that has attached, mounted or created a session, and has found [`FILE`]. Dropping it
/// closes the connection. Every operation panics if it fails or times out.
pub struct Client {
    protocol: Protocol,
    stream: Box<dyn Stream>,
    /// The next tag, transaction ID or cookie.
    next: u32,
    /// v3: the file handle of the root.
    pub root: Vec<u8>,
    /// v3: the file handle of [`FILE`].
    pub file: Vec<u8>,
    /// v4: the client ID.
    pub id: Vec<u8>,
    /// v4.1: the sequence ID of its next CREATE_SESSION.
    pub sequence: u32,
    session: Vec<u8>,
    slots: [u32; SLOTS],
    /// The slot used last.
    slot: usize,
    /// The last request that can be retransmitted.
    sent: Option<Vec<u8>>,
}

impl Client {
    /// Connects and prepares for operations; `name` is unique among clients.
    pub fn new(protocol: Protocol, addr: &Addr, name: &str) -> Client {
        let mut client = Client::connect(protocol, addr);
        match protocol {
            Protocol::P9 | Protocol::P9Unix => client.attach(),
            Protocol::Nfs3 => client.mount(),
            Protocol::Nfs40 => {
                client.id = client.set_client_id(name.as_bytes()).expect("a client");
            }
            Protocol::Nfs41 | Protocol::Nfs42 => client.begin_session(name),
            Protocol::Nbd => client.negotiate(),
        }
        client
    }

    /// Connects without sending anything.
    pub fn connect(protocol: Protocol, addr: &Addr) -> Client {
        Client {
            protocol,
            stream: connect_stream(addr),
            next: 1,
            root: Vec::new(),
            file: Vec::new(),
            id: Vec::new(),
            sequence: 0,
            session: Vec::new(),
            slots: [0; SLOTS],
            slot: 0,
            sent: None,
        }
    }

    /// Gets the attributes of the file; over NBD, which has none, flushes it.
    pub fn attributes(&mut self) {
        let request = match self.protocol {
            Protocol::P9 | Protocol::P9Unix => self.p9_attributes(),
            Protocol::Nbd => self.nbd(nbd::FLUSH, 0, &[]),
            _ => self.nfs_attributes(),
        };
        self.exchange(&request, 0);
    }

    /// Reads `len` bytes from the beginning of the file.
    pub fn read(&mut self, len: u32) {
        let request = self.read_request(len);
        self.exchange(&request, len);
    }

    /// Writes `len` bytes to the beginning of the file.
    pub fn write(&mut self, len: u32) {
        let request = self.write_request(len);
        self.exchange(&request, 0);
    }

    /// Encodes a read request.
    pub fn read_request(&mut self, len: u32) -> Vec<u8> {
        match self.protocol {
            Protocol::P9 | Protocol::P9Unix => self.p9_read(len),
            Protocol::Nbd => self.nbd(nbd::READ, len, &[]),
            _ => self.nfs_read(len),
        }
    }

    /// Encodes a write request.
    pub fn write_request(&mut self, len: u32) -> Vec<u8> {
        let data = vec![7; len as usize];
        match self.protocol {
            Protocol::P9 | Protocol::P9Unix => self.p9_write(&data),
            Protocol::Nbd => self.nbd(nbd::WRITE, len, &data),
            _ => self.nfs_write(&data),
        }
    }

    /// Sends as much of `bytes` as the socket's buffer takes.
    pub fn fill_socket(&mut self, mut bytes: &[u8]) {
        self.stream.nonblocking(true).expect("a socket");
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The server may have closed the connection.
                Err(_) => break,
            }
        }
        self.stream.nonblocking(false).expect("a socket");
    }

    /// Sends requests without waiting for replies.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    /// Sends a request, and asserts that its reply is a success of at least `len` bytes.
    fn exchange(&mut self, request: &[u8], len: u32) {
        self.send(request);
        let reply = self.reply();
        match self.protocol {
            Protocol::P9 | Protocol::P9Unix => p9::check(&reply, len),
            Protocol::Nbd => self.check_nbd(&reply, len),
            _ => nfs::check(&reply, len),
        }
    }

    /// Receives a reply; over NBD, without its data.
    fn reply(&mut self) -> Vec<u8> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head).expect("a reply");
        let (len, mut reply) = match self.protocol {
            Protocol::P9 | Protocol::P9Unix => (u32::from_le_bytes(head) - 4, head.to_vec()),
            Protocol::Nbd => (12, head.to_vec()),
            _ => (u32::from_be_bytes(head) & !(1 << 31), Vec::new()),
        };
        let had = reply.len();
        reply.resize(had + len as usize, 0);
        self.stream.read_exact(&mut reply[had..]).expect("a reply");
        reply
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.stream.shut_down(Shutdown::Both);
    }
}
