//! The broker: starts the processes that serve, and each again if it crashes.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::command::log::LogArgs;
use concurrency::ThreadPool;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::client::{self, CHECKS_TIMEOUT, ChildOptions};
use super::confinement::{lacks_capability, uses_network};
use super::message::{MAX_FIGURES, Request, Wanted};
use super::objects::Objects;
use super::parent;
use super::parts::Part;
use super::process::Process;
use super::requests::{Permitted, Responder};
use super::successor::{self, Message, NewProgram, Predecessor};
use super::upgrade::{self, PartSockets, Settings, TakenOver, Upgrade};
use crate::child::{self, ChildNamespaces, End, message};
use crate::config::Config;
use crate::kept_files::KeptLimit;
use crate::serve::control::{Backend, Controller};
use crate::serve::handle_key;
use crate::serve::live::{ErrorCode, Listing, LiveError, LiveRequest};
use crate::serve::opener::Unopened;
use crate::serve::operation::Operation;
use crate::serve::plan::{Plan, changeable_addrs};
use crate::serve::recovery::brokered;
use crate::serve::recovery::etcd::ActiveServer;
use crate::serve::{activation, after_stop_timeout, notify, project_quota, run as command, users};
use crate::signals::Reload;
use crate::status::Check;
use crate::{CommandResult, Failure, service, signals};
use serde_json::{Value, json};

/// Number of requests of a process that are served at once: a query of the user database may take
/// long.
const THREADS: usize = 8;

/// Number of requests of a process that wait. Further ones fail.
const MAX_QUEUED: usize = 256;

/// If so many processes in a row crash before they have served for this time, the devices of their
/// guests are closed: a request that is repeated may be the reason.
///
/// All devices of the process are closed, since the broker cannot tell whose request that is. Each
/// device may have requests in progress when the process ends, and a note of the one that a thread
/// serves would be a write to shared memory for every request of every device. The one way in which
/// a guest's monitor ends a process, a page that is gone, is no crash: it ends that device alone
/// (`sys::sigbus`). Sources that are served by themselves have processes of their own
/// (`--processes share`).
const EARLY_CRASHES: (usize, Duration) = (5, Duration::from_millis(250));

/// If a process fails as often within this time, there is a pause before it is started again.
const FAILURES: (usize, Duration) = (5, Duration::from_secs(10));

/// That pause.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves `plan` in further processes, which log as `log` says, until they end.
pub(in crate::serve) fn run(
    plan: Plan,
    log: &LogArgs,
    taken_over: Option<TakenOver>,
) -> CommandResult {
    let broker = Broker::new(plan, log.arguments(), taken_over)?;
    let reads_file = broker.running.lock().file().is_some();
    let mut endpoints = broker.plan.endpoints.iter();
    let reloads = reads_file || endpoints.any(|one| one.is_reloadable());
    let (stopped, reloaded) = (broker.clone(), broker.clone());
    let reload: Reload = Box::new(move || reloaded.reload());
    let stop = move || stopped.stop_or_store();
    let signals = signals::on_signal(stop, reloads.then_some(reload))?;
    let upgraded = broker.clone();
    let upgrades = signals::on_upgrade(move || {
        let error = upgraded.upgrade();
        tracing::error!("upgrade: {}", error.message);
    })?;
    if !broker.wait_until_active()? {
        drop(signals);
        return Ok(ExitCode::SUCCESS);
    }
    let others = broker.processes.iter().skip(1).map(|process| {
        let (broker, process) = (broker.clone(), process.clone());
        let thread = std::thread::Builder::new().name("barge-process".into());
        thread.spawn(move || broker.supervise(&process))
    });
    let others: Vec<JoinHandle<CommandResult>> =
        others.collect::<io::Result<_>>().map_err(Failure::new)?;
    let mut status = broker.supervise(&broker.processes[0]);
    for other in others {
        let other = other.join();
        let other = other.map_err(|_| Failure::new("a thread of the broker panicked"))?;
        status = status.and_then(|first| match first == ExitCode::SUCCESS {
            true => other,
            false => Ok(first),
        });
    }
    drop((signals, upgrades));
    // First of all: clients wait for the next server.
    if let Some(active) = broker.active.get() {
        active.release();
    }
    drop(broker.operation.lock().take());
    if let Some(failure) = broker.failure.lock().take() {
        status = status.and(Err(failure));
    }
    for process in &broker.processes {
        process.responder.close();
    }
    match broker.command() {
        None => status,
        Some(command) => {
            let done = command.join();
            let done = done.map_err(|_| Failure::new("the thread of --run panicked"))?;
            status.and(done)
        }
    }
}

/// Returns the error for each path of the shares of `config` that is not below one of `known`, as
/// rules of Landlock cannot be extended.
fn unreachable_errors(config: &Config, known: &Config) -> Vec<String> {
    let is_known = |path: &&Path| known.object_paths().any(|it| path.starts_with(it));
    let unknown = config.object_paths().filter(|path| !is_known(path));
    let error = |path: &Path| {
        let path = path.display();
        format!("{path}: without privileges, a new source takes a restart")
    };
    unknown.map(error).collect()
}

