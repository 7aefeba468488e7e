//! A simulation of takeover: two servers with the grant logic of NFS, clients that open a file
//! exclusively, and an etcd, with clocks of different speeds, partitions, kills, and requests and
//! replies that are lost, late or repeated.
//!
//! Time is virtual. Each server, each client and the disturbance is a thread; one of them runs at a
//! time, the one that sleeps shortest, so that a seed has the same course, except for the order of
//! hash tables in the grant logic. `SEEDS` sets the number of seeds.
//!
//! A violation is that two clients believe that they have the same file. A client believes so from
//! the reply to its open until it closes the file, learns from a server that it lost it, or its
//! lease (RFC 8881 section 8.3) may have expired. Faults are put into the servers to show that the
//! simulation finds them.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use etcd::lease::{Active, End, Lease, acquire};
use etcd::{
    CallError, Clock, Cluster, Condition, Entry, Fence, Granted, Operation, Outcome, Records,
    Transaction,
};
use nfs::server::v4::state::{
    CallbackParameters, Channel, Config, CreateSession, ExchangeId, Limits, NodeKey, OpenArgs,
    Requester, Sequence, Share, Stable, Started, State, Tree,
};
use nfs::v4::{SessionId, StateId, Status};
use vfs::{Account, Errno};

/// The time to live of the servers' lease.
const TTL: Duration = Duration::from_secs(2);

/// The lease time of NFS.
const LEASE: Duration = Duration::from_secs(5);

/// The virtual time of a run.
const RUN: Duration = Duration::from_secs(240);

const CLIENTS: usize = 3;

const FILE: NodeKey = NodeKey { export: 0, node: 1 };

/// A fault of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// They go on after their lease has expired.
    IgnoresExpiry,
    /// The next server grants opens although clients may reclaim others.
    HasNoGrace,
    /// They write although another server may be active.
    WritesUnconditionally,
}

/// The threads and their time.
struct Schedule {
    state: Mutex<Threads>,
    turns: Vec<Condvar>,
}

struct Threads {
    now: Duration,
    /// The time at which each thread goes on; `None` once it has ended.
    wakes: Vec<Option<Duration>>,
    running: usize,
    rng: fastrand::Rng,
}

thread_local! {
    /// The number of this thread.
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Schedule {
    fn lock(&self) -> MutexGuard<'_, Threads> {
        self.state.lock().expect("no panic")
    }

    fn now(&self) -> Duration {
        self.lock().now
    }

    /// Lets the thread that sleeps shortest go on, and waits for this one's turn.
    fn sleep(&self, time: Duration) {
        let own = NUMBER.get();
        let mut threads = self.lock();
        threads.wakes[own] = Some(threads.now + time);
        self.next(&mut threads);
        while threads.running != own {
            threads = self.turns[own].wait(threads).expect("no panic");
        }
    }

    fn end(&self) {
        let mut threads = self.lock();
        threads.wakes[NUMBER.get()] = None;
        self.next(&mut threads);
    }

    fn next(&self, threads: &mut Threads) {
        let wakes = threads.wakes.iter().enumerate();
        let first = wakes
            .filter_map(|(number, wake)| Some(((*wake)?, number)))
            .min();
        if let Some((wake, number)) = first {
            threads.now = threads.now.max(wake);
            threads.running = number;
            self.turns[number].notify_one();
        }
    }

    /// Returns a random time of `range` in milliseconds.
    fn millis(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.lock().rng.u64(range))
    }

    fn chance(&self, percent: u32) -> bool {
        self.lock().rng.u32(0..100) < percent
    }
}

/// Ends a thread when it is dropped, also by a panic: the others go on, and the test fails instead
/// of waiting for it.
struct EndOfThread<'a>(&'a Schedule);

impl Drop for EndOfThread<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The state of etcd.
#[derive(Default)]
struct Store {
    revision: i64,
    keys: BTreeMap<Vec<u8>, Entry>,
    /// The ends of leases.
    leases: HashMap<i64, Duration>,
    last_lease: i64,
    /// Transactions that arrive late.
    late: Vec<(Duration, Transaction)>,
}

