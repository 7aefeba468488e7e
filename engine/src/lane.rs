//! A connection: one thread that receives, answers what it can, and sends.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use transports::{Frame, Interest, Link, Outbox, Ready};
use vfs::{Call, Patience};
use wire::{Answer, Malformed, Role, Session};

use crate::poller::{Poller, Spare};
use crate::request::Request;
use crate::server::{Member, Tuning};
use crate::stats::{Stats, add};
use crate::workers::Workers;

/// What a lane's own thread and the workers share of it.
pub(crate) struct Lane {
    pub(crate) session: Box<dyn Session>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) link: Box<dyn Link>,
    output: Mutex<Output>,
    flights: Mutex<Flights>,
    /// How many requests are in flight. Only the lane's own thread adds.
    outstanding: AtomicUsize,
    /// Wakes the lane's own thread from [`Link::wait`].
    bell: OwnedFd,
    /// Whether that thread waits for requests to be answered.
    listens: AtomicBool,
    /// Whether nobody is there to take replies.
    gone: AtomicBool,
    tuning: Tuning,
    /// The last field: whoever hears that the connection is no more finds its session gone.
    member: Member,
}

/// Replies that the link did not take at once.
#[derive(Default)]
struct Output {
    backlog: Vec<u8>,
    sent: usize,
}

/// Requests in flight, by the peer's names for them.
#[derive(Default)]
struct Flights {
    by_id: HashMap<u64, Flight>,
    /// How many of them have a worker.
    running: usize,
    /// Those that wait for one of this lane's share of workers.
    pending: VecDeque<Arc<Request>>,
}

struct Flight {
    request: Arc<Request>,
    /// Whether its reply is on its way: the peer may already have it and use the name again.
    answered: bool,
    /// What is to be served right after its reply has been sent: those that cancelled it.
    followers: Vec<Arc<Request>>,
}

impl Lane {
    /// Output beyond this is sent before more is answered: the client can begin on it.
    const BATCH: usize = 128 << 10;

    /// Replies that a client leaves lying, bytes, beyond which none of its requests run.
    const BACKLOG: usize = 1 << 20;

    pub(crate) fn new(
        link: Box<dyn Link>,
        session: Box<dyn Session>,
        workers: Arc<Workers>,
        tuning: Tuning,
        member: Member,
    ) -> io::Result<Arc<Lane>> {
        Ok(Arc::new(Lane {
            session,
            workers,
            link,
            output: Mutex::default(),
            flights: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            listens: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            tuning,
            member,
        }))
    }

    /// The lane's own thread: until the client, or [`Link::end_input`], ends it, and everything in
    /// flight is answered.
    pub(crate) fn run(self: &Arc<Self>, spare: &Spare, stopping: &AtomicBool) {
        let mut own = Own {
            lane: self,
            input: Input::default(),
            out: Outbox::default(),
            poller: Poller::new(self.tuning.poll),
            pace: Pace::default(),
        };
        if let Err(error) = own.run(spare) {
            self.lose(&error);
        }
        own.input = Input::default();
        own.out = Outbox::default();
        if !stopping.load(Ordering::SeqCst) {
            self.cancel_all();
        }
        // With nobody there to take replies, those that still run end unheard.
        if self.await_quiet().is_err() {
            self.leave();
            self.await_answers();
        }
        self.link.hang_up();
    }

    /// Has a worker run `request`, as soon as the lane's share of them allows.
    pub(crate) fn schedule(&self, request: Arc<Request>) {
        let mut flights = self.flights();
        flights.pending.push_back(request);
        self.start(&mut flights);
    }

    /// A request of this lane has left its worker, but is still in flight.
    pub(crate) fn leave_worker(&self) {
        let mut flights = self.flights();
        flights.running -= 1;
        self.start(&mut flights);
    }

    /// Sends the reply to `request` that stands in `out`, if one does, then those to whatever waited
    /// for that; from a worker's thread.
    pub(crate) fn complete(self: &Arc<Self>, request: &Arc<Request>, out: &mut Outbox) {
        if let Some(flight) = self.flights().by_id.get_mut(&request.id) {
            flight.answered = true;
        }
        self.leave_worker();
        let mut done = vec![request.clone()];
        while let Some(request) = done.pop() {
            self.send_from_worker(out);
            out.clear();
            for follower in self.land(&request) {
                let frame = Frame(&follower.message);
                if !self.is_gone()
                    && self
                        .session
                        .serve(&follower.call, Patience::Full, &frame, out.begin())
                        != Ok(Answer::Done)
                {
                    self.fail(&"a cancellation was not answered at once");
                }
                done.push(follower);
            }
        }
    }

    /// Ends the connection because of an error.
    pub(crate) fn fail(&self, error: &dyn Display) {
        if !self.gone.swap(true, Ordering::SeqCst) {
            tracing::warn!(peer = self.link.peer(), "connection closed: {error}");
        }
        self.leave();
    }

