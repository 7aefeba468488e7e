//! The broker: starts the process that serves, and again if it crashes.

use std::collections::VecDeque;
use std::env;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use concurrency::ThreadPool;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use sandbox::{ChildNamespace, Namespaces, VisiblePath};

use super::client::{CHILD_OPTIONS, ChildOptions};
use super::confinement::visible_paths;
use super::message::{self, Request};
use super::requests::{Permitted, Responder};
use crate::serve::args::confinement::Sandbox;
use crate::serve::plan::{self, Plan};
use crate::serve::{activation, run as command, users};
use crate::signals::Reload;
use crate::{CommandResult, Failure, signals};

/// Number of requests that are served at once: a query of the user database may take long.
const THREADS: usize = 8;

/// Number of requests that wait. Further ones fail.
const MAX_QUEUED: usize = 256;

/// Crashes within this time after which the process is not started again.
const CRASHES: (usize, Duration) = (5, Duration::from_secs(10));

/// Serves `plan` in a second process, until that ends.
pub(in crate::serve) fn run(plan: Plan) -> CommandResult {
    let by_default = plan.uses_default_addrs();
    let listen_fds = activation::listen_fds();
    let (shell_command, umask) = (plan.run.clone(), sys::umask::current());
    let state = Arc::new(State::default());
    let on_ready = {
        let state = state.clone();
        move |environment| state.become_ready(shell_command.clone(), environment, umask)
    };
    let responder = Arc::new(Responder::new(
        Permitted::of(&plan, by_default, listen_fds),
        users::socket_group(plan.socket_group.as_deref())?,
        Box::new(on_ready),
    ));
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (channel, childs_end) =
        socketpair(family, kind, SocketFlags::CLOEXEC, None).map_err(Failure::new)?;
    serve_requests(channel, responder.clone())?;
    let listeners = responder.clone();
    let reloads = plan.file.is_some() || plan.endpoints.iter().any(|one| one.is_reloadable());
    let mut starter = Starter {
        namespaces: namespaces(&plan)?,
        required: plan.confinement.sandbox == Some(Sandbox::Namespace),
        network: plan.confinement.network,
        childs_end,
        listen_fds,
        restarted: false,
    };
    let stop = {
        let state = state.clone();
        move || state.stop()
    };
    let seen = Mutex::new(visible_paths(&plan, by_default));
    let reload = {
        let state = state.clone();
        let reload: Reload = Box::new(move || {
            if let Some(config) = &plan.file
                && let Ok(config) = plan::read_config(config.path())
                && let Ok(new) = Plan::from_config(&config)
            {
                responder.permit(Permitted::of(&new, by_default, listen_fds));
                let paths = visible_paths(&new, by_default);
                state.make_visible(paths, &mut seen.lock());
            }
            if state.serving.load(Ordering::SeqCst) {
                state.signal(Signal::HUP);
            }
        });
        reloads.then_some(reload)
    };
    let signals = signals::on_signal(stop, reload)?;
    let status = supervise(&state, &mut starter);
    drop(signals);
    listeners.close();
    match state.command.lock().take() {
        None => status,
        Some(command) => {
            let done = command.join();
            let done = done.map_err(|_| Failure::new("the thread of --run panicked"))?;
            status.and(done)
        }
    }
}

/// Returns the namespaces of the process that serves `plan`, or `None` if Landlock confines it
/// alone.
fn namespaces(plan: &Plan) -> Result<Option<Namespaces>, Failure> {
    let explicit = plan.confinement.sandbox == Some(Sandbox::Namespace);
    let kind = Namespaces::for_this_process();
    match plan.confinement.sandbox {
        Some(Sandbox::Landlock) => Ok(None),
        _ if kind == Namespaces::Privileged => Ok(Some(kind)),
        _ if explicit => Err(Failure::new(
            "--sandbox namespace: expected the super-user, with CAP_SYS_ADMIN",
        )),
        _ => Ok(None),
    }
}

/// Starts a thread that serves the requests that arrive at `channel`.
fn serve_requests(channel: OwnedFd, responder: Arc<Responder>) -> Result<(), Failure> {
    let pool = ThreadPool::new("barge-request", THREADS, MAX_QUEUED);
    let serve = move || {
        loop {
            let (request, to) = match message::receive::<Request>(channel.as_fd()) {
                Ok((request, Some(to))) => (request, to),
                Ok((_, None)) => continue,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return,
                Err(error) => return tracing::error!("requests of the server: {error}"),
            };
            let responder = responder.clone();
            // If the queue is full, the reply's socket is closed, and the request fails.
            pool.try_run(move || {
                let (reply, passed) = responder.reply(request);
                // The process may have ended.
                let _ = message::send(to.as_fd(), &reply, passed.as_ref().map(AsFd::as_fd));
            });
        }
    };
    let thread = std::thread::Builder::new().name("barge-broker".into());
    thread.spawn(serve).map(drop).map_err(Failure::new)
}

