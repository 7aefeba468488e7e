//! RPC-with-TLS (RFC 9289): requests for TLS, and the calls that are rejected without it.

use memory::Memory;
use nfs::client::start_tls;
use nfs::server::{CertifiedUser, Flavor, Transports};
use nfs::v3::*;
use vfs::{Call, Patience};
use vfs_testkit::{Message, clock, session};
use wire::{ServeOutcome, Session, TlsPeer};

use crate::net::{Host, MOUNT, NFS, NFS_ACL, NLM, NSM, Net, nothing};

/// Values of `auth_stat` in replies.
const BAD_CRED: u32 = 1;
const BAD_VERF: u32 = 3;
const TOO_WEAK: u32 = 5;

fn host(none: bool, tls: bool, mtls: bool) -> Host {
    Host::with(Memory::new(clock()), |options| {
        options.transports = Transports { none, tls, mtls };
        options.users = [CertifiedUser {
            name: "email:alice@example.org".into(),
            uid: 1000,
            gid: 100,
        }]
        .into();
    })
}

fn served(net: &Net, record: &[u8]) -> (ServeOutcome, Vec<u8>) {
    let message = Message::new(record);
    let call = Call::detached();
    session::serve(&net.session, &call, Patience::Full, &message, 1 << 16).expect("a call")
}

/// Returns the last word of a reply that is denied, its `auth_stat`.
fn denied(reply: &[u8]) -> u32 {
    let words: Vec<u32> = reply[4..]
        .chunks(4)
        .map(|word| u32::from_be_bytes(word.try_into().expect("4 bytes")))
        .collect();
    assert_eq!(
        (words[1], words[2], words[3]),
        (1, 1, 1),
        "denied: {words:?}"
    );
    words[4]
}

/// Returns whether an NFS call is accepted.
fn may(net: &Net, procedure: u32) -> bool {
    let (answer, reply) = served(net, &net.bytes((NFS, 3, procedure), &()));
    assert_eq!(answer, ServeOutcome::Done);
    match reply[4 + 11] {
        0 => true,
        _ => {
            assert_eq!(denied(&reply), TOO_WEAK);
            false
        }
    }
}

fn peer(names: Option<&[&str]>) -> TlsPeer {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    TlsPeer {
        names: names.map(owned),
    }
}

#[test]
fn rfc9289_4_1_who_asks_for_tls_is_told_to_start() {
    let net = Net::on(&host(true, true, true));
    for version in [3, 4] {
        let (answer, reply) = served(&net, &start_tls::request(7, version));
        assert_eq!(answer, ServeOutcome::StartTls);
        assert_eq!(start_tls::frame(&reply), Ok(Some(reply.len())));
        assert_eq!(start_tls::is_granted(7, &reply), Ok(true));
    }
}

#[test]
fn rfc9289_4_1_who_asks_wrongly_is_refused() {
    let net = Net::on(&host(true, true, true));
    let refused = |net: &Net, change: &dyn Fn(&mut Vec<u8>)| {
        let mut asked = start_tls::request(7, 3);
        change(&mut asked);
        let (answer, reply) = served(net, &asked);
        assert_eq!(answer, ServeOutcome::Done);
        assert!(!start_tls::is_granted(7, &reply).expect("a reply"));
        denied(&reply)
    };
    assert_eq!(refused(&net, &|asked| asked[27] = 1), BAD_CRED, "no NULL");
    let body = |asked: &mut Vec<u8>, at: usize| {
        asked[at + 3] = 4;
        asked.splice(at + 4..at + 4, [0; 4]);
        asked[3] += 4;
    };
    assert_eq!(refused(&net, &|asked| body(asked, 32)), BAD_CRED);
    assert_eq!(refused(&net, &|asked| body(asked, 40)), BAD_VERF);
    assert_eq!(refused(&net, &|asked| asked[39] = 1), BAD_VERF);
    net.session.tls_started(peer(None));
    assert_eq!(refused(&net, &|_| {}), BAD_CRED, "it is under TLS already");
    let plain = Net::new();
    assert_eq!(refused(&plain, &|_| {}), BAD_CRED, "not offered");
}

