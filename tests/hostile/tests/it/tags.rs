//! Duplicate tags, and endless flushes.

use std::collections::HashSet;

use hostile::raw_client::{
    Bystander, ROOT, RawClient, encode_request, errno, lock_exclusive, unlock,
};
use hostile::server::Server;
use p9::{Fid, Rmessage, Tag, Tmessage};
use vfs::Errno;

use crate::over_both;

/// Returns a client that holds a lock on a file, and one that waits for it with tag 5.
fn holder_and_waiter(server: &Server) -> (RawClient, RawClient) {
    let mut holder = RawClient::connect_attached(&server.addr, 8192);
    holder.create(Fid(1), b"f");
    holder.expect_ok(&lock_exclusive(Fid(1), 1));
    let mut waiter = RawClient::connect_attached(&server.addr, 8192);
    waiter.open(Fid(1), &[b"f"]);
    waiter.send_request(5, &lock_exclusive(Fid(1), 1));
    (holder, waiter)
}

#[test]
fn a_tag_used_twice_at_once_ends_the_connection() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        let (mut holder, mut waiter) = holder_and_waiter(server);
        waiter.send_request(5, &Tmessage::Statfs { fid: ROOT });
        waiter.assert_closed();
        holder.expect_ok(&unlock(Fid(1), 1));
        holder.expect_ok(&lock_exclusive(Fid(1), 2));
        bystander.assert_unaffected();
    });
}

#[test]
fn no_tag_is_for_tversion_alone() {
    over_both(|server| {
        let mut peer = RawClient::connect_attached(&server.addr, 8192);
        peer.send_request(Tag::NONE.0, &Tmessage::Statfs { fid: ROOT });
        let (tag, reply) = peer.reply();
        assert_eq!((tag, errno(&reply)), (Tag::NONE, Some(Errno::EINVAL)));
        peer.expect_ok(&Tmessage::Statfs { fid: ROOT });
    });
}

#[test]
fn thousands_of_flushes_of_nothing_are_answered_in_turn() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        let mut peer = RawClient::connect_attached(&server.addr, 8192);
        let mut bytes = Vec::new();
        for tag in 0..10_000 {
            // Every third flushes its own tag.
            let oldtag = Tag(if tag % 3 == 0 { tag } else { tag ^ 1 });
            bytes.extend(encode_request(Tag(tag), &Tmessage::Flush { oldtag }));
        }
        std::thread::scope(|scope| {
            let mut sender = peer.duplicate();
            scope.spawn(move || sender.send(&bytes));
            for tag in 0..10_000 {
                let (got, reply) = peer.reply();
                assert_eq!((got, reply), (Tag(tag), Rmessage::Flush {}));
            }
        });
        bystander.assert_unaffected();
    });
}

#[test]
fn thousands_of_flushes_of_one_request_are_answered_once_each_and_after_it() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        let (_holder, mut waiter) = holder_and_waiter(server);
        let flush = Tmessage::Flush { oldtag: Tag(5) };
        let bytes: Vec<u8> = (100..5100)
            .flat_map(|tag| encode_request(Tag(tag), &flush))
            .collect();
        waiter.send(&bytes);
        let (tag, reply) = waiter.reply();
        assert_eq!((tag, errno(&reply)), (Tag(5), Some(Errno::EINTR)));
        let flushed: HashSet<u16> = (100..5100)
            .map(|_| match waiter.reply() {
                (Tag(tag), Rmessage::Flush {}) => tag,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(flushed.len(), 5000);
        assert!(flushed.iter().all(|tag| (100..5100).contains(tag)));
        waiter.expect_ok(&Tmessage::Statfs { fid: ROOT });
        bystander.assert_unaffected();
    });
}

#[test]
fn flushes_of_flushes_are_answered() {
    over_both(|server| {
        let (_holder, mut waiter) = holder_and_waiter(server);
        let chain: Vec<u8> = (6..2000)
            .flat_map(|tag| {
                let oldtag = Tag(tag - 1);
                encode_request(Tag(tag), &Tmessage::Flush { oldtag })
            })
            .collect();
        waiter.send(&chain);
        let (tag, reply) = waiter.reply();
        assert_eq!((tag, errno(&reply)), (Tag(5), Some(Errno::EINTR)));
        for _ in 6..2000 {
            assert_eq!(waiter.reply().1, Rmessage::Flush {});
        }
        waiter.expect_ok(&Tmessage::Statfs { fid: ROOT });
    });
}
