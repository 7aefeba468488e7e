//! The two processes of a mount. The first one, the *holder*, mounts, unmounts and handles signals.
//! It starts the second one, which confines itself, opens the source and serves the mount.
//!
//! If the second process keeps records of the mount ([`fuse::server::Records`]), the holder starts
//! another one when it ends early, or when another version of the program is to serve. The new one
//! gets the same descriptors, and the records, which the holder itself never reads.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use concurrency::ThreadPool;
use fuse::server::Records;
use parking_lot::Mutex;
use remote::ClientOwner;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use transports::Listener;
use transports::fusedev::{Notifier, relay};
use wire::ClientThreads;

use crate::child::message::{self, ReplySocket, unexpected};
use crate::child::users::{self, Query};
use crate::child::{self, ChildNamespaces, End};
use crate::kept_files::{KeepFile, Keeper, KeptFiles, KeptLimit};
use crate::serve::args::confinement::Sandbox;
use crate::{CommandResult, Failure, background, service, signals};

/// Number of queries of the user database that are carried out at once, and that wait: further ones
/// fail.
const QUERIES: (usize, usize) = (8, 256);

/// A request of the process that serves.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Queries the user database. The reply is a [`users::Found`].
    Users(Query),
    /// Asks which of these threads a signal will end ([`sys::pending_signals::will_end`]). The
    /// reply is a list of `bool`, in the same order.
    Ending(Vec<u32>),
    /// Connects to an OpenTelemetry collector of the options. The reply is a [`Reply`].
    #[cfg(feature = "otel")]
    ConnectCollector { host: String, port: u16 },
    /// The reply is a [`Reply`].
    Mount(MountRequest),
}

/// A request that concerns the mount.
#[derive(Debug, Serialize, Deserialize)]
enum MountRequest {
    /// Mounts, read-only if the source is.
    Mount { read_only: bool },
    /// Asks for a descriptor to serve.
    Descriptor,
    /// Asks for the file with the name of the mount as a client.
    ClientFile,
    /// Asks for the socket of the status page.
    Listener,
    /// The mount is served.
    Ready,
    /// Asks for the descriptor with this number, which a successor gets again.
    Channel(usize),
    /// Asks for the memory of the records.
    Records,
    /// Asks for the socket for notifications of the kernel.
    Notifier,
    /// Asks for the socket for descriptors to be kept ([`KeepFile`]).
    Keeper,
    /// Asks for the descriptor of this position in the order of nodes that was kept for an earlier
    /// process.
    Kept(usize),
    /// The mount of an earlier process is served.
    TakenOver,
    /// The mount of an earlier process cannot be taken over, or that of this process by another.
    Decline(Obstacle),
}

/// The reason why another process cannot continue a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Obstacle {
    /// The source, an option, or a lack of privileges.
    Excluded,
    OtherFormat,
    NoHandles,
    Records,
    Session,
    /// A reason that only another version of the program knows.
    #[serde(other)]
    Other,
}

impl Display for Obstacle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Excluded => "the source, an option or a lack of privileges excludes it",
            Obstacle::OtherFormat => "the records have another format",
            Obstacle::NoHandles => "the file system has no handles",
            Obstacle::Records => "its records do not permit that",
            Obstacle::Session => "no other process can continue this mount",
            Obstacle::Other => "the program declines",
        })
    }
}

/// The reply to a [`MountRequest`].
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Done,
    /// The requested descriptor is passed.
    Descriptor,
    /// The passed socket listens at this address.
    Listening(String),
}

/// A mount as its holder sees it.
pub(crate) trait HeldMount {
    /// Mounts, read-only if the source is (`read_only`).
    fn mount(&mut self, read_only: bool) -> Result<(), Failure>;

    /// Returns a descriptor for the process that serves.
    fn descriptor(&mut self) -> io::Result<OwnedFd>;

    /// Returns the listener of the status page, if the mount has one.
    fn listener(&self) -> Option<&Listener> {
        None
    }

    /// Returns the hosts and ports of OpenTelemetry collectors that the process that serves may be
    /// connected to.
    #[cfg(feature = "otel")]
    fn collectors(&self) -> Vec<(String, u16)> {
        Vec::new()
    }

    /// Returns whether a process that serves may be replaced by another one, with the records of
    /// the first.
    fn can_be_taken_over(&self) -> bool {
        false
    }

    /// Returns the name of the mount as a client of its server, which all processes that serve it
    /// have one after another, if it is one.
    fn client_owner(&self) -> Option<&ClientOwner> {
        None
    }

