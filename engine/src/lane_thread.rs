//! A lane's own thread: receives, serves requests inline if possible, and sends.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tracing::trace_span;
use transports::{Frame, Interest, Outbox, Poller, Ready};
use vfs::memory::{Need, Purpose, Reservation};
use vfs::{Call, LogLimit, Origin, Peer};
use wire::{Malformed, Role, ServeOutcome};

use crate::connection_limits::Throttles;
use crate::handover::{FrozenConnection, Handover};
use crate::inline_budget::InlineBudget;
use crate::input::Input;
use crate::lane::{ExcessMeter, Lane, invalid, timed_out};
use crate::request::enter_span;
use crate::slow_log::RequestTime;
use crate::stats::add;
use crate::stop_signal::StopSignal;
use crate::timeouts::Deadlines;

/// The limit of lines about connections of unknown users.
static UNKNOWN_USERS: LogLimit<()> = LogLimit::new();

/// The end of a lane.
enum End {
    /// The client or [`transports::Link::end_input`] has ended the input.
    Closed,
    /// The connection continues in another process, with these bytes that were not served.
    HandedOver(Vec<u8>),
}

/// Serves `lane` on the calling thread, its own, until the client or
/// [`transports::Link::end_input`] ends the input, and everything in flight is answered. `received`
/// arrived before, at another process. If the engine suspends connections, so does the lane.
pub(crate) fn run(lane: &Arc<Lane>, stop: &StopSignal, handover: &Handover, received: &[u8]) {
    // Done here because it may query a directory service over the network.
    find_owner(&lane.peer);
    if lane.peer.is_nobody()
        && let Some(suppressed) = UNKNOWN_USERS.permit(())
    {
        tracing::info!(
            peer = lane.link.peer(),
            suppressed,
            "the user of a local client is unknown: its requests run as nobody"
        );
    }
    let mut thread = LaneThread::new(lane, stop, handover);
    if !received.is_empty() {
        thread.input.prepend(received);
    }
    match thread.run() {
        Ok(End::Closed) => {}
        Ok(End::HandedOver(input)) => {
            if let Some(connection) = freeze(lane, input) {
                return handover.add(connection);
            }
        }
        Err(error) => lane.close_on_link_error(&error),
    }
    if !stop.is_raised() {
        lane.in_flight.cancel_all();
    }
    // Replies of requests that still run have no recipient.
    if lane.drain().is_err() {
        lane.disconnect();
        lane.await_completions();
    }
    lane.link.hang_up();
}

/// Sets the caller that corresponds to the owner of a local peer's socket. May query a directory
/// service over the network.
pub(crate) fn find_owner(peer: &Peer) {
    if let Origin::Local { owner, .. } = peer.origin() {
        peer.set_owner(transports::caller_of(owner));
    }
}

/// Waits until everything in flight is answered or interrupted. Returns the connection, or `None`
/// if it cannot continue in another process.
fn freeze(lane: &Lane, input: Vec<u8>) -> Option<FrozenConnection> {
    let mut transport = lane.suspend().ok()?;
    transport.extend(input);
    let (session, peer) = (lane.session.clone(), lane.peer.clone());
    Some(FrozenConnection {
        listener: lane.listener().to_owned(),
        peer: lane.link.peer().to_owned(),
        transport,
        fds: vec![lane.link.socket()?],
        save: Box::new(move || session.save_state(&Call::detached().with_peer(peer))),
    })
}

/// The state of a lane that only its own thread accesses.
struct LaneThread<'a> {
    lane: &'a Arc<Lane>,
    stop: &'a StopSignal,
    handover: &'a Handover,
    input: Input,
    out: Outbox,
    poller: Poller,
    budget: InlineBudget,
    deadlines: Deadlines,
    /// The reservation for the reply that is being made.
    reply_memory: Reservation,
    /// The length of the last reply that it has made, in bytes.
    reply_len: usize,
    /// Whether it has released the memory that only a busy connection needs.
    idle: bool,
}

impl<'a> LaneThread<'a> {
    /// The longest wait for memory before the lane checks whether its client is still there.
    /// Thousands of connections of one client may wait: each check costs some microseconds.
    const RECHECK: Duration = Duration::from_secs(10);

