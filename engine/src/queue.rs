//! A virtqueue's lane: one thread that takes requests out, answers what it can, and gives them back.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use transports::{Exchange, Outbox, Poller, Ring};
use vfs::{Call, Patience};
use wire::{Answer, Role, Session};

use crate::pace::Pace;
use crate::request::{Job, Ran, Request};
use crate::server::Engine;
use crate::share::Share;
use crate::stats::{Account, add};
use crate::workers::Workers;

/// A queue that is driven by a thread of its own.
pub struct Driven(JoinHandle<()>);

impl Driven {
    /// Waits until the thread has ended, which it does once its ring is stopped: what is in flight then
    /// is cancelled and answered before.
    pub fn join(self) {
        // It panics only if a source does, which has been told then.
        let _ = self.0.join();
    }
}

impl Engine {
    /// Answers what comes through `ring` by `session`, which may be that of several rings.
    pub fn drive(
        self: &Arc<Self>,
        ring: Arc<dyn Ring>,
        session: Arc<dyn Session>,
    ) -> io::Result<Driven> {
        let lane = Arc::new(QueueLane {
            session,
            ring,
            engine: self.clone(),
            stats: self.tally().open(),
            flights: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            quiet: Condvar::new(),
        });
        let poll = self.tuning().poll;
        std::thread::Builder::new()
            .name("barge-queue".into())
            .spawn(move || lane.run(Poller::new(poll)))
            .map(Driven)
    }
}

struct QueueLane {
    session: Arc<dyn Session>,
    ring: Arc<dyn Ring>,
    engine: Arc<Engine>,
    stats: Account,
    flights: Mutex<Flights>,
    outstanding: AtomicUsize,
    /// Rung when nothing is in flight any more.
    quiet: Condvar,
}

#[derive(Default)]
struct Flights {
    all: Vec<Arc<Request<Queued>>>,
    share: Share<Queued>,
}

/// A request that came through a queue.
struct Queued {
    lane: Arc<QueueLane>,
    id: u64,
    /// There until it is answered.
    exchange: Mutex<Option<Box<dyn Exchange>>>,
}

impl Job for Queued {
    fn run(request: &Arc<Request<Queued>>, _: &mut Outbox) -> Ran {
        let Queued { lane, exchange, .. } = &request.job;
        let mut held = exchange.lock().expect("no panic holds it");
        let Some(mut exchange) = held.take() else {
            return Ran::Answered;
        };
        if lane.serve(&request.call, Patience::Full, &mut *exchange) == Answer::Parked {
            *held = Some(exchange);
            return Ran::Parked;
        }
        drop(held);
        lane.land(request, exchange);
        Ran::Answered
    }

    fn schedule(request: Arc<Request<Queued>>) {
        let lane = request.job.lane.clone();
        let mut flights = lane.flights();
        flights.share.wait(request);
        lane.start(&mut flights);
    }

    fn leave_worker(&self) {
        let mut flights = self.lane.flights();
        flights.share.leave();
        self.lane.start(&mut flights);
    }

    fn workers(&self) -> &Arc<Workers> {
        self.lane.engine.workers()
    }
}

impl QueueLane {
    /// So many are answered before the peer is told of them at the latest.
    const BATCH: usize = 16;

    fn run(self: &Arc<Self>, mut poller: Poller) {
        let mut pace = Pace::default();
        loop {
            if let Err(error) = self.serve_all(&mut pace) {
                tracing::warn!(queue = self.ring.name(), "queue abandoned: {error}");
                break;
            }
            match poller.wait(|wait| self.ring.wait(wait)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(queue = self.ring.name(), "queue abandoned: {error}");
                    break;
                }
            }
        }
        self.await_quiet();
    }

    fn serve_all(self: &Arc<Self>, pace: &mut Pace) -> io::Result<()> {
        let frame = |head: &[u8]| self.session.frame(head).unwrap_or(Some(head.len()));
        pace.begin();
        let mut untold = 0;
        while let Some(exchange) = self.ring.take(&frame)? {
            untold += usize::from(self.begin(exchange, pace.patience()));
            pace.step();
            if untold == QueueLane::BATCH {
                self.ring.tell();
                untold = 0;
            }
        }
        if untold > 0 {
            self.ring.tell();
        }
        Ok(())
    }

    /// Answers a request, or leaves it to the workers; says whether it was given back.
    fn begin(self: &Arc<Self>, mut exchange: Box<dyn Exchange>, patience: Patience) -> bool {
        static INLINE: Call = Call::detached();
        let message = exchange.split().0;
        add(&self.stats.requests, 1);
        add(&self.stats.received, message.size());
        let id = match self.session.role(message.bytes()) {
            Ok(Role::Request { id }) => id,
            Ok(Role::Cancel { id, target }) => {
                let flights = self.flights();
                let target = flights.all.iter().find(|request| request.job.id == target);
                let target = target.cloned();
                drop(flights);
                if let Some(target) = target {
                    add(&self.stats.cancelled, 1);
                    target.cancel();
                }
                id
            }
            Ok(Role::Reset { id }) => {
                self.await_quiet();
                id
            }
            // It is answered as what cannot be read.
            Err(_) => 0,
        };
        if self.serve(&INLINE, patience, &mut *exchange) == Answer::Done {
            self.give(exchange);
            return true;
        }
        self.offload(id, exchange);
        false
    }

    fn serve(&self, call: &Call, patience: Patience, exchange: &mut dyn Exchange) -> Answer {
        let (message, out) = exchange.split();
        match self.session.serve(call, patience, message, out) {
            Ok(answer) => answer,
            Err(malformed) => {
                tracing::debug!(queue = self.ring.name(), "no answer: {malformed}");
                out.truncate(0);
                Answer::Done
            }
        }
    }

    fn offload(self: &Arc<Self>, id: u64, exchange: Box<dyn Exchange>) {
        add(&self.stats.offloaded, 1);
        let request = Request::new(Queued {
            lane: self.clone(),
            id,
            exchange: Mutex::new(Some(exchange)),
        });
        self.outstanding.fetch_add(1, Ordering::SeqCst);
        self.flights().all.push(request.clone());
        Queued::schedule(request);
    }

    /// Gives back what a worker has answered.
    fn land(&self, request: &Arc<Request<Queued>>, exchange: Box<dyn Exchange>) {
        let mut flights = self.flights();
        if let Some(at) = flights
            .all
            .iter()
            .position(|known| Arc::ptr_eq(known, request))
        {
            flights.all.swap_remove(at);
        }
        flights.share.leave();
        self.start(&mut flights);
        drop(flights);
        self.give(exchange);
        self.ring.tell();
        if self.outstanding.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Under the lock, lest it falls between the look and the sleep of who waits.
            let _flights = self.flights();
            self.quiet.notify_all();
        }
    }

    fn give(&self, mut exchange: Box<dyn Exchange>) {
        add(&self.stats.sent, exchange.split().1.len());
        self.ring.give(exchange);
    }

    fn start(&self, flights: &mut Flights) {
        flights.share.start(self.engine.workers(), || true);
    }

    /// Cancels what is in flight, and waits until it is answered. The lane's own thread does, which alone
    /// puts more in flight.
    fn await_quiet(&self) {
        let requests = self.flights().all.clone();
        add(&self.stats.cancelled, requests.len());
        requests.iter().for_each(Request::cancel);
        drop(requests);
        let busy = |_: &mut Flights| self.outstanding.load(Ordering::SeqCst) > 0;
        let quiet = self.quiet.wait_while(self.flights(), busy);
        drop(quiet.expect("no panic holds it"));
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().expect("no panic holds it")
    }
}