impl Store {
    /// Carries out what is due before `now`.
    fn advance(&mut self, now: Duration) {
        loop {
            let late = self
                .late
                .iter()
                .enumerate()
                .map(|(at, (due, _))| (*due, at))
                .min();
            let expiry = self.leases.iter().map(|(id, end)| (*end, *id)).min();
            match (
                late.filter(|it| it.0 <= now),
                expiry.filter(|it| it.0 <= now),
            ) {
                (Some((due, at)), expiry) if expiry.is_none_or(|(end, _)| due < end) => {
                    let (_, transaction) = self.late.remove(at);
                    let _ = self.apply(&transaction);
                }
                (_, Some((_, id))) => {
                    self.leases.remove(&id);
                    let before = self.keys.len();
                    self.keys.retain(|_, entry| entry.lease != id);
                    self.revision += i64::from(self.keys.len() < before);
                }
                _ => return,
            }
        }
    }

    fn holds(&self, condition: &Condition) -> bool {
        let of = |key: &Vec<u8>| self.keys.get(key).cloned().unwrap_or_default();
        match condition {
            Condition::Created(key, revision) => of(key).created == *revision,
            Condition::Modified(key, revision) => of(key).modified == *revision,
        }
    }

    fn apply(&mut self, transaction: &Transaction) -> Result<Outcome, CallError> {
        let succeeded = transaction.conditions.iter().all(|it| self.holds(it));
        let operations = match succeeded {
            true => &transaction.then,
            false => &transaction.otherwise,
        };
        let unknown = |operation: &Operation| match operation {
            Operation::Put { lease, .. } => *lease != 0 && !self.leases.contains_key(lease),
            _ => false,
        };
        if operations.iter().any(unknown) {
            return Err(CallError("requested lease not found".into()));
        }
        let changes = |operation: &Operation| match operation {
            Operation::Put { .. } => true,
            Operation::Delete(key) => self.keys.contains_key(key),
            _ => false,
        };
        self.revision += i64::from(operations.iter().any(changes));
        let mut entries = Vec::new();
        for operation in operations {
            entries.push(match operation {
                Operation::Put { key, value, lease } => {
                    let known = self.keys.get(key);
                    let entry = Entry {
                        key: key.clone(),
                        value: value.clone(),
                        created: known.map_or(self.revision, |known| known.created),
                        modified: self.revision,
                        lease: *lease,
                    };
                    self.keys.insert(key.clone(), entry);
                    Vec::new()
                }
                Operation::Delete(key) => {
                    self.keys.remove(key);
                    Vec::new()
                }
                Operation::Get(key) => self.keys.get(key).cloned().into_iter().collect(),
                Operation::Keys { from, until, limit } => {
                    let range = self.keys.range(from.clone()..until.clone());
                    range
                        .take(*limit as usize)
                        .map(|(_, entry)| entry.clone())
                        .collect()
                }
            });
        }
        Ok(Outcome {
            succeeded,
            revision: self.revision,
            entries,
        })
    }
}

/// The world of one seed.
struct World {
    schedule: Schedule,
    store: Mutex<Store>,
    servers: Vec<Server>,
    fault: Fault,
    /// The belief of each client: the end of its lease, if it has the file.
    beliefs: Mutex<[Option<Duration>; CLIENTS]>,
    counts: Mutex<Counts>,
}

/// The events of a run.
#[derive(Debug, Default)]
struct Counts {
    active: usize,
    opened: usize,
    reclaimed: usize,
    lost_leases: usize,
    violations: usize,
}

struct Server {
    /// The offset and the speed of its clock.
    offset: Duration,
    speed: f64,
    /// Whether its messages to and from etcd are lost.
    is_cut: AtomicBool,
    /// Set to kill it.
    stop: AtomicBool,
    run: Mutex<Option<Arc<Run>>>,
    /// Whether it serves a request: one at a time.
    is_busy: AtomicBool,
}