    fn new(lane: &'a Arc<Lane>, stop: &'a StopSignal, handover: &'a Handover) -> LaneThread<'a> {
        LaneThread {
            lane,
            stop,
            handover,
            input: Input::new(lane.reservation(Purpose::Request)),
            out: Outbox::metered(Box::new(ExcessMeter(lane.reservation(Purpose::Reply)))),
            poller: Poller::new(lane.tuning.poll),
            budget: InlineBudget::default(),
            deadlines: Deadlines::new(lane.tuning.timeouts),
            reply_memory: lane.reservation(Purpose::Reply),
            reply_len: 0,
            idle: false,
        }
    }

    /// Runs until the client disconnects, or makes no progress for too long, or the engine hands
    /// over.
    fn run(mut self) -> io::Result<End> {
        loop {
            match self.serve_all()? {
                0 => self.deadlines.incomplete(!self.input.is_empty()),
                _ => self.deadlines.received(!self.input.is_empty()),
            }
            self.flush()?;
            if self.handover.is_requested() {
                return Ok(End::HandedOver(self.input.bytes().to_vec()));
            }
            let Some(received) = self.receive()? else {
                continue;
            };
            if received == 0 {
                return match self.input.is_empty() {
                    true => Ok(End::Closed),
                    false => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
            add(&self.lane.stats().received, received);
            self.input.end += received;
        }
    }

    /// Receives at least a byte; 0 at the end of the connection. Returns `None` if the engine hands
    /// over, or if none arrived for a while, after releasing the memory that only a busy connection
    /// needs, and `TimedOut` if a deadline passed.
    fn receive(&mut self) -> io::Result<Option<usize>> {
        let lane = self.lane;
        let frame = |head: &[u8]| lane.session.frame(head);
        if self.idle {
            let now = Instant::now();
            let left = self.deadlines.time_left(now, self.message_len()?);
            let interest = Interest {
                read: true,
                write: false,
            };
            let time = left.map(|(left, _)| left);
            // If the engine stops, the input ends.
            let ready = lane.link.wait(interest, self.stop.fd(), time)?;
            if self.handover.is_requested() {
                return Ok(None);
            }
            self.idle = ready == Ready::default();
            if self.idle {
                return self.check_deadline();
            }
        }
        let partial = !self.input.is_empty();
        let buffer = match self.input.space(frame).map_err(invalid)? {
            Ok(buffer) => buffer,
            Err(need) => {
                let waited = self.await_memory(need);
                if self.handover.is_requested() {
                    return Ok(None);
                }
                waited?;
                // The client is not responsible for this delay.
                self.deadlines.restart_message();
                return Ok(None);
            }
        };
        let received = receive(lane, buffer, &mut self.poller, partial)?;
        if received.is_none() {
            self.check_deadline()?;
            if lane.in_flight.count() == 0 && !lane.has_backlog() {
                self.deadlines.set_idle(Instant::now());
                self.input.shrink();
                self.out.shrink();
                lane.release_idle();
                sys::pages::release_stack();
                self.idle = true;
            }
        }
        Ok(received)
    }

    /// Sends all output, and waits until there may be the needed memory. Returns an error if the
    /// client is gone.
    fn await_memory(&mut self, need: Need) -> io::Result<()> {
        let lane = self.lane;
        lane.count_throttle(Throttles::MEMORY);
        self.out.shrink();
        if lane.has_backlog() {
            // Sending the backlog frees memory.
            let interest = Interest {
                read: false,
                write: true,
            };
            lane.listen(interest, Some(LaneThread::RECHECK))?;
        } else {
            lane.wait_for(need, LaneThread::RECHECK);
        }
        let (nothing, at_once) = (Interest::default(), Some(Duration::ZERO));
        let ready = lane.link.wait(nothing, self.stop.fd(), at_once)?;
        match ready.hung_up || ready.woken || lane.is_disconnected() {
            true => Err(ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }

    fn check_deadline(&self) -> io::Result<Option<usize>> {
        // The client is not responsible if its requests take long.
        if self.input.is_empty() && self.lane.in_flight.count() > 0 {
            return Ok(None);
        }
        match self
            .deadlines
            .time_left(Instant::now(), self.message_len()?)
        {
            Some((Duration::ZERO, why)) => Err(timed_out(why)),
            _ => Ok(None),
        }
    }

    /// Returns the length of a partly received message, 0 if unknown.
    fn message_len(&self) -> io::Result<usize> {
        let frame = self.lane.session.frame(self.input.bytes());
        Ok(frame.map_err(invalid)?.unwrap_or(0))
    }

    /// Serves all complete messages in the input, and returns their number.
    fn serve_all(&mut self) -> io::Result<usize> {
        self.budget.begin_batch();
        let mut served = 0;
        loop {
            let head = self.input.bytes();
            let Some(len) = self.lane.session.frame(head).map_err(invalid)? else {
                return Ok(served);
            };
            if head.len() < len {
                return Ok(served);
            }
            served += 1;
            let start = self.input.start;
            self.input.start += len;
            self.serve(start..start + len)?;
            let took = self.budget.end_request(len);
            let time = || RequestTime::inline(took);
            let stats = self.lane.stats();
            if let Some(recorded) = stats.record(&self.lane.inline, || stats.sample(), time) {
                // An answered message is still in the buffer.
                let message = self.input.buffer.get(start..start + len);
                let message = message.unwrap_or_default();
                let lane = self.lane;
                lane.log(&recorded, &lane.inline, message, self.reply_len);
            }
            if self.out.size() >= Lane::BATCH
                || self.out.has_pages()
                || self.out.passed_file().is_some()
            {
                self.flush()?;
                self.budget.begin_batch();
            }
        }
    }

    fn serve(&mut self, range: Range<usize>) -> io::Result<()> {
        let lane = self.lane;
        add(&lane.stats().requests, 1);
        let _span = enter_span(|| {
            let id = lane.stats().requests.load(Ordering::Relaxed);
            trace_span!("request", conn = lane.id(), id)
        });
        let message = &self.input.buffer[range.clone()];
        let id = match lane.session.role(message).map_err(invalid)? {
            Role::Request { id } => id,
            Role::Cancel { id, target } | Role::Interrupt { id, target } => {
                if lane.in_flight.count() > 0 && lane.follow(id, target, message)? {
                    return Ok(());
                }
                id
            }
            Role::Reset { id } => {
                if lane.in_flight.count() > 0 {
                    self.flush()?;
                    lane.in_flight.cancel_all();
                    lane.drain()?;
                }
                id
            }
        };
        lane.check_unused(id)?;
        while let Err(need) = self.reserve_reply(range.clone()) {
            self.flush()?;
            self.await_memory(need)?;
        }
        let message = &self.input.buffer[range.clone()];
        // The thread waits for pages while they are sent, and for all output if no other thread
        // could send.
        self.out.set_splice_threshold(match lane.in_flight.count() {
            0 if lane.tuning.zerocopy => lane.link.payloads().pages,
            _ => usize::MAX,
        });
        let patience = self.budget.patience();
        let before = self.out.size();
        let served = lane.serve(&lane.inline, patience, &Frame(message), &mut self.out);
        self.reply_len = self.out.size().saturating_sub(before);
        self.reply_memory.set(0);
        match served {
            Ok(ServeOutcome::Done) => Ok(()),
            Ok(ServeOutcome::StartTls) => self.start_tls(),
            Ok(ServeOutcome::WouldBlock | ServeOutcome::Parked) => {
                if !lane.in_flight.has_room(range.len()) || !self.input.may_detach(&range) {
                    lane.count_throttle(Throttles::IN_FLIGHT);
                    self.flush()?;
                    let input = &self.input;
                    lane.wait_until(|lane| {
                        // One request may always be in flight.
                        lane.in_flight.count() == 0
                            || lane.in_flight.has_room(range.len()) && input.may_detach(&range)
                    })?;
                }
                // The note belongs to an unfinished attempt.
                lane.inline.take_outcome();
                lane.offload(id, self.input.detach(range))
            }
            Err(malformed) => Err(invalid(malformed)),
        }
    }

    /// Reserves memory for the reply to a message. Returns the need to wait for if the client's
    /// replies exceed their share already.
    fn reserve_reply(&mut self, range: Range<usize>) -> Result<(), Need> {
        match self.lane.large_reply(&self.input.buffer[range]) {
            Some(bound) if !self.reply_memory.try_claim(bound) => Err(Need::Reply(bound)),
            None if self.lane.exceeds_share() => Err(Need::WithinShare),
            _ => Ok(()),
        }
    }

    /// Starts TLS on the link after the request for it. Bytes received before could come from an
    /// attacker on the connection, and are an error.
    fn start_tls(&mut self) -> io::Result<()> {
        if !self.input.is_empty() {
            let early = "unexpected bytes before the TLS handshake";
            return Err(invalid(Malformed::new(early)));
        }
        self.flush()?;
        self.lane.drain()?;
        let started = self.lane.link.start_tls();
        let peer = started.inspect_err(|error| self.lane.close_on_tls_error(error))?;
        self.lane.session.tls_started(peer);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let lane = self.lane;
        let congested = if self.out.size() == 0 {
            lane.is_congested()
        } else if self.out.has_pages() {
            let congested = lane.send_pages(&mut self.out)?;
            self.out.clear();
            congested
        } else {
            // With nothing in flight no other thread could want to send.
            let congested = lane.send(&self.out, lane.in_flight.count() == 0)?;
            self.out.clear();
            congested
        };
        // A client that does not read its replies gets no more: requests that it sent already may
        // produce thousands of times their length.
        if congested {
            lane.count_throttle(Throttles::REPLIES);
            lane.wait_until(|lane| !lane.is_congested())?;
        }
        Ok(())
    }
}

/// Receives at least a byte, and sends the backlog meanwhile; 0 at the end of the connection.
/// Returns `None` if none arrived within a tick ([`crate::Timeouts`]), or four while requests are
/// in flight and the next one has not begun.
fn receive(
    lane: &Lane,
    buffer: &mut [u8],
    poller: &mut Poller,
    partial: bool,
) -> io::Result<Option<usize>> {
    // The lane is not woken when the last request in flight is answered: it would only release
    // memory then.
    let tick = lane.tuning.timeouts.tick() * if partial { 1 } else { 4 };
    loop {
        if lane.in_flight.count() == 0 && !lane.has_backlog() {
            return match poller.wait(|wait| lane.link.recv(buffer, wait)) {
                Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
                done => done.map(Some),
            };
        }
        if lane.is_disconnected() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        // A client that does not read its replies is not read from until it does.
        let backlog = lane.has_backlog();
        let interest = Interest {
            read: !backlog,
            write: backlog,
        };
        let ready = lane.listen(interest, (!backlog).then_some(tick))?;
        if ready.read || ready.hung_up {
            match lane.link.recv(buffer, false) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done.map(Some),
            }
        }
        if ready == Ready::default() && !backlog {
            lane.in_flight.start_queued();
            return Ok(None);
        }
    }
}
