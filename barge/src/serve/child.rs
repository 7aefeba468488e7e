//! Processes that serve as children of another process of this program.

use std::env;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use rustix::process::Signal;

/// Returns the command that starts this program again with the same arguments.
pub(super) fn command() -> Command {
    let mut arguments = env::args_os();
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // Signals of the terminal reach it through this process.
    command.args(arguments).process_group(0);
    command
}

/// The exit status of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;

/// The end of a child.
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
