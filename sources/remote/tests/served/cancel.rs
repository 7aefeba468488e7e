//! Calls cancelled while the server has not answered.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use p9::{Data, Dialect, Fid, Rmessage, Tag, Tmessage};
use remote::ninep::Connection;
use transports::{Link, StreamLink, pair};
use vfs::{Call, Caller, Cx, Errno};

/// A server that answers only when the test says so.
struct Silent {
    link: Arc<StreamLink>,
    /// Requests: tag, type, and the tag that a Tflush cancels.
    came: Receiver<(Tag, u8, u16)>,
}

impl Silent {
    fn next(&self) -> (Tag, u8, u16) {
        self.came.recv().expect("a request")
    }

    fn answer(&self, tag: Tag, reply: &Rmessage<'_>) {
        let mut bytes = Vec::new();
        reply.encode(Dialect::Linux, tag, &mut bytes);
        self.link.send(&bytes, true).expect("sent");
    }
}

fn silent() -> (Arc<Connection>, Silent) {
    let (ours, theirs) = pair().expect("a socket pair");
    let theirs = Arc::new(theirs);
    let (tell, came) = channel();
    let link = theirs.clone();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        loop {
            let mut buffer = [0; 4096];
            match link.recv(&mut buffer, true) {
                Ok(got) if got > 0 => bytes.extend_from_slice(&buffer[..got]),
                _ => return,
            }
            while let Some(size) = bytes.first_chunk() {
                let size = u32::from_le_bytes(*size) as usize;
                if bytes.len() < size {
                    break;
                }
                let message: Vec<u8> = bytes.drain(..size).collect();
                let tag = Tag(u16::from_le_bytes([message[5], message[6]]));
                let target = message
                    .get(7..9)
                    .map_or(0, |at| u16::from_le_bytes([at[0], at[1]]));
                if message[4] == 100 {
                    let (msize, version) = (8192, &b"9P2000.L"[..]);
                    let mut reply = Vec::new();
                    Rmessage::Version { msize, version }.encode(Dialect::Linux, tag, &mut reply);
                    link.send(&reply, true).expect("sent");
                } else if tell.send((tag, message[4], target)).is_err() {
                    return;
                }
            }
        }
    });
    let pipe = Connection::open(ours, Dialect::Linux, 8192).expect("a session");
    (pipe, Silent { link: theirs, came })
}

const READ: Tmessage<'static> = Tmessage::Read {
    fid: Fid(1),
    offset: 0,
    count: 4,
};
const TREAD: u8 = 116;
const TFLUSH: u8 = 108;

/// Reads on another thread, as part of `call`.
fn reading(
    pipe: &Arc<Connection>,
    call: &Arc<Call>,
) -> std::thread::JoinHandle<Result<Vec<u8>, Errno>> {
    let (pipe, call) = (pipe.clone(), call.clone());
    std::thread::spawn(move || {
        let cx = Cx::new(&Caller::ROOT, &call);
        pipe.call_in(&cx, &READ).map(|reply| reply.data().to_vec())
    })
}

fn call() -> Arc<Call> {
    Arc::new(Call::parkable(vfs::cx::thread_waker()))
}

#[test]
fn a_cancelled_call_ends_with_rflush() {
    let (pipe, server) = silent();
    let call = call();
    let reader = reading(&pipe, &call);
    let (tag, number, _) = server.next();
    assert_eq!(number, TREAD);
    call.cancel();
    let (flush, number, target) = server.next();
    assert_eq!((number, target), (TFLUSH, tag.0));
    assert_ne!(flush, tag);
    server.answer(flush, &Rmessage::Flush {});
    assert_eq!(reader.join().expect("no panic"), Err(Errno::EINTR));
    assert_eq!(pipe.failure(), None);
}

#[test]
fn a_reply_before_rflush_counts() {
    let (pipe, server) = silent();
    let call = call();
    let reader = reading(&pipe, &call);
    let (tag, ..) = server.next();
    call.cancel();
    let (flush, ..) = server.next();
    server.answer(
        tag,
        &Rmessage::Read {
            data: Data(b"data"),
        },
    );
    assert_eq!(reader.join().expect("no panic"), Ok(b"data".to_vec()));
    // The tag is not reused before Rflush has arrived.
    let other = reading(&pipe, &Arc::new(Call::detached()));
    let (next, ..) = server.next();
    assert_ne!(next, tag);
    server.answer(flush, &Rmessage::Flush {});
    server.answer(
        next,
        &Rmessage::Read {
            data: Data(b"more"),
        },
    );
    assert_eq!(other.join().expect("no panic"), Ok(b"more".to_vec()));
    assert_eq!(pipe.failure(), None);
}

#[test]
fn cancelling_one_leaves_the_others() {
    let (pipe, server) = silent();
    let calls: Vec<_> = (0..4).map(|_| call()).collect();
    let mut readers = Vec::new();
    for call in &calls {
        let reader = reading(&pipe, call);
        readers.push((server.next().0, reader));
    }
    // A follower, and the leader.
    for at in [2, 0] {
        calls[at].cancel();
        let (flush, number, target) = server.next();
        assert_eq!((number, target), (TFLUSH, readers[at].0.0));
        server.answer(flush, &Rmessage::Flush {});
    }
    for at in [1, 3] {
        server.answer(
            readers[at].0,
            &Rmessage::Read {
                data: Data(b"1234"),
            },
        );
    }
    for (at, (_, reader)) in readers.into_iter().enumerate() {
        let expected = if at % 2 == 0 {
            Err(Errno::EINTR)
        } else {
            Ok(b"1234".to_vec())
        };
        assert_eq!(reader.join().expect("no panic"), expected);
    }
}

#[test]
fn who_is_cancelled_before_sends_nothing() {
    let (pipe, server) = silent();
    let cancelled = call();
    cancelled.cancel();
    assert_eq!(
        reading(&pipe, &cancelled).join().expect("no panic"),
        Err(Errno::EINTR)
    );
    let reader = reading(&pipe, &Arc::new(Call::detached()));
    let (tag, number, _) = server.next();
    assert_eq!(number, TREAD);
    // Cancelling a call whose request was answered does not affect the next request.
    server.answer(tag, &Rmessage::Read { data: Data(b"") });
    assert_eq!(reader.join().expect("no panic"), Ok(Vec::new()));
}
