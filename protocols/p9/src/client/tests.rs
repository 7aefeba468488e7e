//! Valid and invalid replies of a server.

use proptest::prelude::*;

use super::*;
use crate::{Data, Names, Qid, QidType, Qids};

fn linux() -> Client {
    Client::new(Dialect::Linux, 8192)
}

fn version(tag: Tag, msize: u32, version: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Rmessage::Version { msize, version }.encode(Dialect::Linux, tag, &mut bytes);
    bytes
}

fn reply(tag: Tag, reply: &Rmessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(Dialect::Linux, tag, &mut bytes);
    bytes
}

fn read(client: &mut Client, count: u32) -> Tag {
    let (fid, offset) = (Fid(1), 0);
    let request = Tmessage::Read { fid, offset, count };
    client.request(&request, &mut Vec::new()).expect("room").0
}

fn answer(tag: Tag, result: Result<()>) -> std::result::Result<Received, Malformed> {
    Ok(Received::Answer { tag, result })
}

#[test]
fn a_server_may_know_less_but_not_more() {
    for (offer, msize, answer, dialect) in [
        (Dialect::Linux, 8192, "9P2000.L", Some(Dialect::Linux)),
        (Dialect::Linux, 4096, "9P2000", Some(Dialect::Plan9)),
        (Dialect::Unix, 8192, "9P2000", Some(Dialect::Plan9)),
        (Dialect::Plan9, 8192, "9P2000.L", None),
        (Dialect::Unix, 8192, "9P2000.L", None),
        (Dialect::Linux, 8192, "unknown", None),
        (Dialect::Linux, 8193, "9P2000.L", None),
        (Dialect::Linux, 255, "9P2000.L", None),
        (Dialect::Linux, 0, "9P2000.L", None),
    ] {
        let mut client = Client::new(offer, 8192);
        let agreed = client.negotiate(&version(Tag::NONE, msize, answer.as_bytes()));
        assert_eq!(agreed.is_ok(), dialect.is_some(), "{answer} {msize}");
        if let Some(dialect) = dialect {
            assert_eq!((client.dialect(), client.msize()), (dialect, msize));
        }
    }
    assert!(
        linux()
            .negotiate(&version(Tag(1), 8192, b"9P2000.L"))
            .is_err()
    );
    assert!(linux().negotiate(b"").is_err());
}

#[test]
fn files_are_asked_for_where_both_have_agreed_to_that() {
    for (answer, again, agreed) in [
        ("9P2000.L.hand", false, true),
        ("9P2000.L", false, false),
        ("unknown", true, false),
        ("an error", true, false),
    ] {
        let mut client = linux().with_fd_passing();
        let mut hello = Vec::new();
        client.version_request(&mut hello);
        assert!(hello.ends_with(b"9P2000.L.hand"));
        let mut reply = version(Tag::NONE, 8192, answer.as_bytes());
        if answer == "an error" {
            reply.clear();
            let errno = 5;
            Rmessage::Lerror { errno }.encode(Dialect::Linux, Tag::NONE, &mut reply);
        }
        let done = client.negotiate(&reply);
        assert_eq!(done.ok(), Some(!again), "{answer}");
        if again {
            hello.clear();
            client.version_request(&mut hello);
            assert!(hello.ends_with(b"9P2000.L"));
            // The extension is dropped only once.
            assert!(
                client
                    .negotiate(&version(Tag::NONE, 8192, b"unknown"))
                    .is_err()
            );
            let done = client.negotiate(&version(Tag::NONE, 8192, b"9P2000.L"));
            assert_eq!(done.ok(), Some(true));
        }
        assert_eq!(
            (client.dialect(), client.has_fd_passing()),
            (Dialect::Linux, agreed)
        );
        let result = client.request(&Tmessage::Hand { fid: Fid(1) }, &mut Vec::new());
        assert_eq!(result.err(), (!agreed).then_some(Errno::EOPNOTSUPP));
    }
    // Without the client's offer the server must not use the extension, which only 9P2000.L has.
    assert!(
        linux()
            .negotiate(&version(Tag::NONE, 8192, b"9P2000.L.hand"))
            .is_err()
    );
    let mut hello = Vec::new();
    Client::new(Dialect::Unix, 8192)
        .with_fd_passing()
        .version_request(&mut hello);
    assert!(hello.ends_with(b"9P2000.u"));
}

