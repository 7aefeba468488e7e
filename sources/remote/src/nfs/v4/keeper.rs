//! What has to be done though nobody asks: closing what was dropped, giving back what the server wants, and showing
//! it that its client lives. A thread for each client does it, and takes leave at the end. Where the server may call,
//! another hears it while nobody else does; what it asks for is the first one's to do.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use vfs::{Call, Cx};

use super::core::Core;
use super::delegations::Delegation;
use super::opens::Closing;
use crate::pipe::rung;

/// What is to be done.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<Todo>,
    bell: Condvar,
}

#[derive(Default)]
struct Todo {
    giving: VecDeque<Delegation>,
    closing: VecDeque<Closing>,
    look: Option<Look>,
    looked: Option<Instant>,
    stop: bool,
}

/// What is to be looked after.
#[derive(Clone, Copy, Default)]
struct Look {
    /// The server has to be told by what connection to call.
    bind: bool,
    /// Delegations have been taken away.
    revoked: bool,
}

enum Task {
    GiveBack(Delegation),
    Close(Closing),
    Look(Look),
    /// There is nothing for now.
    None,
    /// There will be nothing more.
    End,
}

impl Queue {
    /// How often is looked after the same at most: a server that says it with each answer is not to be asked with each.
    const REST: Duration = Duration::from_secs(1);

    /// Has something closed.
    pub(super) fn close(&self, closing: Closing) {
        self.todo().closing.push_back(closing);
        self.bell.notify_one();
    }

    /// Has a delegation given back.
    pub(super) fn give_back(&self, one: Delegation) {
        self.todo().giving.push_back(one);
        self.bell.notify_one();
    }

    /// Has the server told by what connection to call, or found out what it has taken away.
    pub(super) fn look(&self, bind: bool, revoked: bool) {
        let mut todo = self.todo();
        if todo.looked.is_some_and(|at| at.elapsed() < Queue::REST) {
            return;
        }
        let look = todo.look.get_or_insert_default();
        look.bind |= bind;
        look.revoked |= revoked;
        self.bell.notify_one();
    }

    fn stop(&self) {
        self.todo().stop = true;
        self.bell.notify_one();
    }

    /// What is next, waiting until `until` for it. What others wait for comes first.
    fn next(&self, until: Instant) -> Task {
        let todo = self.todo();
        let time = until.saturating_duration_since(Instant::now());
        let idle = |todo: &mut Todo| {
            todo.giving.is_empty() && todo.closing.is_empty() && todo.look.is_none() && !todo.stop
        };
        let waited = self.bell.wait_timeout_while(todo, time, idle);
        let (mut todo, _) = waited.expect("no panic holds it");
        if let Some(one) = todo.giving.pop_front() {
            return Task::GiveBack(one);
        }
        if let Some(look) = todo.look.take() {
            todo.looked = Some(Instant::now());
            return Task::Look(look);
        }
        match todo.closing.pop_front() {
            Some(closing) => Task::Close(closing),
            None if todo.stop => Task::End,
            None => Task::None,
        }
    }

    fn todo(&self) -> MutexGuard<'_, Todo> {
        self.state.lock().expect("no panic holds it")
    }
}

/// The threads. Dropped, they do what is left and take leave, which is waited for, though not for long.
pub(in crate::nfs) struct Keeper {
    core: Arc<Core>,
    call: Arc<Call>,
    done: Mutex<Receiver<()>>,
    listener: Option<Listener>,
}

impl Keeper {
    /// How long the end of a thread is waited for.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// Keeps a client whose server forgets it after `lease`.
    pub(in crate::nfs) fn start(core: Arc<Core>, lease: Duration) -> std::io::Result<Keeper> {
        let (ended, done) = sync_channel(1);
        let call = Arc::new(Call::detached());
        let listener = match core.is_called_back() {
            true => Some(Listener::start(core.clone())?),
            false => None,
        };
        let keeper = Keeper {
            core: core.clone(),
            call: call.clone(),
            done: Mutex::new(done),
            listener,
        };
        // Often enough that one may be lost.
        let rest = (lease / 3).max(Duration::from_secs(1));
        std::thread::Builder::new()
            .name("nfs-keeper".into())
            .spawn(move || {
                keep(&core, &call, rest);
                // Whoever waited may have given up.
                let _ = ended.send(());
            })?;
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.core.queue.stop();
        let done = self.done.get_mut().expect("no panic holds it");
        if done.recv_timeout(Keeper::PATIENCE).is_err() {
            self.call.cancel();
        }
        drop(self.listener.take());
    }
}

fn keep(core: &Core, call: &Call, rest: Duration) {
    let cx = Cx::new(&core.machine, call);
    let mut next = Instant::now() + rest;
    loop {
        match core.queue.next(next) {
            Task::GiveBack(one) => core.give_all_back(&cx, [one]),
            Task::Close(closing) => core.close(&cx, &closing),
            Task::Look(look) => {
                if look.bind {
                    core.bind(&cx);
                }
                if look.revoked {
                    core.find_revoked(&cx);
                }
            }
            Task::None => {}
            Task::End => {
                let left = core.delegations.take_all();
                if left.is_empty() {
                    return core.leave(&cx);
                }
                // What is open by them is closed next.
                core.give_all_back(&cx, left);
            }
        }
        if Instant::now() >= next {
            if let Err(errno) = core.renew(&cx) {
                tracing::warn!("{}: the lease was not renewed: {errno}", core.peer());
            }
            core.give_unused_back(&cx);
            next = Instant::now() + rest;
        }
    }
}

/// The thread that hears the server.
struct Listener {
    /// Readable when it is to end.
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(core: Arc<Core>) -> std::io::Result<Listener> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let rings = bell.clone();
        let thread = std::thread::Builder::new()
            .name("nfs-listener".into())
            .spawn(move || {
                if let Err(error) = listen(&core, &rings) {
                    tracing::error!("{}: it is not heard: {error}", core.peer());
                }
            })?;
        Ok(Listener {
            bell,
            thread: Some(thread),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails only when the counter is full, and then it is set.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It has said why.
            let _ = thread.join();
        }
    }
}

fn listen(core: &Core, bell: &OwnedFd) -> std::io::Result<()> {
    loop {
        if core.listen(bell.as_fd())? {
            return Ok(());
        }
        // The connection is lost: to be told by what other to call, the server is asked by that.
        core.queue.look(true, false);
        if rung(bell.as_fd(), Queue::REST)? {
            return Ok(());
        }
    }
}
