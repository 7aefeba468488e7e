//! Long-running requests at a virtiofs device: they delay neither other requests of their queue nor
//! the high-priority queue, and end with the queue or its front end.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fuse::Request as R;
use fuse::layout::*;
use fuse::message::Text;
use fuse::numbers::{ROOT_ID, lock_kind};
use fuse::server::{Options, Server, Session};
use layers::Fault;
use layers::fault::{FaultKind, Trigger};
use memory::Memory;
use remote::virtiofs::{self, Channel, FuseReply, PendingRequest, ReplySize};
use vfs::{Call, Caller, Cx, Errno, Export, Op, Result};
use vfs_testkit::{clock, wait_until};

use crate::device::Shared;

/// A mount with one queue, of a tree whose READs and FSYNCs block until released.
struct Slow {
    shared: Shared,
    session: Arc<Session>,
    channel: Arc<Channel>,
    /// The channel's socket.
    socket: UnixStream,
    /// The number of clock reads by blocked operations, and whether the operations are released.
    looks: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    /// An open and locked file.
    file: u64,
    fh: u64,
}

impl Slow {
    fn new() -> Slow {
        let (looks, over) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (looked, ends) = (looks.clone(), over.clone());
        let now = move || {
            let now = Duration::from_secs(ends.load(Ordering::SeqCst).into());
            looked.fetch_add(1, Ordering::SeqCst);
            now
        };
        let fault = Fault::new(1, Arc::new(now));
        for op in [Op::Read, Op::Fsync] {
            fault.add(
                op,
                Trigger::Always,
                FaultKind::Delay(Duration::from_secs(1)),
            );
        }
        let fs = layers::stack(Memory::new(clock()), fault);
        let server = Server::new(Arc::new(Export::new("", fs)), Options::default());
        let session = Arc::new(server.session());
        let (shared, socket) = Shared::answering(session.clone());
        let options = virtiofs::Options {
            queues: 1,
            depth: 16,
            waiting: virtiofs::WaitMode::Adaptive(Duration::ZERO),
            ..virtiofs::Options::default()
        };
        let channel = Channel::mount(socket.try_clone().expect("a copy"), options);
        let mut slow = Slow {
            shared,
            session,
            channel: channel.expect("mounted"),
            socket,
            looks,
            over,
            file: 0,
            fh: 0,
        };
        let args = CreateIn {
            flags: 2,
            mode: 0o100644,
            ..CreateIn::default()
        };
        let name = Text(b"a");
        let made = slow.ask(
            ROOT_ID,
            &R::Create { args, name },
            EntryOut::SIZE + OpenOut::SIZE,
        );
        let made = made.expect("made").fixed().to_vec();
        let (entry, open) = made.split_at(EntryOut::SIZE);
        slow.file = EntryOut::decode(entry).expect("an entry").nodeid;
        slow.fh = OpenOut::decode(open).expect("a handle").fh;
        let args = slow.lock(1, lock_kind::WRLCK);
        slow.ask(slow.file, &R::Setlk { args }, 0).expect("free");
        slow
    }

    fn ask(&self, node: u64, request: &R<'_>, room: usize) -> Result<FuseReply<'_>> {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        self.channel
            .call(&cx, node, request, ReplySize::Fixed(room))
    }

    fn lock(&self, owner: u64, kind: u32) -> LkIn {
        LkIn {
            fh: self.fh,
            owner,
            kind,
            ..LkIn::default()
        }
    }

    /// Sends a blocking lock request, a READ and an FSYNC, and waits until all of them block.
    fn hang(&self) -> [PendingRequest<'_>; 3] {
        let before = self.looks.load(Ordering::SeqCst);
        let fh = self.fh;
        let lock = R::Setlkw {
            args: self.lock(2, lock_kind::WRLCK),
        };
        let read = R::Read {
            args: ReadIn {
                fh,
                size: 100,
                ..ReadIn::default()
            },
        };
        let fsync = R::Fsync {
            args: FsyncIn {
                fh,
                ..FsyncIn::default()
            },
        };
        let flights = [
            (lock, ReplySize::Fixed(0)),
            (read, ReplySize::Data(100)),
            (fsync, ReplySize::Fixed(0)),
        ]
        .map(|(request, room)| {
            let draft = self.channel.begin(0, true).expect("room");
            let sent = draft.submit(&Caller::ROOT, self.file, &request, 0, room);
            sent.expect("sent")
        });
        self.channel.kick(0);
        // Each blocked operation reads the clock at least twice: at its start and while it waits.
        wait_until("both operations wait", || {
            self.looks.load(Ordering::SeqCst) >= before + 4
        });
        flights
    }
}

#[test]
fn what_lasts_stops_neither_its_queue_nor_forgets() {
    let slow = Slow::new();
    let [lock, read, fsync] = slow.hang();
    let args = GetattrIn::default();
    slow.ask(slow.file, &R::Getattr { args }, AttrOut::SIZE)
        .expect("attributes");
    let make = |name: &str, mode| {
        let args = MknodIn {
            mode,
            ..MknodIn::default()
        };
        let name = Text(name.as_bytes());
        let made = slow.ask(ROOT_ID, &R::Mknod { args, name }, EntryOut::SIZE);
        made.expect("made")
            .decode(EntryOut::decode)
            .expect("an entry")
            .nodeid
    };
    // FIFOs are opened by the client's kernel; at the server, no process is at the other end.
    let args = OpenIn::default();
    let fifo = make("fifo", 0o010644);
    let opened = slow.ask(fifo, &R::Open { args }, OpenOut::SIZE).map(drop);
    assert_eq!(opened, Err(Errno::ENXIO));
    // The size of a batch of forgets.
    let before = slow.session.stats().nodes;
    let nodes: Vec<u64> = (0..64)
        .map(|number| make(&number.to_string(), 0o100644))
        .collect();
    assert_eq!(slow.session.stats().nodes, before + 64);
    nodes.into_iter().for_each(|node| slow.channel.forget(node));
    wait_until("the nodes are forgotten", || {
        slow.session.stats().nodes <= before
    });
    let args = slow.lock(1, lock_kind::UNLCK);
    slow.ask(slow.file, &R::Setlk { args }, 0)
        .expect("unlocked");
    lock.wait().expect("locked");
    slow.over.store(true, Ordering::SeqCst);
    for flight in [read, fsync] {
        flight.wait().expect("answered in the end");
    }
}

#[test]
fn a_stop_answers_what_lasts() {
    let slow = Slow::new();
    let flights = slow.hang();
    slow.shared.end();
    for flight in flights {
        assert_eq!(flight.wait().map(drop), Err(Errno::EINTR));
    }
}

#[test]
fn the_end_of_a_monitor_ends_what_lasts() {
    let slow = Slow::new();
    drop(slow.hang());
    slow.socket.shutdown(Shutdown::Both).expect("ended");
    slow.shared.await_end();
}

#[test]
fn the_end_of_a_mount_ends_what_lasts() {
    let slow = Slow::new();
    let flights = slow.hang();
    slow.ask(0, &R::Destroy {}, 0).expect("ended");
    for flight in flights {
        assert_eq!(flight.wait().map(drop), Err(Errno::EINTR));
    }
    assert_eq!(slow.session.stats().handles, 0);
}