#[test]
fn a_reply_must_be_one_to_what_was_asked() {
    let mut client = linux();
    let tag = read(&mut client, 4);
    let good = reply(
        tag,
        &Rmessage::Read {
            data: Data(b"1234"),
        },
    );
    assert_eq!(client.receive(&good), answer(tag, Ok(())));
    assert!(client.receive(&good).is_err(), "answered twice");

    for wrong in [
        Rmessage::Read {
            data: Data(b"12345"),
        },
        Rmessage::Readdir { data: Data(b"") },
        Rmessage::Flush {},
    ] {
        let mut client = linux();
        let tag = read(&mut client, 4);
        assert!(client.receive(&reply(tag, &wrong)).is_err(), "{wrong:?}");
    }
    let mut client = linux();
    let tag = read(&mut client, 4);
    let other = Tag(tag.0 + 1);
    assert!(client.receive(&reply(other, &Rmessage::Clunk {})).is_err());
    assert!(
        client
            .receive(&reply(Tag::NONE, &Rmessage::Clunk {}))
            .is_err()
    );
    let refused = reply(tag, &Rmessage::Lerror { errno: 13 });
    assert_eq!(client.receive(&refused), answer(tag, Err(Errno::EACCES)));
}

#[test]
fn a_sound_reply_says_what_it_must() {
    let name = &b"a"[..];
    let (fid, newfid) = (Fid(1), Fid(2));
    let names = Names::new(std::slice::from_ref(&name));
    let mut walk = Vec::new();
    Tmessage::Walk { fid, newfid, names }.encode(Dialect::Linux, Tag(1), &mut walk);
    let qid = Qid {
        kind: QidType::DIR,
        version: 1,
        path: 1,
    };
    let qids = Qids::new(std::slice::from_ref(&qid));
    let check = |tag, answer: Rmessage<'_>| {
        reply::check(Dialect::Linux, &walk, &reply(tag, &answer)).map(drop)
    };
    assert_eq!(check(Tag(1), Rmessage::Walk { qids }), Ok(()));
    assert_eq!(check(Tag(1), Rmessage::Lerror { errno: 2 }), Ok(()));
    assert!(check(Tag(2), Rmessage::Walk { qids }).is_err());
    for unsound in [
        Rmessage::Walk {
            qids: Qids::new(&[]),
        },
        Rmessage::Lerror { errno: 0 },
        Rmessage::Lerror { errno: 4096 },
        Rmessage::Clunk {},
    ] {
        assert!(check(Tag(1), unsound).is_err(), "{unsound:?}");
    }
    let nonsense = [8, 0, 0, 0, 110, 1, 0, 0];
    let got = reply(Tag(1), &Rmessage::Walk { qids });
    assert!(reply::check(Dialect::Linux, &nonsense, &got).is_err());
}

#[test]
fn no_more_qids_than_names() {
    let mut client = linux();
    let walk = Tmessage::Walk {
        fid: Fid(1),
        newfid: Fid(2),
        names: Names::new(&[b"a"]),
    };
    let (tag, _) = client.request(&walk, &mut Vec::new()).expect("room");
    let qid = Qid {
        kind: QidType::DIR,
        version: 1,
        path: 1,
    };
    let two = [qid, qid];
    let qids = Qids::new(&two);
    assert!(
        client
            .receive(&reply(tag, &Rmessage::Walk { qids }))
            .is_err()
    );
}

#[test]
fn sizes_are_those_agreed_on() {
    let client = linux();
    assert_eq!(client.frame(&[1, 0, 0]), Ok(None));
    assert_eq!(client.frame(&7u32.to_le_bytes()), Ok(Some(7)));
    assert_eq!(client.frame(&8192u32.to_le_bytes()), Ok(Some(8192)));
    for size in [0, 6, 8193, u32::MAX] {
        assert!(client.frame(&size.to_le_bytes()).is_err(), "{size}");
    }
}

