//! v4.0's owners and their seqids (RFC 7530 sections 9.1.7 to 9.1.11).

use super::*;
use crate::v4::op::{Close, OpenDowngrade, Read};

#[test]
fn rfc7530_9_1_9_a_request_sent_again_is_answered_as_before() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let (handle, state) = client.create(b"owner", b"file");
    let close = Op::Close(Close { seqid: 3, state });
    let message = client.net.message(&[Op::Putfh(&handle), close]);
    let closed = client.net.again(&message).done();
    assert_eq!(client.net.again(&message), closed);
}

#[test]
fn rfc7530_9_1_9_another_request_of_the_same_number_is_none_sent_again() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let (handle, state) = client.create(b"owner", b"file");
    let confirm = Op::OpenConfirm(OpenConfirm { state, seqid: 2 });
    let downgrade = Op::OpenDowngrade(OpenDowngrade {
        state,
        seqid: 2,
        access: READ,
        deny: 0,
    });
    let putfh = Op::Putfh(&handle);
    client.net.send(&[putfh.clone(), confirm]).done();
    let refused = client.net.send(&[putfh, downgrade]);
    assert_eq!(refused.status, Status::BadSeqid);
}

#[test]
fn rfc7530_16_23_5_a_stateid_opens_nothing_to_who_may_not_read() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let (handle, state) = client.create(b"owner", b"file");
    let mode = Attributes {
        mode: Some(0o600),
        ..Attributes::default()
    };
    let putfh = Op::Putfh(&handle);
    let set = Op::Setattr(crate::v4::op::Setattr {
        state: StateId::ANONYMOUS,
        attributes: mode,
    });
    client.net.send(&[putfh.clone(), set]).done();
    let read = Op::Read(Read {
        state,
        offset: 0,
        count: 1,
    });
    client.net.send(&[putfh.clone(), read.clone()]).done();
    client.net.uid.set(1000);
    let refused = client.net.send(&[putfh, read]);
    assert_eq!(refused.status, Status::Access);
}
