//! A mounted virtiofs device with many requests in flight.
//!
//! Each processor has a queue of its own, as far as there are enough; forgets use the high-priority
//! queue, in batches. An invalid reply fails its request with `EIO`; a server that breaks its queue
//! or disconnects ends the channel, and the reason is logged once.
//!
//! Reconnecting is deliberately absent.
//!
//! Lock order: the waiting forgets, or a queue's lock; never both.

use std::cell::Cell;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use fuse::Request;
use fuse::client::Client;
use fuse::layout::{BatchForgetIn, ForgetOne, InterruptIn, StatxOut};
use fuse::message::{REPLY_HEADER, Rest};
use parking_lot::Mutex;
use vfs::{Call, Caller, Cx, Errno, Result};
use virtqueue::driver::{self, Chain, Driver, Lengths, Queue, Reply, Ticket, WaitMode};
use wire::Malformed;

use crate::cancel::on_cancel;
use crate::deferred::{DeferredSender, FlushDeferred};
use crate::file::MAX_IN_FLIGHT;
use crate::{ConnectError, Timeouts};

/// Driver options.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most request queues; the device may have fewer.
    pub queues: usize,
    /// The most requests in flight per queue.
    pub depth: u16,
    /// How to wait for replies.
    pub waiting: WaitMode,
    /// The timeouts for a device that does not answer.
    pub timeouts: Timeouts,
    /// The most bytes of a read or write request, if not the device's limit.
    pub max_write: Option<usize>,
    /// The most bytes of one read or write in flight, if not those of eight requests.
    pub in_flight: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queues: std::thread::available_parallelism().map_or(1, usize::from),
            depth: 64,
            // About the time of a wake-up.
            waiting: WaitMode::Adaptive(Duration::from_micros(50)),
            timeouts: Timeouts::default(),
            max_write: None,
            in_flight: None,
        }
    }
}

/// A mount. Dropping it unmounts.
pub struct Channel {
    driver: Driver,
    client: Client,
    timeouts: Timeouts,
    /// See [`Options`].
    max_write: Option<usize>,
    in_flight: Option<usize>,
    forgets: Mutex<Vec<ForgetOne>>,
    deferred_sender: DeferredSender,
    failure_logged: Once,
    this: Weak<Channel>,
}

/// The largest payload of a reply.
#[derive(Clone, Copy, Debug)]
pub enum ReplySize {
    /// Structures of at most this many bytes.
    Fixed(usize),
    /// At most this many bytes of data.
    Data(usize),
}

impl Channel {
    /// The high-priority queue, which carries forgets.
    const HIGH_PRIORITY: usize = 0;

    /// The number of forgets in a batch.
    const MAX_FORGETS: usize = 64;

    /// Mounts the device at the other end of `socket`.
    pub fn mount(
        socket: UnixStream,
        options: Options,
    ) -> std::result::Result<Arc<Channel>, ConnectError> {
        let failed = |error: io::Error| {
            let why = error.to_string();
            ConnectError::new(Errno::from(error), why)
        };
        let set_up = shut_down_after(&socket, options.timeouts.timeo).map_err(failed)?;
        let driver = Driver::connect(
            socket,
            2,
            driver::Options {
                queues: options.queues.max(1) + 1,
                depth: options.depth,
                // Also enough for the longest value of an extended attribute and the part before
                // it.
                payload: Client::MAX_WRITE as usize,
                waiting: options.waiting,
            },
        )
        .map_err(failed)?;
        drop(set_up);
        let client = negotiate(&driver.queues()[1], options.timeouts.timeo).map_err(failed)?;
        let client = client.map_err(|errno| {
            ConnectError::new(errno, format!("the server refuses the mount: {errno}"))
        })?;
        Ok(Arc::new_cyclic(|this| Channel {
            driver,
            client,
            timeouts: options.timeouts,
            max_write: options.max_write,
            in_flight: options.in_flight,
            forgets: Mutex::default(),
            deferred_sender: DeferredSender::default(),
            failure_logged: Once::new(),
            this: this.clone(),
        }))
    }