#[test]
fn a_cancelled_request_ends_with_whichever_comes_first() {
    let mut client = linux();
    let mut out = Vec::new();
    let tag = read(&mut client, 4);
    assert!(client.cancel(tag, &mut out));
    assert!(!client.cancel(tag, &mut out), "once is enough");
    let rflush = reply(flush_tag(tag), &Rmessage::Flush {});
    assert_eq!(client.receive(&rflush), answer(tag, Err(Errno::EINTR)));
    assert!(client.receive(&rflush).is_err());
    client.release(tag);

    let tag = read(&mut client, 4);
    assert!(client.cancel(tag, &mut out));
    let done = reply(tag, &Rmessage::Read { data: Data(b"1") });
    assert_eq!(client.receive(&done), answer(tag, Ok(())));
    client.release(tag);
    assert_ne!(read(&mut client, 4), tag, "not before Rflush");
    let rflush = reply(flush_tag(tag), &Rmessage::Flush {});
    assert_eq!(client.receive(&rflush), Ok(Received::TooLate));
    assert_eq!(read(&mut client, 4), tag);
}

#[test]
fn tags_and_fids_are_used_again_and_have_an_end() {
    let mut client = linux();
    let tags: Vec<Tag> = (0..Client::MAX_IN_FLIGHT)
        .map(|_| read(&mut client, 1))
        .collect();
    let request = Tmessage::Statfs { fid: Fid(1) };
    let full = client.request(&request, &mut Vec::new());
    assert_eq!(full, Err(Errno::ENOBUFS));
    let done = reply(tags[5], &Rmessage::Read { data: Data(b"") });
    client.receive(&done).expect("asked for");
    client.release(tags[5]);
    assert_eq!(read(&mut client, 1), tags[5]);

    let mut client = linux();
    let fid = client.new_fid().expect("one");
    let (tag, _) = client
        .request(&Tmessage::Clunk { fid }, &mut Vec::new())
        .expect("room");
    assert_ne!(client.new_fid(), Ok(fid));
    let failed = reply(tag, &Rmessage::Lerror { errno: 5 });
    assert_eq!(client.receive(&failed), answer(tag, Err(Errno::EIO)));
    assert_eq!(client.new_fid(), Ok(fid), "gone even after a failed clunk");
}

#[test]
fn a_payload_may_be_received_apart_if_it_is_one_that_was_asked_for() {
    let mut client = linux();
    let tag = read(&mut client, 100);
    let good = reply(
        tag,
        &Rmessage::Read {
            data: Data(&[7; 100]),
        },
    );
    assert_eq!(
        client.separate_payload(&good[..DATA_HEAD]),
        Some((tag, 100))
    );
    assert_eq!(client.separate_payload(&good[..DATA_HEAD - 1]), None);
    let more = reply(
        tag,
        &Rmessage::Read {
            data: Data(&[7; 101]),
        },
    );
    let listed = reply(
        tag,
        &Rmessage::Readdir {
            data: Data(&[7; 100]),
        },
    );
    let of_another = reply(
        Tag(9),
        &Rmessage::Read {
            data: Data(&[7; 100]),
        },
    );
    let mut longer = good.clone();
    longer[0] += 1;
    for other in [more, listed, of_another, longer] {
        assert_eq!(
            client.separate_payload(&other),
            None,
            "{:?}",
            &other[..DATA_HEAD]
        );
    }
    client.complete_read(tag);
    assert_eq!(client.separate_payload(&good), None, "it is answered");
    client.release(tag);
    assert_eq!(read(&mut client, 1), tag, "and can be used again");
}

