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
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, inotify};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use sources::ImageUser;
use sys::fanotify::Group;

use super::super::options::ResolvedOptions;
use super::super::{Backend, MountArgs};
use super::events::{Events, Waiting};
use super::reads::Reads;
use super::{Fill, LIMITS, Reply, Request, obstacle};
use crate::child::message::{self, ReplySocket};
use crate::child::{ChildNamespaces, End};
use crate::holder::{LazyDescriptors, LazyFile, Stop, start};
use crate::{Failure, arguments, background, diagnose, service, signals};

/// Pause before another filler is started if the last one has not become ready. It doubles each
/// time.
const RESTART: Duration = Duration::from_millis(50);
const MAX_RESTART: Duration = Duration::from_secs(10);

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
        tracing::debug!("{}: mounting with FUSE: {why}", args.source.shown());
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
        ready: args.ready_text(Backend::Erofs, true),
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
        (_, State::Declined) => declined("the process that fills it declines"),
        (code, _) => Ok(Some(code)),
    }
}

/// The state of a mount.
enum State {
    Starting,
    Declined,
    Mounted,
    Ready,
    Unmounted,
}

/// The place of a mount, and how it is made.
struct Place {
    dir: PathBuf,
    cache_dir: PathBuf,
    flags: MountFlags,
    /// The text that reports that it is ready.
    ready: String,
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
    user: RawFd,
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
    /// Keeps the image in use in the disk cache, also while no filler runs.
    user: ImageUser,
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
            user: take(passed.user)?.into(),
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
            user: file.user.as_fd().as_raw_fd(),
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
            file.user.as_fd(),
            filler.channel.as_fd(),
            fills.as_fd(),
        ];
        let descriptors: Vec<_> = events.chain(others).collect();
        let executed = || -> io::Result<Infallible> {
            for descriptor in &descriptors {
                sys::inherit::keep_on_exec(*descriptor, true)?;
            }
            let mut command = Command::new(&self.program);
            let mut arguments = arguments::of_this_process().into_iter();
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
                    (State::Starting | State::Declined, Some(filler)) => {
                        filler.child.kill().map_err(Failure::new)?;
                        filler.child.wait().map_err(Failure::new)?;
                        return Ok(ExitCode::SUCCESS);
                    }
                    (State::Starting | State::Declined, None) => return Ok(ExitCode::SUCCESS),
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
        if let Some(file) = &self.file {
            // The last filler may have ended during an eviction.
            file.user.share()?;
        }
        // Inherited, unlike the originals.
        let group = rustix::io::dup(&self.events.group)?;
        let unmounts = rustix::io::dup(&self.unmounts)?;
        let fills = rustix::io::dup(&self.events.connect()?)?;
        let copies = |file: &WatchedFile| -> io::Result<(String, OwnedFd, OwnedFd)> {
            let (quiet, user) = (rustix::io::dup(&file.quiet)?, rustix::io::dup(&file.user)?);
            Ok((file.name.clone(), quiet, user))
        };
        let file = self.file.as_ref().map(copies).transpose()?;
        let descriptors = LazyDescriptors {
            group: group.as_raw_fd(),
            unmounts: unmounts.as_raw_fd(),
            fills: fills.as_raw_fd(),
            file: file.as_ref().map(|(name, quiet, user)| LazyFile {
                name: name.clone(),
                quiet: quiet.as_raw_fd(),
                user: user.as_raw_fd(),
            }),
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
            Request::User => {
                let file = self.file.as_ref().ok_or(Errno::PERM)?;
                Ok((Reply::Descriptor, Some(rustix::io::dup(&file.user)?)))
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
                    background::report_ready(&self.place.ready).map_err(failed)?;
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
            Request::Decline => {
                if matches!(self.state, State::Starting) {
                    self.state = State::Declined;
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
            let user = ImageUser::open(&self.place.cache_dir, name)?;
            self.events.clone().start_reading()?;
            self.file = Some(WatchedFile {
                name: name.to_owned(),
                quiet,
                user,
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
