//! `ls`, `stat`, `cat`, `cp` and `tree` on any source.
//!
//! A [`place::Place`] is what the command line names; opened, it is a file system and a path in it
//! (`tree`). What goes wrong with one file is one line on standard error, the rest is done, and the exit
//! status is 1. Formatting (`format`) is apart from looking.
//!
//! What it lacks on purpose: globs (the shell's), times in local time (no time zone database: UTC).

mod args;
mod cat;
mod cp;
mod format;
mod ls;
mod place;
mod stat;
mod tree;

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use args::{CatArgs, CpArgs, LsArgs, StatArgs, TreeArgs};
pub(crate) use cat::cat;
pub(crate) use cp::{Progress, cp};
pub(crate) use ls::ls;
pub(crate) use stat::stat;
pub(crate) use tree::tree;

use crate::{Done, Failure};

/// What went wrong so far with single files.
#[derive(Default)]
struct Troubles(AtomicBool);

impl Troubles {
    /// Tells of one, in a line.
    fn tell(&self, shown: &str, what: impl Display) {
        self.0.store(true, Ordering::Relaxed);
        eprintln!("barge: {shown}: {what}");
    }

    fn status(&self) -> ExitCode {
        ExitCode::from(u8::from(self.0.load(Ordering::Relaxed)))
    }
}

/// Ends a command that wrote to standard output. Whoever does not want to read on has seen enough: that is
/// no failure.
fn ended(written: io::Result<()>, troubles: &Troubles) -> Done {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(troubles.status()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(troubles.status()),
        Err(error) => Err(Failure::new(format!("standard output: {error}"))),
    }
}
