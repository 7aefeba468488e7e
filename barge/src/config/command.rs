//! `barge config`, which checks and prints configuration files.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::DEFAULT_PATH;
use crate::serve::plan::read_config;
use crate::{CommandResult, Failure};

#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a file and print its errors, one per line
    ///
    /// The exit status is 2 if there are errors. Sources are not opened.
    Check {
        /// File to check
        #[arg(default_value = DEFAULT_PATH)]
        file: PathBuf,
    },
    /// Print a file with the defaults of all options filled in
    Show {
        /// File to print
        #[arg(default_value = DEFAULT_PATH)]
        file: PathBuf,
    },
}

/// `barge config`
pub(crate) fn run(args: &ConfigArgs) -> CommandResult {
    let (ConfigCommand::Check { file } | ConfigCommand::Show { file }) = &args.command;
    let config = match read_config(file) {
        Ok(config) => config,
        Err(problems) => {
            eprintln!("{problems}");
            return Ok(ExitCode::from(2));
        }
    };
    if let ConfigCommand::Show { .. } = args.command {
        stdout()
            .write_all(config.to_toml().as_bytes())
            .map_err(|error| Failure::new(format!("standard output: {error}")))?;
    }
    Ok(ExitCode::SUCCESS)
}