    /// The negotiated parameters.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The most bytes of a read or write request.
    pub fn max_write(&self) -> usize {
        let most = self.client.max_write();
        self.max_write
            .map_or(most, |requested| requested.clamp(1, most))
    }

    /// The most requests of one read or write in flight.
    pub(super) fn max_requests(&self) -> usize {
        let most = self.in_flight.map(|bytes| bytes / self.max_write());
        most.map_or(MAX_IN_FLIGHT, |most| most.clamp(1, MAX_IN_FLIGHT))
    }

    /// The number of request queues.
    pub fn queues(&self) -> usize {
        self.driver.queues().len() - 1
    }

    /// The request queue of the current processor.
    pub fn own_queue(&self) -> usize {
        rustix::thread::sched_getcpu() % self.queues()
    }

    /// Allocates descriptors for a request on request queue `queue`, waiting if there are none
    /// free. With `hold`, for callers with other requests in flight, returns `EAGAIN` instead of
    /// waiting.
    pub fn begin(&self, queue: usize, hold: bool) -> Result<RequestBuilder<'_>> {
        match hold {
            true => {
                let chain = self.driver.queues()[1 + queue].try_chain();
                Ok(self.request_builder(queue, chain.ok_or(Errno::EAGAIN)?))
            }
            false => self.begin_in(queue, &ReplyWait::new(None, self.timeouts)),
        }
    }

    fn begin_in(&self, queue: usize, waiting: &ReplyWait<'_>) -> Result<RequestBuilder<'_>> {
        let chain = self.driver.queues()[1 + queue].chain(|| waiting.is_over());
        let chain = chain.map_err(|error| self.wait_error(waiting, &error))?;
        Ok(self.request_builder(queue, chain))
    }

    fn request_builder<'c>(&'c self, queue: usize, chain: Chain<'c>) -> RequestBuilder<'c> {
        let channel = self;
        RequestBuilder {
            channel,
            queue,
            chain,
        }
    }

    /// Sends a request and waits for its reply. If the call is cancelled, asks the server to
    /// interrupt the request and returns the server's answer. Returns `WOULD_BLOCK` below full
    /// patience.
    pub fn call(
        &self,
        cx: &Cx<'_>,
        node: u64,
        request: &Request<'_>,
        reply_size: ReplySize,
    ) -> Result<FuseReply<'_>> {
        cx.check_may_block()?;
        cx.call.check_begin()?;
        let wait = ReplyWait::new(Some(cx.call), self.timeouts);
        let reply = self
            .begin_in(self.own_queue(), &wait)?
            .submit(cx.caller, node, request, 0, reply_size)?
            .wait_in(cx)?;
        if has_effect(request) {
            cx.call.note_effect();
        }
        Ok(reply)
    }

    /// Kicks a request queue, so that the device sees the submitted requests; waiting kicks, too.
    pub fn kick(&self, queue: usize) {
        self.driver.queues()[1 + queue].kick();
    }

    /// Sends a request without waiting for its reply.
    pub(super) fn send(&self, node: u64, request: &Request<'_>) {
        let queue = self.own_queue();
        let sent = self
            .begin(queue, false)
            .and_then(|draft| draft.submit(&Caller::ROOT, node, request, 0, ReplySize::Fixed(0)));
        // A device that has disconnected needs no request.
        if sent.is_ok() {
            self.kick(queue);
        }
    }

    /// Forgets one lookup of `nodeid`, in a batch or after a short while.
    pub fn forget(&self, nodeid: u64) {
        let mut waiting = self.forgets.lock();
        waiting.push(ForgetOne { nodeid, nlookup: 1 });
        let many = waiting.len() >= Channel::MAX_FORGETS;
        drop(waiting);
        if many {
            self.send_forgets();
        }
        self.deferred_sender.arm(&self.this);
    }

    /// Sends a batch of forgets, and returns whether there were any and descriptors for them.
    fn send_forgets(&self) -> bool {
        let mut waiting = self.forgets.lock();
        let ring = &self.driver.queues()[Channel::HIGH_PRIORITY];
        let chain = match waiting.is_empty() {
            true => None,
            false => ring.try_chain(),
        };
        let Some(chain) = chain else {
            return false;
        };
        let keep = waiting.len().saturating_sub(Channel::MAX_FORGETS);
        let some = waiting.split_off(keep);
        drop(waiting);
        let bytes: Vec<u8> = some.iter().flat_map(ForgetOne::encode).collect();
        let args = BatchForgetIn {
            count: some.len() as u32,
        };
        let forgets = Rest(&bytes);
        self.send_without_reply(ring, chain, &Request::BatchForget { args, forgets });
        true
    }

    /// Asks the server to interrupt a request.
    fn interrupt(&self, queue: usize, unique: u64) {
        let ring = &self.driver.queues()[1 + queue];
        if let Some(chain) = ring.spare_chain() {
            let args = InterruptIn { unique };
            self.send_without_reply(ring, chain, &Request::Interrupt { args });
        }
    }

    /// Sends a request that has no reply.
    fn send_without_reply(&self, ring: &Queue, mut chain: Chain<'_>, request: &Request<'_>) {
        let mut message = Vec::with_capacity(2048);
        self.client.request(&Caller::ROOT, 0, request, &mut message);
        chain.request(&message);
        drop(chain.submit(Lengths {
            request: message.len(),
            ..Lengths::default()
        }));
        ring.kick();
    }

    fn wait_error(&self, waiting: &ReplyWait<'_>, error: &io::Error) -> Errno {
        match error.kind() {
            io::ErrorKind::TimedOut => waiting.errno(),
            _ => self.log_failure(error),
        }
    }

    fn log_failure(&self, error: &io::Error) -> Errno {
        self.failure_logged
            .call_once(|| tracing::error!("virtiofs: {error}"));
        Errno::EIO
    }
}

