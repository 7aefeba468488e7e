//! The command line on systems other than Linux: the one definition of help, man pages and
//! completions.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use command::log::LogArgs;

use crate::commands::FileCommand;
use crate::reference::{CompletionsArgs, ManArgs};
use crate::{CommandResult, Failure, log, reference};

/// Read and copy files of servers, and build and check images
///
/// Everything else that barge does needs Linux.
#[derive(Parser)]
#[command(
    name = "barge",
    version,
    long_version = crate::version::long(),
    propagate_version = true,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    File(Box<FileCommand>),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a man page, or write all of them to a directory
    Man(ManArgs),
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// The commands that need Linux.
const LINUX: &[&str] = &[
    "serve",
    "virtiofsd",
    "mount",
    "connect",
    "watch",
    "cache",
    "config",
    "ctl",
    "top",
    "doctor",
    "bench",
];

/// Runs the program with the arguments of this process, and returns its exit status.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    log::start_quiet(&cli.log);
    let done = match &cli.command {
        Command::File(command) => command.run(),
        Command::Completions(args) => reference::completions(args, &mut Cli::command()),
        Command::Man(args) => reference::man(args, Cli::command()),
        Command::Other(words) => other(words),
    };
    done.unwrap_or_else(|failure| failure.report("barge"))
}

/// Refuses a command that this system lacks, or that does not exist.
fn other(words: &[OsString]) -> CommandResult {
    let name = words.first().map(|name| name.to_string_lossy());
    let name = name.unwrap_or_default();
    match LINUX.contains(&&*name) {
        true => Err(Failure::usage(format!("{name}: this needs Linux"))),
        false => Cli::command()
            .error(
                ErrorKind::InvalidSubcommand,
                format!("unrecognized command '{name}'"),
            )
            .exit(),
    }
}