    /// Ends the connection because its link did: a client that goes without taking its replies is
    /// nothing to warn of.
    fn lose(&self, error: &io::Error) {
        if matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        ) {
            self.leave();
        } else {
            self.fail(error);
        }
    }

    /// Nobody takes replies any more.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.link.hang_up();
        self.ring();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn cancel_all(&self) {
        let requests: Vec<_> = self
            .flights()
            .by_id
            .values()
            .map(|flight| flight.request.clone())
            .collect();
        add(&self.stats().cancelled, requests.len());
        requests.iter().for_each(Request::cancel);
    }

    /// Takes a request that is answered out of flight; whoever cancelled it comes next.
    fn land(&self, request: &Arc<Request>) -> Vec<Arc<Request>> {
        let mut flights = self.flights();
        let followers = match flights.by_id.entry(request.id) {
            Entry::Occupied(entry) if Arc::ptr_eq(&entry.get().request, request) => {
                entry.remove().followers
            }
            _ => Vec::new(),
        };
        drop(flights);
        self.outstanding.fetch_sub(1, Ordering::SeqCst);
        if self.listens.load(Ordering::SeqCst) {
            self.ring();
        }
        followers
    }

    fn start(&self, flights: &mut Flights) {
        while flights.running < self.workers.share() && !self.is_clogged() {
            let Some(request) = flights.pending.pop_front() else {
                return;
            };
            flights.running += 1;
            self.workers.run(request);
        }
    }

    fn is_clogged(&self) -> bool {
        let output = self.output();
        !self.is_gone() && output.backlog.len() - output.sent > Lane::BACKLOG
    }

    fn send_from_worker(&self, out: &Outbox) {
        if self.is_gone() || out.bytes().is_empty() {
            return;
        }
        if let Err(error) = self.send(out.bytes(), false) {
            self.lose(&error);
        }
    }

    /// Sends `bytes` behind all that was sent before; what does not go at once (without `wait`) the
    /// lane's own thread sends later.
    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<()> {
        let mut output = self.output();
        let mut sent = 0;
        if output.backlog.is_empty() {
            sent = match self.link.send(bytes, wait) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                done => done?,
            };
        }
        add(&self.stats().sent, bytes.len());
        if sent < bytes.len() {
            output.backlog.extend_from_slice(&bytes[sent..]);
            self.ring();
        }
        Ok(())
    }

    fn send_backlog(&self) -> io::Result<()> {
        let mut output = self.output();
        let sent = self.link.send(&output.backlog[output.sent..], false)?;
        output.sent += sent;
        if output.sent == output.backlog.len() {
            *output = Output::default();
        }
        drop(output);
        self.start(&mut self.flights());
        Ok(())
    }

    fn has_backlog(&self) -> bool {
        !self.output().backlog.is_empty()
    }

    /// Waits until nothing is in flight and all is sent.
    fn await_quiet(&self) -> io::Result<()> {
        self.await_until(|lane| lane.outstanding() == 0 && !lane.has_backlog())
    }

    fn await_until(&self, done: impl Fn(&Lane) -> bool) -> io::Result<()> {
        self.listens.store(true, Ordering::SeqCst);
        let result = loop {
            if self.is_gone() {
                break Err(ErrorKind::BrokenPipe.into());
            }
            if done(self) {
                break Ok(());
            }
            let interest = Interest {
                read: false,
                write: self.has_backlog(),
            };
            match self.listen(interest) {
                Ok(ready) if ready.hung_up => break Err(ErrorKind::BrokenPipe.into()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        self.listens.store(false, Ordering::SeqCst);
        result
    }

    /// Waits for the end of what is in flight, when the link is of no use any more.
    fn await_answers(&self) {
        self.listens.store(true, Ordering::SeqCst);
        while self.outstanding() > 0 {
            self.start(&mut self.flights());
            let mut fds = [rustix::event::PollFd::new(
                &self.bell,
                rustix::event::PollFlags::IN,
            )];
            let _ = rustix::event::poll(&mut fds, None);
            self.silence();
        }
    }

    /// Waits for the link or the bell, and sends what can be sent of the backlog.
    fn listen(&self, interest: Interest) -> io::Result<Ready> {
        let ready = self.link.wait(interest, self.bell.as_fd(), None)?;
        if ready.woken {
            self.silence();
        }
        if ready.write {
            self.send_backlog()?;
        }
        Ok(ready)
    }

    fn ring(&self) {
        // Fails only when it has been rung more often than it can count.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    fn stats(&self) -> &Stats {
        &self.member.stats
    }

    fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::SeqCst)
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().expect("no panic holds it")
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().expect("no panic holds it")
    }
}