struct Files;

impl Tree for Files {
    type File = Arc<()>;
    type Node = u64;
}

/// An active server, as it serves clients.
struct Run {
    boot: u32,
    fence: Arc<Fence>,
    state: State<Files>,
}

/// The clock of a server.
struct ServerClock(Arc<World>, usize);

impl Clock for ServerClock {
    fn now(&self) -> Duration {
        let server = &self.0.servers[self.1];
        server.offset + self.0.schedule.now().mul_f64(server.speed)
    }

    fn sleep(&self, time: Duration) {
        let speed = self.0.servers[self.1].speed;
        self.0.schedule.sleep(time.div_f64(speed));
    }
}

/// The connection of a server to etcd.
struct Connection(Arc<World>, usize);

impl Connection {
    /// Sends a request, and returns its reply, unless one of them is lost.
    fn call<T>(
        &self,
        timeout: Duration,
        late: Option<&Transaction>,
        carry_out: impl FnOnce(&mut Store, Duration) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let Connection(world, server) = self;
        let schedule = &world.schedule;
        let is_cut = || world.servers[*server].is_cut.load(Ordering::SeqCst);
        let lost = || {
            schedule.sleep(timeout);
            Err(CallError("no reply in time".into()))
        };
        let store = || world.store.lock().expect("no panic");
        if is_cut() || schedule.chance(3) {
            if let Some(late) = late
                && schedule.chance(50)
            {
                let due = schedule.now() + schedule.millis(1..6000);
                store().late.push((due, late.clone()));
            }
            return lost();
        }
        schedule.sleep(schedule.millis(1..20));
        let now = schedule.now();
        let result = {
            let mut store = store();
            store.advance(now);
            carry_out(&mut store, now)
        };
        if let Some(late) = late
            && schedule.chance(5)
        {
            let due = now + schedule.millis(1..6000);
            store().late.push((due, late.clone()));
        }
        if is_cut() || schedule.chance(3) {
            return lost();
        }
        schedule.sleep(schedule.millis(1..20));
        result
    }
}

impl Cluster for Connection {
    fn grant(&self, ttl: Duration, timeout: Duration) -> Result<Granted, CallError> {
        self.call(timeout, None, |store, now| {
            store.last_lease += 1;
            let id = store.last_lease;
            store.leases.insert(id, now + ttl);
            Ok(Granted { id, ttl })
        })
    }

    fn transact(&self, transaction: &Transaction, timeout: Duration) -> Result<Outcome, CallError> {
        let mut transaction = transaction.clone();
        let is_record = |operation: &Operation| match operation {
            Operation::Put { key, .. } | Operation::Delete(key) => {
                key.windows(9).any(|it| it == b"/clients/")
            }
            _ => false,
        };
        if self.0.fault == Fault::WritesUnconditionally && transaction.then.iter().any(is_record) {
            transaction.conditions.clear();
        }
        let late = transaction.clone();
        self.call(timeout, Some(&late), |store, _| store.apply(&transaction))
    }
}

/// The records of clients.
struct Clients {
    records: Records,
    /// Those at the start of a run.
    listed: Vec<Box<[u8]>>,
}

impl Stable for Clients {
    fn list(&self) -> Vec<Box<[u8]>> {
        self.listed.clone()
    }

    fn put(&self, record: &[u8]) -> vfs::Result<()> {
        self.records.put("clients", record).map_err(|_| Errno::EIO)
    }

    fn remove(&self, record: &[u8]) -> vfs::Result<()> {
        self.records
            .remove("clients", record)
            .map_err(|_| Errno::EIO)
    }

    fn is_required(&self) -> bool {
        true
    }
}