/// Returns the socket for requests of the first process of `config`, for a fuzz target. The process
/// is not started.
pub(crate) fn channel(config: &Config) -> Result<OwnedFd, Failure> {
    let broker = Broker::new(Plan::from_config(config)?, Vec::new(), None)?;
    let (channel, _) = &broker.processes[0].childs_ends;
    channel.try_clone().map_err(Failure::new)
}

/// The first process of a server.
pub(super) struct Broker {
    /// The processes that serve, one for each part: at least one.
    pub(super) processes: Vec<Arc<Process>>,
    namespaces: ChildNamespaces,
    listen_fds: i32,
    stopping: AtomicBool,
    /// Whether all parts have been ready.
    ready: AtomicBool,
    /// The command of `--run`, and the umask that this program was started with.
    run: (Option<String>, Option<u32>),
    /// The thread that runs it.
    command: Mutex<Option<JoinHandle<CommandResult>>>,
    /// Its process id.
    command_id: Mutex<Option<Pid>>,
    operation: Mutex<Option<Operation>>,
    /// The plan at the start.
    plan: Plan,
    /// The configuration as it is now.
    running: Arc<Mutex<Config>>,
    /// The options of logging for the processes.
    log: Vec<String>,
    /// The objects of the host that shares consist of.
    pub(super) objects: Objects,
    /// The reason to stop, if it is not that of a process.
    failure: Mutex<Option<Failure>>,
    /// This server as the active one of several.
    active: OnceLock<Arc<ActiveServer>>,
    upgrade: Upgrade,
    /// The program that runs until this one begins.
    predecessor: Mutex<Option<Predecessor>>,
    /// Set once this program may serve.
    begun: OnceLock<()>,
    /// The socket to the [`parent`] of this process, if there is one.
    parent: OnceLock<Arc<OwnedFd>>,
    /// The secret of a server that stores none.
    pub(super) temporary_key: [u8; handle_key::LEN],
    /// The program by its path: another one may be installed there later.
    program: Option<PathBuf>,
    /// Whether an earlier program has served.
    upgraded: bool,
}

impl Broker {
    /// Returns the broker of `plan`, whose processes have not been started.
    pub(super) fn new(
        plan: Plan,
        log: Vec<String>,
        taken_over: Option<TakenOver>,
    ) -> Result<Arc<Broker>, Failure> {
        let running = plan.running();
        let running = running.ok_or_else(|| Failure::new("expected a configuration"))?;
        let upgraded = taken_over.is_some();
        let mut taken_over = taken_over.unwrap_or_default();
        let objects = std::mem::take(&mut taken_over.objects);
        let shares = running.lock().shares().len();
        let mut failures = objects.find(&mut running.lock(), &plan);
        if !upgraded && shares > 0 && failures.len() == shares {
            return Err(failures.swap_remove(0));
        }
        objects.retain(&running.lock());
        let temporary_key = match taken_over.temporary_key {
            Some(key) => key,
            None => handle_key::temporary()?,
        };
        let inherited = std::mem::take(&mut taken_over.operation);
        let operation = Operation::new(&plan, Some(running.clone()), inherited)?;
        let listen_fds = activation::listen_fds();
        let socket_group = users::socket_group(plan.socket_group.as_deref())?;
        let by_default = plan.uses_default_addrs();
        let (mut processes, mut channels) = (Vec::new(), Vec::new());
        let parts = Part::all(&plan);
        for part in &parts {
            let (channel, childs_channel) = message::pair().map_err(Failure::new)?;
            let (control, childs_control) = message::pair().map_err(Failure::new)?;
            channels.push(channel);
            let mut plan = Plan::of_settings(&running.lock())?;
            part.limit(&mut plan, parts.len());
            objects.locate(&mut plan)?;
            project_quota::apply(&plan.sources.shares);
            let permitted = Permitted::of(&plan, by_default, listen_fds);
            processes.push(Arc::new(Process {
                part: part.clone(),
                responder: Responder::new(
                    permitted,
                    socket_group,
                    taken_over.take(part),
                    KeptLimit::for_one_of(parts.len()),
                ),
                control,
                childs_ends: (childs_channel, childs_control),
                network: AtomicBool::new(false),
                next_network: AtomicBool::new(uses_network(&plan)),
                child: Mutex::default(),
                serving: AtomicBool::new(false),
                serving_since: Mutex::default(),
                killed: AtomicBool::new(false),
                rooted: AtomicBool::new(false),
                reached: Mutex::default(),
                has_source: AtomicBool::new(false),
                starts: AtomicUsize::new(0),
            }));
        }
        let broker = Arc::new(Broker {
            processes,
            namespaces: ChildNamespaces::with_copies(plan.confinement.sandbox)?,
            listen_fds,
            stopping: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            run: (plan.run.clone(), sys::umask::current()),
            command: Mutex::default(),
            command_id: Mutex::default(),
            operation: Mutex::new(Some(operation)),
            objects,
            failure: Mutex::default(),
            active: OnceLock::new(),
            upgrade: Upgrade::default(),
            predecessor: Mutex::new(taken_over.predecessor),
            begun: OnceLock::new(),
            parent: OnceLock::new(),
            temporary_key,
            program: upgrade::program(),
            upgraded,
            plan,
            running,
            log,
        });
        for (process, channel) in broker.processes.iter().zip(channels) {
            broker.serve_requests(process, channel)?;
        }
        if broker.predecessor.lock().is_none() {
            broker.begin()?;
        }
        Ok(broker)
    }

