//! What has to be done though nobody asks: closing what was dropped, and showing the server that its client
//! lives. A thread for each client does it, and takes leave at the end.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use vfs::{Call, Cx};

use super::core::Core;
use super::opens::Closing;

/// What is to be done.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<Todo>,
    bell: Condvar,
}

#[derive(Default)]
struct Todo {
    closing: VecDeque<Closing>,
    stop: bool,
}

impl Queue {
    /// Has something closed.
    pub(super) fn close(&self, closing: Closing) {
        self.todo().closing.push_back(closing);
        self.bell.notify_one();
    }

    fn stop(&self) {
        self.todo().stop = true;
        self.bell.notify_one();
    }

    /// The next to close, waiting until `until` for one; and whether that is all there will be.
    fn next(&self, until: Instant) -> (Option<Closing>, bool) {
        let todo = self.todo();
        let time = until.saturating_duration_since(Instant::now());
        let idle = |todo: &mut Todo| todo.closing.is_empty() && !todo.stop;
        let waited = self.bell.wait_timeout_while(todo, time, idle);
        let (mut todo, _) = waited.expect("no panic holds it");
        let next = todo.closing.pop_front();
        let end = next.is_none() && todo.stop;
        (next, end)
    }

    fn todo(&self) -> MutexGuard<'_, Todo> {
        self.state.lock().expect("no panic holds it")
    }
}

/// The thread. Dropped, it does what is left and takes leave, which is waited for, though not for long.
pub(in crate::nfs) struct Keeper {
    core: Arc<Core>,
    call: Arc<Call>,
    done: Mutex<Receiver<()>>,
}

impl Keeper {
    /// How long the end of a thread is waited for.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// Keeps a client whose server forgets it after `lease`.
    pub(in crate::nfs) fn start(core: Arc<Core>, lease: Duration) -> std::io::Result<Keeper> {
        let (ended, done) = sync_channel(1);
        let call = Arc::new(Call::detached());
        let keeper = Keeper {
            core: core.clone(),
            call: call.clone(),
            done: Mutex::new(done),
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
    }
}

fn keep(core: &Core, call: &Call, rest: Duration) {
    let cx = Cx::new(&core.machine, call);
    let mut next = Instant::now() + rest;
    loop {
        let (closing, end) = core.queue.next(next);
        if let Some(closing) = closing {
            core.close(&cx, &closing);
        }
        if end {
            return core.leave(&cx);
        }
        if Instant::now() >= next {
            if let Err(errno) = core.renew(&cx) {
                tracing::warn!("{}: the lease was not renewed: {errno}", core.peer());
            }
            next = Instant::now() + rest;
        }
    }
}