/// Begins a run of the server: a new boot number, and the clients that may reclaim.
fn begin(world: &Arc<World>, number: usize, active: &Active) -> std::io::Result<Run> {
    let records = Records::new(active);
    let last = records.server()?.map_or(1, |value| {
        let text = String::from_utf8(value).expect("a number");
        text.parse::<u32>().expect("a number")
    });
    records.set_server((last + 1).to_string().as_bytes())?;
    let clock = ServerClock(world.clone(), number);
    let listed = loop {
        match records.list("clients") {
            Ok(listed) => break listed,
            Err(error) if !active.fence().allows(clock.now()) => return Err(error),
            Err(_) => {}
        }
    };
    let listed = match world.fault {
        Fault::HasNoGrace => Vec::new(),
        _ => listed,
    };
    let state = State::new(Config {
        boot: last + 1,
        lease: LEASE,
        clock: Arc::new(move || clock.now()),
        limits: Limits::default(),
        stable: Arc::new(Clients { records, listed }),
        release: Arc::new(drop),
    });
    Ok(Run {
        boot: last + 1,
        fence: active.fence().clone(),
        state,
    })
}

/// A server: waits until it is active, serves until it is killed or loses its lease, and starts
/// again.
fn serve(world: &Arc<World>, number: usize) {
    let server = &world.servers[number];
    while world.schedule.now() < RUN {
        let cluster = Arc::new(Connection(world.clone(), number));
        let clock = Arc::new(ServerClock(world.clone(), number));
        let lease = Lease {
            prefix: b"/test".into(),
            ttl: TTL,
            description: number.to_string(),
        };
        server.stop.store(false, Ordering::SeqCst);
        let goes_on = |_: etcd::lease::Waiting<'_>| {
            world.schedule.now() < RUN && !server.stop.load(Ordering::SeqCst)
        };
        let Some(mut active) = acquire(lease, cluster, clock, goes_on) else {
            continue;
        };
        // Only this thread renews the lease, and the start takes less.
        let Ok(run) = begin(world, number, &active) else {
            continue;
        };
        world.counts.lock().expect("no panic").active += 1;
        *server.run.lock().expect("no panic") = Some(Arc::new(run));
        let end = active.hold(&server.stop);
        if let End::Lost(_) = end {
            world.counts.lock().expect("no panic").lost_leases += 1;
            if world.fault == Fault::IgnoresExpiry {
                world.schedule.sleep(Duration::from_secs(8));
            }
        }
        *server.run.lock().expect("no panic") = None;
        world.schedule.sleep(world.schedule.millis(10..3000));
    }
}

/// Cuts servers off from etcd, and kills them.
fn disturb(world: &Arc<World>) {
    while world.schedule.now() < RUN {
        world.schedule.sleep(world.schedule.millis(500..6000));
        let number = usize::from(world.schedule.chance(50));
        let server = &world.servers[number];
        match world.schedule.chance(40) {
            true => {
                server.stop.store(true, Ordering::SeqCst);
                *server.run.lock().expect("no panic") = None;
            }
            false => {
                server.is_cut.store(true, Ordering::SeqCst);
                world.schedule.sleep(world.schedule.millis(100..5000));
                server.is_cut.store(false, Ordering::SeqCst);
            }
        }
    }
}

/// A session of a client with a run of a server.
struct Session {
    run: Arc<Run>,
    server: usize,
    id: SessionId,
    seqid: u32,
}

/// A client, which opens the file so that no other client can, and closes it.
struct Client {
    world: Arc<World>,
    number: usize,
    verifier: u8,
    session: Option<Session>,
    open: Option<StateId>,
}

/// A request that got no reply.
struct NoReply;

