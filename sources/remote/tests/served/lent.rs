//! Lent write payloads after their server is lost.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use p9::message::write_head;
use p9::{Dialect, Fid, Rmessage, Tag, Tmessage};
use remote::ninep::{ReconnectingLink, Retry};
use transports::{Link, StreamLink};
use vfs::{AttrMask, Call, Caller, Cx, Errno, File, OpenFlags};
use vfs_testkit::context::pattern;
use vfs_testkit::wait_until;
use wire::payload::{SlicePayload, VecSink};

use crate::reconnecting::{BOTH, Place, create, root, with, write};

/// The smallest lent size, one message, and several messages of which the last is short.
const SIZES: [usize; 3] = [8 << 10, 256 << 10, (5 << 20) + 3];

/// The whole content of a file.
fn content(file: &dyn File) -> Vec<u8> {
    let mut sink = VecSink::new(8 << 20);
    with(|cx| file.read(cx, 0, 8 << 20, &mut sink)).expect("read");
    sink.into_bytes()
}

#[test]
fn a_write_whose_answer_is_lost_is_written_from_its_callers_memory() {
    let place = Place::new();
    let fs = place.connect(Retry::Forever);
    let top = root(&*fs);
    for (flags, what) in [(BOTH, "at"), (BOTH | OpenFlags::APPEND, "append")] {
        for size in SIZES {
            let file = create(&*top, &format!("{what}{size}"), flags);
            let data = pattern(size, 7);
            let mut written = 0;
            while written < size {
                place.deaf.store(true, Ordering::SeqCst);
                // The server may have written, and reported, a part of an append.
                written += write(&*file, written as u64, &data[written..]).expect("written");
                assert!(!place.deaf.load(Ordering::SeqCst), "nothing was lost");
            }
            assert!(content(&*file) == data, "{what} {size}");
        }
    }
}

#[test]
fn what_is_written_without_a_server_is_there_when_there_is_one() {
    let place = Place::new();
    let fs = place.connect(Retry::Forever);
    let top = root(&*fs);
    let files = SIZES.map(|size| (create(&*top, &format!("f{size}"), BOTH), pattern(size, 9)));
    place.end();
    thread::scope(|scope| {
        for (file, data) in &files {
            scope.spawn(move || assert_eq!(write(&**file, 0, data), Ok(data.len())));
        }
        place.begin();
    });
    for (file, data) in &files {
        assert!(content(&**file) == *data);
    }
}

/// The caller may have reused its memory by then.
#[test]
fn a_write_that_was_given_up_is_not_written_when_there_is_a_server() {
    let place = Place::new();
    let fs = place.connect(Retry::Forever);
    let file = create(&*root(&*fs), "f", BOTH);
    place.end();
    let call = Arc::new(Call::parkable(std::task::Waker::noop().clone()));
    let writes = {
        let (call, file) = (call.clone(), file.clone());
        thread::spawn(move || {
            let data = pattern(256 << 10, 7);
            let cx = Cx::new(&Caller::ROOT, &call);
            file.write(&cx, 0, &mut SlicePayload::new(&data))
        })
    };
    wait_until("the write ends", || {
        call.cancel();
        writes.is_finished()
    });
    assert_eq!(writes.join().expect("no panic"), Err(Errno::EINTR));
    place.begin();
    let attr = with(|cx| file.attr(cx, AttrMask::STAT)).expect("there");
    assert_eq!(attr.size, 0);
    assert_eq!(write(&*file, 0, &[1; 9000]), Ok(9000));
}

/// The payload of a request that has been answered is not requested again, even if the server has
/// not received all of it.
#[test]
fn an_answer_that_comes_before_its_payload_has_gone_counts() {
    let (ours, theirs) = transports::pair().expect("a pair");
    let refused = Box::new(|| Err(ErrorKind::ConnectionRefused.into()));
    let retry = Retry::For(Duration::from_millis(1));
    let link = ReconnectingLink::new(Box::new(ours), refused, retry).expect("a link");
    let (msize, version) = (8 << 20, &b"9P2000.L"[..]);
    let mut message = Vec::new();
    Tmessage::Version { msize, version }.encode(Dialect::Linux, Tag::NONE, &mut message);
    link.send(&message, true).expect("sent");
    answer(&theirs, Tag::NONE, &Rmessage::Version { msize, version });
    link.recv(&mut [0; 100], true).expect("greeted");

    let payload = vec![7; 6 << 20];
    let head = write_head(Tag(3), Fid(1), 0, payload.len() as u32);
    let sent = link.send_lent(&head, &payload, false).expect("sent");
    assert!(sent < payload.len(), "more than a socket holds");
    let reply = answer(&theirs, Tag(3), &Rmessage::Write { count: 6 << 20 });
    let mut said = vec![0; reply.len()];
    link.recv_exact(&mut said).expect("answered");
    assert_eq!(said, reply);
    theirs.hang_up();
    let rest = &payload[sent - head.len()..];
    assert_eq!(link.send_lent(&[], rest, false).expect("taken"), rest.len());
    // Only another request fails, as no server comes in time.
    let mut other = Vec::new();
    Tmessage::Statfs { fid: Fid(1) }.encode(Dialect::Linux, Tag(4), &mut other);
    link.send(&other, true).expect("taken");
    let mut failed = [0; 64];
    let got = loop {
        match link.recv(&mut failed, true) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => break other.expect("a reply"),
        }
    };
    let mut expected = Vec::new();
    let timed_out = Rmessage::Lerror {
        errno: Errno::ETIMEDOUT.raw().into(),
    };
    timed_out.encode(Dialect::Linux, Tag(4), &mut expected);
    assert_eq!(failed[..got], expected);
}

fn answer(link: &StreamLink, tag: Tag, reply: &Rmessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(Dialect::Linux, tag, &mut bytes);
    link.send(&bytes, true).expect("sent");
    bytes
}
