//! `barge bench`: runs `barge-bench`, which measures this program.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use command::bench::BenchArgs;
use command::tools::companion;

use crate::{CommandResult, Failure};

/// Replaces this process with `barge-bench` and this process's arguments. Returns an error if it is
/// not installed.
pub(crate) fn run(args: &BenchArgs) -> CommandResult {
    let program = companion("barge-bench").ok_or_else(|| {
        Failure::new(
            "barge-bench is neither beside barge nor on PATH: the Debian package has it, and \
             `cargo build --release -p barge-bench` in a checkout builds it",
        )
    })?;
    let mut command = Command::new(&program);
    command.args(without_subcommand(env::args_os().skip(1).collect()));
    if args.barge.is_none() {
        let this = env::current_exe().map_err(Failure::new)?;
        command.arg("--barge").arg(this);
    }
    let error = command.exec();
    Err(Failure::new(format!("{}: {error}", program.display())))
}

/// Removes the first `bench`, the name of the command. Options of logging may precede it.
fn without_subcommand(mut args: Vec<OsString>) -> Vec<OsString> {
    if let Some(at) = args.iter().position(|arg| arg == "bench") {
        args.remove(at);
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_arguments_but_the_name_of_the_command_are_passed() {
        let words = ["-v", "bench", "9p", "--only", "bench"].map(OsString::from);
        let passed = without_subcommand(words.into());
        assert_eq!(passed, ["-v", "9p", "--only", "bench"]);
    }
}
