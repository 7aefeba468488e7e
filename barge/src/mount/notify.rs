//! Notification of the kernel about changes of a mounted directory by others.
//!
//! A thread waits for changes and writes the messages of the session (`fuse::server`) to the
//! device. Threads that serve requests never wait for it: the kernel accepts a message about a name
//! only after it has got the replies to requests in that directory. For the same reason the end of
//! a mount does not: the thread keeps neither the source nor the session open, and ends with the
//! process.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fuse::server::{Coverage, Notification, Repeat, Session};
use hostdir::{FileSystemWatch, WriteEvents};
use rustix::io::Errno as Raw;
use rustix::thread::CapabilitySet;
use transports::fusedev::Notifier;
use vfs::{Change, ChangeStream, Errno};

use super::options::ResolvedOptions;

/// Validity of names and attributes while changes are reported. A forgotten change, such as a write
/// through a memory map or a mount in the directory, shows after it at the latest.
const VALIDITY: Duration = Duration::from_secs(60);

/// Times after which a message is sent again, because a reply may be in flight: to one about a node
/// that the kernel does not know after each of them.
const DELAYS: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(50),
    Duration::from_secs(1),
];

/// Index of the time after which a name is let expire once more.
const SECOND_EXPIRY: usize = 1;

/// Maximum number of messages to be sent again after one of the times. Those of a burst beyond it
/// are not, since replies are in flight for moments only.
const MAX_REPEATED: usize = 1 << 14;

/// Begins to watch the file system of a directory that is to be mounted with `options`, before this
/// process loses its privileges. Without them caches are valid for a short time.
pub(super) fn watch(options: &ResolvedOptions) -> Option<Arc<FileSystemWatch>> {
    let writes = options.notify?;
    if !sys::caps::have_all(CapabilitySet::SYS_ADMIN) {
        return None;
    }
    let path = options.source.host_paths().into_iter().next()?;
    match FileSystemWatch::begin(Path::new(&path), writes) {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::info!("{}: no notification of changes: {error}", path.display());
            None
        }
    }
}

/// Returns the validity of caches of a tree on `device`, of which these writes are reported.
pub(super) fn coverage(device: u64, writes: WriteEvents) -> Coverage {
    Coverage {
        device,
        validity: VALIDITY,
        each_write: writes == WriteEvents::Each,
    }
}

/// Starts the thread, which sends messages about `changes` for `session` with `notifier`. If the
/// session was `taken_over`, changes may have been missed: the kernel drops its caches first.
pub(super) fn start(
    changes: Box<dyn ChangeStream>,
    session: &Arc<Session>,
    notifier: Notifier,
    taken_over: bool,
) -> std::io::Result<()> {
    let mut state = State {
        session: Arc::downgrade(session),
        notifier,
        repeated: Default::default(),
    };
    let thread = std::thread::Builder::new().name("barge-notify".into());
    let run = move || {
        if taken_over {
            state.notify(&Change::OVERFLOW);
        }
        state.run(changes);
    };
    thread.spawn(run).map(drop)
}

/// A message to be sent again.
struct Repeated {
    due: Instant,
    notification: Notification,
}

struct State {
    session: Weak<Session>,
    notifier: Notifier,
    /// The messages to be sent again after each of [`DELAYS`], the next one first.
    repeated: [VecDeque<Repeated>; DELAYS.len()],
}

impl State {
    fn run(&mut self, mut changes: Box<dyn ChangeStream>) {
        loop {
            let read = changes.next(self.wait(), &mut |change| self.notify(change));
            match read {
                Ok(()) => self.repeat(),
                Err(Errno::ESTALE) => return,
                Err(errno) => {
                    tracing::warn!("notification of changes has ended: {errno}");
                    break;
                }
            }
        }
        if let Some(session) = self.session.upgrade() {
            session.end_notification(&mut |notification| self.send(notification, DELAYS.len()));
        }
    }

    /// Sends the messages about a change.
    fn notify(&mut self, change: &Change<'_>) {
        if let Some(session) = self.session.upgrade() {
            session.notify(change, &mut |notification| self.send(notification, 0));
        }
    }

    /// Returns the time until the next message is due again.
    fn wait(&self) -> Duration {
        let next = self.repeated.iter().filter_map(VecDeque::front);
        let next = next.map(|repeated| repeated.due).min();
        next.map_or(Duration::MAX, |due| {
            due.saturating_duration_since(Instant::now())
        })
    }

    /// Sends a message that was sent after `delays` of [`DELAYS`].
    fn send(&mut self, notification: Notification, delays: usize) {
        let sent = self.notifier.send(&notification.message);
        let next = match (notification.repeat, sent) {
            (Repeat::IfUnknown, Err(Raw::NOENT)) => delays,
            (Repeat::Once, _) if delays == 0 => SECOND_EXPIRY,
            _ => DELAYS.len(),
        };
        if let Some(queue) = self.repeated.get_mut(next)
            && queue.len() < MAX_REPEATED
        {
            let due = Instant::now() + DELAYS[next];
            queue.push_back(Repeated { due, notification });
        }
        match sent {
            // The name or node is not cached, has children or is a mount point; or the mount is
            // gone.
            Ok(()) | Err(Raw::NOENT | Raw::NOTEMPTY | Raw::BUSY | Raw::NOTDIR) => {}
            Err(Raw::NODEV | Raw::NOTCONN | Raw::PERM) => {}
            Err(error) => tracing::debug!("the kernel refused a notification: {error}"),
        }
    }

    /// Sends the messages that are due again.
    fn repeat(&mut self) {
        let now = Instant::now();
        for delay in 0..DELAYS.len() {
            let is_due = |repeated: &Repeated| repeated.due <= now;
            while self.repeated[delay].front().is_some_and(is_due) {
                if let Some(repeated) = self.repeated[delay].pop_front() {
                    self.send(repeated.notification, delay + 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_expires_once_more() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let mut state = State {
            session: Weak::new(),
            notifier: Notifier::new(writer),
            repeated: Default::default(),
        };
        for (repeat, times) in [
            (Repeat::Never, 1),
            // The pipe knows every node.
            (Repeat::IfUnknown, 1),
            (Repeat::Once, 2),
        ] {
            let message = b"message".to_vec();
            state.send(Notification { message, repeat }, 0);
            while state.wait() < Duration::MAX {
                std::thread::sleep(state.wait());
                state.repeat();
            }
            let mut sent = [0; 64];
            let len = rustix::io::read(&reader, &mut sent).expect("read");
            assert_eq!(sent[..len], b"message".repeat(times), "{repeat:?}");
        }
    }
}
