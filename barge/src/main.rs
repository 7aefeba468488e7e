//! barge serves file trees over protocols that virtual machines, containers and other hosts can
//! mount.
//!
//! Exit status: 0 for success, 1 for failure, 2 for invalid usage; `serve --run` exits with that of
//! its command.

#![forbid(unsafe_code)]

mod background;
mod bench;
mod call_log;
mod cli;
mod config;
mod connect;
mod diagnose;
mod disk_cache;
mod doctor;
mod files;
mod listen;
mod log;
mod mount;
mod pack;
mod private;
mod read_trace;
mod reference;
mod serve;
mod service;
mod signals;
mod source;
mod stack;
mod status;
mod tools;

use std::fmt::Display;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::read();
    match &cli.command {
        Command::Virtiofsd(args) => log::start_daemon(&cli.log, args.log_level(), args.syslog()),
        _ => log::start(&cli.log),
    }
    let done = match &cli.command {
        Command::Serve(args) => serve::run(args, cli.config.as_ref()),
        Command::Virtiofsd(args) => serve::run_virtiofsd(args),
        Command::Mount(args) => mount::run(args),
        Command::Connect(args) => connect::run(args),
        Command::Ls(args) => files::ls(args),
        Command::Stat(args) => files::stat(args),
        Command::Cat(args) => files::cat(args),
        Command::Cp(args) => files::cp(args),
        Command::Tree(args) => files::tree(args),
        Command::Pack(args) => pack::pack(args),
        Command::Check(args) => pack::check(args),
        Command::Config(args) => config::command::run(args),
        Command::Top(args) => status::top(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => reference::completions(args, &mut Cli::command()),
        Command::Man(args) => reference::man(args, Cli::command()),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("barge: {}", failure.message);
        ExitCode::from(failure.status)
    })
}

/// The error that ended a command: one line, and the exit status.
#[derive(Debug)]
struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// Returns an error of usage: exit status 2.
    fn usage(message: impl Display) -> Failure {
        Failure {
            message: message.to_string(),
            status: 2,
        }
    }

    /// Returns any other error: exit status 1.
    fn new(message: impl Display) -> Failure {
        Failure {
            message: message.to_string(),
            status: 1,
        }
    }
}

/// Returns the message alone, to be shown among other problems.
impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        failure.message
    }
}

/// The result of a command.
type CommandResult = Result<ExitCode, Failure>;
