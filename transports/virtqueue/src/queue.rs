//! A running queue.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use transports::{Exchange, Ring};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

use crate::chain::Chain;
use crate::dirty_log::DirtyLog;
use crate::memory::Memory;

/// A virtqueue between its start and its stop.
pub(crate) struct RunningQueue {
    name: String,
    inner: Mutex<Inner>,
    /// Signalled when the guest made requests available while notifications were enabled.
    kick: Event,
    /// Reports each signal of `kick` once (edge-triggered), and `stop`. A kick then takes no
    /// read(2).
    kicks: OwnedFd,
    /// The number of further signals until `kick` is read.
    unread: AtomicU32,
    /// Readable once the queue is stopped.
    stop: OwnedFd,
    stopped: AtomicBool,
    /// Whether it may start again after the stop.
    may_start_again: AtomicBool,
}

struct Inner {
    queue: Queue,
    memory: Arc<Memory>,
    /// Notifies the guest.
    call: Option<Arc<Event>>,
    /// Whether the guest must still be notified of replies made after the stop.
    call_pending: bool,
    /// The number of requests that were popped and not returned.
    in_flight: u16,
    /// The head descriptors of requests to pop before the available ones: those that were put back
    /// before the start, or, once the queue is stopped, since.
    put_back: VecDeque<u16>,
    /// The log of written pages, during a migration.
    log: Option<QueueLog>,
    /// Returned chains, for reuse.
    #[allow(clippy::vec_box, reason = "they are given out in their boxes")]
    spare: Vec<Box<Chain>>,
}

/// The dirty log as a queue uses it.
#[derive(Clone)]
pub(crate) struct QueueLog {
    pub(crate) pages: Arc<DirtyLog>,
    /// The guest address under which writes of the used ring are logged, if they are.
    pub(crate) used: Option<u64>,
}

impl RunningQueue {
    pub(crate) fn new(
        name: String,
        queue: Queue,
        memory: Arc<Memory>,
        kick: OwnedFd,
        call: Option<OwnedFd>,
    ) -> io::Result<RunningQueue> {
        let (kick, stop) = (Event::new(kick)?, eventfd(0, EventfdFlags::CLOEXEC)?);
        // Signals of earlier starts: the ring is looked at anyway, and many would fill a pipe.
        let _ = kick.clear();
        let kicks = epoll::create(CreateFlags::CLOEXEC)?;
        let once = EventFlags::IN | EventFlags::ET;
        epoll::add(&kicks, &kick.fd, EventData::new_u64(0), once)?;
        epoll::add(&kicks, &stop, EventData::new_u64(1), EventFlags::IN)?;
        Ok(RunningQueue {
            name,
            inner: Mutex::new(Inner {
                queue,
                memory,
                call: call.map(Event::new).transpose()?.map(Arc::new),
                call_pending: false,
                in_flight: 0,
                put_back: VecDeque::new(),
                log: None,
                spare: Vec::new(),
            }),
            kick,
            kicks,
            unread: AtomicU32::new(RunningQueue::MAX_UNREAD),
            stop,
            stopped: AtomicBool::new(false),
            may_start_again: AtomicBool::new(false),
        })
    }

