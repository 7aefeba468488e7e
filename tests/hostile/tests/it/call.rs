//! Guests with a call event that accepts no writes: a front end may fill it, or change its flags,
//! at any time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hostile::guest::{Guest, INIT, QueueLayout, RequestType, descriptor, fuse_request};
use hostile::server::{Server, tree};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use rustix::net::SendFlags;
use rustix::pipe::PipeFlags;

use crate::{mounted, socket};

/// Timeout of a reply on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum value of an eventfd.
const MAX_COUNT: u64 = u64::MAX - 1;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A queue with one request that is repeated.
struct RequestQueue<'a> {
    guest: &'a Guest,
    index: u32,
    layout: QueueLayout,
    requests: u16,
}

impl RequestQueue<'_> {
    /// Sets up queue `index` of `guest`, with its parts, request and reply from offset `at`.
    fn new<'a>(guest: &'a Guest, index: u32, at: u64, message: &[u8]) -> RequestQueue<'a> {
        let place = QueueLayout {
            descriptors: at,
            available: at + 0x1000,
            used: at + 0x2000,
            ..QueueLayout::VALID
        };
        let (asked, reply) = (at + 0x3000, at + 0x4000);
        guest.write(asked, message);
        guest.write(at, &descriptor(asked, message.len() as u32, NEXT, 1));
        guest.write(at + 16, &descriptor(reply, 4096, WRITE, 0));
        let asker = RequestQueue {
            guest,
            index,
            layout: place,
            requests: 0,
        };
        asker.start();
        asker
    }

    fn start(&self) {
        let next = u32::from(self.requests);
        let started = self.guest.start(self.index, self.layout, next);
        started.expect("started");
    }

    fn set_call(&self, call: &OwnedFd) {
        let index = u64::from(self.index).to_ne_bytes();
        let told = self
            .guest
            .send_acked(RequestType::SetVringCall, &index, &[call.as_fd()]);
        told.expect("told");
    }

    /// Makes the request available, and waits until it is in the used ring.
    fn request(&mut self) {
        self.requests += 1;
        let available = self.requests.to_le_bytes();
        self.guest.write(self.layout.available + 2, &available);
        self.guest.kick();
        let began = Instant::now();
        while self.guest.read_u16(self.layout.used + 2) != self.requests {
            assert!(began.elapsed() < TIMEOUT, "queue {} hangs", self.index);
            std::thread::yield_now();
        }
    }
}

/// A call event that accepts no writes after [`FullEvent::fill`].
struct FullEvent {
    call: OwnedFd,
    kind: Kind,
    /// The read end of a pipe or a socket.
    _reader: Option<OwnedFd>,
    stopped: Arc<AtomicBool>,
    fillers: Vec<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A full, blocking eventfd.
    Full,
    /// An eventfd that is made blocking after the device has received it.
    BlocksLater,
    /// An eventfd that is refilled as soon as it is read.
    Refilled,
    /// A full, blocking pipe.
    Pipe,
    /// A full, blocking socket.
    Socket,
}

impl FullEvent {
    fn new(kind: Kind) -> FullEvent {
        let event = |flags| eventfd(0, EventfdFlags::CLOEXEC | flags).expect("an event");
        let (reader, call) = match kind {
            Kind::Full | Kind::Refilled => (None, event(EventfdFlags::empty())),
            Kind::BlocksLater => (None, event(EventfdFlags::NONBLOCK)),
            Kind::Pipe => {
                let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
                (Some(reader), writer)
            }
            Kind::Socket => {
                let (reader, writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
                (Some(reader.into()), writer.into())
            }
        };
        FullEvent {
            call,
            kind,
            _reader: reader,
            stopped: Arc::default(),
            fillers: Vec::new(),
        }
    }

    fn fill(&mut self) {
        match self.kind {
            Kind::Pipe => {
                while ready(self.call.as_fd(), PollFlags::OUT, Duration::ZERO) {
                    rustix::io::write(&self.call, &[0; 4096]).expect("written");
                }
                return;
            }
            Kind::Socket => {
                let full = Err(rustix::io::Errno::AGAIN);
                while rustix::net::send(&self.call, &[0; 8], SendFlags::DONTWAIT) != full {}
                return;
            }
            Kind::BlocksLater => {
                rustix::fs::fcntl_setfl(&self.call, OFlags::empty()).expect("set");
            }
            Kind::Full | Kind::Refilled => {}
        }
        self.drain();
        // The filler threads, if started, refill it.
        if self.fillers.is_empty() {
            rustix::io::write(&self.call, &MAX_COUNT.to_ne_bytes()).expect("written");
        }
        if let Kind::Refilled = self.kind
            && self.fillers.is_empty()
        {
            self.fillers = (0..2).map(|_| self.filler()).collect();
        }
    }

    fn filler(&self) -> JoinHandle<()> {
        let (call, over) = (self.call.try_clone().expect("cloned"), self.stopped.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                rustix::io::write(&call, &MAX_COUNT.to_ne_bytes()).expect("written");
            }
        })
    }

    fn drain(&self) {
        let mut count = [0; 8];
        let mut buffers = [io::IoSliceMut::new(&mut count)];
        let _ = rustix::io::preadv2(&self.call, &mut buffers, u64::MAX, ReadWriteFlags::NOWAIT);
    }
}