    /// Returns the file that begins with that name and a newline, if there is one.
    fn client_file(&self) -> Option<io::Result<OwnedFd>> {
        None
    }

    /// Makes all requests fail from now on. The mount stays.
    fn abort(&self) {}

    /// Is called when the mount is served.
    fn served(&self) {}

    /// Returns the text that reports that the mount is ready.
    fn ready_text(&self) -> String {
        background::READY.to_owned()
    }

    /// Unmounts, after a signal to stop. Open files may stay open. `ended` tells whether the
    /// process that serves has ended: no request is answered then.
    fn unmount(&mut self, ended: &AtomicBool) -> Result<(), Failure>;
}

/// The descriptors that each process that serves gets, so that another one can replace it.
#[derive(Default)]
struct SharedDescriptors {
    /// The descriptors to serve, by number. They stay open here, so that requests that were read
    /// from them stay unanswered if a process ends.
    channels: Vec<OwnedFd>,
    /// The memory of the records.
    records: Option<OwnedFd>,
}

/// Maximum number of descriptors to serve: more than processors.
const MAX_CHANNELS: usize = 8192;

impl SharedDescriptors {
    /// Returns the descriptor of `mount` with this number.
    fn channel(&mut self, number: usize, mount: &mut dyn HeldMount) -> io::Result<OwnedFd> {
        if number >= MAX_CHANNELS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        while self.channels.len() <= number {
            self.channels.push(mount.descriptor()?);
        }
        self.channels[number].try_clone()
    }

    /// Returns the memory of the records.
    fn records(&mut self) -> io::Result<OwnedFd> {
        let records = match self.records.take() {
            Some(records) => records,
            None => sys::shared_memory::create("barge-records", Records::WORDS)?,
        };
        self.records.insert(records).try_clone()
    }
}

/// The options of the process that serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ChildOptions {
    /// The descriptor of the socket for requests.
    channel: i32,
    /// The holder's process id.
    holder: u32,
    /// Whether the process is prepared for namespaces.
    namespaces: bool,
    /// The descriptors of a process that fills an image for the kernel's EROFS, instead of serving
    /// requests.
    lazy: Option<LazyDescriptors>,
    /// Whether the process continues the mount of an earlier one.
    #[serde(default)]
    takes_over: bool,
    /// See [`HeldMount::client_owner`].
    #[serde(default)]
    client_owner: Option<String>,
}

/// The descriptors of a process that fills an image, which it inherits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LazyDescriptors {
    /// The group of fanotify(7).
    pub(crate) group: i32,
    /// The inotify(7) queue with an event after the last unmount.
    pub(crate) unmounts: i32,
    /// The socket for ranges to fill.
    pub(crate) fills: i32,
    /// The file, if it is mounted already.
    pub(crate) file: Option<LazyFile>,
}

/// The local file of an image, with inherited descriptors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LazyFile {
    pub(crate) name: String,
    /// Reads and writes through it raise no events.
    pub(crate) quiet: i32,
    /// Keeps the image in use in the disk cache.
    pub(crate) user: i32,
}

/// The packet that tells the process that serves to finish: it is no longer mounted.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stop;

/// An order for the process that serves.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Finish: it is no longer mounted.
    Stop,
    /// Finish in favour of another process.
    HandOver,
}

/// An event for the holder.
enum Event {
    Request(MountRequest, ReplySocket),
    /// A signal to stop.
    Stop,
    /// A signal to continue with the program that is installed now.
    Upgrade,
    /// The process that serves has ended.
    Ended,
}

/// Pause before another process is started if the last one has not served for [`HEALTHY`]. It
/// doubles each time.
const RESTART: Duration = Duration::from_millis(50);

/// Number of processes in a row that may end before they have served for [`HEALTHY`]. With the
/// pauses, programs wait for some 6 seconds.
const MAX_FAILURES: u32 = 8;

/// Time after which a process that serves is no failure. A request that ends the process does so at
/// once, when it is sent again.
const HEALTHY: Duration = Duration::from_millis(100);

