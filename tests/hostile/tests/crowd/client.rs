//! Clients of every protocol over sockets: the few operations that the matrix needs, by bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hostile::peer::encoded;
use p9::{Data, Dialect, Fid, Names, Rmessage, Tag, Tmessage as T, Uid};
use transports::Addr;

/// A protocol and, for NFS, its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    P9,
    P9Unix,
    Nfs3,
    Nfs40,
    Nfs41,
    Nbd,
}

impl Protocol {
    pub(crate) const ALL: [Protocol; 6] = [
        Protocol::P9,
        Protocol::P9Unix,
        Protocol::Nfs3,
        Protocol::Nfs40,
        Protocol::Nfs41,
        Protocol::Nbd,
    ];
}

/// The file that every client reads and writes, and its size.
pub(crate) const FILE: &str = "file";
pub(crate) const SIZE: u32 = 1 << 20;

/// The largest 9P message.
pub(crate) const MSIZE: u32 = SIZE + 24;

/// How long a reply may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const NLM: u32 = 100_021;

/// Slots of a session.
const SLOTS: usize = 16;

/// What Unix and TCP sockets have in common.
pub(crate) trait Stream: Read + Write + Send {
    fn set_blocking(&self, on: bool);
    fn end(&self);
}

impl Stream for TcpStream {
    fn set_blocking(&self, on: bool) {
        self.set_nonblocking(!on).expect("a socket");
    }

    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Stream for UnixStream {
    fn set_blocking(&self, on: bool) {
        self.set_nonblocking(!on).expect("a socket");
    }

    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// A connection to `addr`.
pub(crate) fn connect(addr: &Addr) -> Box<dyn Stream> {
    match addr {
        Addr::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).expect("connected");
            stream.set_nodelay(true).expect("a TCP socket");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
            Box::new(stream)
        }
        Addr::Unix(path) => {
            let stream = UnixStream::connect(path).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
            Box::new(stream)
        }
        other => panic!("{other} is nothing to connect to"),
    }
}

/// A client that has attached, mounted or begun a session, and has [`FILE`].
pub(crate) struct Client {
    protocol: Protocol,
    stream: Box<dyn Stream>,
    /// The next tag, transaction id or cookie.
    next: u32,
    /// v3: the handles of the root and of [`FILE`].
    pub(crate) root: Vec<u8>,
    pub(crate) file: Vec<u8>,
    /// v4: the client's id, and the sequence number of its next CREATE_SESSION.
    pub(crate) id: Vec<u8>,
    pub(crate) sequence: u32,
    session: Vec<u8>,
    slots: [u32; SLOTS],
    /// The slot that was used last.
    slot: usize,
}

impl Client {
    /// Connects, and does what comes before the first operation; `name` is unique among clients.
    pub(crate) fn new(protocol: Protocol, addr: &Addr, name: &str) -> Client {
        let mut client = Client {
            protocol,
            stream: connect(addr),
            next: 1,
            root: Vec::new(),
            file: Vec::new(),
            id: Vec::new(),
            sequence: 0,
            session: Vec::new(),
            slots: [0; SLOTS],
            slot: 0,
        };
        match protocol {
            Protocol::P9 | Protocol::P9Unix => client.attach(),
            Protocol::Nfs3 => {
                let root = client.rpc((MOUNT, 3, 1), &opaque(b"/"));
                assert_eq!(word(&root), 0, "MNT");
                client.root = unwrap(&root[4..]);
                let name = [opaque(&client.root), opaque(FILE.as_bytes())].concat();
                let found = client.rpc((NFS, 3, 3), &name);
                assert_eq!(word(&found), 0, "LOOKUP");
                client.file = unwrap(&found[4..]);
            }
            Protocol::Nfs40 => {
                client.id = client.set_client_id(name.as_bytes()).expect("a client");
            }
            Protocol::Nfs41 => {
                let (id, sequence) = client.exchange_id(name.as_bytes()).expect("a client");
                (client.id, client.sequence) = (id, sequence);
                client.session = client.create_session().expect("a session");
                // RECLAIM_COMPLETE of all: without it OPEN is answered GRACE.
                let nothing_to_reclaim = client.begin().op(58, &[0]);
                assert_eq!(client.compound(&nothing_to_reclaim).0, 0);
            }
            Protocol::Nbd => client.negotiate(),
        }
        client
    }

