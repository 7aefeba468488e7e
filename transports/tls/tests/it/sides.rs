//! Two ends of a connection, and their certificates.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use tls::{Acceptor, ClientAuth, Connector, TlsFiles, TlsLink};
use transports::{Link, StreamLink, pair};
use wire::TlsPeer;

pub(crate) const PROTOCOL: &[u8] = b"test";

/// An authority, and files that it signed.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let dir = tempfile::tempdir().expect("a directory");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let cert = params.self_signed(&key).expect("signed");
        std::fs::write(dir.path().join("ca.pem"), cert.pem()).expect("written");
        let issuer = Issuer::new(params, key);
        Authority { dir, issuer }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates files with a certificate for `names`, which trust this authority.
    pub(crate) fn files(&self, name: &str, names: Vec<SanType>) -> TlsFiles {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.subject_alt_names = names;
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        let write = |end: &str, text: String| {
            let path = self.path(&format!("{name}.{end}"));
            std::fs::write(&path, text).expect("written");
            Some(path)
        };
        TlsFiles {
            cert: write("pem", cert.pem()),
            key: write("key", key.serialize_pem()),
            ca: Some(self.path("ca.pem")),
        }
    }

    /// Creates files of a server named `localhost`.
    pub(crate) fn server(&self) -> TlsFiles {
        let name = SanType::DnsName("localhost".try_into().expect("a name"));
        self.files("server", vec![name])
    }

    /// Creates files of a client without a certificate.
    pub(crate) fn nobody(&self) -> TlsFiles {
        trusting(&self.path("ca.pem"))
    }
}

pub(crate) fn trusting(ca: &Path) -> TlsFiles {
    TlsFiles {
        ca: Some(ca.to_owned()),
        ..TlsFiles::default()
    }
}

pub(crate) fn acceptor(files: &TlsFiles, demand: ClientAuth) -> Arc<Acceptor> {
    Arc::new(
        Acceptor::open(
            files.clone(),
            Box::new(|path| std::fs::read(path)),
            demand,
            PROTOCOL,
        )
        .expect("good files"),
    )
}

pub(crate) fn connector(files: &TlsFiles) -> Arc<Connector> {
    Arc::new(Connector::open(files, "localhost", PROTOCOL).expect("good files"))
}

/// The results of both sides of a handshake.
pub(crate) type Met = (
    io::Result<(TlsLink, TlsPeer)>,
    io::Result<(TlsLink, TlsPeer)>,
);

pub(crate) fn meet(acceptor: Arc<Acceptor>, connector: Arc<Connector>) -> Met {
    let (one, other) = pair().expect("a pair");
    let secured = |link: TlsLink| {
        let peer = link.start_tls();
        if peer.is_err() {
            link.hang_up();
        }
        peer.map(|peer| (link, peer))
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(|| secured(TlsLink::server(other, acceptor)));
        let client = secured(TlsLink::client(one, connector));
        (client, server.join().expect("no panic"))
    })
}

/// Connects a client and a server over TLS.
pub(crate) fn links() -> (TlsLink, TlsLink) {
    let authority = Authority::new();
    let acceptor = acceptor(&authority.server(), ClientAuth::Optional);
    let (client, server) = meet(acceptor, connector(&authority.nobody()));
    (client.expect("secured").0, server.expect("secured").0)
}

/// Returns a server before its handshake, and the client's end of its connection.
pub(crate) fn half() -> (StreamLink, TlsLink) {
    let authority = Authority::new();
    let (one, other) = pair().expect("a pair");
    let acceptor = acceptor(&authority.server(), ClientAuth::Optional);
    (one, TlsLink::server(other, acceptor))
}