/// What only the lane's own thread has.
struct Own<'a> {
    lane: &'a Arc<Lane>,
    input: Input,
    out: Outbox,
    poller: Poller,
    pace: Pace,
}

impl Own<'_> {
    /// How long large buffers are kept for a next large message: their pages cost as much to get as
    /// half a megabyte to copy.
    const IDLE: Duration = Duration::from_millis(500);

    fn holds_much(&self) -> bool {
        self.input.is_empty() && (self.input.is_large() || self.out.is_large())
    }

    fn run(&mut self, spare: &Spare) -> io::Result<()> {
        loop {
            self.serve_all()?;
            self.flush()?;
            let idle = self.holds_much().then_some(Own::IDLE);
            let buffer = self
                .input
                .space(|head| self.lane.session.frame(head))
                .map_err(invalid)?;
            let Some(received) = receive(self.lane, buffer, &mut self.poller, spare, idle)? else {
                self.input.shrink();
                self.out.shrink();
                continue;
            };
            if received == 0 {
                return match self.input.is_empty() {
                    true => Ok(()),
                    false => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
            add(&self.lane.stats().received, received);
            self.input.end += received;
        }
    }

    /// Answers every whole message that is there.
    fn serve_all(&mut self) -> io::Result<()> {
        self.pace.begin();
        loop {
            let head = self.input.bytes();
            let Some(len) = self.lane.session.frame(head).map_err(invalid)? else {
                return Ok(());
            };
            if head.len() < len {
                return Ok(());
            }
            let start = self.input.start;
            self.serve(start, len)?;
            self.input.start += len;
            self.pace.step();
            if self.out.bytes().len() >= Lane::BATCH {
                self.flush()?;
            }
        }
    }

    fn serve(&mut self, start: usize, len: usize) -> io::Result<()> {
        let lane = self.lane;
        add(&lane.stats().requests, 1);
        let message = &self.input.buffer[start..start + len];
        let mut id = match lane.session.role(message).map_err(invalid)? {
            Role::Request { id } => id,
            Role::Cancel { id, target } => {
                if lane.outstanding() > 0 && follow(lane, id, target, message)? {
                    return Ok(());
                }
                id
            }
            Role::Reset { id } => {
                if lane.outstanding() > 0 {
                    self.flush()?;
                    lane.cancel_all();
                    lane.await_quiet()?;
                }
                id
            }
        };
        if lane.outstanding() > 0 {
            id = unused(&lane.flights(), id)?;
        }
        let message = &self.input.buffer[start..start + len];
        static INLINE: Call = Call::detached();
        let patience = self.pace.patience();
        match lane
            .session
            .serve(&INLINE, patience, &Frame(message), self.out.begin())
        {
            Ok(Answer::Done) => Ok(()),
            Ok(Answer::WouldBlock | Answer::Parked) => {
                if lane.outstanding() >= lane.tuning.in_flight {
                    self.flush()?;
                    lane.await_until(|lane| lane.outstanding() < lane.tuning.in_flight)?;
                }
                let message = &self.input.buffer[start..start + len];
                offload(lane, id, message);
                Ok(())
            }
            Err(malformed) => Err(invalid(malformed)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.out.bytes().is_empty() {
            // With nothing in flight there is nobody else who could want to send.
            self.lane
                .send(self.out.bytes(), self.lane.outstanding() == 0)?;
            self.out.clear();
        }
        // A client that leaves its replies lying is not given more of them: what it has sent already
        // may ask for thousands of times as much as it is long.
        if self.lane.is_clogged() {
            self.lane.await_until(|lane| !lane.is_clogged())?;
        }
        Ok(())
    }
}

fn offload(lane: &Arc<Lane>, id: u64, message: &[u8]) {
    add(&lane.stats().offloaded, 1);
    let request = fly(lane, &mut lane.flights(), id, message);
    lane.schedule(request);
}

fn fly(lane: &Arc<Lane>, flights: &mut Flights, id: u64, message: &[u8]) -> Arc<Request> {
    let request = Request::new(lane, id, message);
    lane.outstanding.fetch_add(1, Ordering::SeqCst);
    let flight = Flight {
        request: request.clone(),
        answered: false,
        followers: Vec::new(),
    };
    flights.by_id.insert(id, flight);
    request
}

/// If `target` is in flight: cancels it, and has `message` served after its reply.
fn follow(lane: &Arc<Lane>, id: u64, target: u64, message: &[u8]) -> io::Result<bool> {
    let mut flights = lane.flights();
    let id = unused(&flights, id)?;
    if !flights.by_id.contains_key(&target) {
        return Ok(false);
    }
    let follower = fly(lane, &mut flights, id, message);
    let Some(flight) = flights.by_id.get_mut(&target) else {
        return Ok(false);
    };
    flight.followers.push(follower);
    let target = flight.request.clone();
    drop(flights);
    add(&lane.stats().cancelled, 1);
    target.cancel();
    Ok(true)
}

fn unused(flights: &Flights, id: u64) -> io::Result<u64> {
    match flights.by_id.get(&id) {
        Some(flight) if !flight.answered => Err(invalid(Malformed::new(format!(
            "request {id} is in flight already"
        )))),
        _ => Ok(id),
    }
}

/// Receives at least a byte, sending on the backlog meanwhile; 0 at the end. Nothing if `idle` is over
/// before.
fn receive(
    lane: &Lane,
    buffer: &mut [u8],
    poller: &mut Poller,
    spare: &Spare,
    idle: Option<Duration>,
) -> io::Result<Option<usize>> {
    loop {
        if lane.outstanding() == 0 && !lane.has_backlog() {
            let link = &lane.link;
            let buffer = std::cell::RefCell::new(buffer);
            let look = || match link.recv(&mut buffer.borrow_mut(), false) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                done => Some(done.map(Some)),
            };
            return poller.wait(spare, look, || {
                if idle.is_some() {
                    let interest = Interest {
                        read: true,
                        write: false,
                    };
                    if link.wait(interest, lane.bell.as_fd(), idle)? == Ready::default() {
                        return Ok(None);
                    }
                }
                link.recv(&mut buffer.borrow_mut(), true).map(Some)
            });
        }
        if lane.is_gone() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        // A client that leaves its replies lying is not heard until it takes them.
        let backlog = lane.has_backlog();
        let ready = lane.listen(Interest {
            read: !backlog,
            write: backlog,
        })?;
        if ready.read || ready.hung_up {
            match lane.link.recv(buffer, false) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done.map(Some),
            }
        }
    }
}

fn invalid(malformed: Malformed) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, malformed)
}