#[test]
fn nfs_is_refused_by_connections_that_are_not_good_enough() {
    const GETATTR: u32 = Procedure::GetAttr as u32;
    let reach = |none, tls, mtls| {
        let host = host(none, tls, mtls);
        [None, Some(peer(None)), Some(peer(Some(&[])))].map(|by| {
            let net = Net::on(&host);
            if let Some(by) = by {
                net.session.tls_started(by);
            }
            assert!(may(&net, 0), "NULL is always answered");
            may(&net, GETATTR)
        })
    };
    assert_eq!(reach(true, true, true), [true, true, true]);
    assert_eq!(reach(true, false, false), [true, false, false]);
    assert_eq!(reach(false, true, true), [false, true, true]);
    assert_eq!(reach(false, false, true), [false, false, true]);
    assert_eq!(reach(false, true, false), [false, true, true]);
}

#[test]
fn what_is_not_nfs_is_answered_to_all() {
    let net = Net::on(&host(false, false, true));
    assert_eq!(net.call((MOUNT, 3, 0), &()), Ok(&b""[..]));
    net.root();
    assert_eq!(net.call((NSM, 1, 0), &()), Ok(&b""[..]));
    for what in [(NFS, 4, 1), (NFS_ACL, 3, 1), (NLM, 4, 2), (NLM, 4, 23)] {
        let (_, reply) = served(&net, &net.bytes(what, &()));
        assert_eq!(denied(&reply), TOO_WEAK, "{what:?}");
    }
    // Datagrams are rejected too, because they are never secured.
    let mut datagrams = Net::on(&net.host);
    datagrams.session = net.host.server.datagrams();
    let lock = datagrams.bytes((NLM, 4, 2), &());
    let (_, reply) = served(&datagrams, &lock[4..]);
    assert_eq!(denied(&[&[0; 4], &reply[..]].concat()), TOO_WEAK);
}

#[test]
fn who_has_a_certificate_calls_as_whom_it_names() {
    let host = host(true, true, true);
    let made_by = |names: Option<&[&str]>| {
        let net = Net::on(&host);
        net.session.tls_started(peer(names));
        // The call's credential claims to be root.
        let file = net.file(format!("by-{names:?}").as_bytes(), 0o644);
        net.getattr(file).uid
    };
    let net = Net::on(&host);
    let everyones = SetAttributes {
        mode: Some(0o777),
        ..nothing()
    };
    net.setattr(net.root(), everyones, None).expect("set");
    assert_eq!(made_by(None), 0);
    assert_eq!(made_by(Some(&["DNS:alice@example.org"])), 0);
    assert_eq!(made_by(Some(&["DNS:x", "email:alice@example.org"])), 1000);
}

/// A call without credentials was served as the anonymous user.
#[test]
fn auth_none_is_served_only_where_the_list_of_flavors_has_it() {
    let without_credentials = |net: &Net, what| {
        let mut record = net.bytes(what, &());
        // The credential: its flavor, its length and its bytes.
        let len = usize::from(record[35]);
        record.splice(28..36 + len, [0; 8]);
        let mark = ((record.len() as u32 - 4) | (1 << 31)).to_be_bytes();
        record[..4].copy_from_slice(&mark);
        served(net, &record).1
    };
    let host = |flavors: &[Flavor]| {
        let flavors = flavors.to_vec();
        Host::with(Memory::new(clock()), |options| {
            options.flavors = flavors.into()
        })
    };
    let is_accepted = |reply: &[u8]| reply[4 + 11] == 0;
    let calls = [
        (NFS, 3, 1),
        (NFS, 3, 19),
        (NFS_ACL, 3, 1),
        (NLM, 4, 2),
        (NLM, 4, 23),
    ];
    let plain = Net::on(&host(&[Flavor::Sys]));
    for what in calls {
        assert_eq!(
            denied(&without_credentials(&plain, what)),
            TOO_WEAK,
            "{what:?}"
        );
    }
    for open in [(NFS, 3, 0), (NLM, 4, 0), (MOUNT, 3, 5)] {
        assert!(is_accepted(&without_credentials(&plain, open)), "{open:?}");
    }
    let both = Net::on(&host(&[Flavor::Sys, Flavor::None]));
    let none = Net::on(&host(&[Flavor::None]));
    for what in calls {
        assert!(is_accepted(&without_credentials(&both, what)), "{what:?}");
        assert!(is_accepted(&without_credentials(&none, what)), "{what:?}");
        assert!(is_accepted(&served(&both, &both.bytes(what, &())).1));
        assert_eq!(denied(&served(&none, &none.bytes(what, &())).1), TOO_WEAK);
    }
}
