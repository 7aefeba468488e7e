//! Background work: closing dropped files, returning recalled delegations, and renewing the lease.
//! One thread per client does it, and destroys the client ID at the end. If callbacks are enabled,
//! another thread receives them while the connection is idle; the first thread carries them out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use vfs::{Call, Cx};

use super::core::Core;
use super::delegations::Delegation;
use super::opens::Closing;
use crate::pipe::rung;

/// The queue of tasks.
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

/// Tasks that a SEQUENCE reply or a new connection calls for.
#[derive(Clone, Copy, Default)]
struct Look {
    /// Whether to bind the backchannel to the current connection.
    bind: bool,
    /// Whether delegations have been revoked.
    revoked: bool,
}

enum Task {
    GiveBack(Delegation),
    Close(Closing),
    Look(Look),
    /// The queue is empty.
    None,
    /// The queue is empty and stopped.
    End,
}

impl Queue {
    /// The shortest time between two of these tasks: the server repeats the flags in each reply.
    const REST: Duration = Duration::from_secs(1);

    /// Queues a file to close.
    pub(super) fn close(&self, closing: Closing) {
        self.todo().closing.push_back(closing);
        self.bell.notify_one();
    }

    /// Queues a delegation to return.
    pub(super) fn give_back(&self, one: Delegation) {
        self.todo().giving.push_back(one);
        self.bell.notify_one();
    }

    /// Queues binding the backchannel, or finding the revoked delegations.
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

    /// Waits until `until` for the next task. Those that others wait for come first.
    fn next(&self, until: Instant) -> Task {
        let mut todo = self.todo();
        let time = until.saturating_duration_since(Instant::now());
        let idle = |todo: &mut Todo| {
            todo.giving.is_empty() && todo.closing.is_empty() && todo.look.is_none() && !todo.stop
        };
        self.bell.wait_while_for(&mut todo, idle, time);
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
        self.state.lock()
    }
}

/// The threads. When dropped, they finish the queue and destroy the client ID, which the drop waits
/// for, but not long.
pub(in crate::nfs) struct Keeper {
    core: Arc<Core>,
    call: Arc<Call>,
    done: Mutex<Receiver<()>>,
    listener: Option<Listener>,
}

impl Keeper {
    /// How long to wait for the end of a thread.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// Starts the threads for a client whose lease time is `lease`.
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
        // Often enough that one renewal may be lost.
        let rest = (lease / 3).max(Duration::from_secs(1));
        std::thread::Builder::new()
            .name("nfs-keeper".into())
            .spawn(move || {
                keep(&core, &call, rest);
                // The drop may have stopped waiting.
                let _ = ended.send(());
            })?;
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.core.queue.stop();
        let done = self.done.get_mut();
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
                // The files that were open with them are closed next.
                core.give_all_back(&cx, left);
            }
        }
        if Instant::now() >= next {
            if let Err(errno) = core.renew(&cx) {
                tracing::warn!("{}: cannot renew the lease: {errno}", core.peer());
            }
            core.give_unused_back(&cx);
            next = Instant::now() + rest;
        }
    }
}

/// The thread that receives callbacks.
struct Listener {
    /// An eventfd that ends the thread.
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
                    tracing::error!("{}: cannot receive callbacks: {error}", core.peer());
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
        // The write fails only when the counter is at its maximum, and then the eventfd is
        // readable.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread has logged its error.
            let _ = thread.join();
        }
    }
}

fn listen(core: &Core, bell: &OwnedFd) -> std::io::Result<()> {
    loop {
        if core.listen(bell.as_fd())? {
            return Ok(());
        }
        // The connection is lost: binding the backchannel needs a request, which reconnects.
        core.queue.look(true, false);
        if rung(bell.as_fd(), Queue::REST)? {
            return Ok(());
        }
    }
}