    /// Starts a thread that serves the requests of `process`, which arrive at `channel`.
    fn serve_requests(
        self: &Arc<Self>,
        process: &Arc<Process>,
        channel: OwnedFd,
    ) -> Result<(), Failure> {
        let pool = ThreadPool::new("barge-request", THREADS, MAX_QUEUED);
        // A client that does not reply delays calls to others only.
        let calls = ThreadPool::new("barge-call", notify::THREADS, MAX_QUEUED);
        // A path that hangs delays no other requests.
        let paths = ThreadPool::new("barge-paths", MAX_QUEUED, MAX_QUEUED);
        let (broker, process) = (self.clone(), process.clone());
        let serve = move || {
            loop {
                let (request, to) = match message::next_request::<Request>(channel.as_fd()) {
                    Ok(next) => next,
                    Err(error) => return tracing::error!("requests of the server: {error}"),
                };
                let (broker, process) = (broker.clone(), process.clone());
                let pool = match request {
                    Request::CallClient { .. } => &calls,
                    Request::MissingObject { .. } => &paths,
                    _ => &pool,
                };
                // If the queue is full, the reply's socket is closed, and the request fails.
                pool.try_run(move || {
                    to.reply(process.responder.reply(request, &broker, &process));
                });
            }
        };
        let thread = std::thread::Builder::new().name("barge-broker".into());
        thread.spawn(serve).map(drop).map_err(Failure::new)
    }

    /// Waits until this server is the active one of several, if it has standby servers. Returns
    /// `false` if it was stopped meanwhile.
    fn wait_until_active(self: &Arc<Self>) -> Result<bool, Failure> {
        let Some((settings, key)) = self.plan.shared_state()? else {
            return Ok(true);
        };
        let broker = Arc::downgrade(self);
        let on_loss = move |why: String| {
            if let Some(broker) = broker.upgrade() {
                broker.abort(Failure::new(format!("no longer the active server: {why}")));
            }
        };
        let active = ActiveServer::wait(settings, &key, &self.stopping, on_loss)?;
        Ok(active.is_some_and(|active| self.active.set(active).is_ok()))
    }

    /// Returns a socket to the state that the active server has.
    pub(super) fn nfs_state(&self) -> io::Result<OwnedFd> {
        match self.active.get() {
            Some(active) => brokered::serve(active.clone()),
            None => Err(io::Error::other("no shared state")),
        }
    }

    /// Kills all processes: they must not go on for the time that a stop takes.
    fn abort(&self, failure: Failure) {
        self.failure.lock().get_or_insert(failure);
        self.stopping.store(true, Ordering::SeqCst);
        for process in &self.processes {
            process.kill();
        }
    }

    /// Stops all processes at a signal. If the service manager stores descriptors, it gets
    /// the connections for the next start.
    fn stop_or_store(self: &Arc<Self>) {
        let stores = upgrade::has_store() && self.check_may_hand_over().is_ok();
        if stores && self.upgrade.begin() {
            let broker = self.clone();
            let thread = std::thread::Builder::new().name("barge-store".into());
            if thread.spawn(move || broker.store()).is_ok() {
                return;
            }
        }
        self.stop();
    }

    /// Stops all processes. Before this program may serve, it kills them: a process that stops
    /// ends the connections, which the earlier program would continue.
    fn stop(&self) {
        let repeated = self.stopping.swap(true, Ordering::SeqCst);
        self.upgrade.stop_program();
        let processes = self.processes.clone();
        if !repeated {
            after_stop_timeout(move || {
                let runs = |process: &Arc<Process>| process.child.lock().is_some();
                if !processes.iter().any(runs) {
                    return;
                }
                processes.iter().for_each(|process| process.kill());
                // Linux does not end a process while it closes a file of a FUSE file system that
                // hangs. The server ends without it.
                std::thread::sleep(KILL_TIMEOUT);
                if processes.iter().any(runs) {
                    processes.iter().for_each(|it| it.responder.close());
                    std::process::exit(0);
                }
            });
        }
        for process in &self.processes {
            match self.begun.get() {
                Some(()) => process.stop(),
                None => process.kill(),
            }
        }
    }

    /// Reads the configuration again, as a request for that does.
    fn reload(&self) {
        // The lock is not held meanwhile: a process that starts takes it, and so does the end.
        match self.controller() {
            Some(controller) => controller.reload_on_signal(),
            None => tracing::warn!("reload: the server is starting"),
        }
    }

    /// Returns the controller, once clients can connect.
    fn controller(&self) -> Option<Arc<Controller>> {
        let operation = self.operation.lock();
        operation.as_ref()?.controller().get().cloned()
    }

    /// Returns the processes that serve shares.
    fn serving(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.ready_processes().filter(|it| it.part != Part::Status)
    }

    /// Returns the processes that serve shares or the status page.
    fn ready_processes(&self) -> impl Iterator<Item = &Arc<Process>> {
        let serves = |process: &&Arc<Process>| process.serving.load(Ordering::SeqCst);
        self.processes.iter().filter(serves)
    }

