//! NFS over TLS (RFC 9289): the shared suite, reconnecting, and servers that refuse.

use std::io::ErrorKind;
use std::sync::Arc;

use remote::nfs::{Mount, Options, establish_tls, mount};
use tls::{Acceptor, ClientAuth, Connector, TlsFiles};
use transports::Link;
use vfs::{Call, Caller, Cx, FileSystem};
use vfs_testkit::TestSubject;

use super::net::Served;

/// The files of a server named `localhost` that trusts its own certificate, and their directory.
fn files() -> (tempfile::TempDir, TlsFiles) {
    let dir = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        Some(path)
    };
    let cert = write("cert.pem", made.cert.pem());
    let files = TlsFiles {
        key: write("key.pem", made.signing_key.serialize_pem()),
        ca: cert.clone(),
        cert,
    };
    (dir, files)
}

/// A server that requires TLS, and the connector of its clients.
fn secure() -> (Arc<Served>, Arc<Connector>) {
    let (_dir, files) = files();
    let acceptor = Acceptor::open(
        files.clone(),
        Box::new(|path| std::fs::read(path)),
        ClientAuth::Optional,
        nfs::ALPN,
    );
    let served = Served::secure(acceptor.expect("good files").into());
    let nobody = TlsFiles {
        ca: files.ca,
        ..TlsFiles::default()
    };
    let connector = Connector::open(&nobody, "localhost", nfs::ALPN).expect("good files");
    (served, connector.into())
}

fn mounted(
    served: &Arc<Served>,
    connector: &Arc<Connector>,
    version: (u32, u32),
) -> Arc<dyn FileSystem> {
    let (served, connector) = (served.clone(), connector.clone());
    let (tree, _) = mount(&Mount {
        dial: Arc::new(move |_| establish_tls(served.link(), &connector, version.0)),
        path: "",
        require_full_path: true,
        options: Options {
            version: Some(version),
            ..Options::default()
        },
    })
    .expect("mounted");
    tree
}

fn subject(version: (u32, u32), profile: vfs_testkit::Profile) -> TestSubject {
    let (served, connector) = secure();
    TestSubject::new(mounted(&served, &connector, version), profile)
}

mod v3 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((3, 0), crate::nfs::conformance::v3())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_2 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((4, 2), crate::nfs::conformance::v4_1())
    }

    vfs_testkit::conformance!(subject);
}

#[test]
fn a_connection_that_comes_again_is_secured_again() {
    let (served, connector) = secure();
    let tree = mounted(&served, &connector, (4, 2));
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = tree.root(&cx).expect("a root");
    served.hang_up();
    root.attr(&cx, vfs::AttrMask::STAT)
        .expect("attributes over another connection");
}

#[test]
fn plain_calls_are_refused_and_plain_servers_are_not_spoken_to() {
    let (served, connector) = secure();
    let plain = mount(&Mount {
        dial: Arc::new(move |_| Ok(Box::new(served.link()) as Box<dyn Link>)),
        path: "",
        require_full_path: true,
        options: Options::default(),
    });
    assert!(plain.is_err());
    let old = Served::new();
    let error = establish_tls(old.link(), &connector, 4)
        .err()
        .expect("no TLS");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
}
