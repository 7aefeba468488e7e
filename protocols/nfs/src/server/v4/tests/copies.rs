//! COPY (RFC 7862 section 15.2), over a scripted source.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vfs::{Attr, Errno, Kind};
use vfs_testkit::script::{Answer, Script, default_attr};

use super::*;
use crate::v4::op::Copy;
use crate::v4::reply::Copied;

const MIB: u64 = 1 << 20;

/// A source of files of 100 MiB, in which a copy takes `millis`.
struct Slow {
    script: Arc<Script>,
    millis: Arc<AtomicU64>,
    client: Client41,
}

impl Slow {
    fn new() -> Slow {
        let script = Script::new();
        let size = Attr {
            size: 100 * MIB,
            ..default_attr(2, Kind::File)
        };
        script.always(vfs::Op::FileAttr, Answer::Attr(size));
        let millis = Arc::new(AtomicU64::new(0));
        let now = millis.clone();
        let asked = script.clone();
        let world = World::at(script.clone(), move || {
            let copies = asked
                .ops()
                .iter()
                .filter(|op| **op == vfs::Op::Copy)
                .count();
            Duration::from_millis(now.load(Ordering::Relaxed) * copies as u64)
        });
        let mut client = Client41::new(&world, b"client");
        client.net.minor = 2;
        Slow {
            script,
            millis,
            client,
        }
    }

    /// Copies from file 2 to file `to`.
    fn copy(&self, to: u64, from_offset: u64, to_offset: u64, count: u64) -> Reply {
        // The compound is restarted, with brief and with full patience.
        for id in [2, to].repeat(3) {
            let node = Answer::Node(id, Kind::File);
            self.script.next(vfs::Op::Lookup, node);
        }
        let reply = self.client.send(&[
            Op::Putrootfh,
            Op::Lookup(b"from"),
            Op::Savefh,
            Op::Putrootfh,
            Op::Lookup(b"to"),
            Op::Copy(Copy {
                from: StateId::ANONYMOUS,
                to: StateId::ANONYMOUS,
                from_offset,
                to_offset,
                count,
                consecutive: true,
                synchronous: false,
                servers: Vec::new(),
            }),
        ]);
        self.script.forget(vfs::Op::Lookup);
        reply
    }

    fn copied(&self, count: u64) -> u64 {
        let reply = self.copy(3, 0, 0, count).done();
        for _ in 0..5 {
            let () = reply.ok();
        }
        let copied: Copied = reply.ok();
        assert!(copied.synchronous);
        copied.written.count
    }
}

#[test]
fn rfc7862_15_2_3_a_copy_that_takes_long_is_answered_with_what_there_is_of_it() {
    let slow = Slow::new();
    slow.script.always(vfs::Op::Copy, Answer::Count(16 * MIB));
    slow.millis.store(400, Ordering::Relaxed);
    assert_eq!(slow.copied(96 * MIB), 48 * MIB);
    slow.millis.store(1, Ordering::Relaxed);
    assert_eq!(slow.copied(96 * MIB), 96 * MIB);
}

#[test]
fn a_copy_that_fails_on_its_way_tells_how_far_it_came() {
    let slow = Slow::new();
    let fails = Answer::Fail(Errno::ENOSPC);
    slow.script
        .next(vfs::Op::Copy, Answer::Count(16 * MIB))
        .next(vfs::Op::Copy, fails.clone());
    assert_eq!(slow.copied(96 * MIB), 16 * MIB);
    slow.script.next(vfs::Op::Copy, fails);
    assert_eq!(slow.copy(3, 0, 0, MIB).status, Status::Nospc);
    slow.script.next(vfs::Op::Copy, Answer::Count(0));
    assert_eq!(slow.copied(MIB), 0);
}

#[test]
fn rfc7862_15_2_3_what_overlaps_or_is_not_there_is_not_copied() {
    let slow = Slow::new();
    slow.script.always(vfs::Op::Copy, Answer::Count(16 * MIB));
    for (to, from_offset, to_offset, count, want) in [
        (2, 0, 16 * MIB, 32 * MIB, Status::Inval),
        (2, 16 * MIB, 0, 0, Status::Inval),
        (2, 0, 32 * MIB, 32 * MIB, Status::Ok),
        (3, 0, 16 * MIB, 32 * MIB, Status::Ok),
        (3, 90 * MIB, 0, 16 * MIB, Status::Inval),
        (3, 101 * MIB, 0, 0, Status::Inval),
    ] {
        let reply = slow.copy(to, from_offset, to_offset, count);
        assert_eq!(reply.status, want, "{from_offset} to {to_offset} of {to}");
    }
}
