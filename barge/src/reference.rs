//! Completions and man pages, generated from the definition of the command line.

#[cfg_attr(not(target_os = "linux"), path = "reference/none.rs")]
mod others;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;
use command::print;

use crate::{CommandResult, Failure};

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to print a completion script for
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Command to print the man page of, barge.toml, barge-agent, barge-mount-9p, barge-csi or
    /// barge-snapshotter [default: barge itself]
    command: Option<String>,
    /// Directory to write all man pages to
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    all: Option<PathBuf>,
}

/// `barge completions`; `cli` is the definition of the command line.
pub(crate) fn completions(args: &CompletionsArgs, cli: &mut Command) -> CommandResult {
    // The generator panics if a write fails.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, cli, "barge", &mut text);
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// `barge man`; `cli` is the definition of the command line.
pub(crate) fn man(args: &ManArgs, cli: Command) -> CommandResult {
    // The pages do not depend on the build.
    let cli = cli.long_version(None);
    if let Some(dir) = &args.all {
        return clap_mangen::generate_to(cli, dir)
            .and_then(|()| others::write(dir))
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| Failure::new(format!("{}: {error}", dir.display())));
    }
    if let Some(page) = args.command.as_deref().and_then(others::page) {
        return print(page).map(|()| ExitCode::SUCCESS);
    }
    let command = match &args.command {
        None => cli,
        Some(name) => match (others::program(name), cli.find_subcommand(name)) {
            (Some(program), _) => program,
            (None, Some(command)) => command.clone().name(format!("barge-{name}")),
            (None, None) => return Err(Failure::usage(format!("unknown command '{name}'"))),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(Failure::new)?;
    print(text)?;
    Ok(ExitCode::SUCCESS)
}
