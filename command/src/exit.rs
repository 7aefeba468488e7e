//! The result of a command and its exit status.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write, stdout};
use std::process::ExitCode;

use crate::stderr::print_line;

/// The error that ended a command: one line, and the exit status.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The message, without the program's name.
    pub message: String,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// The exit status of an error of usage.
    pub const USAGE: u8 = 2;

    /// Returns an error of usage: exit status 2.
    pub fn usage(message: impl Display) -> Failure {
        Failure {
            message: message.to_string(),
            status: Failure::USAGE,
        }
    }

    /// Returns any other error: exit status 1.
    pub fn new(message: impl Display) -> Failure {
        Failure {
            message: message.to_string(),
            status: 1,
        }
    }

    /// Returns the error of a write to standard output. A closed pipe is not a failure: its reader,
    /// such as head(1), has seen enough, and the command ends with success and without a message.
    pub fn of_output(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure {
                message: String::new(),
                status: 0,
            },
            _ => Failure::new(format!("standard output: {error}")),
        }
    }

    /// Prints the message of `program` on standard error and returns the exit status.
    pub fn report(&self, program: &str) -> ExitCode {
        if !self.message.is_empty() {
            print_line(format_args!("{program}: {}", self.message));
        }
        ExitCode::from(self.status)
    }
}

/// Returns the message alone, to be shown among other problems.
impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.message
    }
}

/// Prints `text` on standard output, at once.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = stdout();
    out.write_all(text.as_ref())
        .and_then(|()| out.flush())
        .map_err(Failure::of_output)
}

/// Prints `text` for those who start this process, which goes on if standard output is closed.
pub fn announce(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    match print(text) {
        Err(failure) if failure.status == 0 => Ok(()),
        printed => printed,
    }
}

/// The result of a command.
pub type CommandResult = Result<ExitCode, Failure>;
