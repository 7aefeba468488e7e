//! The process that mounts the image and reads the events.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, inotify};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, test_kill_process, waitpid};
use serde::{Deserialize, Serialize};
use sys::fanotify::{Event, Group, WaitingRead};

use super::super::MountArgs;
use super::super::options::ResolvedOptions;
use super::reads::Reads;
use super::{Fill, Filled, LIMITS, Notice, Reply, Request, answer, obstacle};
use crate::child::message::{self, ReplySocket};
use crate::child::{ChildNamespaces, End};
use crate::holder::{LazyDescriptors, Stop, start};
use crate::{Failure, background, diagnose, service, signals};

/// Maximum time that a reader waits for its range while no filler runs. A running filler has limits
/// of its own.
const WAIT_FOR_FILLER: Duration = Duration::from_secs(60);

/// Pause before another filler is started if the last one has not become ready. It doubles each
/// time.
const RESTART: Duration = Duration::from_millis(50);
const MAX_RESTART: Duration = Duration::from_secs(10);

/// Interval of the search for readers that have waited too long, and for threads that have ended.
const CHECK_SECONDS: u64 = 1;
const CHECK: Timespec = Timespec {
    tv_sec: CHECK_SECONDS as i64,
    tv_nsec: 0,
};

/// Something that happens to the mount.
enum Happening {
    Request(Request, ReplySocket),
    /// A signal to stop.
    Stop,
    /// A signal to continue as the program that is installed now.
    Upgrade,
    /// The filler has closed its socket.
    Ended,
    /// The file system is mounted nowhere any more.
    Unmounted,
}

/// Mounts the image of the options and holds it until it is unmounted everywhere. Returns nothing
/// if it cannot be mounted so.
pub(crate) fn hold(
    args: &MountArgs,
    options: &ResolvedOptions,
) -> Result<Option<ExitCode>, Failure> {
    let Some(flags) = options.lazy_flags.filter(|_| !args.requires_fuse()) else {
        return Ok(None);
    };
    let passed = PassedMount::of_this_process()?;
    let cache = &options.image_cache;
    let declined = |why: &str| {
        tracing::info!("{}: mounting with FUSE: {why}", args.source);
        Ok(None)
    };
    if let Some(why) = passed.is_none().then(|| obstacle(cache.dir())).flatten() {
        return declined(&why);
    }
    let (sender, happenings) = mpsc::channel();
    let (stop, upgrade) = (sender.clone(), sender.clone());
    let upgrade: signals::Reload = Box::new(move || drop(upgrade.send(Happening::Upgrade)));
    // On a terminal, SIGHUP means that it was closed.
    let upgrade = signals::is_background().then_some(upgrade);
    let handler = signals::on_parents_signal(move || drop(stop.send(Happening::Stop)), upgrade)?;
    let place = Place {
        dir: args.dir.clone(),
        cache_dir: cache.dir().to_owned(),
        flags,
        sender,
    };
    let namespaces = ChildNamespaces::new(options.sandbox)?;
    let mut mount = match passed {
        Some(passed) => Mount::take_over(place, passed)?,
        None => match Mount::new(place) {
            Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
                return declined(LIMITS);
            }
            made => made.map_err(Failure::new)?,
        },
    };
    let end = mount.run(&happenings, namespaces);
    drop(handler);
    match (end?, mount.state) {
        (_, State::Declined(why)) => declined(&why),
        (code, _) => Ok(Some(code)),
    }
}

/// The state of a mount.
enum State {
    Starting,
    Declined(String),
    Mounted,
    Ready,
    Unmounted,
}

/// The place of a mount, and how it is made.
struct Place {
    dir: PathBuf,
    cache_dir: PathBuf,
    flags: MountFlags,
    /// For all that happens there.
    sender: Sender<Happening>,
}

/// A mount as its holder sees it.
struct Mount {
    place: Place,
    state: State,
    file: Option<WatchedFile>,
    events: Arc<Events>,
    /// An inotify(7) queue that watches the root of the mount. Unlike the lists of mounts in /proc
    /// it tells of the last unmount in all mount namespaces.
    unmounts: Arc<OwnedFd>,
    /// The program, by its path: another one may be installed there later.
    program: PathBuf,
}