/// The broker's state.
#[derive(Default)]
struct State {
    /// The process that serves.
    child: Mutex<Option<Pid>>,
    /// Whether it has a root of its own.
    rooted: AtomicBool,
    stopping: AtomicBool,
    /// Whether it serves clients, and handles signals.
    serving: AtomicBool,
    /// Whether one has served clients.
    ready: AtomicBool,
    /// The thread that runs the command of `--run`.
    command: Mutex<Option<JoinHandle<CommandResult>>>,
}

impl State {
    fn signal(&self, signal: Signal) {
        if let Some(child) = *self.child.lock() {
            // It may have ended.
            let _ = kill_process(child, signal);
        }
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.signal(match self.serving.load(Ordering::SeqCst) {
            true => Signal::TERM,
            false => Signal::KILL,
        });
    }

    /// Notes that the process serves, and runs the command `line`, if there is one, the first time.
    fn become_ready(
        self: &Arc<Self>,
        line: Option<String>,
        environment: Vec<(String, String)>,
        umask: Option<u32>,
    ) {
        self.serving.store(true, Ordering::SeqCst);
        if self.ready.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(line) = line {
            let state = self.clone();
            let run = move || {
                let status = command::run(&line, environment, umask);
                state.stop();
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
    }

    /// Adds those of `paths` that `seen` lacks to the root of the process, if it has its own.
    fn make_visible(&self, paths: Vec<VisiblePath>, seen: &mut Vec<VisiblePath>) {
        let child = *self.child.lock();
        let Some(child) = child.filter(|_| self.rooted.load(Ordering::SeqCst)) else {
            return;
        };
        for path in paths {
            if seen.contains(&path) {
                continue;
            }
            match sandbox::root::add(child, &path) {
                Ok(()) => seen.push(path),
                Err(error) => tracing::error!("{error}"),
            }
        }
    }
}

/// Starts processes that serve.
struct Starter {
    namespaces: Option<Namespaces>,
    /// Whether they have to be in namespaces.
    required: bool,
    /// Whether they connect to other hosts.
    network: bool,
    /// Their end of the socket for requests.
    childs_end: OwnedFd,
    listen_fds: i32,
    restarted: bool,
}

impl Starter {
    fn start(&mut self) -> io::Result<Child> {
        // Inherited, unlike the original.
        let channel = rustix::io::dup(&self.childs_end)?;
        let options = ChildOptions {
            channel: channel.as_raw_fd(),
            broker: std::process::id(),
            listen_fds: self.listen_fds,
            namespaces: self.namespaces.is_some(),
            restarted: self.restarted,
        };
        let mut arguments = env::args_os();
        let mut command = Command::new("/proc/self/exe");
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        command
            .args(arguments)
            .env(CHILD_OPTIONS, options.to_text())
            // Signals of the terminal reach it through this process.
            .process_group(0);
        let Some(namespaces) = self.namespaces else {
            return command.spawn();
        };
        let own = ChildNamespace::current()?;
        if let Err(error) = namespaces.prepare() {
            if self.required {
                return Err(io::Error::other(error));
            }
            tracing::info!("{error}: confined by Landlock alone");
            self.namespaces = None;
            return self.start();
        }
        let child = command.spawn();
        own.restore()?;
        child
    }
}

/// Starts processes that serve until one ends by itself. Returns its exit status.
fn supervise(state: &State, starter: &mut Starter) -> CommandResult {
    let mut crashes = VecDeque::new();
    loop {
        let mut child = starter.start().map_err(Failure::new)?;
        starter.restarted = true;
        let rooted = starter.namespaces.is_some() && !starter.network;
        state.rooted.store(rooted, Ordering::SeqCst);
        let pid = Pid::from_child(&child);
        *state.child.lock() = Some(pid);
        if state.stopping.load(Ordering::SeqCst) {
            state.stop();
        }
        // No signal is sent to a process that has taken over its number.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), ended)).map_err(Failure::new)?;
        *state.child.lock() = None;
        let status = child.wait().map_err(Failure::new)?;
        let serving = state.serving.swap(false, Ordering::SeqCst);
        let stopping = state.stopping.load(Ordering::SeqCst);
        let why = match crash(status) {
            None => return Ok(exit_code(status)),
            // Killed by `stop`.
            Some(_) if stopping && !serving => return Ok(ExitCode::SUCCESS),
            Some(why) => why,
        };
        let now = Instant::now();
        crashes.push_back(now);
        crashes.retain(|time| now.duration_since(*time) < CRASHES.1);
        let hopeless = crashes.len() >= CRASHES.0 || !state.ready.load(Ordering::SeqCst);
        if stopping || hopeless {
            return Err(Failure::new(format!("the serving process {why}")));
        }
        tracing::error!("the serving process {why}: starting it again");
    }
}

/// The exit status of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;

/// Returns how the process crashed, or `None` if it ended by itself.
fn crash(status: ExitStatus) -> Option<String> {
    let Some(signal) = status.signal() else {
        return (status.code() == Some(PANICKED)).then(|| "has panicked".into());
    };
    let hint = match signal == Signal::SYS.as_raw() {
        true => " after a system call that --seccomp does not permit",
        false => "",
    };
    Some(format!("was ended by signal {signal}{hint}"))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(
        status
            .code()
            .map_or(1, |code| u8::try_from(code).unwrap_or(1)),
    )
}
