//! Many requests in flight, from one thread and from many.

use std::collections::VecDeque;
use std::sync::Arc;

use p9::{Dialect, Fid, Tmessage as T};
use remote::ninep::Connection;
use vfs::{Errno, FileSystem, OpenFlags, Patience};
use vfs_testkit::context::{TestFile, TestNode, ok, pattern};

use crate::blocks::{create, read, write};
use crate::net::Served;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A pipe with [`FILE`](crate::blocks::FILE) open for reading and writing.
fn with_file(served: &Served, msize: u32) -> Arc<Connection> {
    let pipe = Connection::open(served.link(), Dialect::Linux, msize).expect("a session");
    create(&pipe);
    pipe
}

#[test]
fn one_thread_keeps_many_in_flight() {
    let served = Served::new();
    for (size, depth) in [
        (100, 64),
        (4096, 64),
        (60_000, 5),
        (300_000, 8),
        (1 << 20, 3),
    ] {
        let pipe = with_file(&served, (1 << 20) + 24);
        let data = pattern(size * 40, size as u64);
        let mut flight = VecDeque::new();
        for (at, piece) in data.chunks(size).enumerate() {
            if flight.len() == depth {
                let ticket = flight.pop_front().expect("some");
                drop(ok(pipe.wait(ticket)));
            }
            flight.push_back(ok(pipe.submit(&write((at * size) as u64, piece))));
        }
        flight
            .into_iter()
            .for_each(|ticket| drop(ok(pipe.wait(ticket))));

        let mut flight = VecDeque::new();
        let mut got = Vec::new();
        for at in 0..40 {
            if flight.len() == depth {
                let ticket = flight.pop_front().expect("some");
                got.extend_from_slice(ok(pipe.wait(ticket)).data());
            }
            flight.push_back(ok(pipe.submit(&read((at * size) as u64, size as u32))));
        }
        for ticket in flight {
            got.extend_from_slice(ok(pipe.wait(ticket)).data());
        }
        assert!(got == data, "{size} bytes, {depth} at a time");
    }
}

#[test]
fn replies_can_be_kept_and_taken_in_any_order() {
    let served = Served::new();
    let pipe = with_file(&served, 8192);
    let data = pattern(100 * 1000, 3);
    for (at, piece) in data.chunks(1000).enumerate() {
        drop(ok(pipe.call(&write(at as u64 * 1000, piece))));
    }
    let tickets: Vec<_> = (0..100)
        .map(|at| ok(pipe.submit(&read(at * 1000, 1000))))
        .collect();
    let kept: Vec<_> = tickets
        .into_iter()
        .rev()
        .map(|ticket| ok(pipe.wait(ticket)))
        .collect();
    for (at, reply) in kept.iter().rev().enumerate() {
        assert_eq!(reply.data(), &data[at * 1000..][..1000]);
    }
}

#[test]
fn tickets_that_nobody_waits_for_are_forgotten() {
    let served = Served::new();
    let pipe = with_file(&served, 8192);
    drop(ok(pipe.call(&write(0, b"data"))));
    for _ in 0..100_000 {
        // Far more than there are tags.
        drop(ok(pipe.submit(&read(0, 4))));
        if let Ok(ticket) = pipe.submit(&read(0, 4)) {
            assert_eq!(ok(pipe.wait(ticket)).data(), b"data");
        }
    }
}

/// The server stops reading from a client that does not take its replies, so the sender must
/// receive.
#[test]
fn requests_that_pile_up_do_not_stop_the_connection() {
    let served = Served::new();
    let pipe = with_file(&served, (1 << 20) + 24);
    let block = pattern(1 << 20, 5);
    drop(ok(pipe.call(&write(0, &block))));
    let reads: Vec<_> = (0..24)
        .map(|_| ok(pipe.submit(&read(0, 1 << 20))))
        .collect();
    let writes: Vec<_> = (1..24)
        .map(|at| ok(pipe.submit(&write(at << 20, &block))))
        .collect();
    writes
        .into_iter()
        .for_each(|ticket| drop(ok(pipe.wait(ticket))));
    for ticket in reads {
        assert!(ok(pipe.wait(ticket)).data() == block);
    }
}

#[test]
fn errors_are_the_requests_own() {
    let served = Served::new();
    let pipe = with_file(&served, 8192);
    let bad = ok(pipe.submit(&T::Clunk { fid: Fid(77) }));
    let good = ok(pipe.submit(&read(0, 10)));
    let long = vec![0; 8192];
    assert_eq!(pipe.submit(&write(0, &long)).err(), Some(Errno::EMSGSIZE));
    assert_eq!(ok(pipe.wait(good)).data(), b"");
    assert_eq!(pipe.wait(bad).err(), Some(Errno::EBADF));
    assert_eq!(pipe.failure(), None);
}

#[test]
fn many_threads_share_a_connection() {
    let served = Served::new();
    let fs = served.speaking(Dialect::Linux, 64 << 10);
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let fs = fs.clone();
            scope.spawn(move || {
                let who = vfs::Caller::ROOT;
                let root = TestNode {
                    node: ok(vfs_testkit::run(&who, |cx| fs.root(cx))),
                    caller: who,
                };
                for round in 0..20 {
                    let name = format!("{thread}-{round}");
                    let data = pattern(
                        1 + (thread * 7919 + round * 10007) as usize % 200_000,
                        round,
                    );
                    let (node, file) = ok(root.create(&name, RW, 0o644));
                    ok(file.write_all(0, &data));
                    assert!(ok(file.read_all()) == data);
                    assert_eq!(ok(root.lookup(&name)).id(), node.id());
                    assert!(ok(root.names()).contains(&name.clone().into_bytes()));
                    ok(root.unlink(&name));
                }
            });
        }
    });
    assert_eq!(fs.connection().failure(), None);
}

/// Operations that need a request return `WOULD_BLOCK` below full patience.
#[test]
fn impatience_would_block() {
    let served = Served::new();
    let fs = served.speaking(Dialect::Linux, 8192);
    let call = vfs::Call::detached();
    let full = vfs::Cx::new(&vfs::Caller::ROOT, &call);
    let root = ok(fs.root(&full));
    for patience in [Patience::None, Patience::Brief] {
        let cx = vfs::Cx { patience, ..full };
        let root = ok(fs.root(&cx))
            .attr(&cx, vfs::AttrMask::STAT)
            .err()
            .or(root.statfs(&cx).err());
        assert_eq!(root, Some(Errno::WOULD_BLOCK));
    }
}

/// Clunks are sent without further requests, and fids are reused.
#[test]
fn dropping_many_nodes_leaves_nothing_behind() {
    let served = Served::new();
    let fs = served.speaking(Dialect::Linux, 8192);
    let who = vfs::Caller::ROOT;
    let root = TestNode {
        node: ok(vfs_testkit::run(&who, |cx| fs.root(cx))),
        caller: who,
    };
    let node = ok(root.file("file", b"data"));
    let kept: Vec<TestNode> = (0..3000).map(|_| ok(root.lookup("file"))).collect();
    drop(kept);
    let files: Vec<TestFile> = (0..500).map(|_| ok(node.open(RW))).collect();
    drop(files);
    assert_eq!(ok(node.content()), b"data");
    let fid = ok(fs.connection().fid());
    assert!(fid.0 < 4000, "{fid:?}");
}
