use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use transports::{Link, Listener, Poller, StreamLink};
use vfs::peer::Refusals;
use vfs::{Origin, Peer, Trust};
use wire::{Session, Vocabulary};

use crate::lane::Lane;
use crate::look::seen;
use crate::stats::{Account, Snapshot, Tally};
use crate::watch::Watch;
use crate::workers::Workers;

/// What clients connect to: makes a session for each.
pub trait Service: Send + Sync {
    /// The session of a client that has just connected.
    fn session(&self) -> Box<dyn Session>;

    /// What carries its connection.
    fn link(&self, link: StreamLink) -> Box<dyn Link> {
        Box::new(link)
    }
}

/// How much of what the engine may use.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// How long a lane polls at most before it sleeps; zero is not at all.
    pub poll: Duration,
    /// How many requests of a connection may wait for workers before it is not heard any more.
    pub in_flight: usize,
    /// How many bytes those may be together; one may be larger if it is the only one.
    pub held: usize,
    /// Whether pages of files are sent as they are, where a connection says that this pays.
    pub zerocopy: bool,
    /// How many threads there may be for what would block.
    pub workers: usize,
    /// How many connections there may be; more are closed at once.
    pub connections: usize,
    /// Whether requests are counted by what they are and how long they take ([`Engine::look`]).
    pub counts: bool,
    /// How long requests in flight get when the engine stops, before they are cancelled.
    pub grace: Duration,
}

impl Default for Tuning {
    /// What suits this machine.
    fn default() -> Tuning {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Tuning {
            poll: Poller::usual(),
            in_flight: 256,
            held: 32 << 20,
            zerocopy: true,
            workers: (processors * 4).clamp(16, 128),
            connections: 4096,
            counts: false,
            grace: Duration::from_secs(5),
        }
    }
}

/// Accepts connections and drives them, each in a thread of its own.
pub struct Engine {
    workers: Arc<Workers>,
    watch: Arc<Watch>,
    tally: Arc<Tally>,
    tuning: Tuning,
    trust: Trust,
    refusals: Arc<Refusals>,
    /// Readable once the engine stops.
    stop: OwnedFd,
    stopping: AtomicBool,
    alive: Mutex<Alive>,
    changed: Condvar,
}

#[derive(Default)]
struct Alive {
    listeners: usize,
    members: HashMap<u64, Weak<Lane>>,
    next: u64,
}

impl Engine {
    /// What a lane's thread needs at most: requests do not recurse.
    const STACK: usize = 512 << 10;

    /// An engine without anything to do yet. Errs if there can be no thread for what would block.
    pub fn new(tuning: Tuning) -> io::Result<Arc<Engine>> {
        Engine::trusting(tuning, Trust::default())
    }