    /// Waits until a process serves, as another one may have crashed, for [`REQUEST_TIMEOUT`] at
    /// most.
    fn wait_until_serving(&self) {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        while self.serving().next().is_none()
            && !self.stopping.load(Ordering::SeqCst)
            && Instant::now() < deadline
        {
            std::thread::sleep(SERVING_INTERVAL);
        }
    }

    /// Returns the number of processes that were started.
    fn starts(&self) -> usize {
        let all = self.processes.iter();
        all.map(|it| it.starts.load(Ordering::SeqCst)).sum()
    }

    /// Finds the objects of `config` that are new, and permits its files and sockets to the
    /// processes.
    fn prepare_reload(&self, config: &mut Config, unopened: Unopened) -> Result<(), Failure> {
        let by_default = self.plan.uses_default_addrs();
        let failures = self.objects.find(config, &Plan::of_settings(config)?);
        if unopened == Unopened::Refused
            && let Some(failure) = failures.into_iter().next()
        {
            return Err(failure);
        }
        for process in self.serving() {
            let mut new = self.plan_of(process, config)?;
            if uses_network(&new) && !process.network.load(Ordering::SeqCst) {
                tracing::error!("a source on another server takes a restart");
            }
            self.objects.locate(&mut new)?;
            project_quota::apply(&new.sources.shares);
            let permitted = Permitted::of(&new, by_default, self.listen_fds);
            process.responder.begin_reload(permitted);
            let mut own = config.clone();
            process.part.limit_config(&mut own);
            if let Err(error) = process.reach(&own, &self.objects) {
                tracing::error!("{error}");
            }
            if process.is_confined_by_path() {
                for error in unreachable_errors(config, &self.running.lock()) {
                    tracing::error!("{error}");
                }
            }
        }
        Ok(())
    }

    /// Does what [`Backend::prepare`] does, but keeps objects on failure.
    fn prepare_addition(&self, config: &mut Config, addition: &Plan) -> Result<(), LiveError> {
        let restart = |message: &str| LiveError::new(ErrorCode::RestartRequired, message);
        let failures = self.objects.find(config, addition);
        if let Some(failure) = failures.into_iter().next() {
            return Err(LiveError::failed(failure));
        }
        let addition = Plan::of_settings(&self.running.lock().with_only(config));
        let mut addition = addition.map_err(LiveError::failed)?;
        let located = self.objects.locate(&mut addition);
        located.map_err(LiveError::failed)?;
        for process in self.serving() {
            if uses_network(&addition) && !process.network.load(Ordering::SeqCst) {
                return Err(restart(
                    "a source on another server takes a restart, unless one is served already",
                ));
            }
            if lacks_capability(&self.plan, &addition) {
                return Err(restart(
                    "an overlay takes a restart, unless one is served already",
                ));
            }
            if process.is_confined_by_path() {
                let errors = unreachable_errors(config, &self.running.lock());
                if let Some(error) = errors.first() {
                    return Err(restart(error));
                }
            }
            project_quota::apply(&addition.sources.shares);
            let permitted = Permitted::of_addition(&addition);
            process.responder.permit_also(permitted);
            if let Err(error) = process.reach(config, &self.objects) {
                self.revoke(&changeable_addrs(&addition));
                return Err(LiveError::new(ErrorCode::Failed, error.to_string()));
            }
        }
        Ok(())
    }

    /// Returns the plan of the part of `process` in the server of `config`.
    fn plan_of(&self, process: &Process, config: &Config) -> Result<Plan, Failure> {
        let mut plan = Plan::of_settings(config)?;
        process.part.limit(&mut plan, self.processes.len());
        Ok(plan)
    }

    /// Notes which of the next processes connect to other hosts.
    fn note_networks(&self, config: &Config) {
        for process in &self.processes {
            // It has been valid.
            if let Ok(plan) = self.plan_of(process, config) {
                let network = uses_network(&plan);
                process.next_network.store(network, Ordering::SeqCst);
            }
        }
    }

    /// Sets the quota of the share of `process` that consists of the object `number`, which was
    /// found after the start.
    pub(super) fn apply_project_quota(&self, process: &Process, number: u32) {
        let running = self.running.lock().clone();
        // It has been valid.
        let Ok(mut plan) = self.plan_of(process, &running) else {
            return;
        };
        plan.sources.shares.retain(|share| {
            let mut objects = share.objects.iter();
            objects.any(|object| object.number() == number)
        });
        if self.objects.locate(&mut plan).is_ok() {
            project_quota::apply(&plan.sources.shares);
        }
    }

    /// Makes the objects that `config` does not have unreachable.
    fn drop_objects(&self, config: &Config) {
        self.objects.retain(config);
        for process in &self.processes {
            process.hide_others(&self.objects);
        }
    }

