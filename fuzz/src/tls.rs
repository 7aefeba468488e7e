//! A TLS link with a peer that sends any bytes, or whose records are changed on the way.
//!
//! A script is a byte for the side that is tested and its peer, followed by the peer's bytes, or by
//! steps, each with a byte for its kind. The link below and the peer run on the script's thread,
//! when the tested side sends or receives: where it would wait in vain, it sees the end of the
//! stream, so no input waits for a time limit. Each record that passes takes a byte of the script
//! for the change to it, in both directions.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustix::event::{EventfdFlags, eventfd};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use tls::{Acceptor, ClientAuth, Connector, TlsFiles, TlsLink};
use transports::{Interest, Link, Origin, Ready};
use vfs_testkit::context::pattern;

/// Plays the script `data`: the tested side receives a prefix of the data that its peer sent, and
/// the peer a prefix of that of the tested side; all of it if no record was changed. Without a peer
/// that has the keys there is no handshake.
pub fn script(data: &[u8]) {
    let mut script = Script {
        bytes: data.to_vec(),
        next: 0,
    };
    let start = script.next().unwrap_or(0);
    let side = if start & 1 == 0 {
        Side::Server
    } else {
        Side::Client
    };
    let peer = match start & 6 {
        0 => None,
        _ => Some(side.peer(start & 8 != 0)),
    };
    let has_peer = peer.is_some();
    let relay = Arc::new(Mutex::new(Relay::new(script, peer, start & 16 != 0)));
    let link = side.link(InMemory(relay.clone()));
    let secured = link.start_tls();
    relay.lock().handshake = false;
    if !has_peer {
        assert!(secured.is_err(), "a handshake without keys");
    }
    let mut test = Test {
        link,
        relay,
        received: 0,
        sent: 0,
    };
    if secured.is_ok() {
        test.play();
    }
    test.relay.lock().ended = true;
    // The rest arrives before the end.
    while test.receive(1 << 16, true) {}
    test.check_unchanged();
    test.link.hang_up();
}

/// The ALPN name of the protocol inside.
const PROTOCOL: &[u8] = b"fuzz";

/// The data that the peer sends, from its beginning.
static FROM_PEER: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(1 << 20, 1));

/// The data that the tested side sends, from its beginning.
static FROM_TESTED: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(1 << 20, 2));

/// The tested side.
#[derive(Clone, Copy)]
enum Side {
    Server,
    Client,
}

impl Side {
    fn link(self, link: InMemory) -> TlsLink {
        match self {
            Side::Server => TlsLink::server(link, KEYS.acceptor.clone()),
            Side::Client => TlsLink::client(link, KEYS.connector.clone()),
        }
    }

    /// Returns a peer of this side; `known` is whether a client has a certificate.
    fn peer(self, known: bool) -> Connection {
        let mut peer = match self {
            Side::Server => {
                let config = if known { &KEYS.known } else { &KEYS.unknown };
                let name = ServerName::try_from("localhost").expect("a name");
                let peer = ClientConnection::new(config.clone(), name);
                Connection::Client(peer.expect("a client"))
            }
            Side::Client => {
                let peer = ServerConnection::new(KEYS.server.clone());
                Connection::Server(peer.expect("a server"))
            }
        };
        peer.set_buffer_limit(None);
        peer
    }
}

/// The keys and trust anchors of both sides and their peers.
struct Keys {
    acceptor: Arc<Acceptor>,
    connector: Arc<Connector>,
    server: Arc<ServerConfig>,
    known: Arc<ClientConfig>,
    unknown: Arc<ClientConfig>,
}

static KEYS: LazyLock<Keys> = LazyLock::new(Keys::generate);