    /// The same, where the processes of these local users may act as any user.
    pub fn trusting(tuning: Tuning, trust: Trust) -> io::Result<Arc<Engine>> {
        let workers = Workers::new(tuning.workers)?;
        Ok(Arc::new(Engine {
            watch: Watch::new(&workers)?,
            workers,
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
            tally: Tally::new(tuning.counts),
            tuning,
            trust,
            refusals: Arc::default(),
            stopping: AtomicBool::new(false),
            alive: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Serves the clients that come to `listener`, until the engine stops.
    pub fn listen(
        self: &Arc<Self>,
        listener: Listener,
        service: Arc<dyn Service>,
    ) -> io::Result<()> {
        let engine = self.clone();
        self.host(move |_| engine.accept(&listener, &*service))
    }

    /// Runs `listen` in a thread of its own; it has to end soon after the descriptor that it is given is
    /// readable: then the engine stops.
    pub fn host(
        self: &Arc<Self>,
        listen: impl FnOnce(BorrowedFd<'_>) + Send + 'static,
    ) -> io::Result<()> {
        self.alive().listeners += 1;
        let engine = self.clone();
        let spawned = std::thread::Builder::new()
            .name("barge-accept".into())
            .spawn(move || {
                listen(engine.stop.as_fd());
                engine.alive().listeners -= 1;
                engine.changed.notify_all();
            });
        if spawned.is_err() {
            self.alive().listeners -= 1;
        }
        spawned.map(drop)
    }

    /// Serves the client at the other end of `link`.
    pub fn connect(self: &Arc<Self>, link: Box<dyn Link>, service: &dyn Service) -> io::Result<()> {
        let session = service.session();
        let member = self.admit(session.vocabulary())?;
        let id = member.id;
        let lane = Lane::new(link, session, self.workers.clone(), self.tuning, member)?;
        lane.stats().shown_by(seen(&lane));
        self.alive().members.insert(id, Arc::downgrade(&lane));
        tracing::debug!(connection = id, peer = lane.link.peer(), "connected");
        let engine = self.clone();
        std::thread::Builder::new()
            .name(format!("barge-lane-{id}"))
            .stack_size(Engine::STACK)
            .spawn(move || {
                if engine.stopping.load(Ordering::SeqCst) {
                    lane.link.end_input();
                }
                lane.run(&engine.stopping);
            })
            .map(drop)
    }

    /// Stops: no more connections, no more requests; what is in flight is answered. Returns at
    /// once; [`Engine::wait`] waits for the end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Cannot fail: nobody else adds to it.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let lanes = self.alive().lanes();
        for lane in lanes {
            lane.link.end_input();
        }
        self.changed.notify_all();
    }

    /// Waits until there is neither a listener nor a connection any more. What a stop leaves
    /// unanswered beyond the time of grace is cancelled.
    pub fn wait(&self) {
        let mut alive = self.alive();
        let mut deadline = None;
        while alive.listeners > 0 || !alive.members.is_empty() {
            if !self.stopping.load(Ordering::SeqCst) {
                alive = self.changed.wait(alive).expect("no panic holds it");
                continue;
            }
            let now = Instant::now();
            let deadline = deadline.get_or_insert(now + self.tuning.grace);
            if now >= *deadline {
                let lanes = alive.lanes();
                drop(alive);
                for lane in lanes {
                    lane.cancel_all();
                    lane.leave();
                }
                alive = self.alive();
                *deadline = now + self.tuning.grace.max(Duration::from_secs(1));
            }
            let left = *deadline - now.min(*deadline);
            alive = self
                .changed
                .wait_timeout(alive, left)
                .expect("no panic holds it")
                .0;
        }
    }

    /// How many connections there are, and what those and the queues, of now and before, have done.
    pub fn stats(&self) -> (usize, Snapshot) {
        (self.alive().members.len(), self.tally.sum())
    }

    /// The number of clients that exports refused, by reason.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }

    fn admit(self: &Arc<Self>, words: &'static Vocabulary) -> io::Result<Member> {
        let most = self.tuning.connections;
        let mut alive = self.alive();
        if alive.members.len() >= most {
            return Err(io::Error::other(format!(
                "there are {most} connections already"
            )));
        }
        alive.next += 1;
        let id = alive.next;
        alive.members.insert(id, Weak::new());
        Ok(Member {
            engine: self.clone(),
            id,
            stats: self.tally.open(words),
        })
    }

    fn accept(self: &Arc<Self>, listener: &Listener, service: &dyn Service) {
        loop {
            match listener.accept(self.stop.as_fd()) {
                Ok(Some(link)) => {
                    let peer = link.peer().to_owned();
                    if let Err(error) = self.connect(service.link(link), service) {
                        tracing::warn!(peer, "connection refused: {error}");
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(addr = %listener.addr(), "no longer listening: {error}");
                    return;
                }
            }
        }
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn alive(&self) -> MutexGuard<'_, Alive> {
        self.alive.lock().expect("no panic holds it")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.workers.close();
    }
}

impl Alive {
    fn lanes(&self) -> Vec<Arc<Lane>> {
        self.members.values().filter_map(Weak::upgrade).collect()
    }
}

/// A connection's place among those alive; dropped last of all that a connection has.
pub(crate) struct Member {
    engine: Arc<Engine>,
    pub(crate) id: u64,
    pub(crate) stats: Account,
}

impl Member {
    /// The peer of its connection.
    pub(crate) fn peer(&self, origin: Origin) -> Peer {
        let server = rustix::process::geteuid().as_raw();
        Peer::new(origin, &self.engine.trust, server).counting(self.engine.refusals.clone())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let done = self.stats.snapshot();
        tracing::debug!(
            connection = self.id,
            requests = done.requests,
            offloaded = done.offloaded,
            cancelled = done.cancelled,
            received = done.received,
            sent = done.sent,
            "disconnected"
        );
        self.engine.alive().members.remove(&self.id);
        self.engine.changed.notify_all();
    }
}