impl Client {
    fn beliefs(&self) -> MutexGuard<'_, [Option<Duration>; CLIENTS]> {
        self.world.beliefs.lock().expect("no panic")
    }

    fn forget(&mut self) {
        self.beliefs()[self.number] = None;
        self.open = None;
    }

    /// Becomes another instance, which has lost everything.
    fn reboot(&mut self) {
        self.forget();
        self.session = None;
        self.verifier = self.verifier.wrapping_add(1);
    }

    /// Sends a request to a server, which carries it out if it may act, and returns the reply if it
    /// may still act then.
    fn request<T>(
        &self,
        server: usize,
        run: &Run,
        carry_out: impl FnOnce(&State<Files>) -> T,
    ) -> Result<T, NoReply> {
        let (world, schedule) = (&self.world, &self.world.schedule);
        schedule.sleep(schedule.millis(1..20));
        let clock = ServerClock(world.clone(), server);
        let server = &world.servers[server];
        let is_killed = || {
            let current = server.run.lock().expect("no panic");
            current
                .as_ref()
                .is_none_or(|current| current.boot != run.boot)
        };
        let may_act = || world.fault == Fault::IgnoresExpiry || run.fence.allows(clock.now());
        while server.is_busy.swap(true, Ordering::SeqCst) {
            schedule.sleep(Duration::from_millis(5));
        }
        let reply = match !is_killed() && may_act() {
            true => Some(carry_out(&run.state)),
            false => None,
        };
        server.is_busy.store(false, Ordering::SeqCst);
        let reply = reply.filter(|_| !is_killed() && may_act()).ok_or(NoReply)?;
        schedule.sleep(schedule.millis(1..20));
        match schedule.chance(2) {
            true => Err(NoReply),
            false => Ok(reply),
        }
    }

    fn run(&mut self) {
        let schedule = &self.world.clone().schedule;
        while schedule.now() < RUN {
            schedule.sleep(schedule.millis(20..600));
            if self.step().is_err() {
                // It does not know what the server has done.
                self.reboot();
            }
        }
    }

    fn step(&mut self) -> Result<(), NoReply> {
        let schedule = &self.world.clone().schedule;
        if schedule.now() > self.beliefs()[self.number].unwrap_or(Duration::MAX) {
            self.forget();
        }
        let is_current = |session: &Session| {
            let run = self.world.servers[session.server]
                .run
                .lock()
                .expect("no panic");
            run.as_ref().is_some_and(|run| run.boot == session.run.boot)
        };
        // It stays with a server as long as that is there, most of the time.
        if self.session.as_ref().is_none_or(|it| !is_current(it)) || schedule.chance(10) {
            let server = usize::from(schedule.chance(50));
            let run = self.world.servers[server]
                .run
                .lock()
                .expect("no panic")
                .clone();
            let Some(run) = run else {
                return Ok(());
            };
            if self
                .session
                .as_ref()
                .is_none_or(|it| it.run.boot != run.boot)
            {
                return self.begin_session(server, run);
            }
        }
        let sent = schedule.now();
        if self.open.is_some() && schedule.chance(20) {
            let open = self.open.take().expect("checked");
            self.beliefs()[self.number] = None;
            let closed = self.compound(|state, client| state.close(client, &open, FILE))?;
            return closed.map(drop).or_else(|_| {
                self.reboot();
                Ok(())
            });
        }
        if self.open.is_some() {
            match self.compound(|_, _| Ok(()))? {
                Ok(()) => self.believe(sent),
                Err(_) => self.reboot(),
            }
            return Ok(());
        }
        match self.compound(|state, client| open(state, client, false))? {
            Ok(open) => {
                self.open = Some(open);
                self.believe(sent);
                self.world.counts.lock().expect("no panic").opened += 1;
            }
            Err(Status::Badsession) => self.session = None,
            Err(_) => {}
        }
        Ok(())
    }

    /// Notes that this client has the file, and counts a violation if another one has.
    fn believe(&self, sent: Duration) {
        let now = self.world.schedule.now();
        // Less than the lease time, as the clocks of servers may be fast.
        let until = sent + LEASE.mul_f64(0.8);
        let mut beliefs = self.beliefs();
        beliefs[self.number] = Some(until);
        let believes = |until: &&Option<Duration>| until.is_some_and(|until| now < until);
        if beliefs.iter().filter(believes).count() > 1 {
            self.world.counts.lock().expect("no panic").violations += 1;
        }
    }

    /// Sends a compound with SEQUENCE and another operation.
    fn compound<T>(
        &mut self,
        operation: impl FnOnce(
            &State<Files>,
            &nfs::server::v4::state::ClientRef<Files>,
        ) -> Result<T, Status>,
    ) -> Result<Result<T, Status>, NoReply> {
        let session = self.session.as_mut().expect("a session");
        session.seqid += 1;
        let sequence = Sequence {
            session: session.id,
            slot: 0,
            seqid: session.seqid,
            highest_slot: 0,
            cache_this: false,
            connection: 7,
            digest: 0,
        };
        let (server, run) = (session.server, session.run.clone());
        self.request(server, &run, |state| {
            state.reap();
            let request = match state.sequence(sequence, &ROOT)? {
                Started::New(request) => request,
                Started::Replay(_) => return Err(Status::SeqMisordered),
            };
            let done = operation(state, &request.client());
            request.finish(None);
            done
        })
    }

    /// Creates a session, and reclaims the file if this client has it.
    fn begin_session(&mut self, server: usize, run: Arc<Run>) -> Result<(), NoReply> {
        let owner = self.number.to_string();
        let verifier = self.verifier;
        let sent = self.world.schedule.now();
        let created = self.request(server, &run, |state| {
            let known = state.exchange_id(&ExchangeId {
                owner: owner.as_bytes(),
                verifier: [verifier; 8],
                by: ROOT,
                update: false,
            })?;
            state.create_session(&CreateSession {
                client: known.client,
                sequence: known.sequence,
                by: ROOT,
                fore: CHANNEL,
                back: CHANNEL,
                backchannel: false,
                callback: CallbackParameters {
                    minor: 1,
                    ..CallbackParameters::default()
                },
                connection: 7,
            })
        })?;
        let Ok(created) = created else {
            self.reboot();
            return Ok(());
        };
        self.session = Some(Session {
            run,
            server,
            id: created.session,
            seqid: 0,
        });
        if self.open.take().is_some() {
            match self.compound(|state, client| open(state, client, true))? {
                Ok(open) => {
                    self.open = Some(open);
                    self.believe(sent);
                    self.world.counts.lock().expect("no panic").reclaimed += 1;
                }
                Err(_) => self.forget(),
            }
        }
        let complete = self.compound(|state, client| state.reclaim_complete(client))?;
        if complete.is_err_and(|status| status != Status::CompleteAlready) {
            self.reboot();
        }
        Ok(())
    }
}

