//! `barge config`, which checks and prints configuration files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use command::print;
use command::stderr::print_line;
use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

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
        /// Print an object with file, valid and errors as JSON, besides the errors
        #[arg(long)]
        json: bool,
    },
    /// Print a file with the defaults of all options filled in
    Show {
        /// File to print
        #[arg(default_value = DEFAULT_PATH)]
        file: PathBuf,
        /// Print an object with the keys of the file as JSON
        #[arg(long)]
        json: bool,
    },
}

/// `barge config`
pub(crate) fn run(args: &ConfigArgs) -> CommandResult {
    let (ConfigCommand::Check { file, json } | ConfigCommand::Show { file, json }) = &args.command;
    let checks = matches!(args.command, ConfigCommand::Check { .. });
    let config = match read_config(file) {
        Ok(config) => config,
        Err(problems) => {
            print_line(&problems);
            if checks && *json {
                let text = problems.to_string();
                print(checked(file, &text.lines().collect::<Vec<_>>()))?;
            }
            return Ok(ExitCode::from(2));
        }
    };
    let text = match (checks, json) {
        (true, true) => checked(file, &[]),
        (true, false) => String::new(),
        (false, true) => {
            let text = config.to_toml();
            let table = DeTable::parse(&text).map_err(Failure::new)?;
            format!("{}\n", table_as_json(table.get_ref()))
        }
        (false, false) => config.to_toml(),
    };
    print(text).map(|()| ExitCode::SUCCESS)
}

/// Returns the object of `check --json`, as a line.
fn checked(file: &Path, errors: &[&str]) -> String {
    let object = json!({
        "file": file.to_string_lossy(),
        "valid": errors.is_empty(),
        "errors": errors,
    });
    format!("{object}\n")
}

fn table_as_json(table: &DeTable<'_>) -> Value {
    let pairs = table.iter();
    let pairs = pairs.map(|(key, value)| (key.get_ref().to_string(), as_json(value.get_ref())));
    Value::Object(pairs.collect())
}

fn as_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Boolean(flag) => json!(flag),
        DeValue::Array(items) => items.iter().map(|item| as_json(item.get_ref())).collect(),
        DeValue::Table(table) => table_as_json(table),
        DeValue::Integer(number) => match number.as_str().parse::<i64>() {
            Ok(number) => json!(number),
            Err(_) => json!(number.as_str()),
        },
        // No key has such a value.
        DeValue::Float(number) => json!(number.as_str()),
        DeValue::Datetime(time) => json!(time.to_string()),
    }
}
