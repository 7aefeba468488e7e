use std::any::Any;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sys::pages::PageBuffer;
use vfs::{Payload, Result as Answered};
use wire::{Incoming, Outgoing};

use super::thread_group::{SleepResult, ThreadGroup};
use crate::{Exchange, Frame, Outbox, Ring};

/// A descriptor of a mount. A request read from it is answered on it.
pub struct Channel {
    device: OwnedFd,
    /// The epoll instance on which threads wait for requests. All channels of a mount have the same
    /// requests: poll(2) would wake each of them, while EPOLLEXCLUSIVE wakes one, the first one
    /// added.
    epoll: OwnedFd,
    /// The threads of all the mount's channels.
    threads: Arc<ThreadGroup>,
    /// See [`Channels`].
    kept: Arc<AtomicUsize>,
    /// The maximum size of a request in bytes.
    max_request: usize,
    name: String,
    /// Is called after a reply was sent.
    sent: Option<Sent>,
    /// See [`Channels`].
    ends: Arc<Ends>,
    /// See [`Channels`].
    in_flight: Option<Arc<InFlightMemory>>,
    /// Whether the mount is gone.
    closed: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// A request that was read by a check for requests.
    peeked: Option<Box<FuseRequest>>,
    /// The thread that sent the last request.
    last_thread: Option<u32>,
    /// The number of consecutive requests that may have been in flight at once: a thread waits for
    /// the reply to all but reads and writes.
    overlapping: usize,
    /// Buffers of answered requests for reuse, the last one first, so that sequential reads or
    /// writes of a file stay in the same memory; fresh memory costs as much as the copy into it.
    #[allow(clippy::vec_box, reason = "they are given out in their boxes")]
    spare: Vec<Box<FuseRequest>>,
}

impl Inner {
    /// The minimum number of requests that the kernel keeps in flight while it writes a file in
    /// large pieces: up to 39 were observed (`waiting` of a connection below
    /// /sys/fs/fuse/connections), and those beyond get fresh memory.
    const MAX_SPARE: usize = 12;

    /// The time for which all of them, and [`Ends`], are kept, as connections keep the buffers of
    /// large messages. Then one is kept.
    const SPARE_TIME: Duration = Duration::from_millis(500);

    /// The number of overlapping requests above which more than one thread is needed. Releases of
    /// closed files overlap with the next request.
    const MAX_OVERLAPPING: usize = 2;

    /// Returns whether the last request may still be in flight, judging by its thread.
    fn may_overlap(&mut self, message: &Message) -> bool {
        let thread = message.thread();
        let last = std::mem::replace(&mut self.last_thread, thread);
        thread.is_none() || last != thread || message.is_data()
    }
}

/// A function that is called with each request whose reply was sent.
pub type Sent = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// The channels of a mount, whose threads share its requests.
pub struct Channels {
    threads: Arc<ThreadGroup>,
    /// The bytes of large buffers that are kept for reuse.
    kept: Arc<AtomicUsize>,
    /// The mount, for messages.
    name: String,
    sent: Option<Sent>,
    /// Memory for the ends of requests, if the mount outlives its process.
    ends: Arc<Ends>,
    /// The memory of reads and writes in flight, if it is limited.
    in_flight: Option<Arc<InFlightMemory>>,
}

impl Channels {
    /// Returns those of the mount `name`, of which none is open.
    pub fn new(name: String) -> Channels {
        Channels {
            threads: Arc::default(),
            kept: Arc::default(),
            name,
            sent: None,
            ends: Arc::default(),
            in_flight: None,
        }
    }

    /// Limits the memory of reads and writes in flight to `bytes`: beyond it, requests stay in the
    /// kernel. A program waits for its reads and writes, so many programs have as many in flight,
    /// and the kernel's limit (`max_background`) is only for its read-ahead and write-back.
    pub fn with_memory(mut self, bytes: usize) -> Channels {
        self.in_flight = Some(Arc::new(InFlightMemory {
            limit: bytes,
            used: Mutex::default(),
            less: Condvar::new(),
        }));
        self
    }