    /// Returns the configuration of the part of `process` as it is now, in a file in memory that
    /// nobody can change.
    pub(super) fn configuration(&self, process: &Process) -> io::Result<OwnedFd> {
        let mut config = self.running.lock().clone();
        process.part.limit_config(&mut config);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("barge-configuration", flags)?);
        file.write_all(&serde_json::to_vec(&config)?)?;
        file.rewind()?;
        let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, seals)?;
        Ok(file.into())
    }

    /// Notes that `process` serves. When all of them do, says so and runs the command of `--run`.
    /// Returns once the process may read from connections.
    pub(super) fn note_ready(self: &Arc<Self>, process: &Process) {
        process
            .serving_since
            .lock()
            .get_or_insert_with(Instant::now);
        if process.serving.swap(true, Ordering::SeqCst) || self.ready.load(Ordering::SeqCst) {
            self.begun.wait();
            return;
        }
        let serves = |process: &Arc<Process>| process.serving.load(Ordering::SeqCst);
        if !self.processes.iter().all(serves) || self.ready.swap(true, Ordering::SeqCst) {
            self.begun.wait();
            return;
        }
        let mut sources = self.processes.iter().filter(|it| it.part != Part::Status);
        let has_source = sources.any(|it| it.has_source.load(Ordering::SeqCst));
        let failed = match has_source || self.upgraded {
            true => self.begin().err(),
            // Each process has said why.
            false => Some(Failure::new("none of the sources can be opened")),
        };
        if let Some(failure) = failed {
            *self.failure.lock() = Some(failure);
            return self.stop();
        }
        let server: Arc<dyn Backend> = self.clone();
        let reported = self
            .operation
            .lock()
            .as_ref()
            .map(|it| it.report_ready(&server, self.upgraded));
        if let Some(Err(failure)) = reported {
            *self.failure.lock() = Some(failure);
            return self.stop();
        }
        // After an upgrade it runs already.
        let (Some(line), umask, false) = (self.run.0.clone(), self.run.1, self.upgraded) else {
            return;
        };
        let environment = self.environment();
        let broker = self.clone();
        let run = move || {
            let started = |id| *broker.command_id.lock() = Some(id);
            let status = command::run(&line, environment, umask, started);
            broker.stop();
            status
        };
        let thread = std::thread::Builder::new().name("barge-run".into());
        match thread.spawn(run) {
            Ok(thread) => *self.command.lock() = Some(thread),
            Err(error) => {
                tracing::error!("--run: {error}");
                self.stop();
            }
        }
    }

    /// Makes an earlier program, if one runs, give up, and takes its place.
    fn begin(self: &Arc<Self>) -> Result<(), Failure> {
        let predecessor = self.predecessor.lock().take();
        if let Some(predecessor) = predecessor {
            let failed = |error| Failure::new(format!("the earlier program: {error}"));
            let parent = predecessor.report().map_err(failed)?;
            self.end_with(self.parent.get_or_init(|| Arc::new(parent)))?;
        }
        for process in &self.processes {
            process.responder.own_files();
        }
        if let Some(operation) = &mut *self.operation.lock() {
            operation.own_files();
        }
        self.begun.get_or_init(|| ());
        Ok(())
    }

    /// Starts a thread that ends this server when its parent at the other end of `socket` ends.
    fn end_with(self: &Arc<Self>, socket: &Arc<OwnedFd>) -> Result<(), Failure> {
        let (broker, socket) = (self.clone(), socket.clone());
        let thread = std::thread::Builder::new().name("barge-parent".into());
        let wait = move || {
            successor::wait_for_end(&socket);
            broker.abort(Failure::new("its parent has ended"));
        };
        thread.spawn(wait).map(drop).map_err(Failure::new)
    }

    /// Removes and returns the thread of the command of `--run`.
    pub(super) fn command(&self) -> Option<JoinHandle<CommandResult>> {
        self.command.lock().take()
    }

    /// Returns the variables of the command of `--run`: the addresses of the sockets that were
    /// opened for the endpoints of the configuration.
    fn environment(&self) -> Vec<(String, String)> {
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut variables = Vec::new();
        for endpoint in &self.plan.endpoints {
            let inherited = if endpoint.inherits_sockets() {
                self.listen_fds
            } else {
                0
            };
            let sockets = activation::addrs(inherited).chain(endpoint.sockets());
            let bound = sockets.filter_map(|addr| {
                let next = places.entry(addr.to_string()).or_default();
                let place = std::mem::replace(next, *next + 1);
                let mut processes = self.processes.iter();
                processes.find_map(|process| process.responder.bound(&addr, place))
            });
            variables.extend(endpoint.environment(&bound.collect::<Vec<_>>()));
        }
        variables
    }

    /// Asks the process of `part` for figures, and returns the descriptor to read them from.
    pub(super) fn figures(&self, part: &Part, wanted: Wanted) -> io::Result<OwnedFd> {
        let process = self.processes.iter().find(|process| process.part == *part);
        let process = process.filter(|process| process.serving.load(Ordering::SeqCst));
        let process = process.ok_or_else(|| io::Error::other("it is not running"))?;
        self.ask(process, &wanted)
    }

    /// Sends a request to `process`, and returns the descriptor to read the reply from.
    fn ask(&self, process: &Process, wanted: &Wanted) -> io::Result<OwnedFd> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        message::send(process.control.as_fd(), wanted, Some(there.as_fd()))?;
        Ok(here)
    }

    /// Sends a request about the running set to `process`, and waits for the reply.
    fn request_of(
        &self,
        process: &Process,
        request: &LiveRequest,
        timeout: Duration,
    ) -> Result<Value, LiveError> {
        let asked = || -> io::Result<Vec<u8>> {
            let mut socket = UnixStream::from(self.ask(process, &Wanted::Live)?);
            socket.set_write_timeout(Some(timeout))?;
            socket.set_read_timeout(Some(timeout))?;
            socket.write_all(&serde_json::to_vec(request)?)?;
            socket.shutdown(Shutdown::Write)?;
            let mut text = Vec::new();
            socket.take(MAX_FIGURES).read_to_end(&mut text)?;
            Ok(text)
        };
        let text = asked().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let message = format!("{} does not answer", process.part.title());
                LiveError::new(ErrorCode::Timeout, message)
            }
            _ => failed_of(process, &error),
        })?;
        let reply: Result<Value, LiveError> =
            serde_json::from_slice(&text).map_err(|error| failed_of(process, &error))?;
        reply
    }

    /// Starts processes for the part of `process` until one ends by itself, and returns its exit
    /// status. If that is an error, stops all other processes.
    fn supervise(&self, process: &Process) -> CommandResult {
        let status = self.restart(process);
        if !matches!(status, Ok(ExitCode::SUCCESS)) {
            self.stop();
        }
        status
    }

    /// Starts a process, and once all parts have been ready, another one whenever it crashes. If
    /// there are several parts, also if it fails: others are not stopped then.
    fn restart(&self, process: &Process) -> CommandResult {
        let (mut failures, mut early_crashes) = (VecDeque::new(), 0);
        loop {
            let restarted = self.upgraded || self.ready.load(Ordering::SeqCst);
            let end = self.run_once(process, restarted);
            let stopping = self.stopping.load(Ordering::SeqCst);
            if self.upgrade.is_in_progress() {
                if let End::Crash(why) = &end {
                    let title = process.part.title();
                    tracing::error!("{title} {why}: its connections are closed");
                }
                self.upgrade.process_ended();
                if self.stopping.load(Ordering::SeqCst) {
                    return Ok(ExitCode::SUCCESS);
                }
                continue;
            }
            if stopping && process.killed.load(Ordering::SeqCst) {
                return Ok(ExitCode::SUCCESS);
            }
            let last = stopping || !self.ready.load(Ordering::SeqCst);
            let why = match end {
                End::Exit(0) => return Ok(ExitCode::SUCCESS),
                // It has said why.
                End::Exit(code) if last || self.processes.len() == 1 => {
                    return Ok(ExitCode::from(code));
                }
                End::Exit(code) => format!("failed with status {code}"),
                End::Crash(why) if last => {
                    return Err(Failure::new(format!("{} {why}", process.part.title())));
                }
                End::Crash(why) => why,
            };
            tracing::error!("{} {why}: starting it again", process.part.title());
            let now = Instant::now();
            let since = *process.serving_since.lock();
            match since.is_some_and(|since| now.duration_since(since) >= EARLY_CRASHES.1) {
                true => early_crashes = 0,
                false => early_crashes += 1,
            }
            if early_crashes >= EARLY_CRASHES.0 && process.responder.devices.clear() {
                let title = process.part.title();
                tracing::error!("{title} does not last: the devices of its guests are closed");
            }
            failures.push_back(now);
            failures.retain(|time| now.duration_since(*time) < FAILURES.1);
            if failures.len() >= FAILURES.0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Returns whether processes hand their connections over.
    pub(super) fn is_handing_over(&self) -> bool {
        self.upgrade.is_in_progress()
    }

    /// Returns the error if no other program can continue the connections now.
    fn check_may_hand_over(&self) -> Result<(), LiveError> {
        let refused = |why| Err(LiveError::new(ErrorCode::RestartRequired, why));
        if self.active.get().is_some() {
            return refused("a standby server takes over instead (--nfs-state)");
        }
        let serves = self.ready.load(Ordering::SeqCst) && self.begun.get().is_some();
        if !serves || self.stopping.load(Ordering::SeqCst) {
            let why = "the server is starting or stopping";
            return Err(LiveError::new(ErrorCode::Failed, why));
        }
        Ok(())
    }

    /// Returns the problem of a source that does not answer, if there is one: another program would
    /// wait for it, and its clients would be lost.
    fn hanging_source(&self) -> Option<String> {
        let asked = self.serving().filter_map(|process| {
            let wanted = Wanted::Checks { sources: true };
            self.ask(process, &wanted).ok().map(UnixStream::from)
        });
        // All processes run their checks at the same time.
        let asked: Vec<_> = asked.collect();
        let deadline = Instant::now() + CHECKS_TIMEOUT;
        let checks = asked
            .into_iter()
            .filter_map(|socket| client::reply::<Vec<Check>>(socket, deadline).ok());
        let checks: Vec<Check> = checks.flatten().collect();
        checks
            .iter()
            .find_map(|check| check.hanging_source().map(str::to_owned))
    }

    /// Makes all processes hand their connections over and end. Those that take too long are
    /// killed, and their connections are closed. Returns the reason if that fails.
    fn hand_over(&self) -> Result<(), String> {
        for process in &self.processes {
            let serves = process.serving.load(Ordering::SeqCst) && process.part != Part::Status;
            if !serves || self.ask(process, &Wanted::HandOver).is_err() {
                process.stop();
            }
        }
        let count = self.processes.len();
        let ended = self.upgrade.wait_for_ends(count, HAND_OVER_TIMEOUT) || {
            for process in &self.processes {
                process.signal(Signal::KILL);
            }
            self.upgrade.wait_for_ends(count, HAND_OVER_TIMEOUT)
        };
        match (ended, self.stopping.load(Ordering::SeqCst)) {
            (true, false) => Ok(()),
            (false, _) => Err("a process does not end".into()),
            (true, true) => Err("the server was stopped".into()),
        }
    }

    /// Removes and returns the sockets of all processes, which have ended.
    fn take_sockets(&self) -> Vec<(Part, PartSockets)> {
        let all = self.processes.iter();
        all.map(|process| (process.part.clone(), process.responder.take_sockets()))
            .collect()
    }

    /// Passes all connections to the service manager's store, and stops.
    fn store(&self) {
        if let Err(why) = self.hand_over() {
            tracing::error!("connections were not stored: {why}");
            self.stop();
        } else {
            self.stopping.store(true, Ordering::SeqCst);
            // A restart reads a file again, but for changes by requests.
            let running = self.running.lock().clone();
            let settings = Settings {
                running: self.plan.control.is_some().then_some(running),
                // A restart follows the paths of shares anew.
                objects: Vec::new(),
                temporary_key: self.temporary_key,
            };
            if let Err(error) = upgrade::store(self.take_sockets(), settings) {
                tracing::error!("connections were not stored: {error}");
            }
        }
        self.upgrade.fail();
    }

    /// Makes `program` continue. Returns only if this program does, with the reason.
    fn continue_with(&self, program: &Path) -> String {
        if let Err(why) = self.hand_over() {
            return why;
        }
        let sockets = self.take_sockets();
        let why = self.run_successor(program, &sockets);
        for (process, (_, sockets)) in self.processes.iter().zip(sockets) {
            process.responder.restore_sockets(sockets);
        }
        why
    }

    /// Starts `program` with copies of `sockets`, and gives up once it serves. Returns only if it
    /// does not, with the reason; all its processes have ended then.
    fn run_successor(&self, program: &Path, sockets: &[(Part, PartSockets)]) -> String {
        let operation = self.operation.lock().as_ref().map(Operation::descriptors);
        let settings = Settings {
            running: Some(self.running.lock().clone()),
            objects: self.objects.list(),
            temporary_key: self.temporary_key,
        };
        let started = operation.transpose().and_then(|operation| {
            let operation = operation.unwrap_or_default();
            upgrade::start(program, sockets, operation, settings)
        });
        let started = match started {
            Ok(started) => started,
            Err(error) => return error.to_string(),
        };
        self.upgrade.set_program(Some(started.id()));
        let served = started.wait();
        let why = match served {
            _ if self.stopping.load(Ordering::SeqCst) => "the server was stopped".into(),
            Ok(()) => self.give_up(&started).to_string(),
            Err(why) => why,
        };
        self.upgrade.set_program(None);
        started.kill(why)
    }

    /// Makes `program` begin, and gives its place up. Returns only if that fails.
    fn give_up(&self, program: &NewProgram) -> io::Error {
        let Some(parent) = self.parent.get() else {
            let command = *self.command_id.lock();
            return parent::execute(program.channel(), program.id(), command);
        };
        let successor = Message::Successor(program.id().as_raw_nonzero().get());
        let begun = program.begin(parent);
        match begun.and_then(|()| message::send(parent.as_fd(), &successor, None)) {
            // Without destructors: all files are those of the new program.
            Ok(()) => std::process::exit(0),
            Err(error) => error,
        }
    }

    /// Starts a process, and waits until it ends.
    fn run_once(&self, process: &Process, restarted: bool) -> End {
        let ended = || -> io::Result<End> {
            *process.serving_since.lock() = None;
            let mut child = self.start(process, restarted)?;
            let pid = Pid::from_child(&child);
            process.starts.fetch_add(1, Ordering::SeqCst);
            *process.child.lock() = Some(pid);
            if self.stopping.load(Ordering::SeqCst) {
                process.stop();
            }
            // No signal is sent to a process that has taken over its number.
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), ended))?;
            *process.child.lock() = None;
            let status = child.wait()?;
            process.serving.store(false, Ordering::SeqCst);
            Ok(End::of(status))
        };
        ended().unwrap_or_else(|error| End::Crash(format!("cannot be started: {error}")))
    }

    /// Starts a process for the part of `process`.
    fn start(&self, process: &Process, restarted: bool) -> io::Result<Child> {
        process.reached.lock().clear();
        let network = process.next_network.load(Ordering::SeqCst);
        process.network.store(network, Ordering::SeqCst);
        // Inherited, unlike the originals.
        let (channel, control) = &process.childs_ends;
        let (channel, control) = (rustix::io::dup(channel)?, rustix::io::dup(control)?);
        let predecessor = self.predecessor.lock();
        let lifeline = predecessor.as_ref().map(|it| rustix::io::dup(&it.lifeline));
        let _lifeline = lifeline.transpose()?;
        drop(predecessor);
        // The process asks for all other options, and nobody reads them in its command line.
        let arguments = std::iter::once("serve".to_owned()).chain(self.log.iter().cloned());
        let command = child::command_with(arguments);
        self.namespaces.start(command, |namespaces| {
            let rooted = namespaces && !network;
            process.rooted.store(rooted, Ordering::SeqCst);
            ChildOptions {
                channel: channel.as_raw_fd(),
                control: control.as_raw_fd(),
                broker: upgrade::server_id(),
                listen_fds: self.listen_fds,
                part: process.part.clone(),
                namespaces,
                network,
                restarted,
                default_addrs: self.plan.uses_default_addrs(),
                parts: self.processes.len(),
            }
        })
    }
}