impl Keys {
    fn generate() -> Keys {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("a file");
            Some(path)
        };
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = params.self_signed(&key).expect("a certificate");
        let issuer = Issuer::new(params, key);
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        let name = |name: &str| name.try_into().expect("a name");
        params.subject_alt_names = vec![
            SanType::DnsName(name("localhost")),
            SanType::Rfc822Name(name("fuzz@example.org")),
            SanType::URI(name("spiffe://example.org/fuzz")),
        ];
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &issuer).expect("a certificate");
        let files = TlsFiles {
            cert: write("cert.pem", cert.pem()),
            key: write("key.pem", key.serialize_pem()),
            ca: write("ca.pem", authority.pem()),
        };
        let acceptor = Acceptor::open(
            files.clone(),
            Box::new(|path| std::fs::read(path)),
            ClientAuth::Optional,
            PROTOCOL,
        );
        let connector = Connector::open(&files, "localhost", PROTOCOL);
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).expect("an authority");
        let roots = Arc::new(roots);
        let provider = || Arc::new(rustls::crypto::ring::default_provider());
        let chain = || vec![cert.der().clone()];
        let key = || PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let client = || {
            ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&TLS13])
                .expect("TLS 1.3")
                .with_root_certificates(roots.clone())
        };
        let mut known = client()
            .with_client_auth_cert(chain(), key())
            .expect("a certificate");
        known.alpn_protocols = vec![PROTOCOL.to_vec()];
        let mut unknown = client().with_no_client_auth();
        unknown.alpn_protocols = vec![PROTOCOL.to_vec()];
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
        let clients = clients.allow_unauthenticated().build().expect("a verifier");
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_client_cert_verifier(clients)
            .with_single_cert(chain(), key())
            .expect("a certificate");
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        Keys {
            acceptor: Arc::new(acceptor.expect("valid files")),
            connector: Arc::new(connector.expect("valid files")),
            server: Arc::new(server),
            known: Arc::new(known),
            unknown: Arc::new(unknown),
        }
    }
}

/// The bytes of a script.
struct Script {
    bytes: Vec<u8>,
    next: usize,
}

impl Script {
    /// Takes the next byte; `None` at the end.
    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.next).copied();
        self.next += usize::from(byte.is_some());
        byte
    }

    /// Takes a number of two bytes.
    fn number(&mut self) -> usize {
        let [low, high] = [self.next(), self.next()].map(|byte| byte.unwrap_or(0));
        u16::from_le_bytes([low, high]).into()
    }

    /// Takes some bytes.
    fn take(&mut self, len: usize) -> Vec<u8> {
        (0..len).map_while(|_| self.next()).collect()
    }
}

/// The connection between the tested side and its peer.
struct Relay {
    script: Script,
    /// `None` if the script has the bytes of the peer.
    peer: Option<Connection>,
    /// The number of bytes that the peer sent, and that it received.
    peer_sent: usize,
    peer_received: usize,
    /// The number of times that the peer has made new keys.
    refreshes: u8,
    /// The end of the data that the tested side has tried to send.
    offered: usize,
    to_tested: Direction,
    to_peer: Direction,
    /// Whether the peer has refused a record, or sent its end of the stream.
    closed: bool,
    /// Whether the tested side is in its handshake.
    handshake: bool,
    /// Whether the stream ends after the bytes that are on the way.
    ended: bool,
    /// Whether the script has ended the stream.
    cut: bool,
}

/// The records on the way to a side.
#[derive(Default)]
struct Direction {
    /// The bytes of an incomplete record.
    incomplete: Vec<u8>,
    /// A record that follows the next one.
    held: Vec<u8>,
    /// A record that passed before.
    earlier: Vec<u8>,
    arrived: Vec<u8>,
    /// Whether the bytes that arrived differ from those that were sent.
    changed: bool,
}

impl Direction {
    /// Takes bytes on their way, and changes each whole record as the script says.
    fn pass(&mut self, bytes: &[u8], script: &mut Script) {
        self.incomplete.extend_from_slice(bytes);
        while let Some(len) = record_len(&self.incomplete) {
            let rest = self.incomplete.split_off(len);
            let record = std::mem::replace(&mut self.incomplete, rest);
            self.change(record, script);
        }
    }