fn open(
    state: &State<Files>,
    client: &nfs::server::v4::state::ClientRef<Files>,
    reclaim: bool,
) -> Result<StateId, Status> {
    let pending = state.open(
        client,
        OpenArgs {
            owner: b"o",
            key: FILE,
            node: 1,
            access: Share::all(),
            deny: Share::all(),
            reclaim,
        },
    )?;
    Ok(pending.commit(Arc::new(()))?.stateid)
}

const ROOT: Requester<'static> = Requester {
    peer: &Account::INTERNAL,
    principal: b"root",
    authenticated: false,
};

const CHANNEL: Channel = Channel {
    max_request: 4096,
    max_response: 4096,
    max_cached: 4096,
    max_operations: 16,
    max_requests: 1,
};

/// Runs one seed.
fn simulate(seed: u64, fault: Fault) -> Counts {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut server = || Server {
        offset: Duration::from_millis(rng.u64(0..100_000)),
        speed: 0.85 + rng.f64() * 0.3,
        is_cut: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        run: Mutex::default(),
        is_busy: AtomicBool::new(false),
    };
    let servers: Vec<_> = (0..2).map(|_| server()).collect();
    let count = servers.len() + CLIENTS + 1;
    let world = Arc::new(World {
        schedule: Schedule {
            state: Mutex::new(Threads {
                now: Duration::ZERO,
                wakes: vec![Some(Duration::ZERO); count],
                running: usize::MAX,
                rng,
            }),
            turns: (0..count).map(|_| Condvar::new()).collect(),
        },
        store: Mutex::default(),
        servers,
        fault,
        beliefs: Mutex::default(),
        counts: Mutex::default(),
    });
    let spawn = |number: usize| {
        let world = world.clone();
        std::thread::spawn(move || {
            NUMBER.set(number);
            {
                let mut threads = world.schedule.lock();
                while threads.running != number {
                    threads = world.schedule.turns[number]
                        .wait(threads)
                        .expect("no panic");
                }
            }
            let _end = EndOfThread(&world.schedule);
            match number {
                0 | 1 => serve(&world, number),
                2 => disturb(&world),
                _ => Client {
                    world: world.clone(),
                    number: number - 3,
                    verifier: 0,
                    session: None,
                    open: None,
                }
                .run(),
            }
        })
    };
    let threads: Vec<_> = (0..count).map(spawn).collect();
    {
        let mut state = world.schedule.lock();
        world.schedule.next(&mut state);
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    std::mem::take(&mut *world.counts.lock().expect("no panic"))
}

/// Returns the seeds of a run: `SEEDS` of them.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let count = std::env::var("SEEDS").map(|text| text.parse().expect("a number"));
    0..count.unwrap_or(default)
}