/// Time for processes that were killed to end when the server stops.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval at which a reload looks for a process that serves.
const SERVING_INTERVAL: Duration = Duration::from_millis(10);

/// Number of attempts of a reload, as the process that serves may end meanwhile.
const RELOAD_ATTEMPTS: usize = 3;

/// Time for a process that serves to answer a request, besides that of a drain.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for processes to hand their connections over; requests have some seconds to be answered.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the error of a request that `process` has not answered.
fn failed_of(process: &Process, why: &dyn std::fmt::Display) -> LiveError {
    let message = format!("{}: {why}", process.part.title());
    LiveError::new(ErrorCode::Failed, message)
}

impl Backend for Broker {
    fn request(&self, request: LiveRequest) -> Result<Value, LiveError> {
        let drain = match &request {
            LiveRequest::Drain { timeout, .. } => *timeout,
            _ => Duration::ZERO,
        };
        let timeout = REQUEST_TIMEOUT + drain;
        let mut listing: Option<Listing> = None;
        let mut reloaded: Option<Result<Value, LiveError>> = None;
        for process in self.ready_processes() {
            // The status page has no share, and its address does not change.
            if process.part == Part::Status && !matches!(request, LiveRequest::List) {
                continue;
            }
            let request = process.part.limit_request(&request);
            let reply = self.request_of(process, &request, timeout);
            match request {
                LiveRequest::List => {
                    let part = serde_json::from_value(reply?);
                    let part: Listing = part.map_err(|why| failed_of(process, &why))?;
                    let all = listing.get_or_insert_default();
                    all.shares.extend(part.shares);
                    all.endpoints.extend(part.endpoints);
                }
                // The failure of one part is not that of others.
                LiveRequest::Reload { .. } => {
                    let before = reloaded.take().unwrap_or(Ok(json!({})));
                    reloaded = Some(before.and(reply));
                }
                // A server with a control socket has one process.
                _ => return reply,
            }
        }
        match (listing, reloaded) {
            (Some(listing), _) => Ok(json!(listing)),
            (None, Some(reloaded)) => reloaded,
            (None, None) => Err(LiveError::new(ErrorCode::Failed, "the server is starting")),
        }
    }

