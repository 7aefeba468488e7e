//! Hostile connections that exhaust a server's resources, over TCP and as another user of this host
//! than the bystander's.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{park, sleep};
use std::time::{Duration, Instant};

use p9::{Dialect, Fid, Names, Tag, Tmessage, Uid};
use rustix::net::sockopt;
use rustix::process::Uid as UserId;
use wire::Xdr;

use crate::workspace::DATA_FILE;

/// The behaviour of a hostile connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    Idle,
    Unfinished,
    Unread,
    Reopening,
}

impl Behaviour {
    pub(super) const ALL: [Behaviour; 4] = [
        Behaviour::Idle,
        Behaviour::Unfinished,
        Behaviour::Unread,
        Behaviour::Reopening,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Behaviour::Idle => "idle",
            Behaviour::Unfinished => "unfinished messages",
            Behaviour::Unread => "replies not read",
            Behaviour::Reopening => "opening and reopening",
        }
    }
}

/// The protocol of the crowd and of the bystander.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    P9,
    Nfs3,
}

/// Open connections, each after its first exchange.
pub(super) struct Crowd(Vec<TcpStream>);

/// The largest messages that hostile connections begin or request, in bytes.
const MESSAGE_SIZE: u32 = 1 << 20;

/// The bytes sent of a large message: more would use gigabytes of socket buffers in the kernel.
const PARTIAL_SIZE: usize = 64 << 10;

/// The connections that a reopening crowd closes and opens in a second.
pub(super) const REOPEN_RATE: u32 = 1000;

/// The id of a user that is neither root nor the bench's own.
const OTHER_UID: u32 = 65534;

/// Changes the user of the calling thread, and so of its sockets. Returns an error without
/// privileges.
pub(crate) fn switch_user() -> io::Result<()> {
    let other = UserId::from_raw(OTHER_UID);
    Ok(rustix::thread::set_thread_res_uid(other, other, other)?)
}

impl Crowd {
    /// Opens `count` connections to `port` of this host.
    pub(super) fn open(
        protocol: Protocol,
        kind: Behaviour,
        port: u16,
        count: u16,
    ) -> io::Result<Crowd> {
        let open = |_| protocol.open(kind, port);
        let mut all: Vec<_> = (0..count).map(open).collect::<io::Result<_>>()?;
        // After all are open: resources that some use delay others of the same client.
        for (stream, burden) in &mut all {
            fill_socket(stream, burden)?;
        }
        Ok(Crowd(all.into_iter().map(|(stream, _)| stream).collect()))
    }

    /// Replaces connections, the oldest first, until `stop` is set.
    pub(super) fn reopen(
        &mut self,
        protocol: Protocol,
        port: u16,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let (began, mut done) = (Instant::now(), 0);
        let count = self.0.len();
        while !stop.load(Ordering::Relaxed) && count > 0 {
            self.0[done as usize % count] = protocol.open(Behaviour::Idle, port)?.0;
            done += 1;
            let next = began + Duration::from_secs(1) * done / REOPEN_RATE;
            sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Waits until `stop` is set and the thread is unparked.
    pub(super) fn hold(&self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            park();
        }
        Ok(())
    }
}

impl Protocol {
    /// Connects and makes the first exchanges. Also returns the messages that burden the server.
    fn open(self, kind: Behaviour, port: u16) -> io::Result<(TcpStream, Vec<u8>)> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        if kind == Behaviour::Unread {
            sockopt::set_socket_recv_buffer_size(&stream, 4096)?;
        }
        let burden = match self {
            Protocol::P9 => self.start_p9(&mut stream, kind)?,
            Protocol::Nfs3 => self.start_nfs(&mut stream, kind)?,
        };
        Ok((stream, burden))
    }

    fn start_p9(self, stream: &mut TcpStream, kind: Behaviour) -> io::Result<Vec<u8>> {
        let version = Dialect::Linux.version().as_bytes();
        let msize = MESSAGE_SIZE + 24;
        p9_call(stream, Tag::NONE, &Tmessage::Version { msize, version })?;
        if matches!(kind, Behaviour::Idle | Behaviour::Reopening) {
            return Ok(Vec::new());
        }
        let (root, data, afid) = (Fid(0), Fid(1), Fid::NONE);
        p9_call(
            stream,
            Tag(1),
            &Tmessage::Attach {
                fid: root,
                afid,
                uname: b"",
                aname: b"",
                n_uname: Uid(OTHER_UID),
            },
        )?;
        let names = [DATA_FILE.0.as_bytes()];
        let names = Names::new(&names);
        p9_call(
            stream,
            Tag(1),
            &Tmessage::Walk {
                fid: root,
                newfid: data,
                names,
            },
        )?;
        let open = Tmessage::Lopen {
            fid: data,
            flags: 0,
        };
        p9_call(stream, Tag(1), &open)?;
        if kind == Behaviour::Unfinished {
            let head = p9::message::write_head(Tag(1), data, 0, MESSAGE_SIZE);
            return Ok([&head[..], &[7; PARTIAL_SIZE]].concat());
        }
        let mut reads = Vec::new();
        for tag in 0..4 {
            let read = Tmessage::Read {
                fid: data,
                offset: 0,
                count: MESSAGE_SIZE,
            };
            read.encode(Dialect::Linux, Tag(tag), &mut reads);
        }
        Ok(reads)
    }

