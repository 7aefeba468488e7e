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
use rustix::net::{AddressFamily, SendFlags, SocketType, send, sockopt};
use transports::{Exchange, Ring};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};
use wire::Incoming;

use crate::chain::Chain;
use crate::dirty_log::DirtyLog;
use crate::in_flight::{InFlight, Unanswered};
use crate::memory::Memory;
use crate::vhost_user::DeviceKeeper;

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
    /// The requests to pop before the available ones: those that were put back before the start,
    /// or, once the queue is stopped, since.
    put_back: VecDeque<Unanswered>,
    /// The log of written pages, during a migration.
    log: Option<QueueLog>,
    /// The records of requests in flight, if they are kept.
    records: Option<InFlight>,
    /// The keeper of the device, which learns of each returned request.
    keeper: Option<Arc<dyn DeviceKeeper>>,
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
                call: call.map(Event::of_calls).transpose()?.map(Arc::new),
                call_pending: false,
                in_flight: 0,
                put_back: VecDeque::new(),
                log: None,
                records: None,
                keeper: None,
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
        let call = call.map(Event::of_calls).transpose()?.map(Arc::new);
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

    /// Returns a duplicate of the event that notifies the guest.
    pub(crate) fn call(&self) -> io::Result<Option<OwnedFd>> {
        let call = self.inner().call.clone();
        call.map(|call| call.fd.try_clone()).transpose()
    }

    /// Sets the requests to pop first, before the queue is driven. They must be all that the guest
    /// waits for: otherwise the guest has reset the queue meanwhile, and they are ignored.
    pub(crate) fn set_put_back(&self, requests: Vec<Unanswered>) {
        let mut inner = self.inner();
        let outstanding = inner
            .queue
            .next_avail()
            .wrapping_sub(inner.queue.next_used());
        let size = inner.queue.size();
        if usize::from(outstanding) == requests.len() && requests.iter().all(|it| it.head < size) {
            inner.put_back = requests.into();
        }
    }

    /// Takes the requests that were put back, after a stop and the end of all requests.
    pub(crate) fn take_put_back(&self) -> Vec<Unanswered> {
        std::mem::take(&mut self.inner().put_back).into()
    }

    /// Sets the records of requests in flight, before the queue is driven, and enters the requests
    /// to pop first.
    pub(crate) fn set_records(&self, mut records: InFlight) {
        let mut inner = self.inner();
        inner.put_back.iter().for_each(|it| records.begin(it.head));
        inner.records = Some(records);
    }

    /// Sets the keeper of the device, before the queue is driven.
    pub(crate) fn set_keeper(&self, keeper: Arc<dyn DeviceKeeper>) {
        self.inner().keeper = Some(keeper);
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
        self.memory.check()?;
        Ok(there.0 != self.queue.next_avail() || !self.put_back.is_empty())
    }
}

impl Ring for RunningQueue {
    fn pop(&self, frame: &dyn Fn(&[u8]) -> Option<usize>) -> io::Result<Option<Box<dyn Exchange>>> {
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut inner = self.inner();
        inner.memory.check()?;
        let Inner {
            queue,
            memory,
            in_flight,
            spare,
            put_back,
            records,
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
        let mut chain = if let Some(Unanswered { head, is_repeated }) = put_back.pop_front() {
            if full {
                return too_many();
            }
            let table = GuestAddress(queue.desc_table());
            let descriptors = descriptors_of(memory.map_ref(), table, longest, head);
            let mut chain = fill(new_chain(), memory, head, descriptors.into_iter());
            chain.request.is_repeated = is_repeated;
            chain
        } else {
            let mut available = queue.iter(memory.map_ref()).map_err(queue_error)?;
            let Some(descriptors) = available.next() else {
                memory.check()?;
                return Ok(None);
            };
            if full {
                return too_many();
            }
            let head = descriptors.head_index();
            if let Some(records) = records {
                records.begin(head);
            }
            // An indirect table must not be longer than the queue either (virtio 1.3, 2.7.5.3.1).
            fill(new_chain(), memory, head, descriptors.take(longest.into()))
        };
        *in_flight += 1;
        drop(inner);
        chain.complete(frame);
        // Otherwise it may be zeros.
        chain.check_memory()?;
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
            records,
            keeper,
            ..
        } = &mut *inner;
        if let Some(records) = records {
            records.before_return(chain.head, queue.next_used());
        }
        match queue.add_used(memory.map_ref(), chain.head, len) {
            Ok(()) => {
                if let Some(records) = records {
                    records.after_return(chain.head, queue.next_used());
                }
                if let Some(keeper) = keeper {
                    keeper.note_returned(chain.request.bytes());
                }
            }
            Err(error) => tracing::warn!(queue = self.name, "cannot return a reply: {error}"),
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
        inner.put_back.push_back(Unanswered {
            head: chain.head,
            is_repeated: chain.request.is_repeated,
        });
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

/// An eventfd, a pipe or a socket of the front end, which may do anything with it at any time: read
/// it, fill it, block in read(2) on it, change its flags. So its flags are left unchanged, and not
/// relied on.
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
    /// A Unix stream socket, which is only written.
    Socket,
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

    /// Returns an event that is only signalled, which may also be a Unix stream socket: user-mode
    /// Linux passes one end of a pair (`os_pipe`, arch/um/os-Linux/file.c). The other kinds are
    /// those of [`Event::new`]. A socket as a kick would be read, and recv(2) blocks, whatever its
    /// flags, while another holder of the socket receives into memory that is not there.
    fn of_calls(fd: OwnedFd) -> io::Result<Event> {
        let is_socket =
            FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) == FileType::Socket;
        // Sockets of other families may have protocols that wait.
        if is_socket
            && sockopt::socket_domain(&fd)? == AddressFamily::UNIX
            && sockopt::socket_type(&fd)? == SocketType::STREAM
        {
            let kind = Kind::Socket;
            return Ok(Event { fd, kind });
        }
        Event::new(fd)
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
        // Fails if it is full, or a pipe or a socket without a reader.
        let _ = match self.kind {
            Kind::Socket => send(&self.fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
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

    /// Makes it unreadable, without blocking; a socket, which no thread waits for, stays readable.
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
            Kind::Socket => return Ok(()),
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
    let event = Arc::new(Event::of_calls(event)?);
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
mod tests;
