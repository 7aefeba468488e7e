//! The portmapper, and datagrams.

use nfs::portmap::{Binding, Mapping, TCP, UDP};
use nfs::v3::List;
use vfs::{Call, Patience};
use vfs_testkit::{Message, session};
use wire::{ServeOutcome, Session};

use crate::net::{MOUNT, NFS, NLM, Net, PORTMAP, call_bytes, whole};

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
