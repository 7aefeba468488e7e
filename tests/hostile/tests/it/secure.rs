//! Misbehaving clients of NFS over TLS: before, during and after the handshake. Only their own
//! connections are closed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use hostile::server::{Server, Transport, tree, tuning};
use nfs::client::start_tls;
use nfs::server::{Options, Transports};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use remote::nfs::{Mount, establish_tls, mount};
use tempfile::TempDir;
use tls::{Acceptor, ClientAuth, Connector, TlsFiles, TlsLink};
use transports::{Addr, Link, StreamLink};
use vfs::{Call, Caller, Cx, Export, FileSystem};

struct Nfs(Arc<nfs::server::Server>, Arc<Acceptor>);

impl engine::Service for Nfs {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }

    fn link(&self, link: StreamLink) -> Box<dyn Link> {
        Box::new(TlsLink::server(link, self.1.clone()))
    }
}

/// An NFS server that requires TLS, and a well-behaved client.
struct TlsTest {
    server: Server,
    connector: Arc<Connector>,
    bystander: Arc<dyn FileSystem>,
    _files: TempDir,
}

impl TlsTest {
    fn new() -> TlsTest {
        TlsTest::with(tuning())
    }

    fn with(tuning: engine::Tuning) -> TlsTest {
        let dir = tempfile::tempdir().expect("a directory");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
        std::fs::write(&cert, made.cert.pem()).expect("written");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
        let files = |shown: bool| TlsFiles {
            cert: shown.then(|| cert.clone()),
            key: shown.then(|| key.clone()),
            ca: Some(cert.clone()),
        };
        let acceptor = Acceptor::open(
            files(true),
            Box::new(|path| std::fs::read(path)),
            ClientAuth::Optional,
            nfs::ALPN,
        );
        let connector = Connector::open(&files(false), "localhost", nfs::ALPN);
        let connector = Arc::new(connector.expect("good files"));
        let mut options = Options::new(7, Arc::new(|| Duration::from_secs(1)));
        options.transports = Transports {
            none: false,
            tls: true,
            mtls: true,
        };
        let nfs = nfs::server::Server::new(Arc::new(Export::new("", tree())), options);
        let service = Nfs(nfs, acceptor.expect("good files").into());
        let server = Server::with_service(Transport::Tcp, tuning, Arc::new(service));
        let (addr, asks) = (server.addr.clone(), connector.clone());
        let (bystander, _) = mount(&Mount {
            dial: Arc::new(move |_| establish_tls(transports::dial(&addr)?, &asks, 4)),
            path: "",
            require_full_path: true,
            options: remote::nfs::Options::default(),
        })
        .expect("mounted");
        TlsTest {
            server,
            connector,
            bystander,
            _files: dir,
        }
    }

    fn assert_bystander_unaffected(&self) {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let root = self.bystander.root(&cx).expect("a root");
        root.attr(&cx, vfs::AttrMask::STAT).expect("attributes");
    }

    fn connect(&self) -> TcpStream {
        let Addr::Tcp { host, port } = &self.server.addr else {
            panic!("{}", self.server.addr);
        };
        let stream = TcpStream::connect((host.as_str(), *port)).expect("connected");
        // Far longer than any machine takes.
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a timeout");
        stream
    }

    /// Connects and sends STARTTLS, so that the server waits for a handshake.
    fn start_tls(&self) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&start_tls::request(1, 3)).expect("sent");
        let mut reply = [0; 36];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(start_tls::is_granted(1, &reply), Ok(true));
        stream
    }

    /// Connects and performs the TLS handshake; returns the connection and its socket.
    fn handshake(&self) -> (TlsLink, TcpStream) {
        let stream = self.start_tls();
        let socket = stream.try_clone().expect("another");
        let link = StreamLink::new(stream.into(), "server").expect("a link");
        let link = TlsLink::client(link, self.connector.clone());
        link.start_tls().expect("secured");
        (link, socket)
    }
}

