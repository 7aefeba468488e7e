//! Tests of queues.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vfs::Patience;
use vfs_testkit::wait_until;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::MockSplitQueue;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::in_flight::{Dimensions, InFlightMemory};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// The guest address of its memory, and the sizes of its two regions.
const START: u64 = 0x10_0000;
const SIZES: [u64; 2] = [1 << 20, 1 << 16];

fn memory() -> Arc<Memory> {
    let mut at = START;
    let regions = SIZES.map(|size| {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&fd, size).expect("sized");
        let region = VhostUserMemoryRegion::new(at, size, 0x7000_0000 + at, 0);
        at += size;
        (region, File::from(fd))
    });
    Arc::new(Memory::map(regions).expect("mapped"))
}

/// Creates a queue with `descriptors`: address, length, flags, next.
fn running(memory: &Arc<Memory>, descriptors: &[(u64, u32, u16, u16)]) -> RunningQueue {
    let mock = MockSplitQueue::create(memory.map_ref(), GuestAddress(START), 16);
    let descriptors: Vec<_> = descriptors
        .iter()
        .map(|&(at, len, flags, next)| RawDescriptor::from(Descriptor::new(at, len, flags, next)))
        .collect();
    if !descriptors.is_empty() {
        mock.add_desc_chains(&descriptors, 0).expect("added");
    }
    let queue: Queue = mock.create_queue().expect("a queue");
    let event = || eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    RunningQueue::new("test".into(), queue, memory.clone(), event(), Some(event()))
        .expect("running")
}

/// Creates a queue on the same rings, as the next process does.
fn started_again(memory: &Arc<Memory>, running: &RunningQueue) -> RunningQueue {
    let inner = running.inner();
    let mut queue = Queue::new(16).expect("a queue");
    queue.set_size(inner.queue.size());
    queue.set_desc_table_address(Some(inner.queue.desc_table() as u32), None);
    queue.set_avail_ring_address(Some(inner.queue.avail_ring() as u32), None);
    queue.set_used_ring_address(Some(inner.queue.used_ring() as u32), None);
    queue.set_ready(true);
    let used = queue.used_idx(memory.map_ref(), Ordering::Acquire);
    queue.set_next_used(used.expect("an index").0);
    let kick = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    RunningQueue::new("again".into(), queue, memory.clone(), kick, None).expect("running")
}

fn pop(running: &RunningQueue) -> Box<dyn Exchange> {
    let all = |head: &[u8]| Some(head.len());
    running.pop(&all).expect("not broken").expect("a request")
}

fn text(exchange: &mut Box<dyn Exchange>) -> Vec<u8> {
    exchange.split().0.bytes().to_vec()
}

fn load(memory: &Memory, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory
        .map_ref()
        .read_slice(&mut bytes, GuestAddress(at))
        .expect("there");
    bytes
}

