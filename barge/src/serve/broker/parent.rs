//! The first process of a server after an upgrade. Others know the server by its process id: a
//! service manager, a shell, a supervisor, the kernel if it is process 1 of a container, and the
//! command of `--run`, its child.
//!
//! It passes signals on to the process that serves, and ends with its exit status. It executes its
//! own program again to become this: that closes all its descriptors and ends its threads. Only
//! then it makes the new program begin, so that an error has no effect.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use command::signals::PassedSignals;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, set_child_subreaper, wait,
};
use serde::{Deserialize, Serialize};

use super::successor::{Message, begin};
use crate::child::{self, message};
use crate::{CommandResult, Failure, service};

/// The environment variable with the options of such a process, as JSON.
const PARENT: &str = "BARGE_PARENT";

/// The options of such a process.
#[derive(Serialize, Deserialize)]
pub(super) struct ParentOptions {
    /// The descriptor of the socket to the program that serves.
    channel: i32,
    /// Its process id.
    server: i32,
    /// That of the command of `--run`.
    command: Option<i32>,
}

/// Makes this process the parent of `server`, to which `channel` is the socket, and of `command`,
/// that of `--run`. Returns only if that fails.
pub(super) fn execute(channel: &OwnedFd, server: Pid, command: Option<Pid>) -> io::Error {
    let raw = |id: Pid| id.as_raw_nonzero().get();
    let execute = || -> io::Result<io::Error> {
        // Inherited, unlike the original.
        let channel = rustix::io::dup(channel)?;
        let options = ParentOptions {
            channel: channel.as_raw_fd(),
            server: raw(server),
            command: command.map(raw),
        };
        let options = serde_json::to_vec(&options)?;
        // They are pending until the process handles them again.
        sys::signals::block_all()?;
        let error = child::execute_itself(PARENT, OsStr::from_bytes(&options));
        sys::signals::unblock_all()?;
        Ok(error)
    };
    execute().unwrap_or_else(|error| error)
}

/// Runs this process as a parent, if it was executed as one. Called first of all, as signals are
/// blocked.
pub(crate) fn run() -> Option<ExitCode> {
    let options = std::env::var_os(PARENT)?;
    let run = || -> CommandResult {
        let options = serde_json::from_slice(options.as_bytes());
        let options: ParentOptions = options.map_err(Failure::new)?;
        let channel = sys::inherit::take(options.channel).map_err(Failure::new)?;
        let signals = PassedSignals::new().map_err(Failure::new)?;
        // The name of /proc/self/exe is `exe`.
        rustix::thread::set_name(c"barge").map_err(Failure::new)?;
        // Each program that serves is started by the one before, which ends.
        set_child_subreaper(Some(rustix::process::getpid())).map_err(Failure::new)?;
        begin(&channel, None).map_err(Failure::new)?;
        // The message of the new program may be refused (NotifyAccess=main).
        service::notify("READY=1\n");
        let watched = |id| {
            let id = Pid::from_raw(id).ok_or_else(|| Failure::new(PARENT))?;
            Ok(Watched { id, status: None })
        };
        let mut parent = Parent {
            channel,
            server: watched(options.server)?,
            command: options.command.map(watched).transpose()?,
        };
        Ok(parent.run(signals))
    };
    Some(run().unwrap_or_else(|failure| failure.report("barge")))
}

/// A child, and its exit status once it has ended.
struct Watched {
    id: Pid,
    status: Option<u8>,
}

impl Watched {
    /// Sends `signal` to it, unless it has ended.
    fn pass(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = kill_process(self.id, signal);
        }
    }
}

/// A process that passes signals and the exit status on.
struct Parent {
    channel: OwnedFd,
    /// The program that serves.
    server: Watched,
    /// The command of `--run`.
    command: Option<Watched>,
}

impl Parent {
    /// Waits until the program that serves and the command of `--run` have ended. Returns the
    /// status of the command if there is one, otherwise that of the program.
    fn run(&mut self, mut signals: PassedSignals) -> ExitCode {
        loop {
            let has_children = self.reap();
            let command = self.command.as_ref().map(|it| it.status);
            match (self.server.status, command) {
                (Some(code), None) | (Some(_), Some(Some(code))) => return ExitCode::from(code),
                // The command has ended before this process became the parent.
                (code, _) if !has_children => return ExitCode::from(code.unwrap_or(1)),
                _ => {}
            }
            for signal in signals.wait() {
                self.learn_successor();
                self.server.pass(signal);
            }
        }
    }

    /// Receives the messages that have arrived.
    fn learn_successor(&mut self) {
        while let Ok(Some(Message::Successor(id))) = message::receive_now(self.channel.as_fd()) {
            if let Some(id) = Pid::from_raw(id) {
                self.server = Watched { id, status: None };
            }
        }
    }

    /// Waits for all children that have ended. The program stops if the command of `--run` has.
    /// Returns whether there are others.
    fn reap(&mut self) -> bool {
        loop {
            let (id, status) = match wait(WaitOptions::NOHANG) {
                Ok(Some(ended)) => ended,
                left => return left.is_ok(),
            };
            // A program says who succeeds it before it ends.
            self.learn_successor();
            if self.server.id == id {
                self.server.status = Some(code(status));
            }
            if let Some(command) = self.command.as_mut().filter(|it| it.id == id) {
                command.status = Some(code(status));
                self.server.pass(Signal::TERM);
            }
        }
    }
}

/// Returns the exit status of a process, or 128 plus the signal's number if a signal ended it, as a
/// shell does.
fn code(status: WaitStatus) -> u8 {
    let code = status
        .exit_status()
        .unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(1)
}
