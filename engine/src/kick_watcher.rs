//! Watches queue notifications while a queue's thread is busy, and wakes a stand-in.
//!
//! One thread waits for all queues. Most queue threads are back before the next kick, and then it
//! costs two system calls instead of waking another thread for each such request.
//!
//! A notifier is in the epoll set only while its registration is armed. Errors and hang-ups are
//! always reported (epoll_ctl(2)), so a device that wakes its waiters without an event mask, as
//! /dev/fuse does, would wake this thread for each request.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::workers::{Run, Workers};

/// Watches the notifiers of an engine's rings, on a thread that exists while there are any.
pub(crate) struct KickWatcher {
    epoll: OwnedFd,
    /// Readable when there may be no registrations left.
    end: OwnedFd,
    workers: Arc<Workers>,
    registrations: Mutex<Registrations>,
}

#[derive(Default)]
struct Registrations {
    next: u64,
    by_token: HashMap<u64, Weak<dyn Run>>,
    /// Whether the thread runs. It ends with the last registration.
    running: bool,
}

impl KickWatcher {
    const END: u64 = u64::MAX;

    pub(crate) fn new(workers: &Arc<Workers>) -> io::Result<Arc<KickWatcher>> {
        let watcher = KickWatcher {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            end: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            workers: workers.clone(),
            registrations: Mutex::default(),
        };
        let data = EventData::new_u64(KickWatcher::END);
        epoll::add(&watcher.epoll, &watcher.end, data, EventFlags::IN)?;
        Ok(Arc::new(watcher))
    }

    /// Registers `notifier`: runs `stand_in` on a worker when it is readable while the registration
    /// is armed.
    pub(crate) fn register(
        self: &Arc<Self>,
        notifier: BorrowedFd<'_>,
        stand_in: Weak<dyn Run>,
    ) -> io::Result<Registration> {
        let notifier = notifier.try_clone_to_owned()?;
        let mut registrations = self.registrations();
        if !registrations.running {
            let watcher = self.clone();
            std::thread::Builder::new()
                .name("barge-watch".into())
                .spawn(move || watcher.listen())?;
            registrations.running = true;
        }
        let token = registrations.next;
        registrations.next += 1;
        registrations.by_token.insert(token, stand_in);
        drop(registrations);
        Ok(Registration {
            watcher: self.clone(),
            token,
            notifier,
        })
    }

    fn listen(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            let buffer = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, buffer, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::error!("cannot watch queue notifications: {error}"),
            }
            for event in events.drain(..) {
                if event.data.u64() == KickWatcher::END {
                    let _ = rustix::io::read(&self.end, &mut [0; 8]);
                } else {
                    self.wake(&event);
                }
            }
            let mut registrations = self.registrations();
            if registrations.by_token.is_empty() {
                registrations.running = false;
                return;
            }
        }
    }

    /// Queues the stand-in of a ring for a worker.
    fn wake(&self, event: &Event) {
        let stand_in = self
            .registrations()
            .by_token
            .get(&event.data.u64())
            .cloned();
        if let Some(stand_in) = stand_in.and_then(|stand_in| stand_in.upgrade()) {
            self.workers.run(stand_in);
        }
    }

    fn registrations(&self) -> MutexGuard<'_, Registrations> {
        self.registrations.lock()
    }
}

/// The registration of a ring, until dropped.
pub(crate) struct Registration {
    watcher: Arc<KickWatcher>,
    token: u64,
    notifier: OwnedFd,
}

impl Registration {
    /// Watches for a single kick.
    pub(crate) fn arm(&self) {
        let (epoll, data) = (&self.watcher.epoll, EventData::new_u64(self.token));
        let once = EventFlags::IN | EventFlags::ONESHOT;
        let done = loop {
            match epoll::add(epoll, &self.notifier, data, once) {
                // The one-shot event was reported since the last time, or is still armed.
                Err(Errno::EXIST) => {}
                done => break done,
            }
            match epoll::modify(epoll, &self.notifier, data, once) {
                // Disarmed meanwhile, by a queue thread that is back.
                Err(Errno::NOENT) => {}
                done => break done,
            }
        };
        if let Err(error) = done {
            // The ring's own thread serves the requests when it is back.
            tracing::warn!("no stand-in for a queue whose thread is busy: {error}");
        }
    }

    /// Stops watching. A kick may have been reported already.
    pub(crate) fn disarm(&self) {
        let done = epoll::delete(&self.watcher.epoll, &self.notifier);
        debug_assert!(matches!(done, Ok(()) | Err(Errno::NOENT)), "{done:?}");
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.disarm();
        let mut registrations = self.watcher.registrations();
        registrations.by_token.remove(&self.token);
        if registrations.by_token.is_empty() {
            let _ = rustix::io::write(&self.watcher.end, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use transports::Outbox;

    use super::*;
    use vfs::PeerKey;

    struct Nothing;

    impl Run for Nothing {
        fn run(self: Arc<Self>, _: &mut Outbox) {}

        fn wake(self: Arc<Self>) {}

        fn owner(&self) -> PeerKey {
            PeerKey::Device(0)
        }
    }

    /// Returns the number of descriptors registered in the epoll instance (proc_pid_fdinfo(5)).
    fn registered(watcher: &KickWatcher) -> usize {
        let path = format!("/proc/self/fdinfo/{}", watcher.epoll.as_raw_fd());
        let text = std::fs::read_to_string(path).expect("there");
        text.lines().filter(|line| line.starts_with("tfd:")).count()
    }

    #[test]
    fn a_notifier_is_in_the_epoll_set_only_while_armed() {
        let workers = Workers::new(1, Workers::STUCK_AFTER).expect("a thread");
        let watcher = KickWatcher::new(&workers).expect("made");
        let notifier = eventfd(1, EventfdFlags::CLOEXEC).expect("an eventfd");
        let stand_in: Arc<dyn Run> = Arc::new(Nothing);
        let registration = watcher.register(notifier.as_fd(), Arc::downgrade(&stand_in));
        let registration = registration.expect("registered");
        assert_eq!(registered(&watcher), 1, "its own");
        for _ in 0..2 {
            registration.arm();
            assert_eq!(registered(&watcher), 2);
            // The kick was reported, or will be.
            registration.arm();
            assert_eq!(registered(&watcher), 2);
        }
        registration.disarm();
        assert_eq!(registered(&watcher), 1);
        registration.disarm();
    }
}