/// What has come and is not answered yet.
#[derive(Default)]
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// Room for small messages: hundreds of requests without a payload.
    const SMALL: usize = 16 << 10;

    /// Room for many messages with a page of payload each.
    const MANY: usize = 256 << 10;

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where to receive more. Of a large message that has begun, exactly the rest, so that no part
    /// of the next has to move when that one is done.
    fn space(
        &mut self,
        frame: impl Fn(&[u8]) -> Result<Option<usize>, Malformed>,
    ) -> Result<&mut [u8], Malformed> {
        let was_full = self.end == self.buffer.len() && self.start < self.end;
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let len = frame(self.bytes())?.unwrap_or(0);
        let wanted = match self.buffer.len() {
            have if was_full && have < Input::MANY => (have * 4).max(len),
            have => have.max(len).max(Input::SMALL),
        };
        if wanted > Input::MANY && wanted > self.buffer.len() {
            // Fresh pages take no memory until something comes into them: the peer may send no more than
            // this message's beginning.
            let mut larger = vec![0; wanted];
            larger[..self.end].copy_from_slice(&self.buffer[..self.end]);
            self.buffer = larger;
        } else {
            self.buffer.resize(wanted, 0);
        }
        let until = if len > Input::MANY {
            len
        } else {
            wanted.min(Input::MANY)
        };
        Ok(&mut self.buffer[self.end..until])
    }

    fn is_large(&self) -> bool {
        self.buffer.len() > Input::SMALL
    }

    fn shrink(&mut self) {
        if self.is_empty() {
            *self = Input::default();
        }
    }
}

/// How patient the lane's own thread can afford to be: it tries what normally takes microseconds,
/// until that has waited for a disk, and then leaves it to workers for a while.
struct Pace {
    last: Instant,
    strikes: u32,
    careful_until: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            last: Instant::now(),
            strikes: 0,
            careful_until: None,
        }
    }
}

impl Pace {
    /// What takes longer has waited.
    const SLOW: Duration = Duration::from_millis(2);

    /// How long the lane is careful then.
    const CAREFUL: Duration = Duration::from_millis(100);

    /// One slow answer may be a thread that lost its processor for a time slice; two within so many
    /// answers are not.
    const WITHIN: u32 = 16;

    fn begin(&mut self) {
        self.last = Instant::now();
        if self.careful_until.is_some_and(|until| until <= self.last) {
            self.careful_until = None;
        }
    }

    fn step(&mut self) {
        let now = Instant::now();
        if now - self.last < Pace::SLOW {
            self.strikes = self.strikes.saturating_sub(1);
        } else if self.strikes > 0 {
            self.careful_until = Some(now + Pace::CAREFUL);
            self.strikes = 0;
        } else {
            self.strikes = Pace::WITHIN;
        }
        self.last = now;
    }

    fn patience(&self) -> Patience {
        if self.careful_until.is_some() {
            Patience::None
        } else {
            Patience::Brief
        }
    }
}
