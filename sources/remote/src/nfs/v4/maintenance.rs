//! Background work: the tasks of the queue (`task_queue`), and renewing the lease. One thread per
//! client does it, and destroys the client ID at the end. If callbacks are enabled,
//! another thread receives them while the connection is idle; the first thread carries them out.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use transports::Event;
use vfs::fd::AsFd;
use vfs::{Call, Cx};

use super::core::Core;
use super::task_queue::{Task, TaskQueue};
use crate::connection::wait_readable;

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
            if let Err(errno) = core.reopen_refused(&cx) {
                tracing::warn!("{}: cannot open files again: {errno}", core.peer());
            }
            next = Instant::now() + rest;
        }
    }
}

/// The thread that receives callbacks.
struct Listener {
    /// Ends the thread.
    stop_event: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(core: Arc<Core>) -> std::io::Result<Listener> {
        let stop_event = Arc::new(Event::new()?);
        let rings = stop_event.clone();
        let thread = std::thread::Builder::new()
            .name("nfs-listener".into())
            .spawn(move || {
                if let Err(error) = listen(&core, &rings) {
                    tracing::error!("{}: cannot receive callbacks: {error}", core.peer());
                }
            })?;
        Ok(Listener {
            stop_event,
            thread: Some(thread),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop_event.set();
        if let Some(thread) = self.thread.take() {
            // The thread has logged its error.
            let _ = thread.join();
        }
    }
}

fn listen(core: &Core, stop_event: &Event) -> std::io::Result<()> {
    loop {
        if core.listen(stop_event.as_fd())? {
            return Ok(());
        }
        // The connection is lost: binding the backchannel needs a request, which reconnects.
        core.queue.check_session(true, false);
        if wait_readable(stop_event.as_fd(), TaskQueue::MIN_CHECK_INTERVAL)? {
            return Ok(());
        }
    }
}