    fn prepare(&self, config: &mut Config, addition: &Plan) -> Result<(), LiveError> {
        let prepared = self.prepare_addition(config, addition);
        prepared.inspect_err(|_| self.drop_objects(&self.running.lock().clone()))
    }

    fn revoke(&self, addrs: &[String]) {
        let running = self.running.lock().clone();
        for process in &self.processes {
            // It was valid before a share was removed.
            if let Ok(plan) = self.plan_of(process, &running) {
                let stays = Permitted::of(&plan, false, 0);
                process.responder.revoke(addrs, stays);
            }
        }
        self.drop_objects(&running);
    }

    fn upgrade(&self) -> LiveError {
        let failed = |why: &str| LiveError::new(ErrorCode::Failed, why);
        if let Err(error) = self.check_may_hand_over() {
            return error;
        }
        let Some(program) = &self.program else {
            return failed("the path of the program is unknown");
        };
        if let Err(why) = upgrade::check(program) {
            return failed(&why);
        }
        if let Some(why) = self.hanging_source() {
            return failed(&why);
        }
        if !self.upgrade.begin() {
            return failed("an upgrade is in progress");
        }
        tracing::info!("upgrade: connections are handed over");
        service::notify(&service::reloading());
        let why = self.continue_with(program);
        self.upgrade.fail();
        self.wait_until_serving();
        service::notify_ready("the upgrade failed, the old program continues");
        let program = program.display();
        failed(&format!("{program}: {why}; the old program continues"))
    }