#[test]
fn a_request_is_read_and_its_reply_written_where_the_guest_wants_them() {
    let memory = memory();
    let (request, data, head, rest) = (
        START + 0x8000,
        START + 0x9000,
        START + 0xa000,
        START + 0xb000,
    );
    memory
        .map_ref()
        .write_slice(b"head", GuestAddress(request))
        .expect("written");
    memory
        .map_ref()
        .write_slice(b"payload", GuestAddress(data))
        .expect("written");
    let running = running(
        &memory,
        &[
            (request, 4, NEXT, 1),
            (data, 7, NEXT, 2),
            (head, 6, NEXT | WRITE, 3),
            (rest, 100, WRITE, 0),
        ],
    );
    assert!(running.wait(false).expect("not broken"));
    let mut exchange = running.pop(&|_| Some(4)).expect("not broken").expect("one");
    let file = tempfile::tempfile().expect("a file");
    file.write_all_at(b"from the file", 0).expect("written");
    let (message, out) = exchange.split();
    assert_eq!(&message.bytes()[..4], b"head");
    let written = message.payload(4..11, &mut |payload| payload.file(file.as_fd(), 100));
    assert_eq!(written, Ok(7));
    let mut seen = Vec::new();
    let read = message.payload(5..9, &mut |payload| {
        payload.bytes(&mut |bytes| {
            seen.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(4)
    });
    assert_eq!((read, &seen[..]), (Ok(4), &b"aylo"[..]));
    assert_eq!(out.room(), 106);
    out.bytes(b"????");
    assert_eq!(out.file(file.as_fd(), 5, 50, Patience::Full), Ok(50));
    out.truncate(4 + 8);
    out.zeros(2);
    out.patch(0, b"repl");
    assert_eq!((out.len(), out.room()), (14, 92));
    running.push_used(exchange);
    running.signal();
    assert_eq!(load(&memory, head, 6), b"replth");
    assert_eq!(load(&memory, rest, 8), b"e file\0\0");
    let mut back = [0; 7];
    file.read_exact_at(&mut back, 100).expect("read");
    assert_eq!(&back, b"payload");
    // The used ring: flags, index, and the chain's head and length.
    let used = load(&memory, running.inner().queue.used_ring(), 12);
    assert_eq!(used, [0, 0, 1, 0, 0, 0, 0, 0, 14, 0, 0, 0]);
}

#[test]
fn a_piece_may_lie_across_regions() {
    let memory = memory();
    let border = START + SIZES[0];
    let running = running(&memory, &[(border - 3, 6, WRITE, 0)]);
    let mut exchange = pop(&running);
    exchange.split().1.bytes(b"abcdef");
    assert_eq!(load(&memory, border - 3, 6), b"abcdef");
}

#[test]
fn a_chain_that_leads_nowhere_or_round_in_a_ring_ends() {
    let memory = memory();
    let end = START + SIZES[0] + SIZES[1];
    for (descriptors, request_len, capacity) in [
        // Outside, across the end, beyond the end of the address space.
        (vec![(0, 8, 0, 0)], 0, 0),
        (vec![(end - 4, 8, 0, 0)], 0, 0),
        (vec![(u64::MAX - 3, 8, 0, 0)], 0, 0),
        // Longer than the guest's memory.
        (vec![(START, u32::MAX, WRITE, 0)], 0, 0),
        // A loop: no longer than the queue.
        (vec![(START + 0x8000, 1, NEXT, 0)], 16, 0),
        // A device-readable buffer after a device-writable one.
        (
            vec![
                (START + 0x8000, 4, NEXT | WRITE, 1),
                (START + 0x8000, 4, 0, 0),
            ],
            0,
            4,
        ),
        // A table that is not a whole number of descriptors.
        (vec![(START + 0x8000, 17, INDIRECT, 0)], 0, 0),
    ] {
        let running = running(&memory, &descriptors);
        let mut exchange = pop(&running);
        let (message, out) = exchange.split();
        assert_eq!(
            (message.bytes().len(), out.room()),
            (request_len, capacity),
            "{descriptors:?}"
        );
        running.push_used(exchange);
    }
}

#[test]
fn a_queue_that_has_more_than_it_can_is_broken() {
    let memory = memory();
    let running = running(&memory, &[(START + 0x8000, 4, 0, 0)]);
    let mock = MockSplitQueue::create(memory.map_ref(), GuestAddress(START), 16);
    mock.avail().idx().store(1000);
    assert!(running.pop(&|_| None).is_err());
}

#[test]
fn a_queue_that_has_more_in_flight_than_it_is_long_is_broken() {
    let memory = memory();
    let running = running(&memory, &[(START + 0x8000, 4, 0, 0)]);
    let mock = MockSplitQueue::create(memory.map_ref(), GuestAddress(START), 16);
    // The same chain repeatedly, which is allowed once it was returned.
    let publish = |index| mock.avail().idx().store(index);
    publish(16);
    let mut taken: Vec<_> = (0..16).map(|_| pop(&running)).collect();
    publish(17);
    running.push_used(taken.remove(0));
    taken.push(pop(&running));
    publish(18);
    assert!(running.pop(&|_| None).is_err());
    assert_eq!(taken.len(), 16);
}

#[test]
fn a_table_is_read_as_far_as_the_queue_is_long() {
    let memory = memory();
    let table = START + 0x4000;
    for entry in 0..64u64 {
        let next = entry as u16 + 1;
        let descriptor = Descriptor::new(START + 0x8000 + 2 * entry, 1, NEXT, next);
        let at = GuestAddress(table + 16 * entry);
        let written = memory.map_ref().write_obj(descriptor, at);
        written.expect("written");
    }
    let running = running(&memory, &[(table, 64 * 16, INDIRECT, 0)]);
    assert_eq!(pop(&running).split().0.size(), 16);
}

/// The end of an operation on its own thread, so that a test fails if it blocks.
struct Ending(std::sync::mpsc::Receiver<()>);

impl Ending {
    fn of(run: impl FnOnce() + Send + 'static) -> Ending {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            run();
            done.send(())
        });
        Ending(ended)
    }

    fn wait(self) {
        let ended = self.0.recv_timeout(Duration::from_secs(60));
        assert!(ended.is_ok(), "the queue waits for its front end");
    }
}