impl FlushDeferred for Channel {
    fn deferred_sender(&self) -> &DeferredSender {
        &self.deferred_sender
    }

    fn flush_deferred(&self) -> bool {
        let mut any = false;
        while self.send_forgets() {
            any = true;
        }
        any || !self.forgets.lock().is_empty()
    }
}

/// Sends DESTROY, with which the server forgets all nodes and files, and waits a while for the
/// reply: the queues must stay until the server has taken the request.
impl Drop for Channel {
    fn drop(&mut self) {
        let since = Instant::now();
        let over = || since.elapsed() >= 2 * ReplyWait::GRACE;
        let Ok(mut chain) = self.driver.queues()[1 + self.own_queue()].chain(over) else {
            return;
        };
        let mut message = Vec::with_capacity(64);
        let request = Request::Destroy {};
        self.client
            .request(&Caller::ROOT, 0, &request, &mut message);
        chain.request(&message);
        let ticket = chain.submit(Lengths {
            request: message.len(),
            reply: REPLY_HEADER,
            ..Lengths::default()
        });
        // A disconnected server has forgotten them.
        drop(ticket.wait(over));
    }
}

/// A wait for the device.
struct ReplyWait<'a> {
    call: Option<&'a Call>,
    timeouts: Timeouts,
    since: Instant,
    /// The time at which the call was found to be cancelled.
    cancelled: Cell<Option<Instant>>,
}

impl<'a> ReplyWait<'a> {
    /// The longest wait for the reply to a cancelled request.
    const GRACE: Duration = Duration::from_secs(1);