    fn reload(&self, mut config: Option<&mut Config>, unopened: Unopened) -> Result<(), LiveError> {
        let mut attempts = RELOAD_ATTEMPTS;
        let reloaded = loop {
            self.wait_until_serving();
            let starts = self.starts();
            let prepared = (config.as_mut()).map(|config| self.prepare_reload(config, unopened));
            let reloaded = match prepared.transpose() {
                Ok(_) => self.request(LiveRequest::Reload {
                    config: config.as_deref().cloned(),
                    unopened,
                }),
                Err(failure) => break Err(LiveError::failed(failure)),
            };
            attempts -= 1;
            let has_ended = self.starts() != starts || self.serving().next().is_none();
            if let (Ok(_), Some(config)) = (&reloaded, &config) {
                *self.running.lock() = (*config).clone();
                self.note_networks(config);
            }
            // A process that started meanwhile may have got the previous configuration.
            if !has_ended || attempts == 0 {
                break reloaded;
            }
        };
        // After a timeout it may still happen.
        if reloaded.as_ref().err().map(|error| error.code) != Some(ErrorCode::Timeout) {
            for process in &self.processes {
                process.responder.end_reload(reloaded.is_ok());
            }
            self.drop_objects(&self.running.lock().clone());
        }
        reloaded.map(drop)
    }
}
