//! Trust, and the contents of files.

use rcgen::SanType;
use tls::{Acceptor, ClientAuth, Connector, TlsFiles};

use crate::sides::{Authority, PROTOCOL, acceptor, connector, meet, trusting};

#[test]
fn a_client_trusts_only_its_own_authorities_and_the_right_name() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = acceptor(&ours.server(), ClientAuth::Optional);
    let (client, _) = meet(server.clone(), connector(&ours.nobody()));
    assert_eq!(
        client.expect("trusted").1.names,
        Some(vec!["DNS:localhost".into()])
    );
    let (client, server_end) = meet(server.clone(), connector(&theirs.nobody()));
    let error = client.err().expect("not trusted").to_string();
    assert!(error.contains("certificate"), "{error}");
    assert!(server_end.is_err());
    let other = Connector::open(&ours.nobody(), "elsewhere", PROTOCOL).expect("good files");
    assert!(meet(server, other.into()).0.is_err());
}

#[test]
fn a_server_knows_its_clients_by_name_and_refuses_others() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let names = vec![
        SanType::Rfc822Name("alice@example.org".try_into().expect("a name")),
        SanType::DnsName("host.example.org".try_into().expect("a name")),
        SanType::URI("spiffe://example.org/a".try_into().expect("a name")),
    ];
    let alice = connector(&ours.files("alice", names));
    for demand in [ClientAuth::Optional, ClientAuth::Required] {
        let server = acceptor(&ours.server(), demand);
        let met = meet(server.clone(), alice.clone()).1.expect("trusted").1;
        assert_eq!(
            met.names.expect("a certificate"),
            [
                "email:alice@example.org",
                "DNS:host.example.org",
                "URI:spiffe://example.org/a"
            ]
        );
        let stranger = TlsFiles {
            ca: Some(ours.path("ca.pem")),
            ..theirs.server()
        };
        assert!(meet(server.clone(), connector(&stranger)).1.is_err());
        let nobody = meet(server, connector(&ours.nobody())).1;
        match demand {
            ClientAuth::Optional => assert_eq!(nobody.expect("welcome").1.names, None),
            ClientAuth::Required => assert!(nobody.is_err()),
        }
    }
}

#[test]
fn another_protocol_is_refused() {
    let ours = Authority::new();
    let other = Connector::open(&ours.nobody(), "localhost", b"other").expect("good files");
    let (client, server) = meet(acceptor(&ours.server(), ClientAuth::Optional), other.into());
    assert!(client.is_err() && server.is_err());
}

#[test]
fn files_are_read_again_and_what_is_bad_changes_nothing() {
    let (old, new) = (Authority::new(), Authority::new());
    let files = old.server();
    let server = acceptor(&files, ClientAuth::Optional);
    let (cert, key) = (files.cert.expect("one"), files.key.expect("one"));
    std::fs::write(&cert, "no certificate").expect("written");
    let error = server.reload().expect_err("bad").to_string();
    assert!(
        error.contains("server.pem: expected certificates"),
        "{error}"
    );
    assert!(meet(server.clone(), connector(&old.nobody())).0.is_ok());
    let fresh = new.server();
    std::fs::copy(fresh.cert.expect("one"), &cert).expect("copied");
    std::fs::copy(fresh.key.expect("one"), &key).expect("copied");
    server.reload().expect("good");
    assert!(meet(server.clone(), connector(&new.nobody())).0.is_ok());
    assert!(meet(server, connector(&old.nobody())).0.is_err());
}

#[test]
fn what_cannot_be_used_says_so() {
    let ours = Authority::new();
    let good = ours.server();
    let acceptor = |files: TlsFiles| {
        let opened = Acceptor::open(
            files,
            Box::new(|path| std::fs::read(path)),
            ClientAuth::Optional,
            PROTOCOL,
        );
        opened.err().expect("bad").to_string()
    };
    let none = acceptor(TlsFiles::default());
    assert_eq!(none, "expected a certificate and its key");
    let half = acceptor(TlsFiles {
        key: None,
        ..good.clone()
    });
    assert!(
        half.contains("server.pem: expected a certificate and its key"),
        "{half}"
    );
    let mixed = acceptor(TlsFiles {
        key: ours.files("other", Vec::new()).key,
        ..good.clone()
    });
    assert!(mixed.contains("server.pem"), "{mixed}");
    let gone = acceptor(TlsFiles {
        cert: Some("/none".into()),
        ..good
    });
    assert!(gone.contains("/none: expected certificates"), "{gone}");
    let name = Connector::open(&trusting(&ours.path("ca.pem")), "a b", PROTOCOL);
    assert!(name.err().expect("bad").to_string().contains("a b"));
}
