//! A connection that is re-established when lost, or when a call of a hard mount is not answered in
//! time. Calls in flight are retransmitted over the new connection with the same XID, so that the
//! server's duplicate request cache recognises them.
//!
//! A call waits for a lost server until the retry limit, which counts from the loss: all requests
//! that a program's call consists of, and all calls that wait, take no longer together.
//!
//! No lock is held while a connection is made.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ::nfs::client::v4::Backchannels;
use ::nfs::client::{Body, CallArguments, Calls, ClientCall, Credentials, Failure, Received};
use parking_lot::{Condvar, Mutex, MutexGuard};
use transports::Link;
use vfs::fd::BorrowedFd;
use vfs::{Caller, Cx, Errno, Result};
use wire::Malformed;

use super::options::Options;
use super::read_destination::ReadDestination;
use crate::ConnectError;
use crate::client_owner::random;
use crate::connection::{
    self, ClientCodec, Connection, Outcome, OwnedTicket, PayloadLayout, Shape, error_text,
};

impl ClientCodec for Calls {
    const NAME: &'static str = "NFS";
    const HEADER: usize = 4;
    /// Record mark, reply header, status, attributes and counts of v3, the longest common head:
    /// READ_PLUS after a SEQUENCE has 124 bytes, v4.0's READ 64.
    const DATA_HEAD: usize = 4 + 24 + 4 + 88 + 12;
    /// A server that is short of memory may drop a call. A v4 client may repeat it over a new
    /// connection only (RFC 7530, section 3.1.1; RFC 8881, section 2.9.2).
    const RESENDS_AFTER_TIMEOUT: bool = true;
    type Head = Box<[u8]>;
    /// NFS sends no background requests.
    type Background = std::convert::Infallible;
    type DecodeParams = ();

    fn decode_params(&self) {}

    #[inline]
    fn frame(&self, head: &[u8]) -> std::result::Result<Option<usize>, Malformed> {
        Calls::frame(self, head)
    }

    fn payload_layout(&self, head: &[u8]) -> Option<PayloadLayout> {
        let answer = Calls::split_reply(self, head)?;
        Some(PayloadLayout {
            number: answer.number,
            head: answer.head,
            len: answer.len,
            padding: wire::padding(answer.len),
        })
    }

    fn payload_received(&mut self, _: usize, head: &[u8]) -> Box<[u8]> {
        Calls::complete_read(self, head);
        head.into()
    }

    fn lost(&mut self, _: usize) {
        unreachable!("its connections are not made anew by links");
    }

    #[inline]
    fn receive(
        &mut self,
        message: &[u8],
        to: &mut Vec<u8>,
    ) -> std::result::Result<connection::Received, Malformed> {
        Ok(match Calls::receive(self, message)? {
            Received::Answer { number, result } => connection::Received::Reply { number, result },
            Received::Unexpected => connection::Received::Nothing,
            Received::Callback => {
                self.answer_callback(message, to)?;
                connection::Received::Nothing
            }
        })
    }

    #[inline]
    fn release(&mut self, number: usize) {
        Calls::release(self, number);
    }

    /// RPC has no cancellation.
    fn cancel(&mut self, _: usize, _: &mut Vec<u8>) -> bool {
        false
    }

    fn encode_background(&mut self, aside: &Self::Background, _: &mut Vec<u8>) -> Result<usize> {
        match *aside {}
    }
}

/// A connection, or the error of connecting.
pub type DialResult = std::io::Result<Box<dyn Link>>;

/// Makes a connection.
pub type Dial = Box<dyn Fn() -> DialResult + Send + Sync>;

/// A connection to a server.
pub(super) struct RpcClient {
    dial: Dial,
    credentials: Credentials,
    most: usize,
    options: Options,
    current: Mutex<Current>,
    /// Notified when a connection was made, or could not be.
    dialed: Condvar,
    /// Whether there is an outage: see [`Current`].
    is_lost: AtomicBool,
    /// The number of reconnections.
    reconnections: AtomicU64,
    backchannels: OnceLock<Arc<Backchannels>>,
    next_xid: AtomicU32,
}

struct Current {
    connection: Arc<Connection<Calls>>,
    /// The time without a server. It ends with a reply: a server may close every connection.
    outage: Option<Outage>,
}

/// A time without a server.
struct Outage {
    since: Instant,
    /// The time of the next attempt to connect.
    next: Instant,
    /// The pause after that.
    pause: Duration,
    /// Whether a thread is connecting.
    is_dialing: bool,
}

impl Outage {
    /// The first pause between attempts, and the longest.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

