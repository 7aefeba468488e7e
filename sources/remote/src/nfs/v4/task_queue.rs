//! The queue of the maintenance thread: files to close, delegations to return, and checks of the
//! session.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::delegation_table::Delegation;
use super::open_state::CloseArgs;

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
pub(super) struct SessionCheck {
    /// Whether to bind the backchannel to the current connection.
    pub(super) bind: bool,
    /// Whether delegations have been revoked.
    pub(super) revoked: bool,
}

pub(super) enum Task {
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
    pub(super) const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

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

    pub(super) fn stop(&self) {
        self.todo().stop = true;
        self.changed.notify_one();
    }

    /// Waits until `until` for the next task. Those that others wait for come first.
    pub(super) fn next(&self, until: Instant) -> Task {
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
