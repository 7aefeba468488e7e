//! Sessions: negotiated limits and retries (RFC 8881 sections 2.10, 18.36, 18.46).

use super::*;
use crate::v4::attr::Bitmap;

/// A GETATTR of all attributes of the root: about 300 bytes.
const GETATTR: Op<'static> = Op::Getattr(Bitmap([0xfff, 0, 0]));

#[test]
fn rfc8881_2_10_6_4_a_request_is_no_larger_than_agreed() {
    let fore = Channel {
        max_request: 512,
        ..CHANNEL
    };
    let client = Client41::on(&World::new(), b"client", fore);
    let name = [b'x'; 500];
    let refused = client.send(&[Op::Putrootfh, Op::Lookup(&name)]);
    assert_eq!((refused.status, refused.count), (Status::ReqTooBig, 1));
    // The slot's sequence number has not advanced.
    client.sequence.set(client.sequence.get() - 1);
    client.send(&[Op::Putrootfh]).done();
}

#[test]
fn rfc8881_2_10_6_4_a_compound_has_no_more_operations_than_agreed() {
    let fore = Channel {
        max_operations: 4,
        ..CHANNEL
    };
    let client = Client41::on(&World::new(), b"client", fore);
    client.send(&[Op::Putrootfh, Op::Getfh, Op::Getfh]).done();
    let refused = client.send(&[Op::Putrootfh, Op::Getfh, Op::Getfh, Op::Getfh]);
    assert_eq!((refused.status, refused.count), (Status::TooManyOps, 1));
}

#[test]
fn rfc8881_2_10_6_4_a_reply_ends_before_it_is_larger_than_agreed() {
    let fore = Channel {
        max_response: 512,
        ..CHANNEL
    };
    let client = Client41::on(&World::new(), b"client", fore);
    for count in 0..8 {
        let mut ops = vec![GETATTR; 1 + count];
        ops[0] = Op::Putrootfh;
        let reply = client.send(&ops);
        assert!(reply.len() <= 512, "{}", reply.len());
        match count {
            0..=4 => assert_eq!(reply.status, Status::Ok),
            _ => assert_eq!((reply.status, reply.count), (Status::RepTooBig, 7)),
        }
    }
}

#[test]
fn rfc8881_2_10_6_4_what_changes_something_is_done_only_if_the_reply_has_room() {
    let fore = Channel {
        max_response: 256,
        ..CHANNEL
    };
    let client = Client41::on(&World::new(), b"client", fore);
    let how = OpenHow::Create(CreateHow::Guarded(Attributes::default()));
    let open = client.open(BOTH, how, Claim::Null(b"file"));
    let mut ops = vec![Op::Putrootfh; 14];
    ops.push(open);
    assert_eq!(client.send(&ops).status, Status::RepTooBig);
    let there = client.send(&[Op::Putrootfh, Op::Lookup(b"file")]);
    assert_eq!(there.status, Status::Noent);
}

#[test]
fn rfc8881_2_10_6_4_a_reply_that_is_too_big_to_be_kept_says_so() {
    let fore = Channel {
        max_cached: 128,
        ..CHANNEL
    };
    let client = Client41::on(&World::new(), b"client", fore);
    let message = client.message(&[Op::Putrootfh, GETATTR], true);
    let reply = client.net.again(&message);
    assert_eq!((reply.status, reply.count), (Status::RepTooBigToCache, 3));
    assert_eq!(client.net.again(&message), reply, "that is kept");
    client.send(&[Op::Putrootfh, GETATTR]).done();

    let fore = Channel {
        max_cached: 10,
        ..CHANNEL
    };
    let client = Client41::on(&World::new(), b"other", fore);
    let reply = client.net.again(&client.message(&[], true));
    assert_eq!((reply.status, reply.count), (Status::RepTooBigToCache, 1));
}

#[test]
fn rfc8881_2_10_6_1_3_a_reply_that_was_not_kept_is_refused_behind_sequence() {
    let client = Client41::new(&World::new(), b"client");
    let message = client.message(&[Op::Putrootfh, Op::Getfh], false);
    client.net.again(&message).done();
    for _ in 0..2 {
        let again = client.net.again(&message);
        assert_eq!((again.status, again.count), (Status::RetryUncachedRep, 2));
        let sequenced: Sequenced = again.ok();
        assert_eq!(sequenced.sequence, client.sequence.get());
    }
    client.send(&[Op::Putrootfh]).done();

    let alone = client.message(&[], false);
    client.net.again(&alone).done();
    client.net.again(&alone).done();
}

#[test]
fn rfc8881_2_10_6_1_3_a_reply_that_was_kept_is_given_again() {
    let client = Client41::new(&World::new(), b"client");
    let message = client.message(&[Op::Putrootfh, Op::Remove(b"none"), Op::Getfh], true);
    let reply = client.net.again(&message);
    assert_eq!((reply.status, reply.count), (Status::Noent, 3));
    assert_eq!(client.net.again(&message), reply);
}

#[test]
fn rfc8881_18_36_2_rdma_and_18_35_2_implementation_have_one_element_at_most() {
    let net = World::new().net(1);
    let mut two = Vec::new();
    wire::Xdr::put(&exchange_id(b"client"), &mut two);
    let end = two.len() - 4;
    two[end..].copy_from_slice(&2u32.to_be_bytes());
    two.extend([0; 2 * (4 + 4 + 12)]);
    let refused = net.again(&net.message_of(1, &two));
    assert_eq!(refused.status, Status::Badxdr);
}

#[test]
fn rfc8881_18_38_3_the_current_open_is_not_freed() {
    let client = Client41::new(&World::new(), b"client");
    let how = OpenHow::Create(CreateHow::Guarded(Attributes::default()));
    let open = client.open(BOTH, how, Claim::Null(b"file"));
    let refused = client.send(&[Op::Putrootfh, open, Op::FreeStateId(StateId::CURRENT)]);
    assert_eq!((refused.status, refused.count), (Status::LocksHeld, 4));
}
