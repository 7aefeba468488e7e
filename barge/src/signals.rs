//! SIGTERM and SIGINT: stop cleanly; a second one: at once.

use std::thread::JoinHandle;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::Failure;

/// Watches for signals until dropped.
pub(crate) struct Watch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Has the first signal call `stop`, and the second end the process as signals do.
pub(crate) fn on_signal(stop: impl Fn() + Send + 'static) -> Result<Watch, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::new)?;
    let handle = signals.handle();
    let thread = std::thread::Builder::new()
        .name("barge-signals".into())
        .spawn(move || {
            let mut stopping = false;
            for signal in signals.forever() {
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