/// The environment variable with a [`PassedMount`], as JSON.
const PASSED_MOUNT: &str = "BARGE_PASSED_MOUNT";

/// A mount that this process, as the program that was installed before, has passed to itself.
#[derive(Serialize, Deserialize)]
struct PassedMount {
    group: RawFd,
    unmounts: RawFd,
    name: String,
    quiet: RawFd,
    /// The readers that wait.
    waiting: Vec<Fill>,
    /// The readers that were allowed. A program that did not know them passes none.
    #[serde(default)]
    reads: Reads,
    filler: OldFiller,
}

/// The filler of the program that was installed before. It answers in place of this process if that
/// ends before it has taken over.
#[derive(Serialize, Deserialize)]
struct OldFiller {
    id: i32,
    /// The sockets for requests and for ranges.
    channel: RawFd,
    fills: RawFd,
}

impl PassedMount {
    fn of_this_process() -> Result<Option<PassedMount>, Failure> {
        let Some(text) = std::env::var_os(PASSED_MOUNT) else {
            return Ok(None);
        };
        let passed = serde_json::from_slice(text.as_bytes());
        passed
            .map(Some)
            .map_err(|error| Failure::new(format!("{PASSED_MOUNT}: {error}")))
    }
}

/// A process that fills the file.
struct Filler {
    child: Child,
    /// The socket for its requests.
    channel: Arc<OwnedFd>,
}

impl Filler {
    /// Waits for the end of the process, which has closed its socket.
    fn wait(mut self) -> End {
        // A process that keeps running without its socket is of no use.
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => End::of(status),
            Err(error) => End::Crash(format!("is lost: {error}")),
        }
    }
}

/// The local file of the image.
struct WatchedFile {
    name: String,
    /// Reads and writes through it raise no events.
    quiet: File,
}

impl Mount {
    /// Returns a mount that is to be made.
    fn new(place: Place) -> io::Result<Mount> {
        let unmounts = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        let events = Events::new(Group::new()?, BTreeMap::new(), Reads::new());
        Mount::with(place, events, unmounts)
    }

    fn with(place: Place, events: Events, unmounts: OwnedFd) -> io::Result<Mount> {
        Ok(Mount {
            place,
            state: State::Starting,
            file: None,
            events: Arc::new(events),
            unmounts: Arc::new(unmounts),
            program: std::env::current_exe()?,
        })
    }

    /// Continues with the mount that `passed` describes.
    fn take_over(place: Place, passed: PassedMount) -> Result<Mount, Failure> {
        let take = |number| sys::inherit::take(number).map_err(Failure::new);
        let mut waiting = BTreeMap::new();
        for fill in passed.waiting {
            let event = take(fill.event)?;
            waiting.insert(fill.event, Waiting::new(event, fill));
        }
        let events = Events::new(take(passed.group)?.into(), waiting, passed.reads);
        let mount = Mount::with(place, events, take(passed.unmounts)?);
        let mut mount = mount.map_err(Failure::new)?;
        mount.state = State::Ready;
        mount.file = Some(WatchedFile {
            name: passed.name,
            quiet: take(passed.quiet)?.into(),
        });
        mount.await_unmount().map_err(Failure::new)?;
        let old = passed.filler;
        let (_channel, fills) = (take(old.channel)?, take(old.fills)?);
        let id = Pid::from_raw(old.id)
            .ok_or_else(|| Failure::new(format!("{PASSED_MOUNT}: expected the id of a process")))?;
        let events = mount.events.clone();
        events.set_filler(Arc::new(fills)).map_err(Failure::new)?;
        events.start_reading().map_err(Failure::new)?;
        // From here on, this process answers. The old filler may have ended.
        let _ = kill_process(id, Signal::KILL);
        let _ = waitpid(Some(id), WaitOptions::empty());
        tracing::info!(
            "{}: continued by another program",
            mount.place.dir.display()
        );
        Ok(mount)
    }