/// Creates a queue with a request, whose call event is `call`.
fn with_call(memory: &Arc<Memory>, call: &OwnedFd) -> Arc<RunningQueue> {
    let running = running(memory, &[(START + 0x8000, 4, 0, 0)]);
    let call = call.try_clone().expect("cloned");
    running.set_call(Some(call)).expect("set");
    Arc::new(running)
}

fn full_eventfd() -> OwnedFd {
    let counter = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    rustix::io::write(&counter, &(u64::MAX - 1).to_ne_bytes()).expect("written");
    counter
}

fn fill(pipe: &OwnedFd) {
    let writer = Event::new(pipe.try_clone().expect("cloned")).expect("an event");
    while writer.is_ready(PollFlags::OUT) {
        rustix::io::write(pipe, &[0; 4096]).expect("written");
    }
}

#[test]
fn a_full_pipe_keeps_nobody_waiting() {
    let (_reader, full) = rustix::pipe::pipe().expect("a pipe");
    fill(&full);
    let running = with_call(&memory(), &full);
    Ending::of(move || {
        running.push_used(pop(&running));
        running.signal();
    })
    .wait();
}

#[test]
fn a_full_eventfd_holds_up_a_queue_until_it_is_replaced_or_the_queue_stops() {
    let releases: [fn(&RunningQueue); 2] = [
        |running| running.set_call(None).expect("set"),
        |running| running.stop(true),
    ];
    for release in releases {
        let running = with_call(&memory(), &full_eventfd());
        let queue = running.clone();
        let ending = Ending::of(move || {
            queue.push_used(pop(&queue));
            queue.signal();
        });
        let signals = || {
            let inner = running.inner();
            inner.call.as_ref().map_or(0, Arc::strong_count) > 1
        };
        wait_until("a thread signals", signals);
        Ending::of(move || release(&running)).wait();
        ending.wait();
    }
}

#[test]
fn replies_after_a_stop_are_notified_of_when_the_event_is_taken_back() {
    for call in [
        eventfd(0, EventfdFlags::CLOEXEC).expect("an event"),
        full_eventfd(),
    ] {
        let running = with_call(&memory(), &call);
        let exchange = pop(&running);
        running.stop(true);
        let (queue, ours) = (running.clone(), call.try_clone().expect("cloned"));
        Ending::of(move || {
            queue.push_used(exchange);
            queue.signal();
            assert!(queue.take_call().is_some());
            // Does not block.
            rustix::io::read(&ours, &mut [0; 8]).expect("read");
        })
        .wait();
    }
}

#[test]
fn a_pipe_of_its_own_description_blocks_nobody() {
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    fill(&writer);
    let ends = [&writer, &reader].map(|end| Event::reopened(end).expect("opened"));
    for event in [&writer, &reader] {
        let flags = rustix::fs::fcntl_getfl(event).expect("flags");
        assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
    }
    Ending::of(move || {
        let [writer, reader] = ends;
        writer.signal();
        while reader.is_ready(PollFlags::IN) {
            reader.clear().expect("read");
        }
        reader.clear().expect("nothing to read");
        writer.signal();
        assert!(reader.is_ready(PollFlags::IN));
    })
    .wait();
}

#[test]
fn an_event_is_an_eventfd_or_a_pipe() {
    let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let file = tempfile::tempfile().expect("a file");
    for other in [OwnedFd::from(socket), file.into()] {
        let error = Event::new(other).err().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::InvalidInput));
    }
    let datagrams = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    for other in [OwnedFd::from(datagrams), tcp.into()] {
        let error = Event::of_calls(other).err().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::InvalidInput));
    }
}

/// User-mode Linux passes one end of a socket pair as its call event.
#[test]
fn a_socket_notifies_of_replies_and_keeps_nobody_waiting() {
    let (mut guest, call) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let call = OwnedFd::from(call);
    let running = with_call(&memory(), &call);
    running.push_used(pop(&running));
    running.signal();
    let mut count = [0; 8];
    std::io::Read::read_exact(&mut guest, &mut count).expect("notified");
    assert_eq!(u64::from_ne_bytes(count), 1);

    Ending::of(move || {
        let event = Event::of_calls(call.try_clone().expect("cloned")).expect("an event");
        let full = Err(Errno::AGAIN);
        while send(&call, &count, SendFlags::DONTWAIT) != full {}
        // Then nobody reads it, which would be a SIGPIPE for write(2).
        event.signal();
        drop(guest);
        event.signal();
        running.stop(true);
        assert!(running.take_call().is_some());
        let flags = rustix::fs::fcntl_getfl(&call).expect("flags");
        assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
    })
    .wait();
}

