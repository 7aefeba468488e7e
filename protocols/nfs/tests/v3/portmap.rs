//! The portmapper, and datagrams.

use std::sync::Arc;

use memory::Memory;
use nfs::portmap::{Binding, Mapping, TCP, UDP};
use nfs::server::Listed;
use nfs::v3::List;
use vfs::{Call, LocalUsers, Origin, Patience, Peer};
use vfs_testkit::{Message, clock, session};
use wire::{ServeOutcome, Session};

use crate::net::{Host, MOUNT, NFS, NLM, NSM, Net, PORTMAP, call_bytes, whole};

#[test]
fn programs_are_where_they_are_said_to_be() {
    let net = Net::new();
    let port = |program, version, protocol| -> u32 {
        let asked = Mapping {
            program,
            version,
            protocol,
            port: 0,
        };
        whole(net.call((PORTMAP, 2, 3), &asked).expect("results"))
    };
    assert_eq!(port(NFS, 3, TCP), 2049);
    assert_eq!(port(NFS, 3, UDP), 0, "too large for datagrams");
    assert_eq!(port(NFS, 2, TCP), 0);
    assert_eq!(port(NLM, 4, UDP), 2050);
    assert_eq!(port(MOUNT, 3, TCP), 2049);
    assert_eq!(port(PORTMAP, 2, TCP), 111);
    assert_eq!(port(100_227, 3, TCP), 0);
    let listed: List<Mapping> = whole(net.call((PORTMAP, 2, 4), &()).expect("results"));
    assert_eq!(listed.0.len(), 10 + 8);
}

#[test]
fn later_versions_tell_addresses() {
    let net = Net::new();
    let asked = |netid: &'static [u8], address: &'static [u8]| -> &'static [u8] {
        let binding = Binding {
            program: NFS,
            version: 3,
            netid,
            address,
            owner: b"",
        };
        whole(net.call((PORTMAP, 4, 3), &binding).expect("results"))
    };
    assert_eq!(asked(b"tcp", b"10.0.2.2.0.111"), b"10.0.2.2.8.1");
    assert_eq!(asked(b"udp", b""), b"");
    let listed: List<Binding<'_>> = whole(net.call((PORTMAP, 3, 4), &()).expect("results"));
    assert_eq!(listed.0.len(), 10 + 8);
    assert_eq!(net.call((PORTMAP, 2, 1), &()), Err(3), "no SET");
}

#[test]
fn a_datagram_is_a_message_without_a_mark() {
    let net = Net::new();
    let session = net.host.server.datagrams();
    let ask = |what| {
        let record = call_bytes(0x1234, (0, 0), what, &());
        let datagram = &record[4..];
        assert_eq!(session.frame(datagram), Ok(Some(datagram.len())));
        let message = Message::new(datagram);
        let call = Call::detached();
        session::serve(&session, &call, Patience::Full, &message, 1 << 16).expect("a call")
    };
    let head = [0, 0, 0x12, 0x34, 0, 0, 0, 1];
    let (answer, reply) = ask((NLM, 4, 0));
    assert_eq!((answer, reply.len()), (ServeOutcome::Done, 24));
    assert_eq!(reply[..8], head);
    let (_, reply) = ask((NFS, 3, 0));
    assert_eq!(reply[20..], [0, 0, 0, 1], "not by datagrams");
}

/// DUMP of rpcbind was 25 times as long as a call without credentials, which can be sent in the
/// name of another host.
#[test]
fn a_datagram_to_another_host_is_no_longer_than_what_it_answers() {
    let host = Host::with(Memory::new(clock()), |options| {
        let listed = (0..100).map(|number| Listed {
            path: format!("/export{number}"),
            clients: vec!["*".into()],
            replicas: Vec::new(),
        });
        options.listed = listed.collect();
    });
    let session = host.server.datagrams();
    let ask = |peer: Peer, what: (u32, u32, u32), arguments: &[u8]| {
        let (program, version, procedure) = what;
        let head = [7, 0, 2, program, version, procedure, 0, 0, 0, 0];
        let mut datagram: Vec<u8> = head
            .iter()
            .flat_map(|word: &u32| word.to_be_bytes())
            .collect();
        datagram.extend(arguments);
        let call = Call::detached().with_peer(Arc::new(peer));
        let message = Message::new(&datagram);
        let served = session::serve(&session, &call, Patience::Full, &message, 1 << 16);
        let reply = served.expect("a call").1;
        assert_eq!(reply[..8], [0, 0, 0, 7, 0, 0, 0, 1], "{what:?}");
        (datagram.len(), reply)
    };
    let remote = || Peer::remote("192.0.2.1".parse().expect("an address"), 700);
    let mut longest = 0;
    for program in [PORTMAP, MOUNT, NLM, NSM, NFS, 100_011, 100_227] {
        for version in 1..=4 {
            for procedure in 0..=25 {
                for words in [0, 1, 2, 4, 8] {
                    let what = (program, version, procedure);
                    let (asked, reply) = ask(remote(), what, &vec![0; 4 * words]);
                    assert!(reply.len() <= asked, "{what:?} {words}: {reply:?}");
                    longest = longest.max(reply.len());
                }
            }
        }
    }
    assert!(longest > 24, "some have results");
    // A program of this host may have long answers.
    let origin = Origin::Unidentified {
        addr: "127.0.0.1".parse().ok(),
    };
    let local = Peer::new(origin, &LocalUsers::All, 0);
    assert!(ask(local, (PORTMAP, 2, 4), &[]).1.len() > 300);
}
