//! A mounted virtiofs device, with many requests in flight.
//!
//! Each processor has a queue of its own, as far as there are; forgets go by the one of high priority, some at
//! a time. A server that answers what it may not gets `EIO` reported for that request; one that
//! breaks its queue, or goes, ends the channel, and why is logged once.
//!
//! What it lacks on purpose: reconnecting.
//!
//! Lock order: the forgets that wait, or a queue's; never both.

use std::cell::Cell;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};

use fuse::Request;
use fuse::client::Client;
use fuse::layout::{BatchForgetIn, ForgetOne, InterruptIn, StatxOut};
use fuse::message::{REPLY_HEADER, Rest};
use vfs::{Call, Caller, Cx, Errno, Result};
use virtqueue::driver::{self, Chain, Driver, Lengths, Queue, Reply, Ticket, WaitMode};
use wire::Malformed;

use crate::cancel::on_cancel;
use crate::file::AT_A_TIME;
use crate::tender::{Tended, Tender};
use crate::{ConnectError, Silence};

/// How a device is driven.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The most request queues; the device may have fewer.
    pub queues: usize,
    /// How many requests of a queue may be in flight.
    pub depth: u16,
    /// How to wait for replies.
    pub waiting: WaitMode,
    /// What is done when it does not answer.
    pub silence: Silence,
    /// The most bytes that a request reads or writes, if not as many as the device takes.
    pub max_write: Option<usize>,
    /// How many bytes of one read or write may be on their way at a time, if not those of eight requests.
    pub in_flight: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queues: std::thread::available_parallelism().map_or(1, usize::from),
            depth: 64,
            // As long as a wake-up takes.
            waiting: WaitMode::Adaptive(Duration::from_micros(50)),
            silence: Silence::default(),
            max_write: None,
            in_flight: None,
        }
    }
}

/// A mount. Dropping it ends it.
pub struct Channel {
    driver: Driver,
    client: Client,
    silence: Silence,
    /// See [`Options`].
    max_write: Option<usize>,
    in_flight: Option<usize>,
    forgets: Mutex<Vec<ForgetOne>>,
    tender: Tender,
    told: Once,
    this: Weak<Channel>,
}

/// How much a reply may have.
#[derive(Clone, Copy, Debug)]
pub enum Room {
    /// A structure of so many bytes at most.
    Fixed(usize),
    /// So many bytes of data.
    Data(usize),
}

impl Channel {
    /// The queue of high priority, which forgets go by.
    const HIGH: usize = 0;

    /// So many forgets go at once.
    const FORGETS: usize = 64;

    /// Mounts the device at the other end of `socket`.
    pub fn mount(
        socket: UnixStream,
        options: Options,
    ) -> std::result::Result<Arc<Channel>, ConnectError> {
        let failed = |error: io::Error| {
            let why = error.to_string();
            ConnectError::new(Errno::from(error), why)
        };
        let set_up = limit(&socket, options.silence.timeo).map_err(failed)?;
        let driver = Driver::connect(
            socket,
            2,
            driver::Options {
                queues: options.queues.max(1) + 1,
                depth: options.depth,
                // The longest value of an extended attribute and what comes before it, too.
                payload: Client::MAX_WRITE as usize,
                waiting: options.waiting,
            },
        )
        .map_err(failed)?;
        drop(set_up);
        let client = greet(&driver.queues()[1], options.silence.timeo).map_err(failed)?;
        let client = client.map_err(|errno| {
            ConnectError::new(errno, format!("the server does not mount: {errno}"))
        })?;
        Ok(Arc::new_cyclic(|this| Channel {
            driver,
            client,
            silence: options.silence,
            max_write: options.max_write,
            in_flight: options.in_flight,
            forgets: Mutex::default(),
            tender: Tender::default(),
            told: Once::new(),
            this: this.clone(),
        }))
    }

    /// What was agreed on.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The most bytes that a request reads or writes.
    pub fn max_write(&self) -> usize {
        let most = self.client.max_write();
        self.max_write.map_or(most, |asked| asked.clamp(1, most))
    }

    /// How many requests of one read or write are in flight at a time.
    pub(super) fn at_a_time(&self) -> usize {
        let most = self.in_flight.map(|bytes| bytes / self.max_write());
        most.map_or(AT_A_TIME, |most| most.clamp(1, AT_A_TIME))
    }