#[test]
fn events_of_the_front_end_keep_their_flags() {
    let memory = memory();
    let running = running(&memory, &[(START + 0x8000, 4, 0, 0)]);
    let call = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    running
        .set_call(Some(call.try_clone().expect("cloned")))
        .expect("set");
    let kick = running.notifier().try_clone_to_owned().expect("cloned");
    rustix::io::write(&kick, &1u64.to_ne_bytes()).expect("written");
    // The second time it is empty, which must not block either.
    for _ in 0..2 {
        running.kick.clear().expect("not broken");
    }
    running.push_used(pop(&running));
    running.signal();
    let mut count = [0; 8];
    rustix::io::read(&call, &mut count).expect("read");
    assert_eq!(u64::from_ne_bytes(count), 1);
    for event in [&call, &kick] {
        let flags = rustix::fs::fcntl_getfl(event).expect("flags");
        assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
    }
}

/// More kicks than a pipe holds, none of which is lost.
#[test]
fn kicks_of_a_pipe_are_read_before_it_is_full() {
    let memory = memory();
    let mock = MockSplitQueue::create(memory.map_ref(), GuestAddress(START), 16);
    let queue: Queue = mock.create_queue().expect("a queue");
    let (kick, guest) = rustix::pipe::pipe().expect("a pipe");
    let running =
        RunningQueue::new("test".into(), queue, memory.clone(), kick, None).expect("running");
    let full = Event::new(guest).expect("an event");
    for _ in 0..10_000 {
        assert!(full.is_ready(PollFlags::OUT), "the pipe is full");
        full.signal();
        assert!(running.wait(true).expect("not broken"));
    }
    // A stand-in finds those after notifications were enabled.
    assert!(!running.enable_notifications().expect("not broken"));
    assert!(!running.kick.is_ready(PollFlags::IN));
    full.signal();
    assert!(running.kick.is_ready(PollFlags::IN));
}

/// The same pipe for one start after another, each of which leaves kicks in it.
#[test]
fn kicks_of_earlier_starts_are_read() {
    let memory = memory();
    let (kick, guest) = rustix::pipe::pipe().expect("a pipe");
    let full = Event::new(guest).expect("an event");
    for _ in 0..40 {
        let mock = MockSplitQueue::create(memory.map_ref(), GuestAddress(START), 16);
        let queue: Queue = mock.create_queue().expect("a queue");
        let again = kick.try_clone().expect("a descriptor");
        let running = RunningQueue::new("test".into(), queue, memory.clone(), again, None);
        let running = running.expect("running");
        for _ in 1..RunningQueue::MAX_UNREAD {
            assert!(full.is_ready(PollFlags::OUT), "the pipe is full");
            full.signal();
            assert!(running.wait(true).expect("not broken"));
        }
    }
}

#[test]
fn a_stop_ends_the_waiting_and_nothing_more_is_taken() {
    let memory = memory();
    let asks = running(&memory, &[(START + 0x8000, 4, 0, 0)]);
    assert!(asks.enable_notifications().expect("not broken"));
    let idle = Arc::new(running(&memory, &[]));
    assert!(idle.wait(false).is_err());
    let waiting = std::thread::spawn({
        let idle = idle.clone();
        move || idle.wait(true).expect("not broken")
    });
    idle.stop(true);
    assert!(!waiting.join().expect("no panic"));
    let busy = running(&memory, &[(START + 0x8000, 4, 0, 0)]);
    busy.stop(true);
    assert!(busy.pop(&|_| None).expect("not broken").is_none());
    assert!(!busy.enable_notifications().expect("not broken"));
}

#[test]
fn a_stopped_queue_leaves_the_used_ring_alone() {
    let memory = memory();
    for stopped in [false, true] {
        let running = running(&memory, &[]);
        let flags = || load(&memory, running.inner().queue.used_ring(), 2);
        let before = flags();
        if stopped {
            running.stop(true);
        }
        running.disable_notifications().expect("not broken");
        assert_eq!(flags() != before, !stopped);
        running.enable_notifications().expect("not broken");
        assert_eq!(flags(), before);
    }
}

