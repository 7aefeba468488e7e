//! `ls`, `stat`, `cat`, `cp` and `tree` on any source.
//!
//! A [`operand::Operand`] is an argument; opened, it is a file system and a path in it (`tree`). An
//! error of one file is reported as a line on standard error, the command continues, and the exit
//! status is 1. Formatting (`format`) does no I/O.
//!
//! Deliberately absent: globs (the shell expands them), local time (there is no time zone database:
//! times are in UTC).

mod args;
mod cat;
mod cp;
mod format;
mod ls;
mod operand;
mod stat;
mod tree;
#[cfg_attr(not(target_os = "linux"), path = "no_users.rs")]
mod users;

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use command::stderr::print_line;

pub(crate) use args::{CatArgs, CpArgs, LsArgs, StatArgs, TreeArgs};
pub(crate) use cat::cat;
pub(crate) use cp::{Progress, cp};
pub(crate) use ls::ls;
pub(crate) use stat::stat;
pub(crate) use tree::tree;

use crate::{CommandResult, Failure};
use command::text::printable;

/// The number of errors of single files that have been reported.
#[derive(Default)]
pub(crate) struct ErrorReporter(AtomicU64);

impl ErrorReporter {
    /// Reports an error as a line on standard error.
    fn report(&self, shown: &str, what: impl Display) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let line = format!("{shown}: {what}");
        print_line(format_args!("barge: {}", printable(&line)));
    }

    fn status(&self) -> ExitCode {
        ExitCode::from(u8::from(self.count() > 0))
    }

    /// Returns the number of errors.
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Ends a command that wrote to standard output. A closed pipe is not a failure: the reader has
/// seen enough.
pub(crate) fn finish_output(written: io::Result<()>, errors: &ErrorReporter) -> CommandResult {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(errors.status()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(errors.status()),
        Err(error) => Err(Failure::of_output(error)),
    }
}