    /// The longest wait without a check whether the call is cancelled.
    const CHECK: Duration = Duration::from_millis(100);

    fn new(now: Instant) -> Outage {
        Outage {
            since: now,
            next: now,
            pause: Outage::PAUSES.0,
            is_dialing: false,
        }
    }
}

/// A call in flight.
#[must_use = "an answer that nobody waits for is forgotten"]
pub struct PendingCall {
    xid: u32,
    /// `None` if the call could not be sent.
    ticket: Option<OwnedTicket<Calls>>,
    /// The number of times that the call has timed out.
    timeouts: u32,
}

impl RpcClient {
    /// Opens the first connection, which is soft until [`RpcClient::apply_soft_setting`], so that
    /// mounting an unresponsive server ends. Replies have up to `most` bytes.
    pub(super) fn open(
        dial: Dial,
        machine: &str,
        most: usize,
        options: Options,
    ) -> std::result::Result<RpcClient, ConnectError> {
        let credentials = Credentials::new(machine);
        let link = dial().map_err(|error| {
            let why = format!("cannot connect: {error}");
            ConnectError::new(Errno::from(error), why)
        })?;
        let calls = Calls::new(credentials.clone(), most);
        let payloads = link.payloads().with_in_flight(options.in_flight);
        let connection = Connection::over(link, calls, most, payloads, options.timeouts)?;
        connection.set_soft(true);
        Ok(RpcClient {
            dial,
            credentials,
            most,
            options,
            current: Mutex::new(Current {
                connection,
                outage: None,
            }),
            dialed: Condvar::new(),
            is_lost: AtomicBool::new(false),
            reconnections: AtomicU64::new(0),
            backchannels: OnceLock::new(),
            // Distinguishes the calls from those of other processes.
            next_xid: AtomicU32::new(random() as u32),
        })
    }

    /// Applies the mount's own `soft` setting, now that the server has answered.
    pub(super) fn apply_soft_setting(&self) {
        self.current()
            .connection
            .set_soft(self.options.timeouts.soft);
    }