/// Returns a log of the guest's memory, and its file.
fn log() -> (Arc<DirtyLog>, File) {
    let size = (START + SIZES[0] + SIZES[1]) / 4096 / 8;
    let file = tempfile::tempfile().expect("a file");
    file.set_len(size).expect("room");
    let again = file.try_clone().expect("a descriptor");
    (
        Arc::new(DirtyLog::map(again, 0, size).expect("mapped")),
        file,
    )
}

/// Returns the marked pages, and clears the log.
fn marked(file: &File) -> Vec<u64> {
    let len = file.metadata().expect("a size").len();
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    file.write_all_at(&vec![0; len as usize], 0)
        .expect("written");
    let is_marked = |page: &u64| bytes[*page as usize / 8] & 1 << (page % 8) != 0;
    (0..len * 8).filter(is_marked).collect()
}

#[test]
fn pages_of_replies_and_of_the_used_ring_are_logged() {
    let memory = memory();
    // The last buffer extends over both regions.
    let (request, reply, last) = (START + 0x8000, START + 0x9ffe, START + SIZES[0] - 4);
    let buffers = [
        (request, 4, NEXT, 1),
        (reply, 4, NEXT | WRITE, 2),
        (last, 8, WRITE, 0),
    ];
    for used in [Some(START + 0x2_0ffa), None] {
        let running = running(&memory, &buffers);
        let (pages, file) = log();
        running.set_log(Some(QueueLog { pages, used }));
        let mut exchange = pop(&running);
        exchange.split().1.bytes(b"longer");
        running.push_used(exchange);
        let page = |at: u64| at / 4096;
        let mut expected = vec![page(reply), page(reply) + 1, page(last), page(last) + 1];
        if let Some(used) = used {
            expected.extend([page(used), page(used) + 1]);
        }
        expected.sort_unstable();
        assert_eq!(marked(&file), expected);
        running.enable_notifications().expect("not broken");
        assert_eq!(marked(&file).len(), if used.is_some() { 2 } else { 0 });
        running.set_log(None);
        running.disable_notifications().expect("not broken");
        assert!(marked(&file).is_empty());
    }
}

#[test]
fn a_request_that_was_put_back_is_popped_first_after_the_next_start() {
    let memory = memory();
    let (one, other, table) = (START + 0x8000, START + 0x9000, START + 0xa000);
    for (at, bytes) in [(one, b"one"), (other, b"two")] {
        let written = memory.map_ref().write_slice(bytes, GuestAddress(at));
        written.expect("written");
    }
    // The first request is in an indirect table.
    let inner = RawDescriptor::from(Descriptor::new(one, 3, 0, 0));
    memory
        .map_ref()
        .write_obj(inner, GuestAddress(table))
        .expect("written");
    let all = [(table, 16, INDIRECT, 0), (other, 3, 0, 0)];
    let running = running(&memory, &all);
    let (mut first, mut second) = (pop(&running), pop(&running));
    assert_eq!(
        (text(&mut first), text(&mut second)),
        (b"one".into(), b"two".into())
    );
    assert!(!running.restarts(), "not stopped");
    running.stop(true);
    assert!(running.restarts());
    running.push_used(second);
    running.put_back(first);
    assert!(running.pop(&|_| None).expect("not broken").is_none());
    assert_eq!(running.take_put_back(), [Unanswered::new(0)]);

    let start = |base: u16, heads: &[u16]| {
        let again = started_again(&memory, &running);
        again.inner().queue.set_next_avail(base);
        again.set_put_back(heads.iter().copied().map(Unanswered::new).collect());
        again
    };
    let again = start(2, &[0]);
    assert!(again.wait(false).expect("not broken"));
    let mut exchange = pop(&again);
    assert_eq!(text(&mut exchange), b"one");
    assert!(again.pop(&|_| None).expect("not broken").is_none());
    again.push_used(exchange);
    assert!(again.wait(false).is_err(), "no more");
    // The guest waits for no more requests, or for others.
    for (base, heads) in [(2, &[0][..]), (2, &[99]), (1, &[0, 0])] {
        assert!(start(base, heads).take_put_back().is_empty());
    }
}