/// Starts the process that serves `mount`, and waits until that ends. `sandbox` determines its
/// namespaces.
pub(crate) fn hold(mount: &mut dyn HeldMount, sandbox: Option<Sandbox>) -> CommandResult {
    let (sender, receiver) = mpsc::channel();
    let (stop, upgrade) = (sender.clone(), sender.clone());
    let upgrade: signals::Reload = Box::new(move || drop(upgrade.send(Event::Upgrade)));
    // On a terminal, SIGHUP means that it was closed.
    let upgrade = (signals::is_background() && mount.can_be_taken_over()).then_some(upgrade);
    // Fails only if the receiver is gone, when the mount has ended anyway.
    let signals = signals::on_signal(move || drop(stop.send(Event::Stop)), upgrade)?;
    if mount.can_be_taken_over() {
        // For the descriptors that are kept.
        sys::limits::raise_descriptors();
    }
    let mut held = Held {
        shared: mount.can_be_taken_over().then(SharedDescriptors::default),
        mount,
        namespaces: ChildNamespaces::new(sandbox)?,
        sender,
        program: std::env::current_exe().ok(),
        state: State::Starting,
        server: None,
        failures: 0,
        stopping: false,
        upgrading: false,
        declined: None,
        kept: Arc::new(Mutex::new(KeptFiles::new(KeptLimit::for_one_of(1)))),
    };
    held.start(None).map_err(Failure::new)?;
    let end = held.run(&receiver)?;
    drop(signals);
    // Otherwise it was unmounted, or its descriptors end with the process that served.
    if held.state == State::Ready && held.has_records() && !matches!(end, End::Exit(0)) {
        match held.stopping {
            // No process could serve the unmount.
            true => drop(held.mount.unmount(&AtomicBool::new(true))),
            false => held.mount.abort(),
        }
    }
    if held.state == State::Mounted {
        // The process has reported its error.
        let _ = held.mount.unmount(&AtomicBool::new(true));
    }
    match end {
        End::Exit(code) => Ok(ExitCode::from(code)),
        End::Crash(why) => Err(Failure::new(format!("the process that serves {why}"))),
    }
}

/// A mount and the process that serves it.
struct Held<'a> {
    mount: &'a mut dyn HeldMount,
    /// The descriptors for another process that serves, if there may be one.
    shared: Option<SharedDescriptors>,
    namespaces: ChildNamespaces,
    /// For all that happens to it.
    sender: Sender<Event>,
    /// The program, by its path: another one may be installed there later.
    program: Option<PathBuf>,
    state: State,
    server: Option<ServerProcess>,
    /// Number of processes in a row that have ended early.
    failures: u32,
    /// Whether there was a signal to stop.
    stopping: bool,
    /// Whether the process was told to end in favour of the installed program.
    upgrading: bool,
    /// The reason why the mount cannot be taken over.
    declined: Option<Obstacle>,
    kept: Arc<Mutex<KeptFiles>>,
}

/// A process that serves.
struct ServerProcess {
    /// The thread that receives descriptors to be kept.
    keeper: Option<JoinHandle<()>>,
    /// Whether it has requested the socket for notifications: each one takes a thread.
    has_notifier: bool,
    child: Child,
    channel: Arc<OwnedFd>,
    /// Whether its end of the socket is closed.
    ended: Arc<AtomicBool>,
    /// The time since which it serves.
    serves_since: Option<Instant>,
}