    /// The attributes of the file; with NBD, which has none, a flush.
    pub(crate) fn attributes(&mut self) {
        let request = match self.protocol {
            Protocol::P9 | Protocol::P9Unix => self.p9(&T::Getattr {
                fid: Fid(1),
                mask: 0x7ff,
            }),
            Protocol::Nfs3 => self.call((NFS, 3, 1), &opaque(&self.file.clone())),
            Protocol::Nfs40 | Protocol::Nfs41 => self.on_file(Ops::new().op(9, &[1, 1 << 1])),
            Protocol::Nbd => self.nbd(3, 0, &[]),
        };
        self.exchange(&request, 0);
    }

    /// Reads `len` bytes from the beginning of the file.
    pub(crate) fn read(&mut self, len: u32) {
        let request = self.read_request(len);
        self.exchange(&request, len);
    }

    /// Writes `len` bytes to the beginning of the file.
    pub(crate) fn write(&mut self, len: u32) {
        let request = self.write_request(len);
        self.exchange(&request, 0);
    }

    /// A request that reads.
    pub(crate) fn read_request(&mut self, len: u32) -> Vec<u8> {
        match self.protocol {
            Protocol::P9 | Protocol::P9Unix => self.p9(&T::Read {
                fid: Fid(1),
                offset: 0,
                count: len - 24,
            }),
            Protocol::Nfs3 => {
                let body = [opaque(&self.file), words(&[0, 0, len])].concat();
                self.call((NFS, 3, 6), &body)
            }
            Protocol::Nfs40 | Protocol::Nfs41 => {
                self.on_file(Ops::new().op(25, &[0, 0, 0, 0, 0, 0, len]))
            }
            Protocol::Nbd => self.nbd(0, len, &[]),
        }
    }

    /// A request that writes.
    pub(crate) fn write_request(&mut self, len: u32) -> Vec<u8> {
        let data = vec![7; len as usize];
        match self.protocol {
            Protocol::P9 | Protocol::P9Unix => self.p9(&T::Write {
                fid: Fid(1),
                offset: 0,
                data: Data(&data[24..]),
            }),
            Protocol::Nfs3 => {
                let handle = opaque(&self.file);
                let body = [handle, words(&[0, 0, len, 0]), opaque(&data)].concat();
                self.call((NFS, 3, 7), &body)
            }
            Protocol::Nfs40 | Protocol::Nfs41 => {
                let write = Ops::new().op(38, &[0, 0, 0, 0, 0, 0, 0]);
                self.on_file(write.raw(&opaque(&data)))
            }
            Protocol::Nbd => self.nbd(1, len, &data),
        }
    }

    /// Sends what goes at once of `bytes`, repeated `times` times.
    pub(crate) fn stuff(&mut self, bytes: &[u8], times: usize) {
        self.stream.set_blocking(false);
        'all: for _ in 0..times {
            let mut rest = bytes;
            while !rest.is_empty() {
                match self.stream.write(rest) {
                    Ok(sent) => rest = &rest[sent..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break 'all,
                    // The server may have had enough.
                    Err(_) => break 'all,
                }
            }
        }
        self.stream.set_blocking(true);
    }

    /// Sends requests without waiting for replies.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    /// Sends a request, whose reply must be a success of at least `len` bytes.
    fn exchange(&mut self, request: &[u8], len: u32) {
        self.send(request);
        let reply = self.reply();
        let protocol = self.protocol;
        match protocol {
            Protocol::P9 | Protocol::P9Unix => {
                let least = len.saturating_sub(24) as usize;
                assert!(reply.len() >= least, "{} bytes", reply.len());
                let (_, reply) = Rmessage::decode(Dialect::Linux, &reply).expect("a reply");
                assert!(!matches!(reply, Rmessage::Lerror { .. }), "{reply:?}");
            }
            Protocol::Nfs3 | Protocol::Nfs40 | Protocol::Nfs41 => {
                assert_eq!(word(results(&reply)), 0, "{protocol:?}");
                assert!(reply.len() >= len as usize, "{} bytes", reply.len());
            }
            Protocol::Nbd => {
                assert_eq!(word(&reply[4..]), 0, "an error");
                let mut data = vec![0; len as usize];
                self.stream.read_exact(&mut data).expect("data");
            }
        }
    }

    /// The next reply; of NBD without its data.
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

    /// A 9P message with a tag of its own.
    fn p9(&mut self, request: &T<'_>) -> Vec<u8> {
        let tag = Tag((self.number() & 0x7fff) as u16);
        encoded(tag, request)
    }

    /// A 9P request, whose reply is a success or the error's number.
    pub(crate) fn p9_rpc(&mut self, request: &T<'_>) -> Result<(), u32> {
        let request = self.p9(request);
        self.send(&request);
        let reply = self.reply();
        match Rmessage::decode(Dialect::Linux, &reply).expect("a reply").1 {
            Rmessage::Lerror { errno } => Err(errno),
            _ => Ok(()),
        }
    }