    fn new(call: Option<&'a Call>, silence: Timeouts) -> ReplyWait<'a> {
        ReplyWait {
            call,
            timeouts: silence,
            since: Instant::now(),
            cancelled: Cell::new(None),
        }
    }

    /// Returns whether the timeout is over.
    fn is_over(&self) -> bool {
        if self.cancelled.get().is_none() && self.call.is_some_and(|call| call.check().is_err()) {
            self.cancelled.set(Some(Instant::now()));
        }
        let cancelled = self.cancelled.get();
        cancelled.is_some_and(|at| at.elapsed() >= ReplyWait::GRACE)
            || self.timeouts.soft && self.since.elapsed() >= self.timeouts.timeo
    }

    /// The error of the timeout.
    fn errno(&self) -> Errno {
        match self.cancelled.get() {
            Some(_) => Errno::EINTR,
            None => Timeouts::ERRNO,
        }
    }
}

/// Shuts the connection down after `timeo`, unless the returned sender is dropped before: the
/// vhost-user set-up waits for replies without a timeout.
fn shut_down_after(socket: &UnixStream, timeo: Duration) -> io::Result<Sender<()>> {
    let (done, waited) = channel();
    let socket = socket.try_clone()?;
    std::thread::Builder::new().spawn(move || {
        if waited.recv_timeout(timeo) == Err(RecvTimeoutError::Timeout) {
            // An error means that the connection has ended.
            let _ = socket.shutdown(Shutdown::Both);
        }
    })?;
    Ok(done)
}

/// Mounts with FUSE_INIT, whose reply must arrive within `timeo`.
fn negotiate(queue: &Queue, timeo: Duration) -> io::Result<Result<Client>> {
    let since = Instant::now();
    let over = || since.elapsed() >= timeo;
    let hello = Client::init_request();
    let mut chain = queue.chain(over)?;
    chain.request(&hello);
    let lengths = Lengths {
        request: hello.len(),
        reply: Client::INIT_REPLY_SIZE,
        ..Lengths::default()
    };
    let reply = chain.submit(lengths).wait(over)?;
    let mut welcome = [0; Client::INIT_REPLY_SIZE];
    let len = reply.inline(&mut welcome);
    Ok(Client::from_init_reply(&welcome[..len]))
}

/// A request under construction. Dropping it frees its descriptors.
pub struct RequestBuilder<'c> {
    channel: &'c Channel,
    queue: usize,
    chain: Chain<'c>,
}

impl<'c> RequestBuilder<'c> {
    /// Writes a part of the payload of a WRITE.
    pub fn payload(&mut self, at: usize, bytes: &[u8]) {
        self.chain.payload(at, bytes);
    }

    /// Submits the request with a payload of `payload` bytes. The device is kicked when a caller
    /// waits, or with [`Channel::kick`]. Returns `EMSGSIZE` if the request is too long.
    pub fn submit(
        mut self,
        caller: &Caller,
        node: u64,
        request: &Request<'_>,
        payload: usize,
        reply_size: ReplySize,
    ) -> Result<PendingRequest<'c>> {
        let mut message = Vec::with_capacity(256);
        let client = &self.channel.client;
        let unique = client.request(caller, node, request, &mut message);
        let (inline, rest) = message.split_at(message.len().min(Queue::MAX_INLINE_REQUEST));
        if rest.len() + payload > self.chain.room() {
            return Err(Errno::EMSGSIZE);
        }
        self.chain.request(inline);
        if !rest.is_empty() {
            debug_assert_eq!(payload, 0, "a WRITE is short but for its payload");
            self.chain.payload(0, rest);
        }
        let (reply, data) = match reply_size {
            ReplySize::Fixed(len) => (REPLY_HEADER + len, 0),
            ReplySize::Data(len) => (REPLY_HEADER, len.min(self.chain.room())),
        };
        let ticket = self.chain.submit(Lengths {
            request: inline.len(),
            request_payload: rest.len() + payload,
            reply,
            reply_payload: data,
        });
        Ok(PendingRequest {
            channel: self.channel,
            queue: self.queue,
            ticket,
            unique,
        })
    }
}