    /// Returns whether `len` more bytes of payload may be in flight: see [`Connection::has_room`].
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.current().connection.has_room(len)
    }

    /// The payload size in bytes from which landing in the caller's memory pays off.
    pub(super) fn direct_receive_min(&self) -> usize {
        self.current().connection.direct_receive_min()
    }

    /// The address of the server.
    pub(super) fn peer(&self) -> String {
        self.current().connection.peer().to_owned()
    }

    /// Enables replies to callbacks. Called once, before the server learns of the backchannel.
    pub(super) fn enable_callbacks(&self, backchannels: Arc<Backchannels>) {
        let current = self.current();
        current
            .connection
            .with(|calls| calls.set_backchannels(backchannels.clone()));
        // Also for later connections.
        let _ = self.backchannels.set(backchannels);
    }

    /// The backchannels, if callbacks are enabled.
    pub(super) fn backchannels(&self) -> Option<&Arc<Backchannels>> {
        self.backchannels.get()
    }

    /// The number of reconnections.
    pub(super) fn reconnections(&self) -> u64 {
        self.reconnections.load(Ordering::Acquire)
    }

    /// Does [`Connection::listen`] on the current connection.
    pub(super) fn listen(&self, wake_event: BorrowedFd<'_>) -> std::io::Result<bool> {
        let connection = self.current().connection.clone();
        connection.listen(wake_event)
    }

    /// Makes a call, and passes the reply to `read`.
    pub(super) fn call<A: ClientCall, T>(
        &self,
        cx: &Cx<'_>,
        arguments: &A,
        read: impl FnOnce(A::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let call = self.begin(cx, arguments);
        self.end(cx, call, arguments, read)
    }

    /// Begins a call.
    pub(super) fn begin(&self, cx: &Cx<'_>, arguments: &dyn CallArguments) -> PendingCall {
        let xid = self.next_xid.fetch_add(1, Ordering::Relaxed);
        let connection = self.current().connection.clone();
        let ticket = self.submit(&connection, cx.caller, xid, arguments, 0);
        let timeouts = 0;
        PendingCall {
            xid,
            ticket,
            timeouts,
        }
    }

    /// Waits for the reply to a call, and passes it to `read`.
    pub(super) fn end<A: ClientCall, T>(
        &self,
        cx: &Cx<'_>,
        call: PendingCall,
        arguments: &A,
        read: impl FnOnce(A::Answer<'_>) -> T,
    ) -> std::result::Result<T, Failure> {
        let end = |answer: A::Answer<'_>, _: Option<&mut ReadDestination<'_>>| read(answer);
        self.end_in(cx, call, arguments, &mut ReadDestination::none(), end)
    }

    /// Does [`RpcClient::end`] for a call whose payload may land in `destination`. `read` gets
    /// `destination` if the payload has not landed.
    pub(super) fn end_in<A: ClientCall, T>(
        &self,
        cx: &Cx<'_>,
        call: PendingCall,
        arguments: &A,
        destination: &mut ReadDestination<'_>,
        read: impl FnOnce(A::Answer<'_>, Option<&mut ReadDestination<'_>>) -> T,
    ) -> std::result::Result<T, Failure> {
        match self.wait(cx, call, arguments, destination)? {
            Outcome::Resend => unreachable!("nobody lent its payload"),
            Outcome::Whole(reply) => {
                let body = Body::of(reply.bytes())?;
                let answer = arguments.answer(body.bytes());
                let answer = answer.inspect_err(|failure| self.log_malformed(failure))?;
                Ok(read(answer, Some(destination)))
            }
            Outcome::Direct(head, len) => {
                let body = Body::before_payload(&head)?;
                let answer =
                    arguments.answer_with_payload(body.bytes(), &destination.memory()[..len]);
                let answer = answer.inspect_err(|failure| self.log_malformed(failure))?;
                Ok(read(answer, None))
            }
        }
    }

    /// Waits for the reply to a call, retransmitting the call over new connections.
    fn wait(
        &self,
        cx: &Cx<'_>,
        mut call: PendingCall,
        arguments: &dyn CallArguments,
        destination: &mut ReadDestination<'_>,
    ) -> std::result::Result<Outcome<Calls>, Failure> {
        let timeouts = self.options.timeouts;
        let mut started = Instant::now();
        let deadline = timeouts.soft.then(|| started + timeouts.timeo);
        loop {
            let lost = match call.ticket.take() {
                None => self.current().connection.clone(),
                Some(ticket) => {
                    let connection = ticket.connection.clone();
                    match ticket.wait_direct(cx, destination.memory()) {
                        Ok(outcome) => {
                            self.end_outage();
                            return Ok(outcome);
                        }
                        Err(errno) if connection.failure().is_none() => {
                            return Err(Failure::Error(errno));
                        }
                        Err(_) => connection,
                    }
                }
            };
            if lost.has_timed_out() {
                // The server is slow, or has dropped a call. It is not lost: its time is unlimited.
                if started.elapsed() >= timeouts.timeo {
                    call.timeouts += 1;
                }
                started = Instant::now();
                let mut current = self.current();
                if Arc::ptr_eq(&current.connection, &lost) {
                    current.outage = None;
                }
            }
            let connection = self
                .reconnect(cx, &lost, deadline)
                .map_err(Failure::Error)?;
            call.ticket = self.submit(&connection, cx.caller, call.xid, arguments, call.timeouts);
        }
    }

    /// Records that the server has answered.
    fn end_outage(&self) {
        if self.is_lost.load(Ordering::Relaxed) {
            self.current().outage = None;
            self.is_lost.store(false, Ordering::Relaxed);
        }
    }

    fn log_malformed(&self, failure: &Failure) {
        if let Failure::Malformed(what) = failure {
            tracing::error!("{}", error_text::<Calls>(&self.peer(), what));
        }
    }

    fn submit(
        &self,
        connection: &Connection<Calls>,
        caller: &Caller,
        xid: u32,
        arguments: &dyn CallArguments,
        timeouts: u32,
    ) -> Option<OwnedTicket<Calls>> {
        let acts;
        let caller = match self.options.act_as {
            Some((uid, gid)) => {
                acts = Caller::new(uid, gid);
                &acts
            }
            None => caller,
        };
        let payload = arguments.payload();
        let shape = Shape {
            reply: arguments.max_reply(),
            payload: payload.len(),
            zeros: wire::padding(payload.len()),
            lent: false,
            timeouts,
        };
        let ticket = connection.submit_as(shape, |calls, queue| {
            Ok((calls.call(xid, caller, arguments, queue)?, payload))
        });
        ticket.ok()?.into_owned()
    }

    /// Replaces `lost`, a failed connection, unless another thread has. One thread at a time
    /// connects, with pauses, and the others wait for it. Returns `ETIMEDOUT` after the retry
    /// limit, or after `deadline`; even then, one attempt is made if the last one was some time
    /// ago.
    fn reconnect(
        &self,
        cx: &Cx<'_>,
        lost: &Arc<Connection<Calls>>,
        deadline: Option<Instant>,
    ) -> Result<Arc<Connection<Calls>>> {
        let mut current = self.current();
        loop {
            cx.call.check()?;
            if !Arc::ptr_eq(&current.connection, lost) || current.connection.failure().is_none() {
                return Ok(current.connection.clone());
            }
            let now = Instant::now();
            let outage = current.outage.get_or_insert_with(|| Outage::new(now));
            self.is_lost.store(true, Ordering::Relaxed);
            let may_wait = self.options.retry.may_retry(outage.since)
                && deadline.is_none_or(|deadline| now < deadline);
            if !outage.is_dialing && now >= outage.next {
                outage.is_dialing = true;
                drop(current);
                let connected = self.connect();
                current = self.current();
                match self.connected(&mut current, connected) {
                    Ok(connection) => return Ok(connection),
                    Err(error) if may_wait => tracing::debug!("{}: {error}", lost.peer()),
                    Err(error) => {
                        tracing::error!("{}: {error}", lost.peer());
                        return Err(Errno::ETIMEDOUT);
                    }
                }
            } else if !may_wait {
                return Err(Errno::ETIMEDOUT);
            } else {
                let next = outage.next.saturating_duration_since(now);
                let pause = if outage.is_dialing {
                    Outage::CHECK
                } else {
                    next.min(Outage::CHECK)
                };
                self.dialed.wait_for(&mut current, pause);
            }
        }
    }

    fn connect(&self) -> std::result::Result<Arc<Connection<Calls>>, ConnectError> {
        let link = (self.dial)().map_err(|error| {
            let why = error.to_string();
            ConnectError::new(Errno::from(error), why)
        })?;
        let mut calls = Calls::new(self.credentials.clone(), self.most);
        if let Some(backchannels) = self.backchannels.get() {
            calls.set_backchannels(backchannels.clone());
        }
        let payloads = link.payloads().with_in_flight(self.options.in_flight);
        Connection::over(link, calls, self.most, payloads, self.options.timeouts)
    }

    /// Records the end of an attempt to connect.
    fn connected(
        &self,
        current: &mut Current,
        connected: std::result::Result<Arc<Connection<Calls>>, ConnectError>,
    ) -> std::result::Result<Arc<Connection<Calls>>, ConnectError> {
        if let Some(outage) = &mut current.outage {
            outage.is_dialing = false;
            outage.next = Instant::now() + outage.pause;
            outage.pause = (outage.pause * 2).min(Outage::PAUSES.1);
        }
        if let Ok(connection) = &connected {
            tracing::info!("reconnected to {}", connection.peer());
            current.connection = connection.clone();
            self.reconnections.fetch_add(1, Ordering::AcqRel);
        }
        self.dialed.notify_all();
        connected
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock()
    }
}

/// The credentials of this process.
pub(super) fn process_credentials() -> Caller {
    Caller::new(sys::process::user(), sys::process::group())
}

/// Waits for `time`. Returns an error if the call is cancelled meanwhile.
pub(super) fn sleep(cx: &Cx<'_>, time: Duration) -> Result<()> {
    cx.call.wake_on_cancel(&vfs::cx::thread_waker());
    cx.call.check()?;
    // Other wake-ups of this thread may end the wait early, which only causes an early retry.
    std::thread::park_timeout(time);
    cx.call.check()
}

/// The pauses between retries, which grow up to 1 s.
pub(super) struct Backoff(Duration);

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff(Duration::from_millis(1))
    }

    /// Waits, longer each time.
    pub(super) fn pause(&mut self, cx: &Cx<'_>) -> Result<()> {
        sleep(cx, self.0)?;
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
        Ok(())
    }
}

/// Counts the repetitions of a request after errors that only a restart of the server explains.
/// The count starts anew with each connection: a server may restart any number of times.
pub(super) struct Attempts {
    /// The number of reconnections at the last error.
    reconnections: u64,
    count: u32,
}

impl Attempts {
    /// The maximum number of repetitions over one connection.
    const MAX: u32 = 16;

    pub(super) fn new() -> Attempts {
        Attempts {
            reconnections: 0,
            count: 0,
        }
    }

    /// Counts an error after the given number of reconnections. Returns whether to repeat the
    /// request.
    pub(super) fn may_repeat(&mut self, reconnections: u64) -> bool {
        if reconnections != self.reconnections {
            (self.reconnections, self.count) = (reconnections, 0);
        }
        self.count += 1;
        self.count <= Attempts::MAX
    }
}