#[test]
fn no_file_is_granted_twice() {
    let mut all = Counts::default();
    for seed in seeds(20) {
        let counts = simulate(seed, Fault::None);
        assert_eq!(counts.violations, 0, "seed {seed}: {counts:?}");
        all.active += counts.active;
        all.opened += counts.opened;
        all.reclaimed += counts.reclaimed;
        all.lost_leases += counts.lost_leases;
    }
    println!("{all:?}");
    assert!(
        all.active > 0 && all.opened > 0 && all.reclaimed > 0,
        "{all:?}"
    );
}

/// Checks that at least one seed shows a fault.
fn is_found(fault: Fault) {
    let found = (0..400).find(|seed| simulate(*seed, fault).violations > 0);
    println!("{fault:?}: seed {found:?}");
    assert!(found.is_some(), "{fault:?} was not found");
}

#[test]
fn a_server_that_ignores_the_end_of_its_lease_is_found() {
    is_found(Fault::IgnoresExpiry);
}

#[test]
fn a_server_without_a_grace_period_is_found() {
    is_found(Fault::HasNoGrace);
}

#[test]
fn a_server_that_writes_when_another_is_active_is_found() {
    is_found(Fault::WritesUnconditionally);
}

/// An etcd that replies at once.
#[derive(Default)]
struct Prompt(Mutex<Store>);

impl Cluster for Prompt {
    fn grant(&self, ttl: Duration, _: Duration) -> Result<Granted, CallError> {
        let mut store = self.0.lock().expect("no panic");
        store.leases.insert(1, ttl);
        Ok(Granted { id: 1, ttl })
    }

    fn transact(&self, transaction: &Transaction, _: Duration) -> Result<Outcome, CallError> {
        self.0.lock().expect("no panic").apply(transaction)
    }
}

/// A clock that stands still.
struct Still;

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) {}
}

#[test]
fn lists_are_read_in_pages() {
    let lease = Lease {
        prefix: b"/test".into(),
        ttl: TTL,
        description: String::new(),
    };
    let cluster = Arc::new(Prompt::default());
    let active = acquire(lease, cluster, Arc::new(Still), |_| false).expect("active");
    let records = Records::new(&active);
    let mut expected: Vec<Box<[u8]>> = Vec::new();
    // A page has 256 keys.
    for count in [0, 255, 256, 257, 512, 513] {
        for number in expected.len()..count {
            let record = u16::try_from(number).expect("small").to_be_bytes();
            assert!(records.put("clients", &record).is_ok());
            assert!(records.put("monitored", &record).is_ok());
            expected.push(record[..].into());
        }
        assert_eq!(records.list("clients").expect("read"), expected, "{count}");
    }
    assert!(records.remove("clients", &expected.remove(300)).is_ok());
    assert_eq!(records.list("clients").expect("read"), expected);
}
