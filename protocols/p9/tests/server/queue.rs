//! Messages from a virtqueue: in the guest's memory, with separate payloads, longer or shorter than
//! their size field (virtio 1.3, 5.16).

use p9::message::{DATA_HEAD, WRITE_HEAD};
use p9::server::{Options, QueueConnection};
use p9::{Data, Dialect, Fid, Names, Rmessage, Tag, Tmessage as T, Uid};
use vfs::{Call, Errno};
use vfs_testkit::{Message, session};
use wire::{Malformed, Role, ServeOutcome, Session};

use crate::net::{checked, errno, server};

const FILE: Fid = Fid(1);
const MSIZE: usize = 65536;

fn encoded(request: &T<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    request.encode(Dialect::Linux, Tag(1), &mut message);
    message
}

fn answer(
    session: &QueueConnection,
    message: Message<&[u8]>,
    room: usize,
) -> Result<Vec<u8>, Malformed> {
    let answer = session::serve_patiently(session, &Call::detached(), &message, room)?;
    assert_eq!(answer.0, ServeOutcome::Done);
    Ok(answer.1)
}

fn ok(session: &QueueConnection, request: &T<'_>) -> Rmessage<'static> {
    let message = encoded(request);
    let reply = answer(session, Message::new(&message), MSIZE).expect("an answer");
    checked(Dialect::Linux, &message, reply)
}

/// Returns a session with [`FILE`] open.
fn opened() -> QueueConnection {
    let session = server(Options::default()).queue_session();
    let version = T::Version {
        msize: MSIZE as u32,
        version: Dialect::Linux.version().as_bytes(),
    };
    answer(&session, Message::new(&encoded(&version)), MSIZE).expect("an answer");
    let (uname, aname) = (&b""[..], &b""[..]);
    let (afid, n_uname) = (Fid::NONE, Uid(0));
    for request in [
        T::Attach {
            fid: Fid(0),
            afid,
            uname,
            aname,
            n_uname,
        },
        T::Walk {
            fid: Fid(0),
            newfid: FILE,
            names: Names::new(&[]),
        },
        T::Lcreate {
            fid: FILE,
            name: b"f",
            flags: 2,
            mode: 0o644,
            gid: 0,
        },
    ] {
        let reply = ok(&session, &request);
        assert_eq!(errno(&reply), None, "{request:?}");
    }
    session
}

fn read(session: &QueueConnection, offset: u64, count: u32) -> Vec<u8> {
    let fid = FILE;
    match ok(session, &T::Read { fid, offset, count }) {
        Rmessage::Read { data } => data.0.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_payload_is_written_from_where_it_is() {
    let session = opened();
    let data: Vec<u8> = (0..5000).map(|at| at as u8).collect();
    for together in [WRITE_HEAD, 256, WRITE_HEAD + data.len()] {
        let (fid, offset) = (FILE, together as u64);
        let write = encoded(&T::Write {
            fid,
            offset,
            data: Data(&data),
        });
        assert_eq!(session.frame(&write[..256]), Ok(Some(WRITE_HEAD)));
        let reply = answer(
            &session,
            Message::with_separate_payload(&write, together),
            11,
        )
        .expect("an answer");
        let count = data.len() as u32;
        assert_eq!(
            checked(Dialect::Linux, &write, reply),
            Rmessage::Write { count }
        );
        assert_eq!(read(&session, offset, 6000), data);
    }
}

#[test]
fn an_attribute_s_value_is_written_from_where_it_is() {
    let session = opened();
    let value = vec![7; 3000];
    let fid = Fid(2);
    let names = Names::new(&[b"f"]);
    ok(
        &session,
        &T::Walk {
            fid: Fid(0),
            newfid: fid,
            names,
        },
    );
    let (name, size) = (&b"user.a"[..], value.len() as u64);
    ok(
        &session,
        &T::Xattrcreate {
            fid,
            name,
            size,
            flags: 0,
        },
    );
    for (offset, part) in [(0, &value[..2000]), (2000, &value[2000..])] {
        let data = Data(part);
        let write = encoded(&T::Write { fid, offset, data });
        answer(&session, Message::with_separate_payload(&write, 100), 64).expect("an answer");
    }
    assert_eq!(errno(&ok(&session, &T::Clunk { fid })), None);
    let newfid = Fid(3);
    let found = ok(
        &session,
        &T::Xattrwalk {
            fid: FILE,
            newfid,
            name,
        },
    );
    assert_eq!(found, Rmessage::Xattrwalk { size });
}

#[test]
fn what_says_more_or_less_than_came_does_nothing() {
    let session = opened();
    let data = Data(&[1; 1000]);
    let write = encoded(&T::Write {
        fid: FILE,
        offset: 0,
        data,
    });
    // Shorter than its size field, whether or not the available bytes form a message.
    assert!(
        answer(
            &session,
            Message::with_separate_payload(&write[..1000], 256),
            64
        )
        .is_err()
    );
    assert!(answer(&session, Message::new(&write[..20]), 64).is_err());
    assert!(answer(&session, Message::new(&[]), 64).is_err());
    // A count that differs.
    for (at, count) in [(256, 999u32), (256, 1001), (256, u32::MAX), (1023, 0)] {
        let mut wrong = write.clone();
        wrong[WRITE_HEAD - 4..WRITE_HEAD].copy_from_slice(&count.to_le_bytes());
        let reply =
            answer(&session, Message::with_separate_payload(&wrong, at), 64).expect("an answer");
        let reply = checked(Dialect::Linux, &wrong, reply);
        assert_eq!(errno(&reply), Some(Errno::EPROTO), "{count}");
    }
    // Larger than msize, and a message without a separable payload.
    let mut huge = write.clone();
    huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(session.frame(&huge).is_err() && session.role(&huge).is_err());
    assert!(answer(&session, Message::with_separate_payload(&huge, 256), 64).is_err());
    let clunk = encoded(&T::Clunk { fid: FILE });
    assert!(answer(&session, Message::with_separate_payload(&clunk, 9), 64).is_err());
    assert!(read(&session, 0, 10).is_empty());
}

#[test]
fn what_stands_behind_a_message_is_not_of_it() {
    let session = opened();
    let oldtag = Tag(9);
    let mut flush = encoded(&T::Flush { oldtag });
    flush.extend([0xff; 50]);
    let role = Role::Cancel { id: 1, target: 9 };
    assert_eq!(session.role(&flush), Ok(role));
    let reply = answer(&session, Message::new(&flush), 64).expect("an answer");
    assert_eq!(reply, [7, 0, 0, 0, 109, 1, 0]);
    let data = Data(b"text");
    let mut write = encoded(&T::Write {
        fid: FILE,
        offset: 0,
        data,
    });
    write.extend([0xff; 50]);
    answer(&session, Message::new(&write), 64).expect("an answer");
    assert_eq!(read(&session, 0, 100), b"text");
}

#[test]
fn a_reply_is_no_longer_than_its_room() {
    let session = opened();
    let data = Data(&[1; 100]);
    ok(
        &session,
        &T::Write {
            fid: FILE,
            offset: 0,
            data,
        },
    );
    let read = encoded(&T::Read {
        fid: FILE,
        offset: 0,
        count: 100,
    });
    for room in [0, 4, DATA_HEAD - 1] {
        assert!(answer(&session, Message::new(&read), room).is_err());
    }
    for room in [DATA_HEAD, DATA_HEAD + 50, 4096] {
        let reply = answer(&session, Message::new(&read), room).expect("an answer");
        assert_eq!(reply.len(), room.min(DATA_HEAD + 100));
    }
    let getattr = encoded(&T::Getattr {
        fid: FILE,
        mask: 0x7ff,
    });
    let reply = answer(&session, Message::new(&getattr), 20).expect("an answer");
    let reply = checked(Dialect::Linux, &getattr, reply);
    assert_eq!(errno(&reply), Some(Errno::EMSGSIZE));
}