    /// Calls `sent` with each request whose reply was sent, from the thread that has sent it. The
    /// mount outlives the process: no request is lost if that is killed while it reads one.
    pub fn with_sent(mut self, sent: Sent) -> Channels {
        self.sent = Some(sent);
        self
    }

    /// Opens a channel for requests of up to `longest` bytes, headers included, from `device`,
    /// which [`Mount::open_device`](super::Mount::open_device) has returned.
    pub fn open(&self, device: OwnedFd, longest: usize) -> io::Result<Channel> {
        let idle = epoll::create(CreateFlags::CLOEXEC)?;
        let events = EventFlags::IN | EventFlags::EXCLUSIVE;
        epoll::add(&idle, &device, EventData::new_u64(0), events)?;
        self.threads.join();
        Ok(Channel {
            device,
            epoll: idle,
            threads: self.threads.clone(),
            kept: self.kept.clone(),
            max_request: longest,
            name: self.name.clone(),
            sent: self.sent.clone(),
            ends: self.ends.clone(),
            in_flight: self.in_flight.clone(),
            closed: AtomicBool::new(false),
            inner: Mutex::default(),
        })
    }
}

impl Channel {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Reads the next request, if there is one.
    fn read(&self, inner: &mut Inner) -> io::Result<Option<Box<FuseRequest>>> {
        if let Some(next) = inner.peeked.take() {
            return Ok(Some(next));
        }
        if self.is_closed() {
            return Ok(None);
        }
        let mut request = inner
            .spare
            .pop()
            .unwrap_or_else(|| Box::new(FuseRequest::new(self.max_request)));
        request.kept = None;
        let result = loop {
            match self.read_into(&mut request.message) {
                // The request was interrupted, and there may be another.
                Err(Errno::INTR | Errno::NOENT) => {}
                result => break result,
            }
        };
        match result {
            Ok(len) => {
                request.message.len = len;
                request.message.touched = request.message.touched.max(len);
                let memory = self.in_flight.as_ref();
                request.claim = memory.map(|memory| memory.claim(&request.message));
                if inner.may_overlap(&request.message) {
                    inner.overlapping += 1;
                    if inner.overlapping > Inner::MAX_OVERLAPPING {
                        self.threads.wake_one();
                    }
                }
                return Ok(Some(request));
            }
            Err(Errno::AGAIN) => inner.overlapping = 0,
            Err(Errno::NODEV) => {
                self.closed.store(true, Ordering::Release);
                self.threads.close();
            }
            Err(error) => {
                // No more requests will arrive.
                self.threads.close();
                return Err(error.into());
            }
        }
        self.keep(inner, request);
        Ok(None)
    }

    /// Reads a request into pages that are there, if the mount outlives the process.
    ///
    /// The kernel fails a request with EIO if the process is killed while it copies the request to
    /// pages that are not there yet (fuse_dev_do_read(), fs/fuse/dev.c): it has left the queue by
    /// then, and no successor gets it. As most requests are short, the channels share the memory
    /// for the ends of long ones, which are copied from there.
    fn read_into(&self, message: &mut Message) -> rustix::io::Result<usize> {
        let resident = message.resident();
        let (start, rest) = message.buffer.split_at_mut(resident);
        if self.sent.is_none() || rest.is_empty() {
            return rustix::io::read(&self.device, &mut message.buffer[..]);
        }
        let mut end = match self.ends.take() {
            Some(end) => end,
            // An idle mount has no such memory.
            None if self.is_readable()? => Ends::make(self.max_request),
            None => return Err(Errno::AGAIN),
        };
        let mut parts = [
            IoSliceMut::new(start),
            IoSliceMut::new(&mut end[..rest.len()]),
        ];
        let read = rustix::io::readv(&self.device, &mut parts);
        if let Ok(len) = read
            && let Some(behind) = len.checked_sub(resident)
        {
            rest[..behind].copy_from_slice(&end[..behind]);
        }
        self.ends.give(end);
        read
    }

