//! SIGTERM and SIGINT: stop cleanly; a second one: at once. SIGHUP: read certificates again.

use std::sync::Arc;
use std::thread::JoinHandle;

use engine::Engine;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tls::Acceptor;

use crate::Failure;

/// Watches for signals until dropped.
pub(super) struct Watch {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Has the first signal stop `engine`, and the second end the process as signals do. If there is an `acceptor`, SIGHUP
/// has it read its files.
pub(super) fn stop_on_signal(
    engine: Arc<Engine>,
    acceptor: Option<Arc<Acceptor>>,
) -> Result<Watch, Failure> {
    let reload = acceptor.as_ref().map(|_| SIGHUP);
    let watched = [SIGINT, SIGTERM].into_iter().chain(reload);
    let mut signals = Signals::new(watched).map_err(Failure::new)?;
    let handle = signals.handle();
    let thread = std::thread::Builder::new()
        .name("barge-signals".into())
        .spawn(move || {
            let mut stopping = false;
            for signal in signals.forever() {
                if let (SIGHUP, Some(acceptor)) = (signal, &acceptor) {
                    match acceptor.reload() {
                        Ok(()) => tracing::info!("certificates are read again"),
                        Err(why) => tracing::error!("certificates stay as they were: {why}"),
                    }
                    continue;
                }
                if stopping {
                    // Answers only if the signal could not be raised: then go on as before.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                stopping = true;
                tracing::debug!(signal, "stopping");
                engine.stop();
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
            // It cannot have panicked: it only stops an engine.
            let _ = thread.join();
        }
    }
}