#[test]
fn one_that_is_received_apart_while_it_is_cancelled_keeps_its_tag_until_that_is_answered() {
    let mut client = linux();
    let tag = read(&mut client, 100);
    assert!(client.cancel(tag, &mut Vec::new()));
    let good = reply(
        tag,
        &Rmessage::Read {
            data: Data(&[7; 3]),
        },
    );
    assert_eq!(client.separate_payload(&good), Some((tag, 3)));
    client.complete_read(tag);
    client.release(tag);
    assert_ne!(read(&mut client, 1), tag);
    let flushed = reply(flush_tag(tag), &Rmessage::Flush {});
    assert_eq!(client.receive(&flushed), Ok(Received::TooLate));
    assert_eq!(read(&mut client, 1), tag);
}

#[test]
fn what_the_dialect_lacks_or_msize_forbids_is_not_sent() {
    let mut out = Vec::new();
    let mut client = Client::new(Dialect::Unix, 8192);
    let statfs = Tmessage::Statfs { fid: Fid(1) };
    assert_eq!(client.request(&statfs, &mut out), Err(Errno::EOPNOTSUPP));
    let long = [0; 8192];
    let write = Tmessage::Write {
        fid: Fid(1),
        offset: 0,
        data: Data(&long),
    };
    assert_eq!(client.request(&write, &mut out), Err(Errno::EMSGSIZE));
    assert_eq!(out, b"");
}

proptest! {
    #[test]
    fn no_bytes_of_a_server_break_the_client(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..20),
        requests in 0usize..8,
        cancel: bool,
    ) {
        let mut client = linux();
        for _ in 0..requests {
            let tag = read(&mut client, 16);
            if cancel {
                client.cancel(tag, &mut Vec::new());
            }
        }
        for mut message in messages {
            let _ = client.frame(&message);
            let _ = client.receive(&message);
            // A tag in flight and a correct size.
            if message.len() >= HEADER {
                let size = message.len() as u32;
                message[..4].copy_from_slice(&size.to_le_bytes());
                message[5] %= 8;
                message[6] &= 0x80;
                let apart = client.separate_payload(&message);
                let received = client.receive(&message);
                if let Some((tag, len)) = apart
                    && len + DATA_HEAD == message.len()
                {
                    prop_assert_eq!(received, answer(tag, Ok(())));
                }
            }
            let _ = client.negotiate(&message);
            super::dir::entries(&message).for_each(drop);
            let mut from = wire::Reader::new(&message);
            while let Ok(Some(_)) = super::dir::record(&mut from, Dialect::Unix) {}
        }
    }
}

#[test]
fn a_fid_whose_walk_nobody_waits_for_is_not_used_for_another() {
    let walk = |client: &mut Client, newfid| {
        let names: [&[u8]; 2] = [b"a", b"b"];
        let request = Tmessage::Walk {
            fid: Fid(9),
            newfid,
            names: Names::new(&names),
        };
        client.request(&request, &mut Vec::new()).expect("room").0
    };
    let qid = |path| Qid {
        kind: QidType::empty(),
        version: 0,
        path,
    };
    let whole = [qid(1), qid(2)];
    let whole = Rmessage::Walk {
        qids: Qids::new(&whole),
    };
    let part = [qid(1)];
    let part = Rmessage::Walk {
        qids: Qids::new(&part),
    };
    let error = Rmessage::Lerror { errno: 2 };
    let mut client = linux();
    for (answered, established) in [(&whole, true), (&part, false), (&error, false)] {
        let fid = client.new_fid().expect("a number");
        let tag = walk(&mut client, fid);
        let other = client.new_fid().expect("a number");
        assert_ne!(other, fid, "the server may establish it yet");
        client.forget_fid(other);
        client.receive(&reply(tag, answered)).expect("a reply");
        assert_eq!(client.abandon(tag), established.then_some(fid));
        assert_eq!(client.free_fids.contains(&fid), !established);
    }
    // One that its caller has got is the caller's.
    let fid = client.new_fid().expect("a number");
    let tag = walk(&mut client, fid);
    client.receive(&reply(tag, &whole)).expect("a reply");
    client.release(tag);
    assert_eq!(client.abandon(tag), None);
}