    /// Executes the program that is installed now, which takes over the mount. Returns only if that
    /// fails. Until then the filler goes on.
    fn upgrade(&self, filler: &Filler) -> io::Error {
        let Some(file) = &self.file else {
            return Errno::NOTCONN.into();
        };
        self.events.stop_reading();
        // No reply is half done while this is locked.
        let state = self.events.state.lock();
        let Some(fills) = &state.filler else {
            return Errno::NOTCONN.into();
        };
        let passed = PassedMount {
            group: self.events.group.as_fd().as_raw_fd(),
            unmounts: self.unmounts.as_raw_fd(),
            name: file.name.clone(),
            quiet: file.quiet.as_raw_fd(),
            waiting: state.waiting.values().map(|reader| reader.fill).collect(),
            reads: state.reads.clone(),
            filler: OldFiller {
                id: Pid::from_child(&filler.child).as_raw_pid(),
                channel: filler.channel.as_raw_fd(),
                fills: fills.as_raw_fd(),
            },
        };
        let events = state.waiting.values().map(|reader| reader.event.as_fd());
        let others = [
            self.events.group.as_fd(),
            self.unmounts.as_fd(),
            file.quiet.as_fd(),
            filler.channel.as_fd(),
            fills.as_fd(),
        ];
        let descriptors: Vec<_> = events.chain(others).collect();
        let executed = || -> io::Result<Infallible> {
            for descriptor in &descriptors {
                sys::inherit::keep_on_exec(*descriptor, true)?;
            }
            let mut command = Command::new(&self.program);
            let mut arguments = std::env::args_os();
            if let Some(name) = arguments.next() {
                command.arg0(name);
            }
            command.args(arguments);
            command.env(PASSED_MOUNT, serde_json::to_string(&passed)?);
            Err(command.exec())
        };
        let Err(error) = executed();
        for descriptor in descriptors {
            // It is open, so that this cannot fail.
            let _ = sys::inherit::keep_on_exec(descriptor, false);
        }
        error
    }