    fn change(&mut self, mut record: Vec<u8>, script: &mut Script) {
        let copy = record.clone();
        let mut after = std::mem::take(&mut self.held);
        let change = script.next().unwrap_or(u8::MAX);
        self.changed |= change <= 11;
        match change {
            0..=3 => {
                let at = script.number() % record.len();
                record[at] ^= script.next().unwrap_or(0) | 1;
            }
            4 => record.truncate(script.number() % record.len()),
            5 => record.clear(),
            6 => after.extend_from_slice(&record),
            7 => self.held = std::mem::take(&mut record),
            8 => after.extend_from_slice(&self.earlier),
            9 => {
                let len = usize::from(script.next().unwrap_or(0));
                after.extend(script.take(len));
            }
            // Two records with the parts of one.
            10 => {
                let parts = record.split_off(5);
                let (one, other) = parts.split_at(script.number() % (parts.len() + 1));
                record = [wrap(copy[0], one), wrap(copy[0], other)].concat();
            }
            // A record of the length that the script says.
            11 => {
                let len = script.number() as u16;
                record[3..5].copy_from_slice(&len.to_be_bytes());
            }
            _ => {}
        }
        self.earlier = copy;
        self.arrived.append(&mut record);
        self.arrived.append(&mut after);
    }
}

/// Returns the length of the record at the beginning of `bytes`, if it is whole.
fn record_len(bytes: &[u8]) -> Option<usize> {
    let len = u16::from_be_bytes(*bytes.get(3..)?.first_chunk()?);
    Some(5 + usize::from(len)).filter(|len| *len <= bytes.len())
}

/// Returns a record of TLS.
fn wrap(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let [high, low] = (bytes.len() as u16).to_be_bytes();
    [&[kind, 3, 3, high, low], bytes].concat()
}

impl Relay {
    /// Creates a connection. Without a peer, the script has the peer's bytes, in records if
    /// `framed`.
    fn new(mut script: Script, peer: Option<Connection>, framed: bool) -> Relay {
        let mut to_tested = Direction::default();
        if peer.is_none() {
            while let Some(kind) = script.next() {
                let len = usize::from(script.next().unwrap_or(0));
                let bytes = script.take(len);
                to_tested.arrived.extend(match framed {
                    true => wrap(kind, &bytes),
                    false => bytes,
                });
            }
        }
        Relay {
            script,
            peer,
            peer_sent: 0,
            peer_received: 0,
            refreshes: 0,
            offered: 0,
            to_tested,
            to_peer: Direction::default(),
            closed: false,
            handshake: true,
            ended: false,
            cut: false,
        }
    }

    /// Runs the peer until it has nothing to do.
    fn run_peer(&mut self) {
        let Some(peer) = &mut self.peer else {
            return;
        };
        loop {
            let arrived = std::mem::take(&mut self.to_peer.arrived);
            let mut rest = &arrived[..];
            while !rest.is_empty() && !self.closed {
                // It takes none after the end of the stream.
                let took = peer.read_tls(&mut rest).unwrap_or(0);
                self.closed = took == 0 || peer.process_new_packets().is_err();
                let mut data = Vec::new();
                let _ = peer.reader().read_to_end(&mut data);
                let end = self.peer_received + data.len();
                assert!(end <= self.offered, "the peer has data that was not sent");
                assert!(data == FROM_TESTED[self.peer_received..end], "changed data");
                self.peer_received = end;
            }
            let mut records = Vec::new();
            while peer.wants_write() {
                peer.write_tls(&mut records).expect("memory");
            }
            if records.is_empty() {
                return;
            }
            self.to_tested.pass(&records, &mut self.script);
        }
    }

    /// Makes the peer do something.
    fn act(&mut self, step: u8) {
        // It may still be in its handshake.
        self.run_peer();
        let Some(peer) = &mut self.peer else {
            return;
        };
        match step {
            0..=3 => {
                let len = self.script.number().min(FROM_PEER.len() - self.peer_sent);
                let data = &FROM_PEER[self.peer_sent..][..len];
                // Data after its end of the stream is lost.
                if !self.closed && peer.writer().write_all(data).is_ok() {
                    self.peer_sent += len;
                }
            }
            // The other side accepts some of them only.
            4 if self.refreshes < 16 => {
                self.refreshes += 1;
                let _ = peer.refresh_traffic_keys();
            }
            4 => {}
            _ => {
                peer.send_close_notify();
                self.closed = true;
            }
        }
    }
}

/// The tested side's end of a connection.
struct InMemory(Arc<Mutex<Relay>>);

