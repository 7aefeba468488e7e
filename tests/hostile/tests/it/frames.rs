//! Invalid, incomplete and oversized messages.

use fastrand::Rng;
use hostile::raw_client::{
    Bystander, ROOT, RawClient, encode_request, errno, lock_exclusive, unlock,
};
use p9::{Dialect, Fid, Kind, Rmessage, Tag, Tmessage};
use vfs::Errno;

use crate::over_both;

const MSIZE: u32 = 8192;

/// Returns a Tclunk with the size field `size`.
fn with_size(size: u32) -> Vec<u8> {
    let mut message = encode_request(Tag(1), &Tmessage::Clunk { fid: Fid(9) });
    message[..4].copy_from_slice(&size.to_le_bytes());
    message
}

#[test]
fn a_size_that_no_message_has_ends_the_connection() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        for size in [0, 3, 6, MSIZE + 1, 1 << 31, u32::MAX] {
            for in_session in [false, true] {
                let mut peer = RawClient::connect(&server.addr);
                if in_session {
                    peer.start_session(MSIZE);
                }
                peer.send(&with_size(size));
                assert_eq!(peer.assert_closed(), 0, "{size}");
            }
            bystander.assert_unaffected();
        }
    });
}

#[test]
fn a_message_of_msize_is_served_and_one_more_byte_is_not() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
        peer.create(Fid(1), b"f");
        let write = |len: u32| {
            let data = vec![7; len as usize - p9::message::WRITE_HEAD];
            let data = p9::Data(Vec::leak(data));
            let (fid, offset) = (Fid(1), 0);
            Tmessage::Write { fid, offset, data }
        };
        peer.expect_ok(&write(MSIZE));
        // The connection may be closed before the rest is sent.
        let _ = peer.try_send(&encode_request(Tag(1), &write(MSIZE + 1)));
        assert_eq!(peer.assert_closed(), 0);
        bystander.assert_unaffected();
    });
}

#[test]
fn a_header_without_fields_gets_an_error() {
    over_both(|server| {
        let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
        for number in 0..=255 {
            peer.send(&[7, 0, 0, 0, number, 1, 0]);
            let (tag, reply) = peer.reply();
            let errno = errno(&reply).expect("an error");
            assert_eq!(tag, Tag(1));
            let known = Kind::of(number).is_some_and(|kind| {
                // Thand requires negotiation.
                let is_none = matches!(kind, Kind::Error | Kind::Lerror | Kind::Hand);
                kind.request() == number && kind.is_in(Dialect::Linux) && !is_none
            });
            let expected = if known {
                Errno::EPROTO
            } else {
                Errno::EOPNOTSUPP
            };
            assert_eq!(errno, expected, "{number}");
        }
        assert_eq!(
            peer.expect_err(&Tmessage::Clunk { fid: Fid(1) }),
            Errno::EBADF
        );
        peer.expect_ok(&Tmessage::Clunk { fid: ROOT });
    });
}

/// Returns random bytes.
fn bytes(noise: &mut Rng, len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| noise.u8(..)).take(len).collect()
}

#[test]
fn garbage_gets_errors_or_ends_the_connection() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        for seed in 1..=100 {
            let mut noise = Rng::with_seed(seed);
            let mut peer = RawClient::connect(&server.addr);
            if seed % 2 == 0 {
                peer.start_session(MSIZE);
            }
            if seed % 4 < 2 {
                // Bytes that are not framed.
                let _ = peer.try_send(&bytes(&mut noise, 10_000));
            } else {
                // Frames with arbitrary contents, except Tversion, whose reply changes the dialect.
                for _ in 0..200 {
                    let len = noise.usize(..64);
                    let mut message = (len as u32 + 7).to_le_bytes().to_vec();
                    message.push(noise.u8(..140) & !1);
                    message.extend(bytes(&mut noise, len + 2));
                    if message[4] != Kind::Version.request() && peer.try_send(&message).is_err() {
                        break;
                    }
                }
            }
            peer.shut_down_sending();
            peer.assert_closed();
        }
        bystander.assert_unaffected();
    });
}