    /// Returns whether a request can be read, or the end of the mount.
    fn is_readable(&self) -> rustix::io::Result<bool> {
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut polled, Some(&now)).map(|ready| ready > 0)
    }

    /// Keeps the buffers of a request for reuse, unless there are enough.
    fn keep(&self, inner: &mut Inner, mut request: Box<FuseRequest>) {
        request.kept = KeptMemory::new(&self.kept, request.large_bytes());
        if request.kept.is_some() && inner.spare.len() < Inner::MAX_SPARE {
            inner.spare.push(request);
        }
    }

    /// Waits for a request; returns whether none arrived for `time`.
    fn wait_at_device(&self, time: Option<Duration>) -> io::Result<bool> {
        let time = time.map(|time| Timespec {
            tv_sec: time.as_secs() as _,
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut event = [MaybeUninit::uninit()];
        match epoll::wait(&self.epoll, &mut event, time.as_ref()) {
            Ok((there, _)) => Ok(there.is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the requests in flight leave memory for another one.
    fn wait_for_memory(&self) {
        if let Some(memory) = &self.in_flight
            && memory.is_used_up()
            && self.inner().peeked.is_none()
        {
            memory.wait();
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Ring for Channel {
    /// A request arrives complete.
    fn pop(&self, _: &dyn Fn(&[u8]) -> Option<usize>) -> io::Result<Option<Box<dyn Exchange>>> {
        self.wait_for_memory();
        let next = self.read(&mut self.inner())?;
        Ok(next.map(|request| request as Box<dyn Exchange>))
    }

    fn push_used(&self, exchange: Box<dyn Exchange>) {
        let Ok(mut request) = exchange.into_any().downcast::<FuseRequest>() else {
            return;
        };
        let reply = request.reply.bytes();
        if !reply.is_empty() {
            let sent = loop {
                match rustix::io::write(&self.device, reply) {
                    Err(Errno::INTR) => {}
                    sent => break sent,
                }
            };
            match sent {
                // The request was interrupted, or the mount is gone.
                Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
                Err(error) => tracing::warn!(mount = self.name, "cannot send a reply: {error}"),
            }
        }
        if let Some(sent) = &self.sent {
            sent(request.message.bytes());
        }
        request.reply.clear();
        request.claim = None;
        self.keep(&mut self.inner(), request);
    }

    /// The reply itself notifies the kernel.
    fn signal(&self) {}

    fn wait(&self, wait: bool) -> io::Result<bool> {
        self.wait_for_memory();
        let mut inner = self.inner();
        inner.peeked = self.read(&mut inner)?;
        let there = inner.peeked.is_some();
        let has_spare = inner.spare.len() > 1 || !self.ends.is_empty();
        let time = has_spare.then_some(Inner::SPARE_TIME);
        drop(inner);
        if there || self.is_closed() {
            return Ok(there);
        }
        if !wait {
            return Err(ErrorKind::WouldBlock.into());
        }
        let idle = match self.threads.sleep(time) {
            SleepResult::NotSlept => self.wait_at_device(time)?,
            SleepResult::Woken => false,
            SleepResult::TimedOut => true,
        };
        if idle {
            self.inner().spare.truncate(1);
            self.ends.clear();
        }
        Ok(true)
    }

    /// The device is its own notifier, readable as long as it has requests.
    fn enable_notifications(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn disable_notifications(&self) -> io::Result<()> {
        Ok(())
    }

    fn notifier(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Memory for the ends of long requests, whose pages are there. It is given back when a mount is
/// idle.
#[derive(Default)]
struct Ends(Mutex<Vec<PageBuffer>>);

impl Ends {
    fn make(max_request: usize) -> PageBuffer {
        let mut end = PageBuffer::zeroed(max_request - FuseRequest::LARGE);
        end.fill(0);
        end
    }

    fn take(&self) -> Option<PageBuffer> {
        self.0.lock().pop()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Keeps memory for the next request: a piece for each thread that reads at the same time.
    fn give(&self, end: PageBuffer) {
        self.0.lock().push(end);
    }

    fn clear(&self) {
        let ends = std::mem::take(&mut *self.0.lock());
        drop(ends);
    }
}

/// The memory of a mount's reads and writes in flight, and its limit.
struct InFlightMemory {
    limit: usize,
    used: Mutex<usize>,
    /// Notified when memory is released.
    less: Condvar,
}

impl InFlightMemory {
    /// The longest wait before a request is read nevertheless. The server may not answer, and an
    /// INTERRUPT may be next: the kernel passes these on before all other requests.
    const MAX_WAIT: Duration = Duration::from_millis(100);

    /// Counts a request that was read.
    fn claim(self: &Arc<Self>, message: &Message) -> ClaimedMemory {
        let bytes = message.memory();
        *self.used.lock() += bytes;
        ClaimedMemory {
            memory: self.clone(),
            bytes,
        }
    }

    fn is_used_up(&self) -> bool {
        *self.used.lock() >= self.limit
    }

    fn wait(&self) {
        let mut used = self.used.lock();
        self.less
            .wait_while_for(&mut used, |used| *used >= self.limit, Self::MAX_WAIT);
    }
}

/// The memory of a request in flight, released when dropped.
struct ClaimedMemory {
    memory: Arc<InFlightMemory>,
    bytes: usize,
}

impl Drop for ClaimedMemory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            *self.memory.used.lock() -= self.bytes;
            self.memory.less.notify_all();
        }
    }
}

/// A request and its reply.
struct FuseRequest {
    message: Message,
    reply: Outbox,
    /// Set while its buffers are kept for reuse.
    kept: Option<KeptMemory>,
    /// Set while it is in flight, if that memory is limited.
    claim: Option<ClaimedMemory>,
}

/// Memory of large buffers that a mount keeps for reuse.
struct KeptMemory {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl KeptMemory {
    /// The most for a mount, in bytes: a few large reads or writes at a time.
    const MAX: usize = 2 << 20;

    /// Returns `None` if more than [`KeptMemory::MAX`] would be kept.
    fn new(all: &Arc<AtomicUsize>, bytes: usize) -> Option<KeptMemory> {
        let kept = all.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let memory = KeptMemory {
            all: all.clone(),
            bytes,
        };
        (bytes == 0 || kept <= KeptMemory::MAX).then_some(memory)
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl FuseRequest {
    /// The size of a buffer in bytes up to which it is not worth counting.
    const LARGE: usize = 64 << 10;

    fn new(longest: usize) -> FuseRequest {
        let mut buffer = PageBuffer::zeroed(longest);
        // So that these pages are there: see `Channel::read_into`.
        buffer[..longest.min(FuseRequest::LARGE)].fill(0);
        FuseRequest {
            message: Message {
                buffer,
                len: 0,
                touched: 0,
            },
            reply: Outbox::default(),
            kept: None,
            claim: None,
        }
    }

    /// Returns the memory of its large buffers, in bytes.
    fn large_bytes(&self) -> usize {
        let message = Some(self.message.touched).filter(|&touched| touched > FuseRequest::LARGE);
        let reply = self.reply.is_large().then_some(self.message.buffer.len());
        message.unwrap_or(0) + reply.unwrap_or(0)
    }
}

impl Exchange for FuseRequest {
    fn split(&mut self) -> (&dyn Incoming, &mut dyn Outgoing) {
        (&self.message, &mut self.reply)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

struct Message {
    buffer: PageBuffer,
    len: usize,
    /// The length of the longest message so far: the pages after it take no memory.
    touched: usize,
}

impl Message {
    /// Returns the number of bytes at the start of the buffer whose pages are there.
    fn resident(&self) -> usize {
        self.touched.max(FuseRequest::LARGE).min(self.buffer.len())
    }

    /// Returns the field of `fuse_in_header` at `offset`.
    fn field(&self, offset: usize) -> Option<u32> {
        let bytes = self.bytes().get(offset..offset + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// Returns the thread that sent it, unless it is in another PID namespace.
    fn thread(&self) -> Option<u32> {
        self.field(32).filter(|&pid| pid != 0)
    }

    /// Returns whether it is FUSE_READ or FUSE_WRITE, which the kernel also sends for read-ahead
    /// and write-back.
    fn is_data(&self) -> bool {
        matches!(self.field(4), Some(15 | 16))
    }

    /// Returns the memory that a read or write takes until it is answered, in bytes: that of its
    /// data here, and a copy in messages to a server or in a cache. That of others is small.
    fn memory(&self) -> usize {
        const READ: u32 = 15;
        const WRITE: u32 = 16;
        const READDIR: u32 = 28;
        const READDIRPLUS: u32 = 44;
        let data = match self.field(4) {
            Some(WRITE) => self.len,
            // `fuse_read_in::size`
            Some(READ | READDIR | READDIRPLUS) => self.field(56).unwrap_or(0) as usize,
            _ => 0,
        };
        // The kernel asks for no more than fits in a request.
        2 * data.min(self.buffer.len())
    }

    fn frame(&self) -> Frame<'_> {
        Frame(&self.buffer[..self.len])
    }
}

impl Incoming for Message {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    fn size(&self) -> usize {
        self.len
    }

    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> Answered<usize>,
    ) -> Answered<usize> {
        self.frame().payload(range, write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// Builds a request of a thread.
    fn request(opcode: u32, thread: u32) -> Vec<u8> {
        let mut header = vec![0; 40];
        header[4..8].copy_from_slice(&opcode.to_ne_bytes());
        header[32..36].copy_from_slice(&thread.to_ne_bytes());
        header
    }

    #[test]
    fn only_requests_that_overlap_call_for_another_thread() {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let channels = Channels::new("test".into());
        let channel = channels.open(device, 4096).unwrap();
        let calls = |requests: &[(u32, u32)]| {
            for &(opcode, thread) in requests {
                rustix::io::write(&kernel, &request(opcode, thread)).unwrap();
            }
            while channel.pop(&|_| None).unwrap().is_some() {}
            channels.threads.has_woken()
        };
        let (look_up, read) = (1, 15);
        assert!(!calls(&[(look_up, 7); 20]), "one thread waits for replies");
        assert!(!calls(&[(look_up, 7), (look_up, 8)]));
        assert!(calls(&[(look_up, 7), (look_up, 8), (look_up, 7)]));
        assert!(calls(&[(read, 7); 3]), "the kernel reads ahead");
        assert!(calls(&[(look_up, 0); 3]), "threads of other namespaces");
    }

    #[test]
    fn little_memory_of_large_requests_is_kept() {
        const LARGE: usize = 200 << 10;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&kernel, 64 * LARGE).unwrap();
        let channels = Channels::new("test".into());
        let channel = channels.open(device, 1 << 20).unwrap();
        let mut popped = Vec::new();
        for _ in 0..30 {
            rustix::io::write(&kernel, &[7; LARGE]).unwrap();
            popped.extend(channel.pop(&|_| None).unwrap());
        }
        assert_eq!(popped.len(), 30);
        popped
            .into_iter()
            .for_each(|exchange| channel.push_used(exchange));
        let kept = || channels.kept.load(Ordering::Relaxed);
        assert!((1..=KeptMemory::MAX).contains(&kept()), "{}", kept());
        assert!(channel.wait(true).unwrap());
        assert_eq!(kept(), LARGE);
    }

    /// Returns whether all pages of `bytes` are there (`Documentation/admin-guide/mm/pagemap.rst`).
    fn are_there(bytes: &[u8]) -> bool {
        use std::os::unix::fs::FileExt;
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let page = rustix::param::page_size();
        let (first, last) = (
            bytes.as_ptr() as usize / page,
            bytes.as_ptr_range().end as usize - 1,
        );
        (first..=last / page).all(|number| {
            let mut entry = [0; 8];
            pagemap
                .read_exact_at(&mut entry, number as u64 * 8)
                .unwrap();
            u64::from_ne_bytes(entry) >> 63 == 1
        })
    }

    #[test]
    fn a_request_of_any_length_is_read_into_pages_that_are_there() {
        const LONG: usize = 300 << 10;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&kernel, 8 * LONG).unwrap();
        let channels = Channels::new("test".into()).with_sent(Arc::new(|_| {}));
        let channel = channels.open(device, 1 << 20).unwrap();
        assert!(channel.pop(&|_| None).unwrap().is_none());
        assert!(channels.ends.is_empty(), "an idle mount takes no memory");
        rustix::io::write(&kernel, b"short").unwrap();
        let short = channel.pop(&|_| None).unwrap().expect("a request");
        {
            let ends = channels.ends.0.lock();
            assert_eq!(ends.len(), 1);
            assert!(are_there(&ends[0]));
            let request = FuseRequest::new(1 << 20);
            let buffer = &request.message.buffer;
            let resident = request.message.resident();
            assert_eq!(resident + ends[0].len(), buffer.len());
            assert!(are_there(&buffer[..resident]) && !are_there(buffer));
        }
        let long: Vec<u8> = (0..LONG).map(|at| (at % 251) as u8).collect();
        // A new buffer, and one that has had a long request.
        for _ in 0..2 {
            rustix::io::write(&kernel, &long).unwrap();
            let mut popped = channel.pop(&|_| None).unwrap().expect("a request");
            assert!(popped.split().0.bytes() == long);
            channel.push_used(popped);
            assert_eq!(channel.inner().spare[0].message.resident(), LONG);
        }
        channel.push_used(short);
        assert!(channel.wait(true).unwrap());
        assert!(channels.ends.is_empty(), "it is idle again");
    }

    #[test]
    fn writes_beyond_the_memory_of_requests_stay_in_the_kernel_for_a_while() {
        const LEN: usize = 200 << 10;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&kernel, 64 * LEN).unwrap();
        let channels = Channels::new("test".into()).with_memory(4 * 2 * LEN);
        let channel = channels.open(device, 1 << 20).unwrap();
        let mut write = request(16, 7);
        write.resize(LEN, 7);
        for _ in 0..6 {
            rustix::io::write(&kernel, &write).unwrap();
        }
        let pop = || {
            let begin = std::time::Instant::now();
            let popped = channel.pop(&|_| None).unwrap().expect("a request");
            (popped, begin.elapsed() >= InFlightMemory::MAX_WAIT)
        };
        let mut popped = Vec::new();
        for _ in 0..4 {
            let (request, waited) = pop();
            assert!(!waited);
            popped.push(request);
        }
        let (late, waited) = pop();
        assert!(waited, "the fifth waits for a reply, but not forever");
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(InFlightMemory::MAX_WAIT / 10);
                popped
                    .drain(..2)
                    .for_each(|request| channel.push_used(request));
            });
            let (last, waited) = pop();
            assert!(!waited, "the sixth is read when there is memory");
            channel.push_used(last);
        });
        popped.push(late);
        popped
            .into_iter()
            .for_each(|request| channel.push_used(request));
        let memory = channel.in_flight.as_ref().unwrap();
        assert_eq!(*memory.used.lock(), 0);
    }

    #[test]
    fn memory_of_a_dozen_requests_is_kept_until_none_has_come_for_a_while() {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let channel = Channels::new("test".into()).open(device, 4096).unwrap();
        let spare = || channel.inner().spare.len();
        for _ in 0..20 {
            rustix::io::write(&kernel, b"request").unwrap();
        }
        let pop = || channel.pop(&|_| None).unwrap();
        let popped: Vec<_> = std::iter::from_fn(pop).collect();
        assert_eq!(popped.len(), 20);
        for exchange in popped {
            channel.push_used(exchange);
        }
        assert_eq!(spare(), Inner::MAX_SPARE);
        assert!(channel.wait(true).unwrap());
        assert_eq!(spare(), 1);
    }
}
