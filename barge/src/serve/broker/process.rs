//! A process that serves a part of the server.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use sandbox::VisiblePath;

use super::client::{CHILD_OPTIONS, ChildOptions};
use super::parts::Part;
use super::requests::Responder;

/// A process that serves a part of the server, and those that replace it after crashes.
pub(super) struct Process {
    pub(super) part: Part,
    pub(super) responder: Responder,
    /// The broker's end of the socket for requests for figures.
    pub(super) control: OwnedFd,
    /// The process's ends of the sockets for its requests, and for those for figures.
    pub(super) childs_ends: (OwnedFd, OwnedFd),
    /// Whether it connects to other hosts.
    pub(super) network: bool,
    /// The process, if it runs.
    pub(super) child: Mutex<Option<Pid>>,
    /// Whether it serves clients, and handles signals.
    pub(super) serving: AtomicBool,
    /// Whether it was killed, as it did not handle signals yet.
    pub(super) killed: AtomicBool,
    /// Whether it has a root of its own.
    pub(super) rooted: AtomicBool,
}

impl Process {
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(child) = *self.child.lock() {
            // It may have ended.
            let _ = kill_process(child, signal);
        }
    }

    pub(super) fn stop(&self) {
        if self.serving.load(Ordering::SeqCst) {
            self.signal(Signal::TERM);
        } else {
            self.killed.store(true, Ordering::SeqCst);
            self.signal(Signal::KILL);
        }
    }

    /// Adds those of `paths` that the process lacks to its root, if it has its own.
    pub(super) fn make_visible(&self, paths: &[VisiblePath]) {
        let child = *self.child.lock();
        let Some(child) = child.filter(|_| self.rooted.load(Ordering::SeqCst)) else {
            return;
        };
        for path in paths {
            if let Err(error) = sandbox::root::add(child, path) {
                tracing::error!("{error}");
            }
        }
    }
}

/// Starts this program again, as a process that serves.
pub(super) fn spawn(options: &ChildOptions) -> io::Result<Child> {
    let mut arguments = env::args_os();
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command
        .args(arguments)
        .env(CHILD_OPTIONS, options.to_text())
        // Signals of the terminal reach it through this process.
        .process_group(0)
        .spawn()
}

/// The exit status of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;

/// The end of a process.
pub(super) enum End {
    /// By itself, with this status.
    Exit(u8),
    /// By a crash, as the end of a sentence about the process.
    Crash(String),
}

impl End {
    pub(super) fn of(status: ExitStatus) -> End {
        match (status.code(), status.signal()) {
            (Some(PANICKED), _) => End::Crash("has panicked".into()),
            (Some(code), _) => End::Exit(u8::try_from(code).unwrap_or(1)),
            (None, signal) => {
                let signal = signal.unwrap_or_default();
                let hint = match signal == Signal::SYS.as_raw() {
                    true => " after a system call that --seccomp does not permit",
                    false => "",
                };
                End::Crash(format!("was ended by signal {signal}{hint}"))
            }
        }
    }
}