    /// Starts fillers, one after another, and carries out their requests. Returns when the image
    /// was unmounted, or could not be mounted. Once it is mounted, no failure ends the holder.
    fn run(
        &mut self,
        happenings: &Receiver<Happening>,
        namespaces: ChildNamespaces,
    ) -> Result<ExitCode, Failure> {
        let mut filler: Option<Filler> = None;
        let mut start = Instant::now();
        let mut pause = Duration::ZERO;
        loop {
            let happening = match filler {
                Some(_) => happenings
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                None => happenings.recv_timeout(start.saturating_duration_since(Instant::now())),
            };
            match happening {
                Ok(Happening::Request(request, to)) => {
                    if matches!(request, Request::Ready) {
                        pause = Duration::ZERO;
                    }
                    to.reply(self.serve(request));
                }
                Ok(Happening::Upgrade) => {
                    if let (State::Ready, Some(filler)) = (&self.state, &filler) {
                        let error = self.upgrade(filler);
                        tracing::error!("{}: {error}", self.program.display());
                        self.events.resume_reading();
                    }
                }
                Ok(Happening::Stop) => match (&self.state, &mut filler) {
                    (State::Starting | State::Declined(_), Some(filler)) => {
                        filler.child.kill().map_err(Failure::new)?;
                        filler.child.wait().map_err(Failure::new)?;
                        return Ok(ExitCode::SUCCESS);
                    }
                    (State::Starting | State::Declined(_), None) => return Ok(ExitCode::SUCCESS),
                    _ => self.unmount(),
                },
                Ok(Happening::Unmounted) => {
                    self.state = State::Unmounted;
                    let Some(filler) = &filler else {
                        return Ok(ExitCode::SUCCESS);
                    };
                    // It may have ended.
                    let _ = message::send(filler.channel.as_fd(), &Stop, None);
                }
                Ok(Happening::Ended) => {
                    let Some(ended) = filler.take() else { continue };
                    let end = ended.wait();
                    if self.is_mounted() {
                        self.log_restart(end);
                        start = Instant::now() + pause;
                        pause = (pause * 2).clamp(RESTART, MAX_RESTART);
                    } else {
                        return self.ended(end);
                    }
                }
                Err(RecvTimeoutError::Timeout) => match self.start_filler(namespaces) {
                    Ok(started) => filler = Some(started),
                    Err(error) if self.is_mounted() => {
                        tracing::error!("{}: {error}", self.place.dir.display());
                        start = Instant::now() + MAX_RESTART;
                    }
                    Err(error) => return Err(Failure::new(error)),
                },
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("the mount has a sender");
                }
            }
        }
    }

    /// Returns whether readers may wait for answers.
    fn is_mounted(&self) -> bool {
        matches!(self.state, State::Mounted | State::Ready)
    }

    /// Returns the result of this process, whose filler has ended while nothing was mounted.
    fn ended(&self, end: End) -> Result<ExitCode, Failure> {
        match (&self.state, end) {
            (State::Unmounted, _) => Ok(ExitCode::SUCCESS),
            (_, End::Exit(code)) => Ok(ExitCode::from(code)),
            (_, End::Crash(why)) => {
                let text = format!("the process that fills the image {why}");
                Err(Failure::new(text))
            }
        }
    }

    fn log_restart(&self, end: End) {
        let why = match end {
            End::Exit(code) => format!("has ended with status {code}"),
            End::Crash(why) => why,
        };
        tracing::error!(
            "{}: the process that fills the image {why}; it is started again",
            self.place.dir.display()
        );
    }

    /// Starts a filler, and a thread that receives its requests.
    fn start_filler(&self, namespaces: ChildNamespaces) -> io::Result<Filler> {
        let (channel, childs_end) = message::pair()?;
        let channel = Arc::new(channel);
        // Inherited, unlike the originals.
        let group = rustix::io::dup(&self.events.group)?;
        let unmounts = rustix::io::dup(&self.unmounts)?;
        let fills = rustix::io::dup(&self.events.connect()?)?;
        let quiet = self.file.as_ref().map(|file| rustix::io::dup(&file.quiet));
        let quiet = quiet.transpose()?;
        let file = self.file.as_ref().zip(quiet.as_ref());
        let descriptors = LazyDescriptors {
            group: group.as_raw_fd(),
            unmounts: unmounts.as_raw_fd(),
            fills: fills.as_raw_fd(),
            file: file.map(|(file, quiet)| (file.name.clone(), quiet.as_raw_fd())),
        };
        let child = start(childs_end, namespaces, Some(descriptors))?;
        let (requests, sender) = (channel.clone(), self.place.sender.clone());
        let receive = move || {
            while let Ok((request, to)) = message::next_request(requests.as_fd()) {
                let _ = sender.send(Happening::Request(request, to));
            }
            let _ = sender.send(Happening::Ended);
        };
        Builder::new()
            .name("barge-requests".into())
            .spawn(receive)?;
        Ok(Filler { child, channel })
    }

    /// Serves a request. Returns the reply and the descriptor to pass.
    fn serve(&mut self, request: Request) -> io::Result<(Reply, Option<OwnedFd>)> {
        let done = Ok((Reply::Done, None));
        match request {
            Request::Open { name, followed } => {
                let quiet = self.open(&name, followed)?.try_clone()?;
                Ok((Reply::Descriptor, Some(quiet.into())))
            }
            Request::Mount => {
                if matches!(self.state, State::Starting) {
                    self.mount()?;
                    self.state = State::Mounted;
                }
                done
            }
            Request::Ready => {
                if matches!(self.state, State::Mounted) {
                    let failed = |failure: Failure| io::Error::other(failure.message);
                    background::report_ready().map_err(failed)?;
                    service::notify_ready("ready");
                    self.state = State::Ready;
                }
                done
            }
            Request::Complete => {
                let file = self.file.as_ref().ok_or(Errno::PERM)?;
                // Reads are unobserved from now on.
                self.events.state.lock().reads.give_up();
                match self.events.group.remove(file.quiet.as_fd()) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => done,
                }
            }
            Request::Decline(why) => {
                if matches!(self.state, State::Starting) {
                    self.state = State::Declined(why);
                }
                done
            }
        }
    }

    /// Opens the file with this name in the cache's directory and watches it, unless that is done.
    /// Finds out whether reads are over if they are `followed`.
    /// Returns its quiet descriptor.
    fn open(&mut self, name: &str, followed: bool) -> io::Result<&File> {
        if self.file.is_none() {
            // Code that has taken over the filler names no other file.
            let stem = name.strip_suffix(".data").unwrap_or_default();
            if stem.is_empty() || !stem.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(Errno::PERM.into());
            }
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(self.place.cache_dir.join(name), flags, Mode::empty())?;
            self.events.group.add(file.as_fd())?;
            match followed {
                true => self.events.group.add_over(file.as_fd())?,
                false => self.events.state.lock().reads.give_up(),
            }
            let quiet = self.events.group.quiet(file.as_fd())?.into();
            self.events.clone().start_reading()?;
            self.file = Some(WatchedFile {
                name: name.to_owned(),
                quiet,
            });
        }
        let file = self.file.as_ref().expect("it was just set");
        match file.name == name {
            true => Ok(&file.quiet),
            false => Err(Errno::PERM.into()),
        }
    }

    /// Mounts the file, and watches the mount.
    fn mount(&self) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(Errno::PERM)?;
        let flags = self.place.flags | MountFlags::RDONLY;
        let path = self.place.cache_dir.join(&file.name);
        rustix::mount::mount(&path, &self.place.dir, "erofs", flags, None)?;
        let watch = inotify::WatchFlags::DELETE_SELF | inotify::WatchFlags::ONLYDIR;
        let watched = inotify::add_watch(&self.unmounts, &self.place.dir, watch);
        let watched = watched.map_err(io::Error::from);
        watched.and_then(|_| self.await_unmount()).inspect_err(|_| {
            // The error says why the image is not mounted.
            let _ = rustix::mount::unmount(&self.place.dir, UnmountFlags::DETACH);
        })
    }

    /// Starts a thread that waits until the file system is mounted nowhere any more.
    fn await_unmount(&self) -> io::Result<()> {
        let (queue, sender) = (self.unmounts.clone(), self.place.sender.clone());
        let wait = move || {
            wait_for_unmount(queue.as_fd());
            let _ = sender.send(Happening::Unmounted);
        };
        Builder::new().name("barge-unmount".into()).spawn(wait)?;
        Ok(())
    }

    /// Unmounts the directory. The mount goes on as long as programs have files of it open.
    fn unmount(&self) {
        let shown = self.place.dir.display();
        match rustix::mount::unmount(&self.place.dir, UnmountFlags::empty()) {
            Err(Errno::BUSY) => {
                tracing::warn!("{shown}: in use; waiting until its files are closed");
                if let Err(error) = rustix::mount::unmount(&self.place.dir, UnmountFlags::DETACH) {
                    tracing::error!(
                        "{}",
                        diagnose::mount_error(&self.place.dir, "erofs", &error.into())
                    );
                }
            }
            Err(error) => tracing::error!("{shown}: {error}"),
            Ok(()) => {}
        }
    }
}

