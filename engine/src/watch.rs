//! Watches queue notifications while a queue's thread is busy, and wakes a stand-in.
//!
//! One thread waits for all queues. Most queue threads are back before the next kick, and then it
//! costs two system calls instead of waking another thread for each such request.
//!
//! A notifier is registered only while it is watched. Errors and hang-ups are always reported
//! (epoll_ctl(2)), so a device that wakes its waiters without an event mask, as /dev/fuse does,
//! would wake this thread for each request.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::request::Run;
use crate::workers::Workers;

/// The notifiers of an engine's rings.
pub(crate) struct Watch {
    epoll: OwnedFd,
    /// Readable when there may be no registrations left.
    end: OwnedFd,
    workers: Arc<Workers>,
    posts: Mutex<Posts>,
}

#[derive(Default)]
struct Posts {
    next: u64,
    by_token: HashMap<u64, Weak<dyn Run>>,
    /// Whether the thread runs. It ends with the last registration.
    watched: bool,
}

impl Watch {
    const END: u64 = u64::MAX;

    pub(crate) fn new(workers: &Arc<Workers>) -> io::Result<Arc<Watch>> {
        let watch = Watch {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            end: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            workers: workers.clone(),
            posts: Mutex::default(),
        };
        let data = EventData::new_u64(Watch::END);
        epoll::add(&watch.epoll, &watch.end, data, EventFlags::IN)?;
        Ok(Arc::new(watch))
    }

    /// Registers `bell`: runs `stand_in` on a worker when it is readable while the registration is
    /// armed.
    pub(crate) fn enter(
        self: &Arc<Self>,
        bell: BorrowedFd<'_>,
        stand_in: Weak<dyn Run>,
    ) -> io::Result<Post> {
        let bell = bell.try_clone_to_owned()?;
        let mut posts = self.posts();
        if !posts.watched {
            let watch = self.clone();
            std::thread::Builder::new()
                .name("barge-watch".into())
                .spawn(move || watch.listen())?;
            posts.watched = true;
        }
        let token = posts.next;
        posts.next += 1;
        posts.by_token.insert(token, stand_in);
        drop(posts);
        Ok(Post {
            watch: self.clone(),
            token,
            bell,
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
                if event.data.u64() == Watch::END {
                    let _ = rustix::io::read(&self.end, &mut [0; 8]);
                } else {
                    self.summon(&event);
                }
            }
            let mut posts = self.posts();
            if posts.by_token.is_empty() {
                posts.watched = false;
                return;
            }
        }
    }

    fn summon(&self, event: &Event) {
        let stand_in = self.posts().by_token.get(&event.data.u64()).cloned();
        if let Some(stand_in) = stand_in.and_then(|stand_in| stand_in.upgrade()) {
            self.workers.run(stand_in);
        }
    }

    fn posts(&self) -> MutexGuard<'_, Posts> {
        self.posts.lock().expect("no panic holds it")
    }
}

/// The registration of a ring, until dropped.
pub(crate) struct Post {
    watch: Arc<Watch>,
    token: u64,
    bell: OwnedFd,
}

impl Post {
    /// Watches for a single kick.
    pub(crate) fn arm(&self) {
        let (epoll, data) = (&self.watch.epoll, EventData::new_u64(self.token));
        let once = EventFlags::IN | EventFlags::ONESHOT;
        let done = loop {
            match epoll::add(epoll, &self.bell, data, once) {
                // The one-shot event was reported since the last time, or is still armed.
                Err(Errno::EXIST) => {}
                done => break done,
            }
            match epoll::modify(epoll, &self.bell, data, once) {
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
        let done = epoll::delete(&self.watch.epoll, &self.bell);
        debug_assert!(matches!(done, Ok(()) | Err(Errno::NOENT)), "{done:?}");
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.disarm();
        let mut posts = self.watch.posts();
        posts.by_token.remove(&self.token);
        if posts.by_token.is_empty() {
            let _ = rustix::io::write(&self.watch.end, &1u64.to_ne_bytes());
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
    fn registered(watch: &Watch) -> usize {
        let path = format!("/proc/self/fdinfo/{}", watch.epoll.as_raw_fd());
        let text = std::fs::read_to_string(path).expect("there");
        text.lines().filter(|line| line.starts_with("tfd:")).count()
    }

    #[test]
    fn a_bell_is_registered_only_while_it_is_listened_for() {
        let workers = Workers::new(1, Workers::STUCK).expect("a thread");
        let watch = Watch::new(&workers).expect("made");
        let bell = eventfd(1, EventfdFlags::CLOEXEC).expect("an eventfd");
        let stand_in: Arc<dyn Run> = Arc::new(Nothing);
        let post = watch.enter(bell.as_fd(), Arc::downgrade(&stand_in));
        let post = post.expect("entered");
        assert_eq!(registered(&watch), 1, "its own");
        for _ in 0..2 {
            post.arm();
            assert_eq!(registered(&watch), 2);
            // The kick was reported, or will be.
            post.arm();
            assert_eq!(registered(&watch), 2);
        }
        post.disarm();
        assert_eq!(registered(&watch), 1);
        post.disarm();
    }
}