    /// Stops the queue: its threads end after the requests in flight. Those that wait are put back
    /// if the queue `may_start_again`; at the end of the device, and at a reset, they are answered.
    /// Returns once no thread notifies the guest any more: [`RunningQueue::take_call`] does so for
    /// later replies.
    pub(crate) fn stop(&self, may_start_again: bool) {
        let inner = self.inner();
        self.may_start_again
            .store(may_start_again, Ordering::SeqCst);
        self.stopped.store(true, Ordering::SeqCst);
        let call = inner.call.clone();
        drop(inner);
        // Fails only if it is readable already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(call) = call {
            call.unblock_writers(2);
        }
    }

    /// A pipe of one page holds twice as many signals; an eventfd, any number.
    const MAX_UNREAD: u32 = 256;

    fn clear_kick(&self) -> io::Result<()> {
        self.unread
            .store(RunningQueue::MAX_UNREAD, Ordering::Relaxed);
        self.kick.clear()
    }

    /// Returns the index of the next available request, for its next start.
    pub(crate) fn next_avail(&self) -> u16 {
        self.inner().queue.next_avail()
    }

    /// Replaces the event that notifies the guest. Returns once no thread signals the previous one.
    pub(crate) fn set_call(&self, call: Option<OwnedFd>) -> io::Result<()> {
        let call = call.map(Event::new).transpose()?.map(Arc::new);
        let before = std::mem::replace(&mut self.inner().call, call);
        if let Some(before) = before {
            before.unblock_writers(1);
        }
        Ok(())
    }

    /// Takes the event that notifies the guest, after a stop and the end of all requests.
    pub(crate) fn take_call(&self) -> Option<OwnedFd> {
        let mut inner = self.inner();
        let (call, late) = (inner.call.take()?, inner.call_pending);
        drop(inner);
        if late {
            call.signal_on_thread();
        }
        Arc::into_inner(call).map(|call| call.fd)
    }

    /// Sets the requests to pop first, by their head descriptors, before the queue is driven. They
    /// must be all that the guest waits for: otherwise the guest has reset the queue meanwhile, and
    /// they are ignored.
    pub(crate) fn set_put_back(&self, heads: Vec<u16>) {
        let mut inner = self.inner();
        let outstanding = inner
            .queue
            .next_avail()
            .wrapping_sub(inner.queue.next_used());
        let size = inner.queue.size();
        if usize::from(outstanding) == heads.len() && heads.iter().all(|&head| head < size) {
            inner.put_back = heads.into();
        }
    }

    /// Takes the requests that were put back, by their head descriptors, after a stop and the end
    /// of all requests.
    pub(crate) fn take_put_back(&self) -> Vec<u16> {
        std::mem::take(&mut self.inner().put_back).into()
    }

    /// Replaces the log of written pages.
    pub(crate) fn set_log(&self, log: Option<QueueLog>) {
        self.inner().log = log;
    }

    pub(crate) fn set_memory(&self, memory: &Arc<Memory>) {
        self.inner().memory = memory.clone();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Inner {
    /// The size of a batch; more would retain memory after a burst.
    const MAX_SPARE: usize = 16;

    /// Enables notifications from the guest; returns whether there is a request already.
    fn enable_notification(&mut self) -> io::Result<bool> {
        let memory = self.memory.map_ref();
        let more = self.queue.enable_notification(memory);
        self.log_used();
        Ok(more.map_err(queue_error)? || !self.put_back.is_empty())
    }

    fn disable_notification(&mut self) -> io::Result<()> {
        let memory = self.memory.map_ref();
        let done = self.queue.disable_notification(memory);
        self.log_used();
        done.map_err(queue_error)
    }

    /// Marks the used ring in the log: it has at most three pages.
    fn log_used(&self) {
        /// The size of flags, index and event index.
        const HEAD: u64 = 6;
        const ELEMENT: u64 = 8;
        if let Some(log) = &self.log
            && let Some(used) = log.used
        {
            let entries = u64::from(self.queue.size());
            log.pages.mark(used, HEAD + ELEMENT * entries);
        }
    }

    fn has_more(&self) -> io::Result<bool> {
        let memory = self.memory.map_ref();
        let there = self
            .queue
            .avail_idx(memory, Ordering::Acquire)
            .map_err(queue_error)?;
        Ok(there.0 != self.queue.next_avail() || !self.put_back.is_empty())
    }
}

impl Ring for RunningQueue {
    fn pop(&self, frame: &dyn Fn(&[u8]) -> Option<usize>) -> io::Result<Option<Box<dyn Exchange>>> {
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut inner = self.inner();
        let Inner {
            queue,
            memory,
            in_flight,
            spare,
            put_back,
            ..
        } = &mut *inner;
        let longest = queue.size();
        // Each uses at least one descriptor until it is returned.
        let full = *in_flight == longest;
        let too_many = || {
            let why = "expected at most as many requests as the queue has entries";
            Err(io::Error::new(ErrorKind::InvalidData, why))
        };
        let mut new_chain = || spare.pop().unwrap_or_else(|| Box::new(Chain::new(memory)));
        let mut chain = if let Some(head) = put_back.pop_front() {
            if full {
                return too_many();
            }
            let table = GuestAddress(queue.desc_table());
            let descriptors = descriptors_of(memory.map_ref(), table, longest, head);
            fill(new_chain(), memory, head, descriptors.into_iter())
        } else {
            let mut available = queue.iter(memory.map_ref()).map_err(queue_error)?;
            let Some(descriptors) = available.next() else {
                return Ok(None);
            };
            if full {
                return too_many();
            }
            let head = descriptors.head_index();
            // An indirect table must not be longer than the queue either (virtio 1.3, 2.7.5.3.1).
            fill(new_chain(), memory, head, descriptors.take(longest.into()))
        };
        *in_flight += 1;
        drop(inner);
        chain.complete(frame);
        Ok(Some(chain))
    }

    fn push_used(&self, exchange: Box<dyn Exchange>) {
        let Ok(chain) = exchange.into_any().downcast::<Chain>() else {
            return;
        };
        let len = wire::Outgoing::len(&chain.reply) as u32;
        let mut inner = self.inner();
        inner.in_flight -= 1;
        let Inner {
            queue,
            memory,
            spare,
            log,
            ..
        } = &mut *inner;
        if let Err(error) = queue.add_used(memory.map_ref(), chain.head, len) {
            tracing::warn!(queue = self.name, "cannot return a reply: {error}");
        }
        if let Some(log) = log {
            chain.mark_dirty(&log.pages);
        }
        if spare.len() < Inner::MAX_SPARE {
            spare.push(chain);
        }
        inner.log_used();
    }

    /// A queue that ends because its ring is broken is not stopped: a request that was put back
    /// into it would be popped again.
    fn restarts(&self) -> bool {
        self.may_start_again.load(Ordering::SeqCst)
    }

    fn put_back(&self, exchange: Box<dyn Exchange>) {
        let Ok(chain) = exchange.into_any().downcast::<Chain>() else {
            return;
        };
        let mut inner = self.inner();
        inner.in_flight -= 1;
        inner.put_back.push_back(chain.head);
    }

    fn signal(&self) {
        let mut inner = self.inner();
        let Inner {
            queue,
            memory,
            call,
            call_pending: late,
            ..
        } = &mut *inner;
        // If the guest's setting cannot be read, it is notified.
        if !queue.needs_notification(memory.map_ref()).unwrap_or(true) {
            return;
        }
        if self.stopped.load(Ordering::SeqCst) {
            *late = true;
            return;
        }
        let call = call.clone();
        drop(inner);
        if let Some(call) = call {
            call.signal();
        }
    }

    fn wait(&self, wait: bool) -> io::Result<bool> {
        if self.stopped.load(Ordering::SeqCst) {
            return Ok(false);
        }
        if self.inner().has_more()? {
            return Ok(true);
        }
        if !wait {
            return Err(ErrorKind::WouldBlock.into());
        }
        loop {
            if !self.inner().enable_notification()? {
                let mut event = [MaybeUninit::uninit()];
                match epoll::wait(&self.kicks, &mut event, None) {
                    Err(rustix::io::Errno::INTR) => continue,
                    done => done?,
                };
                // Only one thread waits at a time.
                let left = self.unread.load(Ordering::Relaxed) - 1;
                if left == 0 {
                    self.clear_kick()?;
                } else {
                    self.unread.store(left, Ordering::Relaxed);
                }
            }
            if self.stopped.load(Ordering::SeqCst) {
                return Ok(false);
            }
            self.inner().disable_notification()?;
            return Ok(true);
        }
    }

    fn enable_notifications(&self) -> io::Result<bool> {
        // All requests signalled so far are known.
        self.clear_kick()?;
        let mut inner = self.inner();
        // A stand-in may come after the stop, when the used ring belongs to the next start.
        if self.stopped.load(Ordering::SeqCst) {
            return Ok(false);
        }
        inner.enable_notification()
    }

    fn disable_notifications(&self) -> io::Result<()> {
        let mut inner = self.inner();
        match self.stopped.load(Ordering::SeqCst) {
            true => Ok(()),
            false => inner.disable_notification(),
        }
    }

    fn notifier(&self) -> BorrowedFd<'_> {
        self.kick.fd.as_fd()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Sets `chain` to these descriptors in `memory`.
fn fill(
    mut chain: Box<Chain>,
    memory: &Arc<Memory>,
    head: u16,
    descriptors: impl Iterator<Item = Descriptor>,
) -> Box<Chain> {
    chain.begin(head, memory);
    let mut written = false;
    for descriptor in descriptors {
        // Device-readable buffers precede device-writable ones.
        if written && !descriptor.is_write_only() {
            break;
        }
        written = descriptor.is_write_only();
        if !chain.add(descriptor.addr(), descriptor.len() as usize, written) {
            // A chain with a buffer outside the memory becomes an empty request without room for a
            // reply.
            chain.clear();
            break;
        }
    }
    chain
}

/// Returns the descriptors of the chain that begins at `head` of a descriptor table with `size`
/// entries, at most as many; none if the chain is invalid. A [`Queue`] only follows chains that its
/// available ring refers to.
fn descriptors_of(
    memory: &GuestMemoryMmap<()>,
    table: GuestAddress,
    size: u16,
    head: u16,
) -> Vec<Descriptor> {
    let (mut table, mut size, mut next) = (table, size, Some(head));
    let (most, mut indirect, mut found) = (usize::from(size), false, Vec::new());
    while let Some(index) = next.filter(|_| found.len() < most) {
        let offset = u64::from(index) * size_of::<Descriptor>() as u64;
        let at = table.checked_add(offset).filter(|_| index < size);
        let Some(Ok(descriptor)) = at.map(|at| memory.read_obj::<Descriptor>(at)) else {
            return Vec::new();
        };
        if descriptor.refers_to_indirect_table() {
            let entries = descriptor.len() as usize / size_of::<Descriptor>();
            // The table is the rest of the chain.
            match u16::try_from(entries) {
                Ok(entries) if !indirect && entries > 0 => {
                    (table, size, next) = (descriptor.addr(), entries, Some(0));
                    indirect = true;
                }
                _ => return Vec::new(),
            }
            continue;
        }
        found.push(descriptor);
        next = descriptor.has_next().then(|| descriptor.next());
    }
    found
}

/// An eventfd or a pipe of the front end, which may do anything with it at any time: read it, fill
/// it, block in read(2) on it, change its flags. So its flags are left unchanged, and not relied
/// on.
struct Event {
    fd: OwnedFd,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An anonymous inode. For kinds other than an eventfd, writes fail.
    Eventfd,
    Pipe,
    /// A pipe with our own open file description, nonblocking.
    OwnPipe,
}

impl Event {
    /// The interval of the checks for the end of an event's writers.
    const CHECK_INTERVAL: Duration = Duration::from_micros(50);

    /// Returns `InvalidInput` if `fd` is neither an eventfd nor a pipe: reads, writes and even
    /// poll(2) of other files may block for as long as their owner likes.
    fn new(fd: OwnedFd) -> io::Result<Event> {
        // Anonymous inodes have no type.
        let kind = match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::Unknown => Kind::Eventfd,
            FileType::Fifo if *PIPES_HAVE_NOWAIT => Kind::Pipe,
            FileType::Fifo => return Event::reopened(&fd),
            _ => {
                let why = "expected an eventfd or a pipe";
                return Err(io::Error::new(ErrorKind::InvalidInput, why));
            }
        };
        Ok(Event { fd, kind })
    }

    /// Opens the pipe `fd` again, with an open file description of its own.
    fn reopened(fd: &OwnedFd) -> io::Result<Event> {
        let access = rustix::fs::fcntl_getfl(fd)? & OFlags::RWMODE;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Event {
            fd: rustix::fs::open(path, flags, Mode::empty())?,
            kind: Kind::OwnPipe,
        })
    }

    /// Makes it readable, unless it is full: then it is readable already. If a front end has filled
    /// an eventfd, the calling thread blocks until [`Event::unblock_writers`].
    fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // Fails if it is full, or a pipe without a reader.
        let _ = match self.kind {
            Kind::Pipe => {
                let flags = ReadWriteFlags::NOWAIT;
                rustix::io::pwritev2(&self.fd, &[IoSlice::new(&one)], u64::MAX, flags)
            }
            Kind::Eventfd | Kind::OwnPipe => rustix::io::write(&self.fd, &one),
        };
    }

    /// Does what [`Event::signal`] does, without blocking on the front end.
    fn signal_on_thread(self: &Arc<Self>) {
        let event = self.clone();
        let writer = std::thread::Builder::new().name("barge-call".into());
        match writer.spawn(move || event.signal()) {
            Ok(_) => self.unblock_writers(1),
            Err(error) => tracing::warn!("cannot notify the guest of the last replies: {error}"),
        }
    }

    /// Waits until no thread signals it, so that only `holders` references remain. A thread that
    /// blocks in write(2) because the eventfd is full continues when it is read; if the front end
    /// fills it again first, when it is read the next time.
    fn unblock_writers(self: &Arc<Self>, holders: usize) {
        while Arc::strong_count(self) > holders {
            match self.kind == Kind::Eventfd && !self.is_ready(PollFlags::OUT) {
                true => drop(self.clear()),
                false => std::thread::sleep(Event::CHECK_INTERVAL),
            }
        }
    }

    /// Makes it unreadable, without blocking.
    fn clear(&self) -> io::Result<()> {
        // An eventfd returns its count, a pipe all its contents.
        let mut buffer = [0; 4096];
        let read = match self.kind {
            Kind::Eventfd | Kind::Pipe => {
                let flags = ReadWriteFlags::NOWAIT;
                let mut buffers = [IoSliceMut::new(&mut buffer)];
                rustix::io::preadv2(&self.fd, &mut buffers, u64::MAX, flags)
            }
            Kind::OwnPipe => rustix::io::read(&self.fd, &mut buffer),
        };
        match read {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn is_ready(&self, events: PollFlags) -> bool {
        let mut fds = [PollFd::new(&self.fd, events)];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().contains(events)
    }
}

/// Signals an event of the front end once, without blocking on it.
pub(crate) fn signal_once(event: OwnedFd) -> io::Result<OwnedFd> {
    let event = Arc::new(Event::new(event)?);
    event.signal_on_thread();
    // No thread holds it any more.
    let event = Arc::into_inner(event).ok_or(ErrorKind::Other)?;
    Ok(event.fd)
}

/// Whether pipes support `RWF_NOWAIT`, as they do since Linux 6.4.
static PIPES_HAVE_NOWAIT: LazyLock<bool> = LazyLock::new(|| {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).is_ok_and(|(_reader, writer)| {
        let flags = ReadWriteFlags::NOWAIT;
        rustix::io::pwritev2(&writer, &[IoSlice::new(&[0])], u64::MAX, flags).is_ok()
    })
});

