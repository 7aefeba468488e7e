//! Who listens for the bells of rings whose own threads are away, at something that may take long.
//!
//! One thread sleeps for all of them. Most are back before their bell rings, and that cost two system calls
//! instead of the wake-up of another thread for each such request.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::request::Run;
use crate::workers::Workers;

/// The bells of an engine's rings.
pub(crate) struct Watch {
    epoll: OwnedFd,
    /// Readable when there may be nothing left to listen for.
    end: OwnedFd,
    workers: Arc<Workers>,
    posts: Mutex<Posts>,
}

#[derive(Default)]
struct Posts {
    next: u64,
    by_token: HashMap<u64, Weak<dyn Run>>,
    /// Whether there is a thread. It ends with the last post.
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

    /// Has a worker run `stand_in` when `bell` is readable while the post is armed.
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
        let data = EventData::new_u64(token);
        epoll::add(&self.epoll, &bell, data, EventFlags::ONESHOT)?;
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
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!("queues are not watched: {error}"),
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

/// A ring's place among those listened for, until it is dropped.
pub(crate) struct Post {
    watch: Arc<Watch>,
    token: u64,
    bell: OwnedFd,
}

impl Post {
    /// Listens, until it has rung once.
    pub(crate) fn arm(&self) {
        self.listen_for(EventFlags::IN);
    }

    /// Does not listen any more. It may have rung.
    pub(crate) fn disarm(&self) {
        self.listen_for(EventFlags::empty());
    }

    fn listen_for(&self, events: EventFlags) {
        let data = EventData::new_u64(self.token);
        let events = events | EventFlags::ONESHOT;
        let done = epoll::modify(&self.watch.epoll, self.bell.as_fd(), data, events);
        // Only the memory for an entry could be missing, and that is there since it was entered.
        debug_assert!(done.is_ok(), "{done:?}");
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        let _ = epoll::delete(&self.watch.epoll, &self.bell);
        let mut posts = self.watch.posts();
        posts.by_token.remove(&self.token);
        if posts.by_token.is_empty() {
            let _ = rustix::io::write(&self.watch.end, &1u64.to_ne_bytes());
        }
    }
}
