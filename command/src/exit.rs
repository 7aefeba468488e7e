//! The result of a command and its exit status.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::process::ExitCode;

/// The error that ended a command: one line, and the exit status.
#[derive(Debug)]
pub struct Failure {
    /// The message, without the program's name.
    pub message: String,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// Returns an error of usage: exit status 2.
    pub fn usage(message: impl Display) -> Failure {
        Failure {
            message: message.to_string(),
            status: 2,
        }
    }

    /// Returns any other error: exit status 1.
    pub fn new(message: impl Display) -> Failure {
        Failure {
            message: message.to_string(),
            status: 1,
        }
    }

    /// Prints the message on standard error and returns the exit status.
    pub fn report(&self) -> ExitCode {
        // The status counts, whether or not anybody reads the message.
        let _ = writeln!(stderr(), "barge: {}", self.message);
        ExitCode::from(self.status)
    }
}

/// Returns the message alone, to be shown among other problems.
impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.message
    }
}

/// The result of a command.
pub type CommandResult = Result<ExitCode, Failure>;
