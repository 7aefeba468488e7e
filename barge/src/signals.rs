//! SIGTERM and SIGINT: stop cleanly; a second one: at once. SIGHUP: what was read from files is read again.

use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::Failure;

/// What reads files again.
pub(crate) type Reload = Box<dyn Fn() + Send>;

/// Watches for signals until dropped.
pub(crate) struct Watch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Has the first signal call `stop`, and the second end the process as signals do. SIGHUP calls `reload`, if there is that.
pub(crate) fn on_signal(
    stop: impl Fn() + Send + 'static,
    reload: Option<Reload>,
) -> Result<Watch, Failure> {
    let hangup = reload.as_ref().map(|_| SIGHUP);
    let watched = [SIGINT, SIGTERM].into_iter().chain(hangup);
    let mut signals = Signals::new(watched).map_err(Failure::new)?;
    let handle = signals.handle();
    let thread = std::thread::Builder::new()
        .name("barge-signals".into())
        .spawn(move || {
            let mut stopping = false;
            for signal in signals.forever() {
                if let (SIGHUP, Some(reload)) = (signal, &reload) {
                    reload();
                    continue;
                }
                if stopping {
                    // Answers only if the signal could not be raised: then go on as before.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                stopping = true;
                tracing::debug!(signal, "stopping");
                stop();
            }
        })
        .map_err(Failure::new)?;
    Ok(Watch {
        handle,
        thread: Some(thread),
    })
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked: it only calls what stops.
            let _ = thread.join();
        }
    }
}