/// A request in flight. Dropping it discards its reply.
#[must_use = "a reply that nobody waits for is forgotten"]
pub struct PendingRequest<'c> {
    channel: &'c Channel,
    queue: usize,
    ticket: Ticket<'c>,
    unique: u64,
}

impl<'c> PendingRequest<'c> {
    /// Waits for the reply. Returns the server's error, `EIO` if the reply is invalid or the device
    /// has disconnected, or `ETIMEDOUT` after the timeout ([`Timeouts`]).
    pub fn wait(self) -> Result<FuseReply<'c>> {
        let silence = self.channel.timeouts;
        self.wait_as(&ReplyWait::new(None, silence))
    }

    fn wait_as(self, waiting: &ReplyWait<'_>) -> Result<FuseReply<'c>> {
        let channel = self.channel;
        let reply = self.ticket.wait(|| waiting.is_over());
        let reply = reply.map_err(|error| channel.wait_error(waiting, &error))?;
        let mut head = [0; REPLY_HEADER + MAX_FIXED];
        let inline = reply.inline(&mut head);
        let body = channel
            .client
            .check_reply(self.unique, &head[..inline], reply.len())?;
        Ok(FuseReply { head, reply, body })
    }

    /// Does [`PendingRequest::wait`] for a call that may be cancelled. Returns `EINTR` if it is and
    /// the server does not answer in time.
    pub fn wait_in(self, cx: &Cx<'_>) -> Result<FuseReply<'c>> {
        // A call without a waker cannot be cancelled.
        // One that has changed something is finished, unless the server is silent.
        if cx.call.waker().is_some() && !cx.call.has_effect() {
            let (queue, unique) = (self.queue, self.unique);
            on_cancel(cx.call, &self.channel.this, move |channel| {
                channel.interrupt(queue, unique);
            });
        }
        let silence = self.channel.timeouts;
        self.wait_as(&ReplyWait::new(Some(cx.call), silence))
    }
}

/// Returns whether a request changes the tree, so that the call that it is part of has to be
/// finished.
fn has_effect(request: &Request<'_>) -> bool {
    use Request as R;
    matches!(
        request,
        R::Create { .. }
            | R::Tmpfile { .. }
            | R::Mkdir { .. }
            | R::Mknod { .. }
            | R::Symlink { .. }
            | R::Link { .. }
            | R::Rename { .. }
            | R::Rename2 { .. }
            | R::Unlink { .. }
            | R::Rmdir { .. }
            | R::Setattr { .. }
    )
}

/// The most bytes of structures in a reply (STATX).
const MAX_FIXED: usize = StatxOut::SIZE;

/// A successful reply.
pub struct FuseReply<'c> {
    head: [u8; REPLY_HEADER + MAX_FIXED],
    reply: Reply<'c>,
    body: usize,
}

impl FuseReply<'_> {
    /// Decodes the content of [`ReplySize::Fixed`]. Returns `EIO` if it is too short.
    pub fn decode<T>(
        &self,
        decode: impl FnOnce(&[u8]) -> std::result::Result<T, Malformed>,
    ) -> Result<T> {
        decode(self.fixed()).map_err(|_| Errno::EIO)
    }

    /// The content of [`ReplySize::Fixed`].
    pub fn fixed(&self) -> &[u8] {
        let end = (REPLY_HEADER + self.body).min(self.head.len());
        &self.head[REPLY_HEADER..end]
    }

    /// The length of the content of [`ReplySize::Data`].
    pub fn len(&self) -> usize {
        self.body
    }

    /// Whether the reply has no data.
    pub fn is_empty(&self) -> bool {
        self.body == 0
    }

    /// Copies from the content of [`ReplySize::Data`], beginning at `at`, into `bytes`, which must
    /// not be longer.
    pub fn load(&self, at: usize, bytes: &mut [u8]) {
        self.reply.payload(at, bytes);
    }

    /// The whole content of [`ReplySize::Data`].
    pub fn data(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.body];
        self.load(0, &mut bytes);
        bytes
    }
}