/// Waits until the file system that `queue` watches is mounted nowhere any more.
pub(super) fn wait_for_unmount(queue: BorrowedFd<'_>) {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut events = inotify::Reader::new(queue, &mut buffer);
    loop {
        match events.next() {
            Ok(event) if event.events().contains(inotify::ReadFlags::UNMOUNT) => return,
            Ok(_) | Err(Errno::INTR) => {}
            // Fails only if the queue is none.
            Err(_) => return,
        }
    }
}

/// The events of the file.
pub(super) struct Events {
    group: Group,
    /// Tells the thread that reads events to end.
    stopping: AtomicBool,
    reader: Mutex<Option<JoinHandle<()>>>,
    state: Mutex<EventState>,
}

#[derive(Default)]
struct EventState {
    /// Readers that wait, by the descriptor of their event.
    waiting: BTreeMap<RawFd, Waiting>,
    /// The socket to the filler.
    filler: Option<Arc<OwnedFd>>,
    /// The thread that receives the filler's replies.
    receiver: Option<JoinHandle<()>>,
    /// Reads that were allowed.
    reads: Reads,
    /// Numbers of reads that are over, for the next message to the filler.
    over: Vec<u64>,
}

impl EventState {
    /// Removes reads that are over with `remove`, which returns their numbers.
    fn end_reads(&mut self, remove: impl FnOnce(&mut Reads) -> Vec<u64>) {
        let over = remove(&mut self.reads);
        self.over.extend(over);
    }
}

