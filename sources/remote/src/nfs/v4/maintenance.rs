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
use super::open_state::CloseArgs;
use crate::connection::wait_readable;

/// The queue of tasks.
#[derive(Default)]
pub(super) struct TaskQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    delegations: VecDeque<Delegation>,
    closes: VecDeque<CloseArgs>,
    session_check: Option<SessionCheck>,
    last_session_check: Option<Instant>,
    stop: bool,
}

/// Tasks that a SEQUENCE reply or a new connection calls for.
#[derive(Clone, Copy, Default)]
struct SessionCheck {
    /// Whether to bind the backchannel to the current connection.
    bind: bool,
    /// Whether delegations have been revoked.
    revoked: bool,
}

enum Task {
    ReturnDelegation(Delegation),
    Close(CloseArgs),
    CheckSession(SessionCheck),
    /// The queue is empty.
    Idle,
    /// The queue is empty and stopped.
    End,
}

impl TaskQueue {
    /// The shortest time between two of these tasks: the server repeats the flags in each reply.
    const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

    /// Queues a file to close.
    pub(super) fn close(&self, closing: CloseArgs) {
        self.todo().closes.push_back(closing);
        self.changed.notify_one();
    }

    /// Queues a delegation to return.
    pub(super) fn return_delegation(&self, one: Delegation) {
        self.todo().delegations.push_back(one);
        self.changed.notify_one();
    }

    /// Queues binding the backchannel, or finding the revoked delegations.
    pub(super) fn check_session(&self, bind: bool, revoked: bool) {
        let mut todo = self.todo();
        if todo
            .last_session_check
            .is_some_and(|at| at.elapsed() < TaskQueue::MIN_CHECK_INTERVAL)
        {
            return;
        }
        let look = todo.session_check.get_or_insert_default();
        look.bind |= bind;
        look.revoked |= revoked;
        self.changed.notify_one();
    }

    fn stop(&self) {
        self.todo().stop = true;
        self.changed.notify_one();
    }

    /// Waits until `until` for the next task. Those that others wait for come first.
    fn next(&self, until: Instant) -> Task {
        let mut todo = self.todo();
        let time = until.saturating_duration_since(Instant::now());
        let idle = |todo: &mut QueueState| {
            todo.delegations.is_empty()
                && todo.closes.is_empty()
                && todo.session_check.is_none()
                && !todo.stop
        };
        self.changed.wait_while_for(&mut todo, idle, time);
        if let Some(one) = todo.delegations.pop_front() {
            return Task::ReturnDelegation(one);
        }
        if let Some(look) = todo.session_check.take() {
            todo.last_session_check = Some(Instant::now());
            return Task::CheckSession(look);
        }
        match todo.closes.pop_front() {
            Some(closing) => Task::Close(closing),
            None if todo.stop => Task::End,
            None => Task::Idle,
        }
    }

    fn todo(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }
}

/// The threads. When dropped, they finish the queue and destroy the client ID, which the drop waits
/// for, but not long.
pub(in crate::nfs) struct Maintenance {
    core: Arc<Core>,
    call: Arc<Call>,
    done: Mutex<Receiver<()>>,
    listener: Option<Listener>,
}

impl Maintenance {
    /// How long to wait for the end of a thread.
    const MAX_JOIN_WAIT: Duration = Duration::from_secs(2);

    /// Starts the threads for a client whose lease time is `lease`.
    pub(in crate::nfs) fn start(core: Arc<Core>, lease: Duration) -> std::io::Result<Maintenance> {
        let (ended, done) = sync_channel(1);
        let call = Arc::new(Call::detached());
        let listener = match core.accepts_callbacks() {
            true => Some(Listener::start(core.clone())?),
            false => None,
        };
        let keeper = Maintenance {
            core: core.clone(),
            call: call.clone(),
            done: Mutex::new(done),
            listener,
        };
        // Often enough that one renewal may be lost.
        let rest = (lease / 3).max(Duration::from_secs(1));
        std::thread::Builder::new()
            .name("nfs-maintenance".into())
            .spawn(move || {
                run(&core, &call, rest);
                // The drop may have stopped waiting.
                let _ = ended.send(());
            })?;
        Ok(keeper)
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.core.queue.stop();
        let done = self.done.get_mut();
        if done.recv_timeout(Maintenance::MAX_JOIN_WAIT).is_err() {
            self.call.cancel();
        }
        drop(self.listener.take());
    }
}

fn run(core: &Core, call: &Call, rest: Duration) {
    let cx = Cx::new(&core.machine, call);
    let mut next = Instant::now() + rest;
    loop {
        match core.queue.next(next) {
            Task::ReturnDelegation(one) => core.return_delegations(&cx, [one]),
            Task::Close(closing) => core.close(&cx, &closing),
            Task::CheckSession(look) => {
                if look.bind {
                    core.bind_backchannel(&cx);
                }
                if look.revoked {
                    core.drop_revoked(&cx);
                }
            }
            Task::Idle => {}
            Task::End => {
                let left = core.delegations.take_all();
                if left.is_empty() {
                    return core.destroy_client(&cx);
                }
                // The files that were open with them are closed next.
                core.return_delegations(&cx, left);
            }
        }
        if Instant::now() >= next {
            if let Err(errno) = core.renew(&cx) {
                tracing::warn!("{}: cannot renew the lease: {errno}", core.peer());
            }
            core.return_unused_delegations(&cx);
            next = Instant::now() + rest;
        }
    }
}

/// The thread that receives callbacks.
struct Listener {
    /// An eventfd that ends the thread.
    stop_event: Arc<OwnedFd>,
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
            stop_event: bell,
            thread: Some(thread),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The write fails only when the counter is at its maximum, and then the eventfd is
        // readable.
        let _ = rustix::io::write(&self.stop_event, &1u64.to_ne_bytes());
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
        core.queue.check_session(true, false);
        if wait_readable(bell.as_fd(), TaskQueue::MIN_CHECK_INTERVAL)? {
            return Ok(());
        }
    }
}