impl Held<'_> {
    /// Starts a process that serves: `program`, or this one.
    fn start(&mut self, program: Option<&Path>) -> io::Result<()> {
        let (channel, childs_end) = message::pair()?;
        let channel = Arc::new(channel);
        let command = program.map_or_else(child::command, child::command_of);
        let start = StartOptions {
            lazy: None,
            takes_over: self.state == State::Ready,
            client_owner: self.mount.client_owner().map(ClientOwner::to_string),
        };
        let child = start_with(command, childs_end, self.namespaces, start)?;
        let ended = Arc::<AtomicBool>::default();
        receive_requests(
            channel.clone(),
            self.sender.clone(),
            ended.clone(),
            #[cfg(feature = "otel")]
            self.mount.collectors(),
        )
        .map_err(|failure| io::Error::other(failure.message))?;
        self.server = Some(ServerProcess {
            keeper: None,
            has_notifier: false,
            child,
            channel,
            ended,
            serves_since: None,
        });
        Ok(())
    }

    /// Handles events until the mount has ended, and returns the end of the last process.
    fn run(&mut self, events: &Receiver<Event>) -> Result<End, Failure> {
        let mut start = Instant::now();
        loop {
            let event = match self.server {
                Some(_) => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                None => events.recv_timeout(start.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(Event::Request(request, to)) => {
                    let taken_over = matches!(request, MountRequest::TakenOver);
                    let reply = self.serve(request);
                    to.reply(reply);
                    if taken_over && self.stopping {
                        self.stop()?;
                    }
                }
                Ok(Event::Stop) if self.state == State::Starting => {
                    if let Some(server) = &mut self.server {
                        server.child.kill().map_err(Failure::new)?;
                        server.child.wait().map_err(Failure::new)?;
                    }
                    return Ok(End::Exit(0));
                }
                Ok(Event::Stop) => {
                    self.stopping = true;
                    // Otherwise once the next process serves: the unmount takes one.
                    if self.serves() || self.state != State::Ready {
                        self.stop()?;
                    }
                }
                Ok(Event::Upgrade) => self.upgrade(),
                Ok(Event::Ended) => {
                    let Some(server) = self.server.take() else {
                        continue;
                    };
                    let serves_since = server.serves_since;
                    let end = server.wait();
                    match self.pause_after(end, serves_since) {
                        Ok(pause) => start = Instant::now() + pause,
                        Err(end) => return Ok(end),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let program = self.program.clone().filter(|_| self.upgrading);
                    if let Err(error) = self.start(program.as_deref()) {
                        tracing::error!("the process that serves does not start: {error}");
                        let end = End::Crash(format!("does not start: {error}"));
                        match self.pause_after(end, None) {
                            Ok(pause) => start = Instant::now() + pause,
                            Err(end) => return Ok(end),
                        }
                    }
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("the mount has a sender"),
            }
        }
    }

    /// Returns whether a process that serves keeps records. The first one may have found that it
    /// can keep none, and requests no channel then.
    fn has_records(&self) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|all| all.records.is_some() && !all.channels.is_empty())
    }

    /// Returns whether a process serves the mount.
    fn serves(&self) -> bool {
        let server = self.server.as_ref();
        server.is_some_and(|server| server.serves_since.is_some())
    }

    /// Returns the pause until another process is to be started after one that has ended, or the
    /// end of the mount.
    fn pause_after(&mut self, end: End, serves_since: Option<Instant>) -> Result<Duration, End> {
        let replaced = self.upgrading && serves_since.is_some();
        let finished = matches!(end, End::Exit(0)) && !replaced;
        let continues = self.state == State::Ready && self.has_records();
        if finished || !continues {
            return Err(end);
        }
        let why = match end {
            End::Exit(code) => format!("has ended with status {code}"),
            End::Crash(why) => why,
        };
        let declined = self.declined.take();
        if replaced {
            return Ok(Duration::ZERO);
        }
        if self.upgrading {
            // The installed program does not serve, because it declined for example: this one does.
            let why = declined.map_or(why.clone(), |obstacle| format!("{why}: {obstacle}"));
            tracing::error!("the installed program {why}; the mount continues with the old one");
            self.upgrading = false;
            return Ok(Duration::ZERO);
        }
        if let Some(obstacle) = declined {
            return Err(End::Crash(format!(
                "{why} and has no successor: {obstacle}"
            )));
        }
        if serves_since.is_some_and(|since| since.elapsed() >= HEALTHY) {
            self.failures = 0;
        }
        self.failures += 1;
        if self.failures >= MAX_FAILURES {
            return Err(End::Crash(format!("{why}, as did those before it")));
        }
        tracing::error!("the process that serves {why}; it is started again");
        Ok(match self.failures {
            1 => Duration::ZERO,
            failures => RESTART * 2u32.pow(failures - 2),
        })
    }

    /// Unmounts, and tells the process that serves to finish.
    fn stop(&mut self) -> Result<(), Failure> {
        // If the process ends meanwhile, requests fail, as the unmount waits for them.
        self.shared = None;
        let ended = self.server.as_ref().map(|server| server.ended.clone());
        self.mount.unmount(&ended.unwrap_or_default())?;
        if let Some(server) = &self.server {
            // It may have ended.
            let _ = message::send(server.channel.as_fd(), &Order::Stop, None);
        }
        Ok(())
    }

    /// Tells the process that serves to end in favour of the installed program.
    fn upgrade(&mut self) {
        let can_be_replaced = self.has_records() && self.serves() && self.program.is_some();
        let Some(server) = self.server.as_ref().filter(|_| can_be_replaced) else {
            tracing::warn!("SIGHUP ignored: this mount continues with the program that serves it");
            return;
        };
        self.upgrading = true;
        // It may have ended, and is replaced then, too.
        let _ = message::send(server.channel.as_fd(), &Order::HandOver, None);
    }

    /// Serves a request. Returns the reply and the descriptor to pass.
    fn serve(&mut self, request: MountRequest) -> io::Result<(Reply, Option<OwnedFd>)> {
        let is_successor = self.state == State::Ready;
        let reply = match request {
            MountRequest::Keeper => return self.start_keeper(),
            MountRequest::Channel(number) => {
                let channel = match &mut self.shared {
                    Some(shared) => shared.channel(number, self.mount)?,
                    None => self.mount.descriptor()?,
                };
                return Ok((Reply::Descriptor, Some(channel)));
            }
            MountRequest::Records => {
                let shared = self.shared.as_mut();
                let records = shared.ok_or(io::ErrorKind::Unsupported)?.records()?;
                return Ok((Reply::Descriptor, Some(records)));
            }
            MountRequest::Notifier => {
                let server = self.server.as_mut().ok_or(Errno::PERM)?;
                if std::mem::replace(&mut server.has_notifier, true) {
                    return Err(Errno::PERM.into());
                }
                return self.serve_first(MountRequest::Notifier);
            }
            MountRequest::Kept(position) => {
                let kept = self.kept.lock();
                let file = kept.all().nth(position).ok_or(io::ErrorKind::NotFound)?;
                return Ok((Reply::Descriptor, Some(file.duplicate()?)));
            }
            MountRequest::TakenOver if is_successor && !self.serves() => {
                self.upgrading = false;
                tracing::info!("another process serves the mount");
                Ok((Reply::Done, None))
            }
            MountRequest::Decline(why) if is_successor => {
                match self.serves() {
                    true => self.upgrading = false,
                    false => self.declined = Some(why),
                }
                return Ok((Reply::Done, None));
            }
            other => return self.serve_first(other),
        };
        self.note_serving();
        reply
    }

    /// Starts the thread that receives descriptors to be kept, and returns the socket for them.
    fn start_keeper(&mut self) -> io::Result<(Reply, Option<OwnedFd>)> {
        let server = self
            .server
            .as_mut()
            .filter(|server| server.keeper.is_none());
        let server = server.ok_or(Errno::PERM)?;
        let (here, there) = message::pair()?;
        let kept = self.kept.clone();
        let receive = move || {
            loop {
                match message::receive::<KeepFile>(here.as_fd()) {
                    Ok((packet, file)) => kept.lock().apply(&packet, file),
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                    Err(_) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("barge-keeper".into());
        server.keeper = Some(thread.spawn(receive)?);
        Ok((Reply::Descriptor, Some(there)))
    }

    fn serve_first(&mut self, request: MountRequest) -> io::Result<(Reply, Option<OwnedFd>)> {
        let is_ready = matches!(request, MountRequest::Ready);
        let reply = self.state.serve(request, self.mount)?;
        if is_ready {
            self.note_serving();
        }
        Ok(reply)
    }

    fn note_serving(&mut self) {
        if let Some(server) = &mut self.server {
            server.serves_since = Some(Instant::now());
        }
    }
}

impl ServerProcess {
    /// Waits for the end of the process, which has closed its socket.
    fn wait(mut self) -> End {
        // A process that keeps running without its socket is of no use.
        let _ = self.child.kill();
        let end = match self.child.wait() {
            Ok(status) => End::of(status),
            Err(error) => End::Crash(format!("is lost: {error}")),
        };
        // All that it has sent is received. A panic is reported by its thread.
        let _ = self.keeper.map(JoinHandle::join);
        end
    }
}

/// Starts the process that serves, whose end of the socket for requests is `childs_end`. It
/// fills an image if `lazy` has descriptors for that.
pub(crate) fn start(
    childs_end: OwnedFd,
    namespaces: ChildNamespaces,
    lazy: Option<LazyDescriptors>,
) -> io::Result<Child> {
    let start = StartOptions {
        lazy,
        takes_over: false,
        client_owner: None,
    };
    start_with(child::command(), childs_end, namespaces, start)
}

/// The options of [`ChildOptions`] that a mount determines.
struct StartOptions {
    lazy: Option<LazyDescriptors>,
    takes_over: bool,
    client_owner: Option<String>,
}

fn start_with(
    mut command: Command,
    childs_end: OwnedFd,
    namespaces: ChildNamespaces,
    start: StartOptions,
) -> io::Result<Child> {
    // Inherited, unlike the original.
    let inherited = rustix::io::dup(&childs_end)?;
    drop(childs_end);
    command.stdout(Stdio::null());
    namespaces.start(command, |namespaces| ChildOptions {
        channel: inherited.as_raw_fd(),
        holder: std::process::id(),
        namespaces,
        lazy: start.lazy.clone(),
        takes_over: start.takes_over,
        client_owner: start.client_owner.clone(),
    })
}

/// Starts a thread that receives the requests of the process that serves, and sets `ended` after
/// them.
fn receive_requests(
    channel: Arc<OwnedFd>,
    sender: Sender<Event>,
    ended: Arc<AtomicBool>,
    #[cfg(feature = "otel")] collectors: Vec<(String, u16)>,
) -> Result<(), Failure> {
    let queries = ThreadPool::new("barge-users", QUERIES.0, QUERIES.1);
    let receive = move || {
        let mut questions = QuestionLimit::new();
        while let Ok((request, to)) = message::next_request(channel.as_fd()) {
            match request {
                // At once: threads that look up users may wait for a server.
                Request::Ending(threads) => {
                    let will_end =
                        |&id: &u32| questions.take() && sys::pending_signals::will_end(id);
                    let ending: Vec<bool> = threads.iter().map(will_end).collect();
                    to.reply(Ok((ending, None)));
                }
                // The thread that unmounts waits for replies of the mount, and these may wait for
                // the database.
                Request::Users(query) => queries.try_run(move || {
                    to.reply(users::find(query).map(|found| (found, None)));
                }),
                #[cfg(feature = "otel")]
                Request::ConnectCollector { host, port } => {
                    match collectors.contains(&(host.clone(), port)) {
                        true => queries.try_run(move || {
                            let connected = crate::otel::connect(&host, port);
                            to.reply(connected.map(|it| (Reply::Descriptor, Some(it.into()))));
                        }),
                        false => to.reply::<Reply>(Err(Errno::PERM.into())),
                    }
                }
                Request::Mount(request) => drop(sender.send(Event::Request(request, to))),
            }
        }
        ended.store(true, Ordering::Release);
        let _ = sender.send(Event::Ended);
    };
    let thread = std::thread::Builder::new().name("barge-requests".into());
    thread.spawn(receive).map(drop).map_err(Failure::new)
}

/// The limit of questions about threads, of which each takes some 30 µs: further ones within a
/// second are answered with "unknown".
struct QuestionLimit {
    since: Instant,
    left: u32,
}

impl QuestionLimit {
    /// Maximum number of threads that are looked at within a second: a tenth of a processor's time.
    const PER_SECOND: u32 = 4096;

    fn new() -> QuestionLimit {
        QuestionLimit {
            since: Instant::now(),
            left: QuestionLimit::PER_SECOND,
        }
    }

    /// Returns whether another thread may be looked at.
    fn take(&mut self) -> bool {
        if self.left == 0 && self.since.elapsed() >= Duration::from_secs(1) {
            *self = QuestionLimit::new();
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

/// The state of a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Starting,
    Mounted,
    Ready,
}

impl State {
    /// Serves a request. Returns the reply and the descriptor to pass, or an error: code that has
    /// taken over the process that serves mounts nothing a second time.
    fn serve(
        &mut self,
        request: MountRequest,
        mount: &mut dyn HeldMount,
    ) -> io::Result<(Reply, Option<OwnedFd>)> {
        let refused = |failure: Failure| io::Error::other(failure.message);
        match request {
            MountRequest::Mount { read_only } if *self == State::Starting => {
                mount.mount(read_only).map_err(refused)?;
                *self = State::Mounted;
                Ok((Reply::Done, None))
            }
            MountRequest::Descriptor => Ok((Reply::Descriptor, Some(mount.descriptor()?))),
            MountRequest::Notifier => {
                let device = mount.descriptor()?;
                let (here, there) = message::pair()?;
                let relay = move || relay(here.as_fd(), device.as_fd());
                let thread = std::thread::Builder::new().name("barge-notify".into());
                thread.spawn(relay)?;
                Ok((Reply::Descriptor, Some(there)))
            }
            MountRequest::ClientFile => {
                let file = mount.client_file().ok_or(io::ErrorKind::NotFound)??;
                Ok((Reply::Descriptor, Some(file)))
            }
            MountRequest::Listener => {
                let listener = mount.listener().ok_or(io::ErrorKind::NotFound)?;
                let addr = listener.addr().to_string();
                Ok((Reply::Listening(addr), Some(listener.socket()?)))
            }
            MountRequest::Ready if *self == State::Mounted => {
                mount.served();
                background::report_ready(&mount.ready_text()).map_err(refused)?;
                service::notify_ready("ready");
                *self = State::Ready;
                Ok((Reply::Done, None))
            }
            MountRequest::Mount { .. }
            | MountRequest::Ready
            | MountRequest::Channel(_)
            | MountRequest::Records
            | MountRequest::Keeper
            | MountRequest::Kept(_)
            | MountRequest::TakenOver
            | MountRequest::Decline(_) => Err(Errno::PERM.into()),
        }
    }
}

/// The holder as the process that serves uses it.
pub(crate) struct Holder {
    channel: OwnedFd,
    options: ChildOptions,
}

impl Holder {
    /// Returns the holder that has started this process, if one has.
    pub(crate) fn of_this_process() -> Result<Option<Arc<Holder>>, Failure> {
        let Some(options) = child::options() else {
            return Ok(None);
        };
        let options: ChildOptions = options?;
        Ok(Some(Arc::new(Holder {
            channel: child::inherited(options.channel)?,
            options,
        })))
    }

    /// Returns the descriptors of this process if it fills an image.
    pub(crate) fn lazy(&self) -> Option<LazyDescriptors> {
        self.options.lazy.clone()
    }

    /// Returns the name of the mount as a client of its server, if the holder has chosen one.
    pub(crate) fn client_owner(&self) -> Result<Option<ClientOwner>, Failure> {
        let owner = self.options.client_owner.as_deref();
        owner.map(str::parse).transpose().map_err(Failure::new)
    }

    /// Returns the file that begins with that name and a newline, if there is one.
    pub(crate) fn client_file(&self) -> Option<OwnedFd> {
        self.ask_for_descriptor(MountRequest::ClientFile).ok()
    }

    /// Returns the socket for requests.
    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns the holder's process id.
    pub(crate) fn id(&self) -> u32 {
        self.options.holder
    }

    /// Returns whether this process is prepared for namespaces.
    pub(crate) fn prepared_namespaces(&self) -> bool {
        self.options.namespaces
    }

    /// Makes this process ask the holder for users and groups.
    pub(crate) fn query_users(self: &Arc<Self>) {
        let holder = self.clone();
        users::ask_with(move |query| {
            let (found, _) = message::ask(holder.channel.as_fd(), &Request::Users(query))?;
            Ok(found)
        });
    }

    /// Returns which of `threads` a signal will end, by their ids in the holder's PID namespace.
    /// False for all if the holder does not answer.
    fn are_ending(&self, threads: &[u32]) -> io::Result<Vec<bool>> {
        let request = Request::Ending(threads.to_vec());
        let (ending, _) = message::ask(self.channel.as_fd(), &request)?;
        Ok(ending)
    }

    fn ask(&self, request: MountRequest) -> io::Result<(Reply, Option<OwnedFd>)> {
        message::ask(self.channel.as_fd(), &Request::Mount(request))
    }

    /// Mounts, read-only if the source is (`read_only`).
    pub(crate) fn mount(&self, read_only: bool) -> Result<(), Failure> {
        let mounted = self.ask(MountRequest::Mount { read_only });
        mounted.map(drop).map_err(Failure::new)
    }

    /// Returns a descriptor to serve.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(MountRequest::Descriptor)
    }

    /// Returns the descriptor to serve with this number, which is the one of an earlier process if
    /// this one [takes over](Holder::takes_over).
    pub(crate) fn serving_channel(&self, number: usize) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(MountRequest::Channel(number))
    }

    /// Returns the memory for records of the mount, those of an earlier process if this one takes
    /// over.
    pub(crate) fn records(&self) -> io::Result<OwnedFd> {
        self.ask_for_descriptor(MountRequest::Records)
    }

    fn ask_for_descriptor(&self, request: MountRequest) -> io::Result<OwnedFd> {
        match self.ask(request)? {
            (Reply::Descriptor, Some(fd)) => Ok(fd),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Returns whether this process continues the mount of an earlier one.
    pub(crate) fn takes_over(&self) -> bool {
        self.options.takes_over
    }

    /// Returns a notifier of the kernel that does not keep this process from ending.
    pub(crate) fn notifier(&self) -> io::Result<Notifier> {
        let socket = self.ask_for_descriptor(MountRequest::Notifier)?;
        Ok(Notifier::relayed(socket))
    }

    /// Returns a keeper of descriptors.
    pub(crate) fn keeper(&self) -> io::Result<Keeper> {
        self.ask_for_descriptor(MountRequest::Keeper)
            .map(Keeper::new)
    }

    /// Returns the descriptors that were kept for an earlier process.
    pub(crate) fn kept(&self) -> io::Result<Vec<OwnedFd>> {
        let mut kept = Vec::new();
        loop {
            match self.ask(MountRequest::Kept(kept.len())) {
                Ok((Reply::Descriptor, Some(file))) => kept.push(file),
                Ok((other, _)) => return Err(unexpected(&other)),
                // There are no more.
                Err(error) if error.raw_os_error().is_none() => return Ok(kept),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reports that the mount of an earlier process cannot be taken over, or that of this process
    /// by another one, because of `why`.
    pub(crate) fn decline(&self, why: Obstacle) -> io::Result<()> {
        self.ask(MountRequest::Decline(why)).map(drop)
    }

    /// Returns the listener of the status page.
    pub(crate) fn listener(&self) -> Result<Listener, Failure> {
        let (addr, socket) = match self.ask(MountRequest::Listener).map_err(Failure::new)? {
            (Reply::Listening(addr), Some(socket)) => (addr, socket),
            (other, _) => return Err(Failure::new(unexpected(&other))),
        };
        let addr = addr.parse().map_err(Failure::new)?;
        Listener::from_fd(socket, &addr).map_err(Failure::new)
    }

    /// Connects to an OpenTelemetry collector.
    #[cfg(feature = "otel")]
    pub(crate) fn connect_collector(
        &self,
        host: &str,
        port: u16,
    ) -> io::Result<std::net::TcpStream> {
        let host = host.to_owned();
        let request = Request::ConnectCollector { host, port };
        match message::ask(self.channel.as_fd(), &request)? {
            (Reply::Descriptor, Some(fd)) => Ok(fd.into()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Reports that the mount is served. In the background, also detaches from the terminal and
    /// from the working directory.
    pub(crate) fn report_ready(&self) -> Result<(), Failure> {
        let report = match self.takes_over() {
            true => MountRequest::TakenOver,
            false => MountRequest::Ready,
        };
        self.ask(report).map_err(Failure::new)?;
        if signals::is_background() {
            background::detach_child().map_err(Failure::new)?;
        }
        Ok(())
    }

    /// Calls `stop` when the holder has unmounted after a signal to stop, and `hand_over` when
    /// another process is to continue. Signals to this process have no effect: service managers
    /// send them to all processes of a service.
    pub(crate) fn on_order(
        self: &Arc<Self>,
        stop: impl FnOnce() + Send + 'static,
        hand_over: impl Fn() + Send + 'static,
    ) -> Result<(), Failure> {
        signals::ignore().map_err(Failure::new)?;
        let holder = self.clone();
        let wait = move || loop {
            match message::receive(holder.channel.as_fd()) {
                Ok((Order::Stop, _)) => return stop(),
                // Returns if it is refused.
                Ok((Order::HandOver, _)) => hand_over(),
                Err(_) => return,
            }
        };
        let thread = std::thread::Builder::new().name("barge-stop".into());
        thread.spawn(wait).map(drop).map_err(Failure::new)
    }
}

/// The threads of programs that use the mount, which a confined process does not see.
impl ClientThreads for Holder {
    fn are_ending(&self, threads: &[u32]) -> Vec<bool> {
        Holder::are_ending(self, threads).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the mounts.
    struct Counter(usize);

    impl HeldMount for Counter {
        fn mount(&mut self, _read_only: bool) -> Result<(), Failure> {
            self.0 += 1;
            Ok(())
        }

        fn descriptor(&mut self) -> io::Result<OwnedFd> {
            Ok(message::pair()?.0)
        }

        fn unmount(&mut self, _ended: &AtomicBool) -> Result<(), Failure> {
            Ok(())
        }
    }

    #[test]
    fn an_installed_program_that_declines_is_replaced_by_the_old_one() {
        let mut mount = Counter(1);
        let mut shared = SharedDescriptors::default();
        assert!(shared.channel(0, &mut mount).is_ok() && shared.records().is_ok());
        let mut held = Held {
            mount: &mut mount,
            shared: Some(shared),
            namespaces: ChildNamespaces::new(None).expect("none"),
            sender: mpsc::channel().0,
            program: None,
            state: State::Ready,
            server: None,
            failures: 0,
            stopping: false,
            upgrading: true,
            declined: None,
            kept: Arc::new(Mutex::new(KeptFiles::new(KeptLimit::for_one_of(1)))),
        };
        let mut decline = || {
            let why = MountRequest::Decline(Obstacle::OtherFormat);
            assert!(held.serve(why).is_ok());
            held.pause_after(End::Exit(1), None)
        };
        assert!(matches!(decline(), Ok(Duration::ZERO)));
        assert!(decline().is_err(), "the old program declines, too");
    }

    #[test]
    fn a_mount_is_made_once() {
        let (mut state, mut mount) = (State::Starting, Counter(0));
        let mut ask = |request| state.serve(request, &mut mount).map(|(reply, _)| reply);
        assert!(ask(MountRequest::Ready).is_err());
        assert!(ask(MountRequest::Mount { read_only: false }).is_ok());
        assert!(ask(MountRequest::Mount { read_only: false }).is_err());
        assert!(ask(MountRequest::Descriptor).is_ok());
        assert!(ask(MountRequest::Listener).is_err());
        assert_eq!(mount.0, 1);
    }
}
