//! barge serves file trees over protocols that virtual machines, containers and other hosts can
//! mount.
//!
//! This crate is the program, whose `main` is [`main`]; programs use the crate `barge-client`.
//!
//! Exit status: 0 for success, 1 for failure, 2 for invalid usage; `serve --run` exits with that of
//! its command.

#![forbid(unsafe_code)]

mod bench;
mod cache;
mod call_log;
mod child;
mod cli;
mod config;
mod confinement;
mod connect;
mod ctl;
mod diagnose;
mod disk_cache;
mod doctor;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod holder;
mod kept_files;
mod listen;
mod log;
mod mount;
#[cfg(feature = "otel")]
mod otel;
mod pack;
mod private_file;
mod read_trace;
mod reference;
mod serve;
mod service;
mod source;
mod stack;
mod status;
mod version;
mod watch;

use std::process::ExitCode;

use clap::CommandFactory;
use command::{CommandResult, Failure, background, signals, tools};

use crate::cli::{Cli, Command};

/// Runs the program with the arguments of this process, and returns its exit status.
pub fn main() -> ExitCode {
    let cli = Cli::read();
    match &cli.command {
        Command::Virtiofsd(args) => log::start_daemon(&cli.log, args.log_level(), args.syslog()),
        Command::Serve(_) | Command::Mount(_) | Command::Connect(_) => log::start(&cli.log),
        _ => log::start_quiet(&cli.log),
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
        Command::Watch(args) => watch::run(args),
        Command::Pack(args) => pack::pack(args),
        Command::Check(args) => pack::check(args),
        Command::Cache(args) => cache::run(args),
        Command::Config(args) => config::command::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Top(args) => status::top(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => reference::completions(args, &mut Cli::command()),
        Command::Man(args) => reference::man(args, Cli::command()),
    };
    done.unwrap_or_else(|failure| failure.report())
}