#[test]
fn requests_of_a_process_that_has_ended_are_popped_again_in_order() {
    let memory = memory();
    let at = |number: u64| START + 0x8000 + 16 * number;
    for (number, text) in (0u64..).zip([b"one", b"two", b"six"]) {
        let at = GuestAddress(at(number));
        memory.map_ref().write_slice(text, at).expect("written");
    }
    let dimensions = Dimensions {
        queues: 1,
        size: 16,
    };
    let file = File::from(InFlightMemory::create(dimensions).expect("memory"));
    let open = |running: &RunningQueue| {
        let file = file.try_clone().expect("a descriptor");
        let records = Arc::new(InFlightMemory::map(file, dimensions).expect("mapped"));
        let used = running.inner().queue.next_used();
        let mut records = InFlight::of_queue(records, 0, 16).expect("a queue");
        let recovered = records.recover(used);
        running.inner().queue.set_next_avail(recovered.next_avail);
        running.set_put_back(recovered.unanswered);
        running.set_records(records);
    };
    let requests = [0, 1, 2].map(|number| (at(number), 3, 0, 0));
    let first = running(&memory, &requests);
    open(&first);
    let pop_all = |running: &RunningQueue, count: usize| {
        let popped: Vec<_> = (0..count).map(|_| pop(running)).collect();
        assert!(running.pop(&|_| None).expect("not broken").is_none());
        popped
    };
    let mut popped = pop_all(&first, 3);
    assert_eq!(text(&mut popped[1]), b"two");
    first.push_used(popped.remove(1));
    // The process ends: nothing is put back, and nothing else is returned.
    let second = started_again(&memory, &first);
    assert_eq!(second.inner().queue.next_used(), 1);
    open(&second);
    let mut again = pop_all(&second, 2);
    assert_eq!(
        again.iter_mut().map(text).collect::<Vec<_>>(),
        [b"one", b"six"]
    );
    again.into_iter().for_each(|each| second.push_used(each));
    open(&second);
    assert!(pop_all(&second, 0).is_empty());
}

#[test]
fn descriptors_of_a_broken_chain_are_none_or_bounded() {
    let memory = memory();
    let table = START + 0x8000;
    let descriptors = |all: &[(u64, u32, u16, u16)], head: u16| {
        for (number, &(at, len, flags, next)) in (0u64..).zip(all) {
            let raw = RawDescriptor::from(Descriptor::new(at, len, flags, next));
            let at = GuestAddress(table + 16 * number);
            memory.map_ref().write_obj(raw, at).expect("written");
        }
        descriptors_of(memory.map_ref(), GuestAddress(table), 4, head).len()
    };
    assert_eq!(
        descriptors(&[(START, 1, NEXT, 1), (START, 1, NEXT, 0)], 0),
        4,
        "a circle"
    );
    assert_eq!(
        descriptors(&[(START, 1, NEXT, 4)], 0),
        0,
        "beyond the table"
    );
    assert_eq!(descriptors(&[(START, 1, 0, 0)], 4), 0, "beyond the table");
    assert_eq!(
        descriptors(&[(table, 64, INDIRECT, 0)], 0),
        0,
        "a table in a table"
    );
    assert_eq!(
        descriptors(&[(table, 15, INDIRECT, 0)], 0),
        0,
        "an empty table"
    );
    assert_eq!(
        descriptors(&[(1, 64, INDIRECT, 0)], 0),
        0,
        "outside the memory"
    );
}

#[test]
fn a_monitor_that_truncates_the_memory_ends_its_queues_alone() {
    let (lost, kept) = (memory(), memory());
    let request = START + 0x8000;
    let queue = |memory: &Arc<Memory>| {
        let map = memory.map_ref();
        map.write_slice(b"head", GuestAddress(request))
            .expect("written");
        running(memory, &[(request, 4, 0, 0)])
    };
    let (queues, other) = ([queue(&lost), queue(&lost)], queue(&kept));
    for (_, file) in lost.files() {
        ftruncate(file, 0).expect("truncated");
    }
    for queue in &queues {
        let all = |head: &[u8]| Some(head.len());
        let error = queue.pop(&all).map(drop).expect_err("its memory is gone");
        assert!(error.to_string().contains("truncated"), "{error}");
        assert!(queue.wait(false).is_err());
    }
    assert_eq!(text(&mut pop(&other)), b"head");
}

#[test]
fn memory_that_can_be_sealed_cannot_be_truncated() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("guest", flags).expect("a file"));
    ftruncate(&file, 1 << 20).expect("sized");
    let region = VhostUserMemoryRegion::new(START, 1 << 20, START, 0);
    let monitors = file.try_clone().expect("duplicated");
    let memory = Memory::map([(region, file)]).expect("mapped");
    assert!(ftruncate(&monitors, 0).is_err());
    memory.check().expect("it is there");
}