/// Sends `bytes`, and asserts that the server closes the connection, with or without an alert.
fn assert_closed_after(mut stream: TcpStream, bytes: &[u8]) {
    // The server may close it meanwhile.
    let _ = stream.write_all(bytes);
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[test]
fn garbage_in_place_of_a_handshake() {
    let rig = TlsTest::new();
    for bytes in [
        &[0x80, 0, 0, 40, 0, 0, 0, 1][..],
        b"GET / HTTP/1.1\r\n\r\n",
        // Larger than a record, and an unknown type.
        &[22, 3, 1, 0xff, 0xff, 1],
        &[99, 3, 3, 0, 1, 0],
        &start_tls::request(2, 3),
    ] {
        assert_closed_after(rig.start_tls(), bytes);
        rig.assert_bystander_unaffected();
    }
}

#[test]
fn half_a_handshake_and_gone() {
    let rig = TlsTest::new();
    for bytes in [&b""[..], &[22, 3, 1, 1, 0, 1, 0, 0, 0xfc]] {
        let mut stream = rig.start_tls();
        stream.write_all(bytes).expect("sent");
        drop(stream);
        rig.assert_bystander_unaffected();
    }
}

#[test]
fn what_comes_right_behind_the_request_could_be_anybodys() {
    let rig = TlsTest::new();
    let early = [&start_tls::request(1, 3)[..], &start_tls::request(2, 3)].concat();
    assert_closed_after(rig.connect(), &early);
    rig.assert_bystander_unaffected();
}

#[test]
fn a_handshake_that_never_ends_is_ended() {
    let rig = TlsTest::new();
    let waiting: Vec<_> = (0..50).map(|_| rig.start_tls()).collect();
    rig.assert_bystander_unaffected();
    for stream in waiting {
        assert_closed_after(stream, b"");
    }
    rig.assert_bystander_unaffected();
}

#[test]
fn handshakes_count_as_connections() {
    let rig = TlsTest::with(engine::Tuning {
        connections: 2,
        connections_per_client: Some(usize::MAX),
        ..tuning()
    });
    let _waiting = rig.start_tls();
    assert_closed_after(rig.connect(), b"");
    rig.assert_bystander_unaffected();
}

#[test]
fn plain_bytes_behind_a_handshake() {
    let rig = TlsTest::new();
    for bytes in [
        &start_tls::request(2, 3)[..],
        // Not encrypted, and oversized.
        &[
            23, 3, 3, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
        &[23, 3, 3, 0xff, 0xff],
        // A new handshake.
        &[22, 3, 3, 0, 4, 1, 0, 0, 0],
    ] {
        let (_link, socket) = rig.handshake();
        assert_closed_after(socket, bytes);
        rig.assert_bystander_unaffected();
    }
}

#[test]
fn tls_within_tls_is_not_granted() {
    let rig = TlsTest::new();
    let (link, _socket) = rig.handshake();
    link.send(&start_tls::request(9, 3), true).expect("sent");
    let mut reply = [0; 24];
    let got = link.recv(&mut reply, true).expect("a reply");
    assert_eq!(start_tls::is_granted(9, &reply[..got]), Ok(false));
}

#[test]
fn who_does_not_read_sealed_replies_is_not_heard() {
    let rig = TlsTest::new();
    let (link, _socket) = rig.handshake();
    let ask = start_tls::probe(3, 3);
    let mut asked = 0;
    while asked < 1_000_000 {
        match link.send(&ask.repeat(1000), false) {
            Ok(_) => asked += 1000,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    assert!(asked < 1_000_000, "no bound");
    rig.assert_bystander_unaffected();
}

#[test]
fn any_bytes_in_place_of_records() {
    let rig = TlsTest::new();
    let bytes = prop::collection::vec(any::<u8>(), 5..200);
    let done = TestRunner::default().run(&(bytes, any::<bool>()), |(bytes, behind)| {
        let mut socket = match behind {
            true => rig.handshake().1,
            false => rig.start_tls(),
        };
        // The server may have closed the connection.
        let _ = socket.write_all(&bytes);
        rig.assert_bystander_unaffected();
        Ok(())
    });
    done.expect("all is well");
}