impl Drop for FullEvent {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        for filler in std::mem::take(&mut self.fillers) {
            while !filler.is_finished() {
                self.drain();
            }
            filler.join().expect("no panic");
        }
    }
}

fn ready(fd: BorrowedFd<'_>, events: PollFlags, time: Duration) -> bool {
    let time = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, events)];
    poll(&mut fds, Some(&time)).expect("polled") == 1
}

/// Checks that a full call event blocks only its own queue, and only until the queue gets another
/// event or is stopped.
fn attack(kind: Kind) {
    let server = Server::virtiofs(tree());
    let guest = Guest::set_up(socket(&server.addr), false).expect("agreed");
    let mut one = RequestQueue::new(&guest, 1, 0, &fuse_request(26, 2, 0, &INIT));
    let mut other = RequestQueue::new(&guest, 2, 0x8000, &fuse_request(3, 4, 1, &[0; 16]));
    let mut event = FullEvent::new(kind);
    let mut attack = |one: &mut RequestQueue<'_>| {
        one.set_call(&event.call);
        event.fill();
        one.request();
        other.request();
        drop(mounted(&server.addr));
    };

    attack(&mut one);
    let call = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    one.set_call(&call);
    one.request();
    assert!(ready(call.as_fd(), PollFlags::IN, TIMEOUT), "no interrupt");

    attack(&mut one);
    guest.stop(1).expect("stopped");
    one.start();
    one.request();

    attack(&mut one);
    drop(server);
}

fn in_time(kind: Kind) {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        attack(kind);
        done.send(())
    });
    let ended = ended.recv_timeout(4 * TIMEOUT);
    assert!(ended.is_ok(), "{kind:?}: the server waits for its guest");
}

#[test]
fn a_full_event_stops_neither_other_queues_nor_a_stop_nor_a_new_event() {
    in_time(Kind::Full);
}

#[test]
fn an_event_that_blocks_later_stops_neither_other_queues_nor_a_stop_nor_a_new_event() {
    in_time(Kind::BlocksLater);
}

#[test]
fn an_event_that_is_filled_again_stops_neither_other_queues_nor_a_stop_nor_a_new_event() {
    in_time(Kind::Refilled);
}

#[test]
fn a_full_pipe_stops_neither_other_queues_nor_a_stop_nor_a_new_event() {
    in_time(Kind::Pipe);
}

#[test]
fn a_full_socket_stops_neither_other_queues_nor_a_stop_nor_a_new_event() {
    in_time(Kind::Socket);
}

#[test]
fn files_that_are_no_events_notify_nobody() {
    let server = Server::virtiofs(tree());
    let file = tempfile::tempfile().expect("a file");
    let (socket_one, _other) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
    let null = std::fs::File::open("/dev/null").expect("a device");
    let calls: [OwnedFd; 3] = [file.into(), socket_one.into(), null.into()];
    for call in calls {
        let guest = Guest::set_up(socket(&server.addr), false).expect("agreed");
        let queue = RequestQueue::new(&guest, 1, 0, &fuse_request(26, 2, 0, &INIT));
        let index = u64::from(queue.index).to_ne_bytes();
        let told = guest.send_acked(RequestType::SetVringCall, &index, &[call.as_fd()]);
        told.expect_err("no event");
    }
}