    /// How many request queues there are.
    pub fn queues(&self) -> usize {
        self.driver.queues().len() - 1
    }

    /// The request queue of the processor that the caller runs on.
    pub fn own_queue(&self) -> usize {
        rustix::thread::sched_getcpu() % self.queues()
    }

    /// Room for a request by request queue `queue`. Waits for it; with `hold` the caller holds other
    /// requests in flight, and is told `EAGAIN` instead.
    pub fn begin(&self, queue: usize, hold: bool) -> Result<Draft<'_>> {
        match hold {
            true => {
                let chain = self.driver.queues()[1 + queue].try_chain();
                Ok(self.draft(queue, chain.ok_or(Errno::EAGAIN)?))
            }
            false => self.begin_in(queue, &Waiting::new(None, self.silence)),
        }
    }

    fn begin_in(&self, queue: usize, waiting: &Waiting<'_>) -> Result<Draft<'_>> {
        let chain = self.driver.queues()[1 + queue].chain(|| waiting.is_over());
        let chain = chain.map_err(|error| self.failed(waiting, &error))?;
        Ok(self.draft(queue, chain))
    }

    fn draft<'c>(&'c self, queue: usize, chain: Chain<'c>) -> Draft<'c> {
        let channel = self;
        Draft {
            channel,
            queue,
            chain,
        }
    }

    /// Sends a request and waits for its reply, as part of a call that may be cancelled: then the server
    /// is asked to, and what it answers counts. `WOULD_BLOCK` below full patience.
    pub fn call(
        &self,
        cx: &Cx<'_>,
        node: u64,
        request: &Request<'_>,
        room: Room,
    ) -> Result<Answer<'_>> {
        cx.may_wait()?;
        cx.call.check()?;
        self.begin_in(self.own_queue(), &Waiting::new(Some(cx.call), self.silence))?
            .submit(cx.caller, node, request, 0, room)?
            .wait_in(cx)
    }

    /// Has the device see what was submitted to a request queue, which waiting does as well.
    pub fn kick(&self, queue: usize) {
        self.driver.queues()[1 + queue].kick();
    }

    /// Sends a request whose reply nobody waits for.
    pub(super) fn send(&self, node: u64, request: &Request<'_>) {
        let queue = self.own_queue();
        let sent = self
            .begin(queue, false)
            .and_then(|draft| draft.submit(&Caller::ROOT, node, request, 0, Room::Fixed(0)));
        // Once the device is gone there is nothing to tell it.
        if sent.is_ok() {
            self.kick(queue);
        }
    }

    /// Takes one look-up of `nodeid` back: with some others, or after a short while.
    pub fn forget(&self, nodeid: u64) {
        let mut waiting = self.forgets.lock().expect("no panic holds it");
        waiting.push(ForgetOne { nodeid, nlookup: 1 });
        let many = waiting.len() >= Channel::FORGETS;
        drop(waiting);
        if many {
            self.send_forgets();
        }
        self.tender.arm(&self.this);
    }

    /// Sends some forgets, and says whether there were any and room for them.
    fn send_forgets(&self) -> bool {
        let mut waiting = self.forgets.lock().expect("no panic holds it");
        let ring = &self.driver.queues()[Channel::HIGH];
        let chain = match waiting.is_empty() {
            true => None,
            false => ring.try_chain(),
        };
        let Some(chain) = chain else {
            return false;
        };
        let keep = waiting.len().saturating_sub(Channel::FORGETS);
        let some = waiting.split_off(keep);
        drop(waiting);
        let bytes: Vec<u8> = some.iter().flat_map(ForgetOne::encode).collect();
        let args = BatchForgetIn {
            count: some.len() as u32,
        };
        let forgets = Rest(&bytes);
        self.tell(ring, chain, &Request::BatchForget { args, forgets });
        true
    }

    /// Asks the server to give a request up.
    fn interrupt(&self, queue: usize, unique: u64) {
        let ring = &self.driver.queues()[1 + queue];
        if let Some(chain) = ring.spare_chain() {
            let args = InterruptIn { unique };
            self.tell(ring, chain, &Request::Interrupt { args });
        }
    }

    /// Sends a request that is not answered.
    fn tell(&self, ring: &Queue, mut chain: Chain<'_>, request: &Request<'_>) {
        let mut message = Vec::with_capacity(2048);
        self.client.request(&Caller::ROOT, 0, request, &mut message);
        chain.request(&message);
        drop(chain.submit(Lengths {
            request: message.len(),
            ..Lengths::default()
        }));
        ring.kick();
    }

    fn failed(&self, waiting: &Waiting<'_>, error: &io::Error) -> Errno {
        match error.kind() {
            io::ErrorKind::TimedOut => waiting.errno(),
            _ => self.broken(error),
        }
    }

    fn broken(&self, error: &io::Error) -> Errno {
        self.told.call_once(|| tracing::error!("virtiofs: {error}"));
        Errno::EIO
    }
}

