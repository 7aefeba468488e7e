//! Completions and man pages, generated from the definition of the command line.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use ::connect::ConnectArgs;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use command::agent::AgentArgs;
use command::csi::CsiArgs;
use command::snapshotter::SnapshotterArgs;

use crate::config::page::page;
use crate::{CommandResult, Failure};

/// The man page of the configuration file of `barge serve`.
const CONFIG_PAGE: &str = "barge.toml";

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
    clap_complete::generate(args.shell, cli, "barge", &mut stdout());
    Ok(ExitCode::SUCCESS)
}

/// `barge man`; `cli` is the definition of the command line.
pub(crate) fn man(args: &ManArgs, cli: Command) -> CommandResult {
    // The pages do not depend on the build.
    let cli = cli.long_version(None);
    if let Some(dir) = &args.all {
        let file = dir.join(format!("{CONFIG_PAGE}.5"));
        return clap_mangen::generate_to(cli, dir)
            .and_then(|()| clap_mangen::generate_to(AgentArgs::command(), dir))
            .and_then(|()| clap_mangen::generate_to(ConnectArgs::command(), dir))
            .and_then(|()| clap_mangen::generate_to(CsiArgs::command(), dir))
            .and_then(|()| clap_mangen::generate_to(SnapshotterArgs::command(), dir))
            .and_then(|()| std::fs::write(file, page()))
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| Failure::new(format!("{}: {error}", dir.display())));
    }
    let command = match &args.command {
        Some(name) if name == CONFIG_PAGE => {
            let written = stdout().write_all(page().as_bytes());
            return written.map(|()| ExitCode::SUCCESS).map_err(Failure::new);
        }
        None => cli,
        Some(name) => match (other_program(name), cli.find_subcommand(name)) {
            (Some(program), _) => program,
            (None, Some(command)) => command.clone().name(format!("barge-{name}")),
            (None, None) => return Err(Failure::usage(format!("unknown command '{name}'"))),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut text)
        .map_err(Failure::new)?;
    stdout().write_all(&text).map_err(Failure::new)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the definition of the command line of another program of this workspace.
fn other_program(name: &str) -> Option<Command> {
    match name {
        "barge-agent" => Some(AgentArgs::command()),
        "barge-mount-9p" => Some(ConnectArgs::command()),
        "barge-csi" => Some(CsiArgs::command()),
        "barge-snapshotter" => Some(SnapshotterArgs::command()),
        _ => None,
    }
}