impl Link for InMemory {
    fn recv(&self, buf: &mut [u8], _wait: bool) -> io::Result<usize> {
        let mut relay = self.0.lock();
        relay.run_peer();
        let relay = &mut *relay;
        let mut len = relay.to_tested.arrived.len().min(buf.len());
        if len == 0 {
            return match relay.handshake || relay.ended || relay.closed {
                true => Ok(0),
                false => Err(ErrorKind::WouldBlock.into()),
            };
        }
        match relay.script.next().unwrap_or(u8::MAX) {
            0..=15 => return Err(ErrorKind::WouldBlock.into()),
            short @ 16..=63 => len = len.min(usize::from(short) - 15),
            _ => {}
        }
        buf[..len].copy_from_slice(&relay.to_tested.arrived[..len]);
        relay.to_tested.arrived.drain(..len);
        Ok(len)
    }

    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        let mut relay = self.0.lock();
        let relay = &mut *relay;
        let mut len = bytes.len();
        if !wait {
            match relay.script.next().unwrap_or(u8::MAX) {
                0..=15 => return Err(ErrorKind::WouldBlock.into()),
                short @ 16..=63 => len = len.min(usize::from(short) - 15),
                _ => {}
            }
        }
        relay.to_peer.pass(&bytes[..len], &mut relay.script);
        Ok(len)
    }

    fn wait(
        &self,
        interest: Interest,
        _wake: BorrowedFd<'_>,
        _time: Option<Duration>,
    ) -> io::Result<Ready> {
        Ok(Ready {
            read: interest.read,
            write: interest.write,
            ..Ready::default()
        })
    }

    fn end_input(&self) {
        self.0.lock().ended = true;
    }

    fn hang_up(&self) {
        self.0.lock().ended = true;
    }

    fn peer(&self) -> &str {
        "fuzz"
    }

    fn origin(&self) -> Origin {
        Origin::Unidentified { addr: None }
    }
}

/// The tested side, and the data that it has exchanged.
struct Test {
    link: TlsLink,
    relay: Arc<Mutex<Relay>>,
    received: usize,
    sent: usize,
}

impl Test {
    fn play(&mut self) {
        loop {
            let mut relay = self.relay.lock();
            let Some(step) = relay.script.next() else {
                return;
            };
            match step % 16 {
                act @ 0..=4 => relay.act(act),
                5 if step >= 128 => relay.act(5),
                6 if step >= 128 => (relay.ended, relay.cut) = (true, true),
                5..=7 => {
                    drop(relay);
                    let never = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
                    let interest = Interest {
                        read: true,
                        write: step >= 64,
                    };
                    let ready = self.link.wait(interest, never.as_fd(), None);
                    ready.expect("ready");
                }
                8..=12 => {
                    let len = relay.script.number();
                    drop(relay);
                    if !self.receive(len, false) {
                        return;
                    }
                }
                _ => {
                    let len = relay.script.number().min(FROM_TESTED.len() - self.sent);
                    relay.offered = relay.offered.max(self.sent + len);
                    drop(relay);
                    self.send(len, step >= 128);
                }
            }
        }
    }

    /// Checks that all data has arrived, unless the script has changed or cut a stream.
    fn check_unchanged(&self) {
        let relay = self.relay.lock();
        if relay.peer.is_none() || relay.cut {
            return;
        }
        let changed = relay.to_tested.changed || relay.to_peer.changed;
        if !changed {
            assert_eq!(self.received, relay.peer_sent, "lost data");
            assert!(
                relay.closed || relay.peer_received >= self.sent,
                "lost data"
            );
        }
    }

    fn send(&mut self, len: usize, wait: bool) {
        match self.link.send(&FROM_TESTED[self.sent..][..len], wait) {
            Ok(sent) => {
                assert!(sent <= len && (sent == len || !wait));
                self.sent += sent;
            }
            Err(error) => assert!(!wait || error.kind() != ErrorKind::WouldBlock),
        }
    }

    /// Receives data; returns false at the end of the stream, and after an error.
    fn receive(&mut self, len: usize, wait: bool) -> bool {
        let mut buf = vec![0; len];
        match self.link.recv(&mut buf, wait) {
            Ok(got) => {
                let end = self.received + got;
                let sent = self.relay.lock().peer_sent;
                assert!(end <= sent, "data that the peer did not send");
                assert!(buf[..got] == FROM_PEER[self.received..end], "changed data");
                self.received = end;
                got > 0 || len == 0
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}