fn queue_error(error: virtio_queue::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vfs::Patience;
    use vhost::vhost_user::message::VhostUserMemoryRegion;
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::mock::MockSplitQueue;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

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
            .map(|&(at, len, flags, next)| {
                RawDescriptor::from(Descriptor::new(at, len, flags, next))
            })
            .collect();
        if !descriptors.is_empty() {
            mock.add_desc_chains(&descriptors, 0).expect("added");
        }
        let queue: Queue = mock.create_queue().expect("a queue");
        let event = || eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
        RunningQueue::new("test".into(), queue, memory.clone(), event(), Some(event()))
            .expect("running")
    }

    fn pop(running: &RunningQueue) -> Box<dyn Exchange> {
        let all = |head: &[u8]| Some(head.len());
        running.pop(&all).expect("not broken").expect("a request")
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
            while !signals() {
                std::thread::yield_now();
            }
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
        let text = |exchange: &mut Box<dyn Exchange>| exchange.split().0.bytes().to_vec();
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
        let heads = running.take_put_back();
        assert_eq!(heads, [0]);

        let start = |base: u16, heads: Vec<u16>| {
            let inner = running.inner();
            let mut queue = Queue::new(16).expect("a queue");
            queue.set_size(inner.queue.size());
            queue.set_desc_table_address(Some(inner.queue.desc_table() as u32), None);
            queue.set_avail_ring_address(Some(inner.queue.avail_ring() as u32), None);
            queue.set_used_ring_address(Some(inner.queue.used_ring() as u32), None);
            queue.set_ready(true);
            queue.set_next_avail(base);
            let used = queue
                .used_idx(memory.map_ref(), Ordering::Acquire)
                .expect("an index");
            queue.set_next_used(used.0);
            let kick = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
            let again = RunningQueue::new("again".into(), queue, memory.clone(), kick, None);
            let again = again.expect("running");
            again.set_put_back(heads);
            again
        };
        let again = start(2, heads.clone());
        assert!(again.wait(false).expect("not broken"));
        let mut exchange = pop(&again);
        assert_eq!(text(&mut exchange), b"one");
        assert!(again.pop(&|_| None).expect("not broken").is_none());
        again.push_used(exchange);
        assert!(again.wait(false).is_err(), "no more");
        // The guest waits for no more requests, or for others.
        for (base, heads) in [(2, heads), (2, vec![99]), (1, vec![0, 0])] {
            assert!(start(base, heads).take_put_back().is_empty());
        }
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
}