impl Tended for Channel {
    fn tender(&self) -> &Tender {
        &self.tender
    }

    fn tend(&self) -> bool {
        let mut any = false;
        while self.send_forgets() {
            any = true;
        }
        any || !self.forgets.lock().expect("no panic holds it").is_empty()
    }
}

/// The server forgets all nodes and files by the end, for which it is waited a while: the queues
/// would be gone before it takes the request.
impl Drop for Channel {
    fn drop(&mut self) {
        let since = Instant::now();
        let over = || since.elapsed() >= Waiting::GRACE;
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
        // A server that is gone has forgotten them.
        drop(ticket.wait(over));
    }
}

/// Who waits for a device.
struct Waiting<'a> {
    call: Option<&'a Call>,
    silence: Silence,
    since: Instant,
    /// When it was seen to be cancelled.
    cancelled: Cell<Option<Instant>>,
}

impl<'a> Waiting<'a> {
    /// How long a request that is cancelled may take to be answered.
    const GRACE: Duration = Duration::from_secs(2);

    fn new(call: Option<&'a Call>, silence: Silence) -> Waiting<'a> {
        Waiting {
            call,
            silence,
            since: Instant::now(),
            cancelled: Cell::new(None),
        }
    }

    /// Whether it has waited long enough.
    fn is_over(&self) -> bool {
        if self.cancelled.get().is_none() && self.call.is_some_and(|call| call.check().is_err()) {
            self.cancelled.set(Some(Instant::now()));
        }
        let cancelled = self.cancelled.get();
        cancelled.is_some_and(|at| at.elapsed() >= Waiting::GRACE)
            || self.silence.soft && self.since.elapsed() >= self.silence.timeo
    }

    /// Why.
    fn errno(&self) -> Errno {
        match self.cancelled.get() {
            Some(_) => Errno::EINTR,
            None => Silence::ERRNO,
        }
    }
}

/// Ends the connection after `timeo`, unless what is returned is dropped before. Who speaks vhost-user waits for answers for ever.
fn limit(socket: &UnixStream, timeo: Duration) -> io::Result<Sender<()>> {
    let (done, waited) = channel();
    let socket = socket.try_clone()?;
    std::thread::Builder::new().spawn(move || {
        if waited.recv_timeout(timeo) == Err(RecvTimeoutError::Timeout) {
            // An error means that it has ended.
            let _ = socket.shutdown(Shutdown::Both);
        }
    })?;
    Ok(done)
}

/// Mounts: the first request, for which the device has `timeo`.
fn greet(queue: &Queue, timeo: Duration) -> io::Result<Result<Client>> {
    let since = Instant::now();
    let over = || since.elapsed() >= timeo;
    let hello = Client::hello();
    let mut chain = queue.chain(over)?;
    chain.request(&hello);
    let lengths = Lengths {
        request: hello.len(),
        reply: Client::WELCOME,
        ..Lengths::default()
    };
    let reply = chain.submit(lengths).wait(over)?;
    let mut welcome = [0; Client::WELCOME];
    let len = reply.inline(&mut welcome);
    Ok(Client::meet(&welcome[..len]))
}

/// A request being made. Dropping it gives it up.
pub struct Draft<'c> {
    channel: &'c Channel,
    queue: usize,
    chain: Chain<'c>,
}

impl<'c> Draft<'c> {
    /// Writes a part of the payload of a WRITE.
    pub fn payload(&mut self, at: usize, bytes: &[u8]) {
        self.chain.payload(at, bytes);
    }

