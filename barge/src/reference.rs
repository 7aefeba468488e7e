//! Completions and man pages, generated from the definition of the command line.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::{Done, Failure, config};

/// The man page of the configuration file of `barge serve`.
const FILE: &str = "barge.toml";

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to print a completion script for
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Command to print the man page of, or barge.toml [default: barge itself]
    command: Option<String>,
    /// Directory to write all man pages to
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    all: Option<PathBuf>,
}

/// `barge completions`
pub(crate) fn completions(args: &CompletionsArgs) -> Done {
    clap_complete::generate(args.shell, &mut Cli::command(), "barge", &mut stdout());
    Ok(ExitCode::SUCCESS)
}

/// `barge man`
pub(crate) fn man(args: &ManArgs) -> Done {
    let cli = Cli::command();
    if let Some(dir) = &args.all {
        let file = dir.join(format!("{FILE}.5"));
        return clap_mangen::generate_to(cli, dir)
            .and_then(|()| std::fs::write(file, config::page()))
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| Failure::new(format!("{}: {error}", dir.display())));
    }
    let page = match &args.command {
        Some(name) if name == FILE => {
            let page = config::page();
            let written = stdout().write_all(page.as_bytes());
            return written.map(|()| ExitCode::SUCCESS).map_err(Failure::new);
        }
        None => cli,
        Some(name) => cli
            .find_subcommand(name)
            .ok_or_else(|| Failure::usage(format!("unknown command '{name}'")))?
            .clone()
            .name(format!("barge-{name}")),
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut text)
        .map_err(Failure::new)?;
    stdout().write_all(&text).map_err(Failure::new)?;
    Ok(ExitCode::SUCCESS)
}
