//! Misbehaving clients: a bad message affects only itself.

use fuse::layout::*;
use fuse::message::{Rest, WRITE_HEAD};
use fuse::numbers::ROOT_ID;
use fuse::server::Options;
use fuse::{Header, Opcode, Request as R};
use proptest::prelude::*;
use vfs::{Call, Errno, Patience};
use wire::{ServeOutcome, Session as _};

use crate::net::{Net, create, init, lookup, server};

fn message(opcode: u32, arguments: &[u8]) -> Vec<u8> {
    let header = Header {
        opcode,
        unique: 4,
        nodeid: ROOT_ID,
        ..Header::default()
    };
    header.message(arguments)
}

#[test]
fn a_frame_has_bounds() {
    let net = Net::new();
    let frame = |bytes: &[u8]| net.session.frame(bytes);
    let whole = message(3, &[0; 16]);
    assert_eq!(frame(&whole[..39]), Ok(None));
    assert_eq!(frame(&whole[..40]), Ok(Some(56)));
    let write = message(16, &[0; 100]);
    assert_eq!(frame(&write[..79]), Ok(None));
    assert_eq!(frame(&write[..80]), Ok(Some(WRITE_HEAD)));
    let mut sized = whole.clone();
    for (len, good) in [
        (39u32, false),
        (40, true),
        ((1 << 20) + 4096, true),
        ((1 << 20) + 4097, false),
        (u32::MAX, false),
    ] {
        sized[..4].copy_from_slice(&len.to_le_bytes());
        assert_eq!(frame(&sized).is_ok(), good, "{len}");
    }
}

#[test]
fn what_cannot_be_read_is_answered() {
    let net = Net::new();
    assert_eq!(net.exchange(&message(9999, b"")), Err(Errno::ENOSYS));
    assert_eq!(net.exchange(&message(1, b"no NUL")), Err(Errno::EINVAL));
    assert_eq!(net.exchange(&message(3, &[0; 15])), Err(Errno::EINVAL));
    // A WRITE shorter than its head.
    assert_eq!(
        net.exchange_short(&message(16, &[0; 10])),
        Err(Errno::EINVAL)
    );
    // More extensions announced than the message is long.
    let mut extended = message(1, b"a\0");
    extended[36] = 1;
    assert_eq!(net.exchange(&extended), Err(Errno::EINVAL));
    // FORGET has no reply.
    let forget = message(2, &[0; 7]);
    assert_eq!(
        net.try_exchange(&Call::detached(), &forget),
        (ServeOutcome::Done, vec![])
    );
    assert_eq!(net.err(ROOT_ID, &lookup("a")), Errno::ENOENT);
}

impl Net {
    fn exchange_short(&self, message: &[u8]) -> vfs::Result<Vec<u8>> {
        let (answer, reply) = self.try_exchange(&Call::detached(), message);
        assert_eq!(answer, ServeOutcome::Done);
        let header = OutHeader::decode(&reply).expect("a header");
        Err(Errno::from_raw(-header.error))
    }
}

#[test]
fn what_is_not_there_is_said_to_be_missing() {
    let net = Net::new();
    let ioctl = R::Ioctl {
        args: IoctlIn::default(),
        input: Rest(b""),
    };
    assert_eq!(net.err(ROOT_ID, &ioctl), Errno::ENOTTY);
    for request in [
        R::Poll {
            args: PollIn::default(),
        },
        R::Bmap {
            args: BmapIn::default(),
        },
        R::Setupmapping { data: Rest(b"") },
        R::Removemapping { data: Rest(b"") },
    ] {
        assert_eq!(net.err(ROOT_ID, &request), Errno::ENOSYS);
    }
    net.tell(0, &R::NotifyReply { data: Rest(b"x") });
}

#[test]
fn a_payload_that_did_not_come_is_not_written() {
    let net = Net::new();
    let open = net.create(ROOT_ID, "a").1;
    let args = WriteIn {
        fh: open.fh,
        size: 10,
        ..WriteIn::default()
    };
    let mut short = Vec::new();
    R::Write { args }.encode(crate::net::FORM, Header::default(), &mut short);
    short.extend([1; 5]);
    assert_eq!(net.exchange(&short), Err(Errno::EINVAL));
    assert_eq!(net.read(open.fh, 0, 99), Ok(vec![]));
}

#[test]
fn without_room_for_the_answer_nothing_is_done() {
    let mut net = Net::new();
    for room in [0, 15] {
        net.room = room;
        let answer = net.try_exchange(&Call::detached(), &message(10, b"a\0"));
        assert_eq!(answer, (ServeOutcome::Done, vec![]));
    }
    for room in 16..16 + 144 {
        net.room = room;
        assert_eq!(net.err(ROOT_ID, &create("a", 2)), Errno::EIO, "{room}");
    }
    net.room = 16 + 144;
    assert_eq!(net.err(ROOT_ID, &lookup("a")), Errno::ENOENT);
    net.create(ROOT_ID, "a");
    let mut silent = Net::silent(&server(Options::default()));
    silent.room = 16 + 63;
    let asked = init(7, 45, crate::net::OFFERED);
    assert_eq!(silent.err(ROOT_ID, &asked), Errno::EIO);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_sequence_of_messages_does_any_harm(
        messages in proptest::collection::vec(
            (0usize..Opcode::ALL.len(), proptest::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..100), 0u64..4, 0usize..400),
            1..20,
        ),
    ) {
        let mut net = Net::new();
        net.create(ROOT_ID, "a");
        for (opcode, arguments, nodeid, room) in messages {
            let mut bytes = message(Opcode::ALL[opcode] as u32, &arguments);
            bytes[16] = nodeid as u8;
            net.room = room;
            for patience in [Patience::None, Patience::Full] {
                let (answer, reply) = net.serve(&Call::detached(), patience, &bytes);
                prop_assert!(answer == ServeOutcome::Done || reply.is_empty());
                if !reply.is_empty() {
                    let header = OutHeader::decode(&reply).expect("a header");
                    prop_assert_eq!(header.len as usize, reply.len());
                }
            }
        }
    }
}