    /// Sends it, with a payload of `payload` bytes. It leaves when somebody waits, or at
    /// [`Channel::kick`]. `EMSGSIZE` if there is more of it than a request may have.
    pub fn submit(
        mut self,
        caller: &Caller,
        node: u64,
        request: &Request<'_>,
        payload: usize,
        room: Room,
    ) -> Result<Flight<'c>> {
        let mut message = Vec::with_capacity(256);
        let client = &self.channel.client;
        let unique = client.request(caller, node, request, &mut message);
        let (inline, rest) = message.split_at(message.len().min(Queue::INLINE));
        if rest.len() + payload > self.chain.room() {
            return Err(Errno::EMSGSIZE);
        }
        self.chain.request(inline);
        if !rest.is_empty() {
            debug_assert_eq!(payload, 0, "a WRITE is short but for its payload");
            self.chain.payload(0, rest);
        }
        let (reply, data) = match room {
            Room::Fixed(len) => (REPLY_HEADER + len, 0),
            Room::Data(len) => (REPLY_HEADER, len.min(self.chain.room())),
        };
        let ticket = self.chain.submit(Lengths {
            request: inline.len(),
            request_payload: rest.len() + payload,
            reply,
            reply_payload: data,
        });
        Ok(Flight {
            channel: self.channel,
            queue: self.queue,
            ticket,
            unique,
        })
    }
}

/// A request in flight. Dropping it forgets its reply.
#[must_use = "a reply that nobody waits for is forgotten"]
pub struct Flight<'c> {
    channel: &'c Channel,
    queue: usize,
    ticket: Ticket<'c>,
    unique: u64,
}

impl<'c> Flight<'c> {
    /// Waits for the reply. Errs as the server says; `EIO` if it is no reply, or the device is gone; `ETIMEDOUT` if it took
    /// too long ([`Silence`]).
    pub fn wait(self) -> Result<Answer<'c>> {
        let silence = self.channel.silence;
        self.wait_as(&Waiting::new(None, silence))
    }

    fn wait_as(self, waiting: &Waiting<'_>) -> Result<Answer<'c>> {
        let channel = self.channel;
        let reply = self.ticket.wait(|| waiting.is_over());
        let reply = reply.map_err(|error| channel.failed(waiting, &error))?;
        let mut head = [0; REPLY_HEADER + MOST_FIXED];
        let inline = reply.inline(&mut head);
        let body = channel
            .client
            .answer(self.unique, &head[..inline], reply.len())?;
        Ok(Answer { head, reply, body })
    }

    /// [`Flight::wait`] as part of a call that may be cancelled: `EINTR` if it is, and the server says nothing of it in time.
    pub fn wait_in(self, cx: &Cx<'_>) -> Result<Answer<'c>> {
        // A call that nobody can run again is one that nobody cancels.
        if cx.call.waker().is_some() {
            let (queue, unique) = (self.queue, self.unique);
            on_cancel(cx.call, &self.channel.this, move |channel| {
                channel.interrupt(queue, unique);
            });
        }
        let silence = self.channel.silence;
        self.wait_as(&Waiting::new(Some(cx.call), silence))
    }
}

/// The most bytes of structures that a reply has (STATX).
const MOST_FIXED: usize = StatxOut::SIZE;

/// A good reply.
pub struct Answer<'c> {
    head: [u8; REPLY_HEADER + MOST_FIXED],
    reply: Reply<'c>,
    body: usize,
}

impl Answer<'_> {
    /// What came in [`Room::Fixed`], as `decode` reads it; `EIO` if it is too short.
    pub fn decode<T>(
        &self,
        decode: impl FnOnce(&[u8]) -> std::result::Result<T, Malformed>,
    ) -> Result<T> {
        decode(self.fixed()).map_err(|_| Errno::EIO)
    }

    /// What came in [`Room::Fixed`].
    pub fn fixed(&self) -> &[u8] {
        let end = (REPLY_HEADER + self.body).min(self.head.len());
        &self.head[REPLY_HEADER..end]
    }

    /// How many bytes came in [`Room::Data`].
    pub fn len(&self) -> usize {
        self.body
    }

    /// Whether none came.
    pub fn is_empty(&self) -> bool {
        self.body == 0
    }

    /// Copies what came in [`Room::Data`] at `at` on into `bytes`, which is no longer than that.
    pub fn load(&self, at: usize, bytes: &mut [u8]) {
        self.reply.payload(at, bytes);
    }

    /// All that came in [`Room::Data`].
    pub fn data(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.body];
        self.load(0, &mut bytes);
        bytes
    }
}
