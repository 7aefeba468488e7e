//! 9P through the virtqueue of a device in the same process: the shared suite, many requests in
//! flight, and invalid devices.

use std::sync::Arc;
use std::sync::mpsc::channel;

use memory::Memory;
use p9::{Dialect, Tmessage as T};
use remote::ninep::{Connection, Options, Remote9p};
use vfs::{Call, Caller, Cx, Errno, FileSystem, Patience};
use vfs_testkit::context::{ok, pattern};
use vfs_testkit::{Profile, TestSubject, clock};
use wire::{Incoming, Malformed, Outgoing, Role, ServeOutcome, Session};

use crate::blocks::{FILE, create, read, write};
use crate::device::Shared;
use crate::net::Served;

/// A mounted device that serves `fs`.
fn mounted(
    fs: Arc<dyn FileSystem>,
    version: Dialect,
    msize: u32,
) -> ((Served, Shared), Arc<Remote9p>) {
    let served = Served::of(fs);
    let (shared, socket) = Shared::answering(served.queue_session());
    let mount = Remote9p::connect_device(socket, options(version, msize)).expect("mounted");
    ((served, shared), mount)
}

fn options(version: Dialect, msize: u32) -> Options {
    Options {
        version,
        msize,
        uname: "root".into(),
        ..Options::default()
    }
}

fn subject(version: Dialect, msize: u32, profile: Profile) -> TestSubject {
    let (kept, mount) = mounted(Memory::new(clock()), version, msize);
    let mut subject = TestSubject::new(mount, profile);
    subject.keep_alive = Box::new(kept);
    subject
}

mod large_messages {
    fn subject() -> vfs_testkit::TestSubject {
        let linux = crate::conformance::linux();
        super::subject(p9::Dialect::Linux, (1 << 20) + 24, linux)
    }

    vfs_testkit::conformance!(subject);
}

mod small_messages {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject(p9::Dialect::Linux, 8192, crate::conformance::linux())
    }

    vfs_testkit::conformance!(subject);
}

mod with_9p2000_u {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject(p9::Dialect::Unix, 65536, crate::conformance::unix())
    }

    vfs_testkit::conformance!(subject);
}

/// A device, and a pipe to it with [`FILE`] open for reading and writing.
fn with_file(msize: u32) -> ((Served, Shared), Arc<Connection>) {
    let (kept, mount) = mounted(Memory::new(clock()), Dialect::Linux, msize);
    let pipe = mount.connection().clone();
    create(&pipe);
    (kept, pipe)
}

#[test]
fn more_requests_than_the_queue_has_room_for_wait_for_it() {
    let (_kept, pipe) = with_file((1 << 20) + 24);
    for size in [10, 5000, 60_000] {
        let data = pattern(size * 1000, size as u64);
        let pieces = || data.chunks(size).zip((0u64..).step_by(size));
        let written: Vec<_> = pieces()
            .map(|(piece, at)| ok(pipe.submit(&write(at, piece))))
            .collect();
        let got: Vec<_> = pieces()
            .map(|(piece, at)| ok(pipe.submit(&read(at, piece.len() as u32))))
            .collect();
        written
            .into_iter()
            .for_each(|ticket| drop(ok(pipe.wait(ticket))));
        // The reads may return older data than the writes.
        got.into_iter()
            .for_each(|ticket| assert!(ok(pipe.wait(ticket)).data().len() <= size));
        for (piece, at) in pieces() {
            assert!(ok(pipe.call(&read(at, size as u32))).data() == piece);
        }
    }
}

#[test]
fn threads_share_a_queue() {
    let (_kept, pipe) = with_file(65536);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let pipe = &pipe;
            scope.spawn(move || {
                for round in 0..200 {
                    let data = pattern(40_000, thread << 32 | round);
                    let at = thread * 40_000;
                    drop(ok(pipe.call(&write(at, &data))));
                    assert!(ok(pipe.call(&read(at, 40_000))).data() == data);
                }
            });
        }
    });
}