struct Waiting {
    /// Keeps the number reserved.
    event: OwnedFd,
    fill: Fill,
    since: Instant,
}

impl Waiting {
    fn new(event: OwnedFd, fill: Fill) -> Waiting {
        Waiting {
            event,
            fill,
            since: Instant::now(),
        }
    }
}

impl Events {
    fn new(group: Group, waiting: BTreeMap<RawFd, Waiting>, reads: Reads) -> Events {
        Events {
            group,
            stopping: AtomicBool::new(false),
            reader: Mutex::default(),
            state: Mutex::new(EventState {
                waiting,
                reads,
                ..EventState::default()
            }),
        }
    }

    /// Starts a thread that reads events and passes them on.
    fn start_reading(self: Arc<Self>) -> io::Result<()> {
        self.stopping.store(false, Ordering::Relaxed);
        let events = self.clone();
        let thread = Builder::new().name("barge-events".into());
        *self.reader.lock() = Some(thread.spawn(move || events.read())?);
        Ok(())
    }

    /// Starts it again, after others: readers wait for it.
    fn resume_reading(self: &Arc<Self>) {
        while let Err(error) = self.clone().start_reading() {
            tracing::error!("events of the image's file: {error}");
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Ends that thread. Further events stay in the queue.
    fn stop_reading(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.lock().take() {
            // A panic is reported by its thread.
            let _ = reader.join();
        }
    }

    /// Reads events and passes them on.
    fn read(&self) {
        let mut checked = Instant::now();
        while !self.stopping.load(Ordering::Relaxed) {
            if checked.elapsed().as_secs() >= CHECK_SECONDS {
                checked = Instant::now();
                self.find_ended_threads();
            }
            let mut ready = [PollFd::new(&self.group, PollFlags::IN)];
            match rustix::io::retry_on_intr(|| poll(&mut ready, Some(&CHECK))) {
                Ok(0) => self.deny_overdue(),
                _ => {
                    if let Err(error) = self.group.read(&mut |event| self.pass_on(event)) {
                        tracing::error!("events of the image's file: {error}");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        }
    }

    fn pass_on(&self, event: Event) {
        match event {
            Event::Waits(read) => self.pass_on_read(read),
            Event::Over { thread } => self.state.lock().end_reads(|reads| reads.end(thread)),
        }
    }

    fn pass_on_read(&self, read: WaitingRead) {
        let mut state = self.state.lock();
        // A thread does one read at a time.
        state.end_reads(|reads| reads.end(read.thread));
        let fill = Fill {
            event: read.file.as_raw_fd(),
            start: read.range.start,
            end: read.range.end,
            thread: read.thread,
            number: state.reads.next(),
        };
        let waiting = Waiting::new(read.file, fill);
        state.waiting.insert(fill.event, waiting);
        let notice = Notice::Fill(fill, std::mem::take(&mut state.over));
        let filler = state.filler.clone();
        drop(state);
        // A filler that has ended is replaced, and gets it again.
        let _ = filler.map(|filler| message::send(filler.as_fd(), &notice, None));
    }

    /// Ends the reads of threads that have ended: one that fails raises no further event. Tells the
    /// filler which reads are over.
    fn find_ended_threads(&self) {
        let exists = |thread| match Pid::from_raw(thread) {
            Some(id) => test_kill_process(id) != Err(Errno::SRCH),
            None => true,
        };
        let (over, filler) = {
            let mut state = self.state.lock();
            state.end_reads(|reads| reads.end_without(exists));
            (std::mem::take(&mut state.over), state.filler.clone())
        };
        if let (false, Some(filler)) = (over.is_empty(), filler) {
            // Another filler is not told of them.
            let _ = message::send(filler.as_fd(), &Notice::Over(over), None);
        }
    }

    /// Returns the filler's end of a new socket, and passes on what waits. The last filler has
    /// ended.
    fn connect(self: &Arc<Self>) -> io::Result<OwnedFd> {
        // All its replies are taken first: a second reply to the same event might otherwise answer
        // a later one that has the same number.
        let receiver = self.state.lock().receiver.take();
        if let Some(receiver) = receiver {
            // A panic is reported by its thread.
            let _ = receiver.join();
        }
        let (here, there) = message::pair()?;
        let here = Arc::new(here);
        let receiver = self.start_receiving(here.clone())?;
        let fills: Vec<Fill> = {
            let mut state = self.state.lock();
            let known = state.reads.complete.then(|| state.reads.ranges());
            // An empty socket does not block.
            if message::send(here.as_fd(), &Notice::Reads(known), None).is_err() {
                // Its buffer is smaller than by default.
                state.reads.give_up();
                message::send(here.as_fd(), &Notice::Reads(None), None)?;
            }
            state.over.clear();
            state.filler = Some(here.clone());
            state.receiver = Some(receiver);
            let now = Instant::now();
            let waiting = state.waiting.values_mut();
            waiting
                .map(|waiting| {
                    waiting.since = now;
                    waiting.fill
                })
                .collect()
        };
        // The socket's buffer may be smaller than what waits.
        let send = move || {
            for fill in fills {
                if message::send(here.as_fd(), &Notice::Fill(fill, Vec::new()), None).is_err() {
                    return;
                }
            }
        };
        Builder::new().name("barge-fills".into()).spawn(send)?;
        Ok(there)
    }

    /// Makes `socket` that of the filler, and starts a thread that receives its replies.
    fn set_filler(self: &Arc<Self>, socket: Arc<OwnedFd>) -> io::Result<()> {
        let receiver = self.start_receiving(socket.clone())?;
        let mut state = self.state.lock();
        state.receiver = Some(receiver);
        state.filler = Some(socket);
        Ok(())
    }

    fn start_receiving(self: &Arc<Self>, socket: Arc<OwnedFd>) -> io::Result<JoinHandle<()>> {
        let events = self.clone();
        let receive = move || events.receive(&socket);
        Builder::new().name("barge-filled".into()).spawn(receive)
    }

    /// Answers what the filler at the other end of `socket` has filled, until that ends.
    fn receive(&self, socket: &Arc<OwnedFd>) {
        loop {
            match message::receive::<Filled>(socket.as_fd()) {
                Ok((Filled { event, done }, _)) => {
                    let mut state = self.state.lock();
                    let was_complete = state.reads.complete;
                    let waiting = state.waiting.remove(&event);
                    if let Some(waiting) = &waiting {
                        if done {
                            state.reads.allow(&waiting.fill);
                        }
                        // Fails if the reader was killed.
                        let _ = self.group.answer(event, answer(done));
                    }
                    // The number may be used again after the answer.
                    drop(waiting);
                    let gave_up = was_complete && !state.reads.complete;
                    drop(state);
                    if gave_up {
                        let _ = message::send(socket.as_fd(), &Notice::Unknown, None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => break,
            }
        }
        let mut state = self.state.lock();
        if state
            .filler
            .as_ref()
            .is_some_and(|filler| Arc::ptr_eq(filler, socket))
        {
            state.filler = None;
        }
    }

    /// Denies reads that have waited too long while no filler runs.
    fn deny_overdue(&self) {
        let overdue: Vec<Waiting> = {
            let mut state = self.state.lock();
            if state.filler.is_some() {
                return;
            }
            let waiting = state.waiting.values();
            let late = waiting.filter(|waiting| waiting.since.elapsed() > WAIT_FOR_FILLER);
            let late: Vec<RawFd> = late.map(|waiting| waiting.fill.event).collect();
            let late = late.iter();
            late.filter_map(|event| state.waiting.remove(event))
                .collect()
        };
        for waiting in overdue {
            let _ = self.group.answer(waiting.fill.event, answer(false));
        }
    }
}
