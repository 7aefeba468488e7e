//! SIGTERM and SIGINT stop cleanly; a second one ends the process at once. SIGHUP reads the
//! configuration again.
//!
//! Each program calls [`prepare`] first. A write beyond RLIMIT_FSIZE then fails with `EFBIG`, which
//! a server passes on to the client: SIGXFSZ would end the process, and with it the connections of
//! all others. (The standard library ignores SIGPIPE.) A process that serves is also not stopped
//! when it logs to a terminal from the background (SIGTTOU), and not ended by SIGUSR1 or SIGUSR2,
//! which scripts send to any daemon. Programs that a process starts get the default actions:
//! handlers end with execve(2), and [`child`](mod@crate::child) resets the rest.
//!
//! Without a configuration file, SIGHUP means that the terminal was closed: a server on a terminal
//! stops cleanly. Elsewhere it is a request to reload, which service managers and scripts send to
//! any daemon; it is ignored with a line in the log. If SIGHUP was ignored from the start
//! (nohup(1)), it stays ignored.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::{Handle, Signals};

use crate::Failure;

/// The environment variable that marks a process in the background.
pub const IN_BACKGROUND: &str = "BARGE_IN_BACKGROUND";

/// Time for open files of a mount to be closed after a signal to stop.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A function that reads the configuration again.
pub type Reload = Box<dyn Fn() + Send>;

/// A handler of signals, until dropped. A reload that runs then continues.
pub struct SignalHandler {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Prepares the process before it starts a thread: what its parent blocked or ignored does not
/// disable it, and a limit of the size of files does not end it.
pub fn prepare() {
    let prepared = sys::signals::reset_inherited().and_then(|()| {
        // A handler, which no child inherits.
        signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
    });
    // Neither call fails for a signal that exists.
    prepared.expect("signals have actions");
}

/// Calls `stop` at the first signal, and ends the process with the default action at the second.
/// SIGHUP calls `reload`, if there is one. Returns an error if the process cannot handle signals or
/// start a thread.
pub fn on_signal(
    stop: impl Fn() + Send + 'static,
    reload: Option<Reload>,
) -> Result<SignalHandler, Failure> {
    handle(stop, reload, true)
}

/// Does the same for a process whose parent passes signals on, and ends it at the second one. A
/// service manager may send signals to both.
pub fn on_parents_signal(
    stop: impl Fn() + Send + 'static,
    reload: Option<Reload>,
) -> Result<SignalHandler, Failure> {
    handle(stop, reload, false)
}

/// Calls `upgrade` at each SIGUSR2.
pub fn on_upgrade(upgrade: impl Fn() + Send + 'static) -> Result<SignalHandler, Failure> {
    let mut signals = Signals::new([SIGUSR2]).map_err(Failure::new)?;
    let handle = signals.handle();
    let thread = std::thread::Builder::new().name("barge-upgrade".into());
    let thread = thread.spawn(move || signals.forever().for_each(|_| upgrade()));
    Ok(SignalHandler {
        handle,
        thread: Some(thread.map_err(Failure::new)?),
    })
}

/// Handles signals. `ends_at_second` says whether the second one ends the process.
fn handle(
    stop: impl Fn() + Send + 'static,
    reload: Option<Reload>,
    ends_at_second: bool,
) -> Result<SignalHandler, Failure> {
    let hangup = (reload.is_some() || !is_ignored(SIGHUP)).then_some(SIGHUP);
    let reload = reload.map(start_reloads).transpose()?;
    let on_terminal = has_terminal() && !is_background();
    sys::signals::ignore_terminal_stop().map_err(Failure::new)?;
    let watched = [SIGINT, SIGTERM, SIGUSR1, SIGUSR2]
        .into_iter()
        .chain(hangup);
    let mut signals = Signals::new(watched).map_err(Failure::new)?;
    let handle = signals.handle();
    let thread = std::thread::Builder::new()
        .name("barge-signals".into())
        .spawn(move || {
            let mut stopping = false;
            for signal in signals.forever() {
                match (signal, &reload) {
                    (SIGUSR1, _) => {
                        tracing::warn!("SIGUSR1 ignored: it has no meaning here");
                        continue;
                    }
                    // Handled, if at all, by `on_upgrade`.
                    (SIGUSR2, _) => continue,
                    (SIGHUP, Some(reload)) => {
                        // One that has not begun reads everything again anyway.
                        let _ = reload.try_send(());
                        continue;
                    }
                    (SIGHUP, None) if !on_terminal => {
                        tracing::warn!(
                            "SIGHUP ignored: no configuration file to reload (--config)"
                        );
                        continue;
                    }
                    _ => {}
                }
                if stopping && ends_at_second {
                    // Returns only if the signal could not be raised: continue then.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                stopping = true;
                tracing::debug!(signal, "stopping");
                stop();
            }
        })
        .map_err(Failure::new)?;
    Ok(SignalHandler {
        handle,
        thread: Some(thread),
    })
}

/// Starts a thread that calls `reload` after each message: a reload may wait, and a signal to stop
/// does not.
fn start_reloads(reload: Reload) -> Result<SyncSender<()>, Failure> {
    let (sender, requests) = sync_channel(1);
    let thread = std::thread::Builder::new().name("barge-reload".into());
    let run = move || requests.iter().for_each(|()| reload());
    thread.spawn(run).map_err(Failure::new)?;
    Ok(sender)
}

/// Ignores SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 from now on.
pub fn ignore() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    sys::signals::ignore_terminal_stop()
}

/// Waits until `child` ends, and returns its status. The first SIGTERM, SIGINT or SIGHUP is passed
/// on to it as SIGTERM, each further one as SIGKILL. Starts no thread. Returns an error if signals
/// cannot be handled.
pub fn wait_for_child(child: &mut Child) -> io::Result<ExitStatus> {
    sys::signals::ignore_terminal_stop()?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1, SIGUSR2])?;
    let mut stopping = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        for signal in signals.wait() {
            if [SIGCHLD, SIGUSR1, SIGUSR2].contains(&signal) {
                continue;
            }
            match stopping {
                true => child.kill()?,
                // It may have ended.
                false => drop(kill_process(Pid::from_child(child), Signal::TERM)),
            }
            stopping = true;
        }
    }
}

/// The signals to a process that passes them on to a child, until dropped.
pub struct PassedSignals(Signals);

impl PassedSignals {
    /// Begins to handle SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGCHLD, and unblocks all
    /// signals. Starts no thread. Returns an error if signals cannot be handled.
    pub fn new() -> io::Result<PassedSignals> {
        sys::signals::ignore_terminal_stop()?;
        let signals = [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD];
        let signals = Signals::new(signals)?;
        sys::signals::unblock_all()?;
        Ok(PassedSignals(signals))
    }

    /// Waits for signals, and returns those to pass on: none if a child has ended.
    pub fn wait(&mut self) -> Vec<Signal> {
        let signals = self.0.wait().filter(|signal| *signal != SIGCHLD);
        signals.filter_map(Signal::from_named_raw).collect()
    }
}

/// Returns whether this process is one that a `barge` started in the background.
pub fn is_background() -> bool {
    std::env::var_os(IN_BACKGROUND).is_some()
}

/// Returns whether the process has a controlling terminal (credentials(7)).
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Returns whether `signal` is ignored, from /proc/self/status (proc_pid_status(5)).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

impl Drop for SignalHandler {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked: it only calls `stop`.
            let _ = thread.join();
        }
    }
}
