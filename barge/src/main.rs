//! barge serves file trees over protocols that virtual machines, containers and other hosts can
//! mount.
//!
//! Exit status: 0 for success, 1 for failure, 2 for invalid usage; `serve --run` exits with that of
//! its command.

#![forbid(unsafe_code)]

mod background;
mod bench;
mod calls;
mod cli;
mod config;
mod connect;
mod doctor;
mod files;
mod log;
mod mount;
mod pack;
mod private;
mod reference;
mod seeing;
mod serve;
mod service;
mod source;
mod tier;
mod touched;
mod trouble;

use std::process::ExitCode;

use command::{Done, Failure, signals, tools};

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::read();
    log::start(&cli);
    let done = match &cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Virtiofsd(args) => serve::virtiofsd::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Connect(args) => connect::run(args),
        Command::Ls(args) => files::ls(args),
        Command::Stat(args) => files::stat(args),
        Command::Cat(args) => files::cat(args),
        Command::Cp(args) => files::cp(args),
        Command::Tree(args) => files::tree(args),
        Command::Pack(args) => pack::pack(args),
        Command::Check(args) => pack::check(args),
        Command::Config(args) => config::run(args),
        Command::Top(args) => seeing::top(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => reference::completions(args),
        Command::Man(args) => reference::man(args),
    };
    done.unwrap_or_else(|failure| failure.report())
}