#[test]
fn part_of_a_message_and_then_silence_holds_nobody_up() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        let statfs = encode_request(Tag(1), &Tmessage::Statfs { fid: ROOT });
        let mut silent: Vec<RawClient> = (0..statfs.len())
            .map(|len| {
                let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
                peer.send(&statfs[..len]);
                peer
            })
            .collect();
        bystander.assert_unaffected();
        // The missing half completes the message.
        for (len, peer) in silent.iter_mut().enumerate() {
            peer.send(&statfs[len..]);
            assert!(matches!(peer.reply(), (Tag(1), Rmessage::Statfs { .. })));
        }
        // A connection closed within a message gets no reply.
        for (len, peer) in silent.iter_mut().enumerate() {
            peer.send(&statfs[..len]);
            peer.shut_down_sending();
            assert_eq!(peer.assert_closed(), 0);
        }
        bystander.assert_unaffected();
    });
}

#[test]
fn bytes_may_come_one_by_one() {
    over_both(|server| {
        let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
        for byte in encode_request(Tag(1), &Tmessage::Statfs { fid: ROOT }) {
            peer.send(&[byte]);
        }
        assert!(matches!(peer.reply(), (Tag(1), Rmessage::Statfs { .. })));
    });
}

#[test]
fn who_has_ended_sending_gets_what_was_asked_for() {
    over_both(|server| {
        let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
        for tag in 0..1000 {
            peer.send_request(tag, &Tmessage::Statfs { fid: ROOT });
        }
        peer.shut_down_sending();
        for tag in 0..1000 {
            assert_eq!(peer.reply().0, Tag(tag));
        }
        assert_eq!(peer.assert_closed(), 0);
    });
}

#[test]
fn who_has_ended_sending_waits_for_no_lock_any_more() {
    over_both(|server| {
        let mut holder = RawClient::connect_attached(&server.addr, MSIZE);
        holder.create(Fid(1), b"f");
        holder.expect_ok(&lock_exclusive(Fid(1), 1));
        let mut waiter = RawClient::connect_attached(&server.addr, MSIZE);
        waiter.open(Fid(1), &[b"f"]);
        waiter.send_request(1, &lock_exclusive(Fid(1), 1));
        // Requests are served in order, so the lock is waiting now.
        waiter.expect_ok(&Tmessage::Statfs { fid: ROOT });
        waiter.shut_down_sending();
        waiter.assert_closed();
        holder.expect_ok(&unlock(Fid(1), 1));
        // The lock is free.
        holder.expect_ok(&lock_exclusive(Fid(1), 2));
    });
}

#[test]
fn a_version_in_the_midst_ends_that_session_alone() {
    over_both(|server| {
        let mut bystander = Bystander::new(&server.addr);
        let mut holder = RawClient::connect_attached(&server.addr, MSIZE);
        holder.create(Fid(1), b"f");
        holder.expect_ok(&lock_exclusive(Fid(1), 1));

        let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
        peer.create(Fid(1), b"g");
        peer.expect_ok(&lock_exclusive(Fid(1), 1));
        peer.open(Fid(2), &[b"f"]);
        peer.send_request(5, &lock_exclusive(Fid(2), 1));
        let version = Tmessage::Version {
            msize: 4096,
            version: b"9P2000.L",
        };
        peer.send_request(Tag::NONE.0, &version);
        // First the reply to the request in flight, then the reply to Tversion.
        let (tag, reply) = peer.reply();
        assert_eq!((tag, errno(&reply)), (Tag(5), Some(Errno::EINTR)));
        let (tag, reply) = peer.reply();
        assert_eq!(tag, Tag::NONE);
        assert!(matches!(reply, Rmessage::Version { msize: 4096, .. }));
        for fid in [ROOT, Fid(1), Fid(2)] {
            assert_eq!(peer.expect_err(&Tmessage::Clunk { fid }), Errno::EBADF);
        }
        // Its locks are released with its fids, another client's are not.
        holder.open(Fid(3), &[b"g"]);
        holder.expect_ok(&lock_exclusive(Fid(3), 3));
        peer.attach(b"");
        peer.open(Fid(1), &[b"f"]);
        let Rmessage::Getlock { kind: 1, .. } = peer.expect_ok(&Tmessage::Getlock {
            fid: Fid(1),
            kind: 1,
            start: 0,
            length: 0,
            proc_id: 1,
            client_id: b"hostile",
        }) else {
            panic!("the holder's lock is gone");
        };
        bystander.assert_unaffected();
    });
}