    fn attach(&mut self) {
        let version = T::Version {
            msize: MSIZE,
            version: Dialect::Linux.version().as_bytes(),
        };
        self.send(&encoded(Tag::NONE, &version));
        self.reply();
        let attach = T::Attach {
            fid: Fid(0),
            afid: Fid::NONE,
            uname: b"",
            aname: b"",
            n_uname: Uid(0),
        };
        self.p9_rpc(&attach).expect("attached");
        self.walk(Fid(1), &[FILE.as_bytes()]).expect("there");
        let flags = 2;
        self.p9_rpc(&T::Lopen { fid: Fid(1), flags })
            .expect("opened");
    }

    /// 9P: walks from the root.
    pub(crate) fn walk(&mut self, newfid: Fid, names: &[&[u8]]) -> Result<(), u32> {
        let names = Names::new(names);
        let fid = Fid(0);
        self.p9_rpc(&T::Walk { fid, newfid, names })
    }

    /// NFS: a call of the super-user as it travels.
    fn call(&mut self, (program, version, procedure): (u32, u32, u32), body: &[u8]) -> Vec<u8> {
        let xid = self.number();
        // AUTH_SYS of an unnamed machine, and no verifier.
        let head = [
            xid, 0, 2, program, version, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0,
        ];
        let head = words(&head);
        let mark = (head.len() + body.len()) as u32 | 1 << 31;
        [&mark.to_be_bytes()[..], &head, body].concat()
    }

    /// NFS: calls a procedure and returns its results.
    fn rpc(&mut self, what: (u32, u32, u32), body: &[u8]) -> Vec<u8> {
        let call = self.call(what, body);
        self.send(&call);
        results(&self.reply()).to_vec()
    }

    /// NLM's LOCK or UNLOCK of a byte for a client of this name: the status.
    pub(crate) fn nlm(&mut self, unlock: bool, caller: &[u8], offset: u64) -> u32 {
        let lock = [
            opaque(caller),
            opaque(&self.file),
            opaque(b"owner"),
            words(&[1]),
            offset.to_be_bytes().to_vec(),
            1u64.to_be_bytes().to_vec(),
        ]
        .concat();
        // Cookie; then of LOCK block, exclusive, the lock, reclaim and the state.
        let reply = match unlock {
            true => self.rpc((NLM, 4, 4), &[opaque(b""), lock].concat()),
            false => {
                let how = words(&[0, 1]);
                let body = [opaque(b""), how, lock, words(&[0, 1])].concat();
                self.rpc((NLM, 4, 2), &body)
            }
        };
        word(&reply[4 + unwrap(&reply).len().next_multiple_of(4)..])
    }

    /// v4: a compound; its status and results.
    pub(crate) fn compound(&mut self, ops: &Ops) -> (u32, Vec<u8>) {
        let minor = u32::from(self.protocol == Protocol::Nfs41);
        let reply = self.rpc((NFS, 4, 1), &ops.compound(minor));
        // Status, tag, count.
        let tag = unwrap(&reply[4..]).len().next_multiple_of(4);
        (word(&reply), reply[12 + tag..].to_vec())
    }

    /// v4: SEQUENCE on the next slot, where the version has that.
    pub(crate) fn begin(&mut self) -> Ops {
        match self.protocol {
            Protocol::Nfs41 => {
                self.slot = (self.slot + 1) % SLOTS;
                let slot = self.slot;
                self.slots[slot] += 1;
                let numbers = [self.slots[slot], slot as u32, SLOTS as u32 - 1, 0];
                Ops::new().op(53, &[]).raw(&self.session).words(&numbers)
            }
            _ => Ops::new(),
        }
    }

    /// v4: a call of a compound on the file.
    fn on_file(&mut self, ops: Ops) -> Vec<u8> {
        let minor = u32::from(self.protocol == Protocol::Nfs41);
        let all = self.begin().op(24, &[]).op(15, &[]);
        let all = all.raw(&opaque(FILE.as_bytes())).then(ops);
        self.call((NFS, 4, 1), &all.compound(minor))
    }

    /// v4.0: SETCLIENTID and SETCLIENTID_CONFIRM; the client's id, or the status.
    pub(crate) fn set_client_id(&mut self, name: &[u8]) -> Result<Vec<u8>, u32> {
        let ops = Ops::new().op(35, &[1, 1]).raw(&opaque(name)).words(&[0]);
        let ops = ops.raw(&opaque(b"tcp")).raw(&opaque(b"0.0.0.0.0.0"));
        let (status, results) = self.compound(&ops.words(&[0]));
        if status != 0 {
            return Err(status);
        }
        let confirm = Ops::new().op(36, &[]).raw(&results[8..24]);
        match self.compound(&confirm).0 {
            0 => Ok(results[8..16].to_vec()),
            status => Err(status),
        }
    }

