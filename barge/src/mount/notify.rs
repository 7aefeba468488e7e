//! Notification of the kernel about changes of a mounted directory by others.
//!
//! A thread waits for changes and writes the messages of the session (`fuse::server`) to the
//! device. Threads that serve requests never wait for it: the kernel accepts a message about a name
//! only after it has got the replies to requests in that directory.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuse::server::{Notification, Session};
use hostdir::FileSystemWatch;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use transports::fusedev::Notifier;
use vfs::{ChangeStream, Errno as Failed};

use super::options::ResolvedOptions;

/// Validity of names and attributes while changes are reported. A forgotten change, such as a write
/// through a memory map or a mount in the directory, shows after it at the latest.
pub(super) const VALIDITY: Duration = Duration::from_secs(60);

/// Maximum time of a wait for changes, after which the end of the mount is noticed.
const WAIT: Duration = Duration::from_millis(100);

/// Times after which a message that the kernel knows no node for is sent again: the reply with the
/// node may be in flight.
const REPEATS: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(50),
    Duration::from_secs(1),
];

/// Maximum number of messages to be sent again. Those of a burst beyond it are not, since replies
/// are in flight for moments only.
const MAX_REPEATED: usize = 1 << 14;

/// Begins to watch the file system of a directory that is to be mounted with `options`, before this
/// process loses its privileges. Without them caches are valid for a short time.
pub(super) fn watch(options: &ResolvedOptions) -> Option<Arc<FileSystemWatch>> {
    if !options.notify || !sys::caps::have_all(CapabilitySet::SYS_ADMIN) {
        return None;
    }
    let path = options.source.host_paths().into_iter().next()?;
    match FileSystemWatch::begin(Path::new(&path)) {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::info!("{}: no notification of changes: {error}", path.display());
            None
        }
    }
}

/// The thread. Dropping it waits until it has ended.
pub(super) struct NotifierThread {
    thread: Option<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
}

impl NotifierThread {
    /// Starts the thread, which sends messages about `changes` for `session` to `device`.
    pub(super) fn start(
        changes: Box<dyn ChangeStream>,
        session: &Arc<Session>,
        device: OwnedFd,
    ) -> std::io::Result<NotifierThread> {
        let ended = Arc::new(AtomicBool::new(false));
        let mut state = State {
            session: Arc::downgrade(session),
            notifier: Notifier::new(device),
            repeated: VecDeque::new(),
        };
        let end = ended.clone();
        let run = move || state.run(changes, &end);
        let thread = std::thread::Builder::new().name("barge-notify".into());
        Ok(NotifierThread {
            thread: Some(thread.spawn(run)?),
            ended,
        })
    }
}

impl Drop for NotifierThread {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // A panic was reported by the thread.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A message to be sent again, and how often it was sent.
struct Repeated {
    due: Instant,
    sent: usize,
    notification: Notification,
}

struct State {
    session: Weak<Session>,
    notifier: Notifier,
    repeated: VecDeque<Repeated>,
}

impl State {
    fn run(&mut self, mut changes: Box<dyn ChangeStream>, end: &AtomicBool) {
        while !end.load(Ordering::Relaxed) {
            let next = self.repeated.iter().map(|repeated| repeated.due).min();
            let wait = next.map_or(WAIT, |due| {
                due.saturating_duration_since(Instant::now()).min(WAIT)
            });
            let read = changes.next(wait, &mut |change| {
                if let Some(session) = self.session.upgrade() {
                    for notification in session.notify(change) {
                        self.send(notification, 0);
                    }
                }
            });
            match read {
                Ok(()) => self.repeat(),
                Err(Failed::ESTALE) => return,
                Err(errno) => {
                    tracing::warn!("notification of changes has ended: {errno}");
                    break;
                }
            }
        }
        if let Some(session) = self
            .session
            .upgrade()
            .filter(|_| !end.load(Ordering::Relaxed))
        {
            for notification in session.end_notification() {
                self.send(notification, REPEATS.len());
            }
        }
    }

    /// Sends a message that was sent `sent` times before.
    fn send(&mut self, notification: Notification, sent: usize) {
        match self.notifier.send(&notification.message) {
            Err(Errno::NOENT) if notification.repeats && sent < REPEATS.len() => {
                if self.repeated.len() < MAX_REPEATED {
                    let due = Instant::now() + REPEATS[sent];
                    let sent = sent + 1;
                    self.repeated.push_back(Repeated {
                        due,
                        sent,
                        notification,
                    });
                }
            }
            // The name or node is not cached, has children or is a mount point; or the mount is
            // gone.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::BUSY | Errno::NOTDIR) => {}
            Err(Errno::NODEV | Errno::NOTCONN | Errno::PERM) => {}
            Err(error) => tracing::debug!("the kernel refused a notification: {error}"),
        }
    }

    /// Sends the messages that are due again.
    fn repeat(&mut self) {
        let now = Instant::now();
        for _ in 0..self.repeated.len() {
            match self.repeated.pop_front() {
                Some(repeated) if repeated.due <= now => {
                    self.send(repeated.notification, repeated.sent);
                }
                Some(repeated) => self.repeated.push_back(repeated),
                None => {}
            }
        }
    }
}