    fn start_nfs(self, stream: &mut TcpStream, kind: Behaviour) -> io::Result<Vec<u8>> {
        const NFS: u32 = 100_003;
        const MOUNT: u32 = 100_005;
        if matches!(kind, Behaviour::Idle | Behaviour::Reopening) {
            return nfs_call(stream, NFS, 0, &[]).map(|_| Vec::new());
        }
        let root = nfs_call(stream, MOUNT, 1, &opaque(b"/"))?;
        let look_up = [opaque(&handle(&root)?), opaque(DATA_FILE.0.as_bytes())].concat();
        let file = opaque(&handle(&nfs_call(stream, NFS, 3, &look_up)?)?);
        if kind == Behaviour::Unfinished {
            let body = [
                file,
                encode_words(&[0, 0, MESSAGE_SIZE, 0, MESSAGE_SIZE]),
                vec![7; PARTIAL_SIZE],
            ]
            .concat();
            let mut call = rpc(NFS, 7, &body);
            let mark = (call.len() - 4 + MESSAGE_SIZE as usize - PARTIAL_SIZE) as u32 | 1 << 31;
            call[..4].copy_from_slice(&mark.to_be_bytes());
            return Ok(call);
        }
        let read = rpc(
            NFS,
            6,
            &[file, encode_words(&[0, 0, MESSAGE_SIZE])].concat(),
        );
        Ok(read.repeat(4))
    }
}

/// Sends as much as fits without blocking.
fn fill_socket(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    match stream.write(bytes) {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

fn p9_call(stream: &mut TcpStream, tag: Tag, request: &Tmessage<'_>) -> io::Result<()> {
    let mut message = Vec::new();
    request.encode(Dialect::Linux, tag, &mut message);
    stream.write_all(&message)?;
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let size = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let mut rest = vec![0; size.saturating_sub(head.len())];
    stream.read_exact(&mut rest)?;
    /// The message type of Rlerror.
    const LERROR: u8 = 7;
    match head[4] {
        LERROR => Err(io::Error::other(format!("refused: {request:?}"))),
        _ => Ok(()),
    }
}

/// Encodes a version 3 call with its record mark, as the user [`OTHER_UID`] (AUTH_SYS).
fn rpc(program: u32, procedure: u32, body: &[u8]) -> Vec<u8> {
    let credential = [1, 20, 0, 0, OTHER_UID, OTHER_UID, 0];
    let head = [&[1, 0, 2, program, 3, procedure][..], &credential, &[0, 0]].concat();
    let head = encode_words(&head);
    let mark = (head.len() + body.len()) as u32 | 1 << 31;
    [&mark.to_be_bytes()[..], &head, body].concat()
}

/// Calls a procedure, and returns its results.
fn nfs_call(
    stream: &mut TcpStream,
    program: u32,
    procedure: u32,
    body: &[u8],
) -> io::Result<Vec<u8>> {
    stream.write_all(&rpc(program, procedure, body))?;
    let mut mark = [0; 4];
    stream.read_exact(&mut mark)?;
    let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    stream.read_exact(&mut reply)?;
    // After the transaction id and the message type, zeros: accepted, no verifier, success.
    match reply.split_at_checked(24) {
        Some((head, results)) if head[8..] == [0; 16] => Ok(results.to_vec()),
        _ => Err(io::Error::other("the call was not accepted")),
    }
}

/// Returns the file handle in the results of MNT or LOOKUP.
fn handle(results: &[u8]) -> io::Result<Vec<u8>> {
    let refused = || io::Error::other("no handle");
    let (status, rest) = results.split_first_chunk::<4>().ok_or_else(refused)?;
    let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(refused)?;
    let handle = rest.get(..u32::from_be_bytes(*len) as usize);
    match (status, handle) {
        ([0, 0, 0, 0], Some(handle)) => Ok(handle.to_vec()),
        _ => Err(refused()),
    }
}

fn encode_words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Encodes XDR opaque data of variable length.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut put = Vec::new();
    bytes.put(&mut put);
    put
}