    /// v4.1: EXCHANGE_ID; the client's id and its next number, or the status.
    pub(crate) fn exchange_id(&mut self, owner: &[u8]) -> Result<(Vec<u8>, u32), u32> {
        let ops = Ops::new().op(42, &[1, 1]).raw(&opaque(owner));
        let (status, results) = self.compound(&ops.words(&[0, 0, 0]));
        match status {
            0 => Ok((results[8..16].to_vec(), word(&results[16..]))),
            status => Err(status),
        }
    }

    /// v4.1: CREATE_SESSION of the client; the session's id, or the status.
    pub(crate) fn create_session(&mut self) -> Result<Vec<u8>, u32> {
        let channel = [0, MSIZE + 1000, MSIZE + 1000, 4096, 250, SLOTS as u32, 0];
        let ops = Ops::new().op(43, &[]).raw(&self.id);
        let ops = ops.words(&[self.sequence, 0]).words(&channel);
        let (status, results) = self.compound(&ops.words(&channel).words(&[0x4000_0000, 0]));
        if status != 0 {
            return Err(status);
        }
        self.sequence += 1;
        Ok(results[8..24].to_vec())
    }

    /// v4: an OPEN of a file for reading by an owner of its own, for a compound whose current
    /// file handle is the root.
    pub(crate) fn open(&self, owner: &str, file: &str) -> Ops {
        let ops = Ops::new().op(18, &[1, 1, 0]).raw(&self.id);
        let ops = ops.raw(&opaque(owner.as_bytes())).words(&[0, 0]);
        ops.raw(&opaque(file.as_bytes()))
    }

    /// NBD: the handshake, for the file.
    fn negotiate(&mut self) {
        let mut greeting = [0; 18];
        self.stream.read_exact(&mut greeting).expect("a greeting");
        let flags = 1u32.to_be_bytes();
        let name = FILE.as_bytes();
        let body = [&(name.len() as u32).to_be_bytes()[..], name, &[0, 0]].concat();
        let head = [7u32.to_be_bytes(), (body.len() as u32).to_be_bytes()].concat();
        self.send(&[&flags[..], b"IHAVEOPT", &head, &body].concat());
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head).expect("a reply");
            let mut body = vec![0; word(&head[16..]) as usize];
            self.stream.read_exact(&mut body).expect("a reply");
            match word(&head[12..]) {
                // Acknowledged.
                1 => return,
                // Information.
                3 => {}
                other => panic!("reply {other:x}"),
            }
        }
    }

    /// NBD: a request.
    fn nbd(&mut self, command: u16, len: u32, data: &[u8]) -> Vec<u8> {
        let cookie = u64::from(self.number());
        [
            &0x2560_9513_u32.to_be_bytes()[..],
            &[0, 0],
            &command.to_be_bytes(),
            &cookie.to_be_bytes(),
            &[0; 8],
            &len.to_be_bytes(),
            data,
        ]
        .concat()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stream.end();
    }
}

/// Operations of a compound.
pub(crate) struct Ops {
    count: u32,
    bytes: Vec<u8>,
}

impl Ops {
    pub(crate) fn new() -> Ops {
        let (count, bytes) = (0, Vec::new());
        Ops { count, bytes }
    }

    pub(crate) fn op(mut self, number: u32, arguments: &[u32]) -> Ops {
        self.count += 1;
        self.words(&[number]).words(arguments)
    }

    pub(crate) fn words(self, numbers: &[u32]) -> Ops {
        self.raw(&words(numbers))
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Ops {
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn then(mut self, ops: Ops) -> Ops {
        self.count += ops.count;
        self.raw(&ops.bytes)
    }

    fn compound(&self, minor: u32) -> Vec<u8> {
        [words(&[0, minor, self.count]), self.bytes.clone()].concat()
    }
}

/// The results of an accepted call.
fn results(reply: &[u8]) -> &[u8] {
    assert_eq!(reply[4..24], words(&[1, 0, 0, 0, 0]), "not accepted");
    &reply[24..]
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Bytes of variable length, as XDR has them.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut put = (bytes.len() as u32).to_be_bytes().to_vec();
    put.extend(bytes);
    put.resize(put.len().next_multiple_of(4), 0);
    put
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().expect("a word"))
}

/// The bytes that [`opaque`] has wrapped.
fn unwrap(opaque: &[u8]) -> Vec<u8> {
    opaque[4..][..word(opaque) as usize].to_vec()
}