#[test]
fn a_call_that_waits_is_cancelled_through_the_same_queue() {
    let (_kept, pipe) = with_file(8192);
    let lock = |proc_id| T::Lock {
        fid: FILE,
        kind: 1,
        flags: 1,
        start: 0,
        length: 0,
        proc_id,
        client_id: b"test",
    };
    drop(ok(pipe.call(&lock(1))));
    let call = Arc::new(Call::parkable(vfs::cx::thread_waker()));
    let waiting = std::thread::spawn({
        let (pipe, call) = (pipe.clone(), call.clone());
        move || {
            let cx = Cx::new(&Caller::ROOT, &call);
            pipe.call_in(&cx, &lock(2)).map(drop)
        }
    });
    // Other requests are answered while the lock request waits.
    for _ in 0..100 {
        drop(ok(pipe.call(&read(0, 1))));
    }
    call.cancel();
    assert_eq!(waiting.join().expect("no panic"), Err(Errno::EINTR));
    drop(ok(pipe.call(&read(0, 1))));
    assert_eq!(pipe.failure(), None);
}

#[test]
fn a_device_that_goes_leaves_nobody_waiting() {
    let ((served, shared), pipe) = with_file(8192);
    let lock = |proc_id| T::Lock {
        fid: FILE,
        kind: 1,
        flags: 1,
        start: 0,
        length: 0,
        proc_id,
        client_id: b"test",
    };
    drop(ok(pipe.call(&lock(1))));
    let (tell, begun) = channel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let ticket = pipe.submit(&lock(2));
            tell.send(()).expect("heard");
            ticket.and_then(|ticket| pipe.wait(ticket)).map(drop)
        });
        begun.recv().expect("begun");
        shared.end();
        drop(served);
        drop(shared);
        // A request that has reached the device is answered before the device stops.
        assert!(waiting.join().expect("no panic").is_err());
    });
    assert!(pipe.call(&read(0, 1)).is_err());
    assert!(pipe.failure().is_some());
}

/// A session that answers every request with the same bytes after Tversion.
struct Same<F>(F);

impl<F: Fn(&[u8]) -> Vec<u8> + Send + Sync> Session for Same<F> {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        Ok(Some(head.len()))
    }

    fn role(&self, _: &[u8]) -> Result<Role, Malformed> {
        Ok(Role::Request { id: 0 })
    }

    fn serve(
        &self,
        _: &Call,
        _: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, Malformed> {
        let asked = message.bytes();
        let mut version = asked.to_vec();
        version[4] += 1;
        match asked[4] {
            100 => out.bytes(&version),
            _ => out.bytes(&(self.0)(asked)),
        }
        Ok(ServeOutcome::Done)
    }
}

#[test]
fn a_device_that_answers_less_or_more_than_a_reply_is_given_up() {
    type Reply = fn(&[u8]) -> Vec<u8>;
    let tag = |asked: &[u8]| [asked[5], asked[6]];
    let answers: [(Reply, &str); 5] = [
        (|_| Vec::new(), "expected a complete reply, got 0 bytes"),
        (|_| vec![7, 0], "expected a complete reply, got 2 bytes"),
        (
            |asked| asked[..6].to_vec(),
            "expected a complete reply, got 6 bytes",
        ),
        (
            |_| [&[7, 0, 0, 0, 105][..], &[9; 600]].concat(),
            "expected a complete reply, got 605 bytes",
        ),
        (
            |_| vec![0xff; 4096],
            "expected a complete reply, got 4096 bytes",
        ),
    ];
    for (answer, why) in answers {
        let (_shared, socket) = Shared::answering(Arc::new(Same(answer)));
        let refused = Remote9p::connect_device(socket, options(Dialect::Linux, 8192));
        let error = refused.map(drop).expect_err("no mount").to_string();
        assert!(error.contains(why), "{error}");
    }
    // An error reply is passed on as an error.
    let denied = move |asked: &[u8]| [&[11, 0, 0, 0, 7][..], &tag(asked), &[13, 0, 0, 0]].concat();
    let (_shared, socket) = Shared::answering(Arc::new(Same(denied)));
    let refused = Remote9p::connect_device(socket, options(Dialect::Linux, 8192));
    let refused = refused.map(drop).expect_err("no mount");
    assert_eq!(refused.errno(), Errno::EACCES);
}
