//! Sessions and security flavors in compounds (RFC 8881).

use memory::Memory;
use vfs_testkit::clock;
use wire::{Xdr, XdrReader};

use super::net::{Client, World, plain};
use super::{SERVICES, TOO_WEAK, create, made, root_of, v3, world};
use crate::rpc::{Service, program};
use crate::server::gss::Flavor;
use crate::v3::Procedure;
use crate::v4::Status;
use crate::v4::op::{CreateSession, ExchangeId, Op, Protect, Sequence};
use crate::v4::reply::{Exchanged, SessionCreated};
use crate::v4::types::{Channel, GssInfo, SecInfo};

fn compound(minor: u32, ops: &[Op<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [0, minor, ops.len() as u32] {
        number.put(&mut bytes);
    }
    ops.iter().for_each(|op| op.put(&mut bytes));
    bytes
}

const COMPOUND: (u32, u32, u32) = (program::NFS, 4, 1);

/// Returns the status of a compound, the number of results, and the results.
fn answered(reply: &[u8]) -> (Status, u32, XdrReader<'_>) {
    let mut from = XdrReader::new(reply);
    let status = Status::get(&mut from).expect("a status");
    from.opaque(0).expect("no tag");
    let count = from.u32().expect("a count");
    (status, count, from)
}

/// Returns the result of the first operation, which must succeed.
fn first<'a, T: Xdr<'a>>(reply: &'a [u8]) -> T {
    let (status, _, mut from) = answered(reply);
    assert_eq!(status, Status::Ok);
    from.fixed(8).expect("a number and a status");
    T::get(&mut from).expect("a result")
}

#[test]
fn rfc8881_2_10_6_a_slot_answers_again_what_it_answered_before_it_was_sealed() {
    const CHANNEL: Channel = Channel {
        header_pad: 0,
        max_request: 8192,
        max_response: 8192,
        max_cached: 4096,
        max_operations: 16,
        max_requests: 1,
        rdma: None,
    };
    let world = world();
    // As in Linux: the machine's principal owns the client ID, and users call as themselves.
    let machine = Client::new(&world, "nfs/client.example.org", Service::Integrity);
    let exchange = |by: &Client| {
        let op = Op::ExchangeId(ExchangeId {
            verifier: [1; 8],
            owner: b"a client",
            flags: 0,
            protect: Protect::None,
            implementation: None,
        });
        by.call(COMPOUND, &compound(1, &[op])).expect("results")
    };
    let exchanged = exchange(&machine);
    let exchanged: Exchanged<'_> = first(&exchanged);
    let create = |by: &Client| {
        let op = Op::CreateSession(CreateSession {
            client: exchanged.client,
            sequence: exchanged.sequence,
            flags: 0,
            fore: CHANNEL,
            back: CHANNEL,
            program: 0x4000_0000,
            security: Vec::new(),
        });
        by.call(COMPOUND, &compound(1, &[op])).expect("results")
    };
    let eve = Client::new(&world, "nfs/eve.example.org", Service::Integrity);
    assert_eq!(
        answered(&create(&eve)).0,
        Status::ClidInuse,
        "another principal"
    );
    let created = create(&machine);
    let SessionCreated { session, .. } = first(&created);
    for (sequence, service) in (1..).zip(SERVICES) {
        let alice = Client::new(&world, "alice", service);
        let ops = [
            Op::Sequence(Sequence {
                session,
                sequence,
                slot: 0,
                highest_slot: 0,
                cache_this: true,
            }),
            Op::Putrootfh,
            Op::Getfh,
        ];
        let call = compound(1, &ops);
        let done = alice.call(COMPOUND, &call).expect("results");
        assert_eq!(answered(&done).1, 3);
        alice.same_id();
        assert_eq!(alice.call(COMPOUND, &call), Ok(done), "{service:?}");
    }
}

#[test]
fn rfc8881_2_6_3_1_who_says_too_little_is_told_of_the_ways() {
    const KRB5I: GssInfo<'static> = GssInfo {
        oid: Flavor::KRB5,
        quality: 0,
        service: 2,
    };
    let world = World::new(Memory::new(clock()), &[Flavor::Krb5i]);
    let session = world.server.session();
    let v4 = |ops: &[Op<'_>]| plain(&session, COMPOUND, &compound(0, ops)).expect("results");
    let stops = |ops: &[Op<'_>]| {
        let reply = v4(ops);
        let (status, count, _) = answered(&reply);
        (status, count)
    };
    let (ok, wrong) = (Status::Ok, Status::Wrongsec);
    assert_eq!(stops(&[Op::Putrootfh]), (ok, 1));
    assert_eq!(stops(&[Op::Putrootfh, Op::Savefh]), (ok, 2));
    assert_eq!(stops(&[Op::Putrootfh, Op::Getfh]), (wrong, 1));
    assert_eq!(stops(&[Op::Putrootfh, Op::Lookup(b"x")]), (wrong, 2));
    let through = [Op::Putrootfh, Op::Savefh, Op::Getfh];
    assert_eq!(stops(&through), (wrong, 3), "nor by a detour");
    let reply = v4(&[Op::Putrootfh, Op::Secinfo(b"missing")]);
    assert_eq!(answered(&reply).0, Status::Noent);
    let getattr = plain(&session, (program::NFS, 3, 1), &[]);
    assert_eq!(getattr, Err(TOO_WEAK));
    assert_eq!(plain(&session, (program::NFS, 3, 0), &[]), Ok(vec![]));
    let weaker = Client::new(&world, "alice", Service::None);
    let ops = compound(0, &[Op::Putrootfh, Op::Getfh]);
    let reply = weaker.call(COMPOUND, &ops).expect("results");
    assert_eq!(answered(&reply).0, wrong);
    let good = Client::new(&world, "root", Service::Integrity);
    let reply = good.call(COMPOUND, &ops).expect("results");
    assert_eq!(answered(&reply).0, ok);
    // The flavors that MOUNT and v4 report.
    let (root, flavors) = root_of(&world);
    assert_eq!(flavors, [390_004]);
    made(&v3(&good, Procedure::Create, &create(root, b"file")));
    let reply = v4(&[Op::Putrootfh, Op::Secinfo(b"file")]);
    let (status, count, mut from) = answered(&reply);
    assert_eq!((status, count), (ok, 2));
    from.fixed(8 + 8).expect("numbers and statuses");
    assert_eq!(Vec::get(&mut from), Ok(vec![SecInfo::Gss(KRB5I)]));
    assert_eq!(root_of(&super::world()).1, [390_005, 390_004, 390_003, 1]);
}
