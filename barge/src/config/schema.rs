//! Keys of a configuration file: the options of `barge serve`, from the definition of its command
//! line. There is no second list of them.

use std::sync::LazyLock;

use clap::builder::ArgAction;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Args, Command};

use crate::serve::args::ServeArgs;
use crate::serve::args::share::{AccessArgs, RateArgs, ShareArgs};
use command::log::LogArgs;

/// The options of `barge serve` by long name, which is the key in a file.
pub(super) struct Schema {
    command: Command,
    share_options: Vec<String>,
    /// Options of shares that can change while the share is served.
    changeable_options: Vec<String>,
}

/// The type of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// true or false
    Flag,
    /// The number of occurrences of the option
    Count,
    /// A string or a number
    Single,
    /// A string or a number, or true for the option without a value
    OptionalValue,
    /// A string, or several in an array
    List,
}

// Keys of a share that are not options.
pub(super) const NAME: &str = "name";
pub(super) const SOURCE: &str = "source";
pub(super) const CLIENTS: &str = "clients";

/// Options whose value begins with the name of a source: in a share, its name is added.
pub(crate) const DEVICE_OPTIONS: [&str; 3] = ["virtiofs", "virtio-9p", "block"];

/// The name of the tables of shares.
pub(super) const SHARE: &str = "share";

impl Schema {
    /// Returns the schema. It is built once, as that takes longer than to read a file.
    pub(super) fn get() -> &'static Schema {
        static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::new);
        &SCHEMA
    }

    fn new() -> Schema {
        let mut serve = LogArgs::augment_args(ServeArgs::augment_args(Command::new("serve")));
        serve.build();
        let options = |of: Command| of.get_arguments().filter_map(long_name).collect();
        Schema {
            command: serve,
            share_options: options(ShareArgs::augment_args(Command::new(SHARE))),
            changeable_options: options(RateArgs::augment_args(AccessArgs::augment_args(
                Command::new(SHARE),
            ))),
        }
    }

    /// Returns the options that are keys, in the order of help.
    pub(super) fn options(&self) -> impl Iterator<Item = &Arg> {
        let all = self.command.get_arguments();
        all.filter(|arg| {
            let long = arg.get_long().unwrap_or("help");
            !["help", "version", "config"].contains(&long)
        })
    }

    /// Returns the option `key`, if it may be set at the top of a file. `key` may be an alias, such
    /// as the option's name in an earlier version.
    pub(super) fn option(&self, key: &str) -> Option<&Arg> {
        let aliases = |arg: &Arg| arg.get_all_aliases().is_some_and(|all| all.contains(&key));
        self.options()
            .find(|arg| arg.get_long() == Some(key) || aliases(arg))
    }

    /// Returns whether `key` may be set for each share.
    pub(super) fn is_share_option(&self, key: &str) -> bool {
        self.share_options.iter().any(|share| share == key)
    }

    /// Returns whether `key` is an option of access to a share or one of its limits, which may
    /// change while the share is served.
    pub(super) fn is_changeable_option(&self, key: &str) -> bool {
        self.changeable_options.iter().any(|term| term == key)
    }

    /// Returns all keys of the top level.
    pub(super) fn keys(&self) -> Vec<&str> {
        let options = self.options().filter_map(Arg::get_long);
        options.chain([SHARE]).collect()
    }

    /// Returns all keys of a share.
    pub(super) fn share_keys(&self) -> Vec<&str> {
        let own = [NAME, SOURCE, CLIENTS].into_iter().chain(DEVICE_OPTIONS);
        own.chain(self.share_options.iter().map(String::as_str))
            .collect()
    }

    /// Parses `arguments` in combination. The error is one line.
    pub(super) fn parse(&self, arguments: &[String]) -> Result<ArgMatches, String> {
        self.try_parse(arguments)
            .map_err(|error| error_line(&error))
    }

    /// Returns the error in `argument` alone, ignoring missing and conflicting options.
    pub(super) fn argument_error(&self, argument: &str) -> Option<String> {
        let error = self.try_parse(&[argument.to_owned()]).err()?;
        let alone = matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
        );
        (!alone).then(|| error_line(&error))
    }

    fn try_parse(&self, arguments: &[String]) -> Result<ArgMatches, clap::Error> {
        let program = "barge".to_owned();
        let all = std::iter::once(&program).chain(arguments);
        self.command.clone().try_get_matches_from(all)
    }
}

fn long_name(arg: &Arg) -> Option<String> {
    arg.get_long().map(str::to_owned)
}

impl ValueKind {
    /// Returns the type of the key of `arg`.
    pub(super) fn of(arg: &Arg) -> ValueKind {
        let usual = arg
            .get_num_args()
            .is_some_and(|args| args.min_values() == 0);
        match arg.get_action() {
            ArgAction::SetTrue => ValueKind::Flag,
            ArgAction::Count => ValueKind::Count,
            ArgAction::Append => ValueKind::List,
            _ if usual => ValueKind::OptionalValue,
            _ => ValueKind::Single,
        }
    }

    /// Returns the description of the type for error messages.
    pub(super) fn expected(self) -> &'static str {
        match self {
            ValueKind::Flag => "true or false",
            ValueKind::Count => "a number from 0 to 9",
            ValueKind::Single => "a string or a number",
            ValueKind::OptionalValue => "true, or a string",
            ValueKind::List => "a string, or an array of strings",
        }
    }
}

/// Formats an error of clap as one line, without the parts about command lines.
fn error_line(error: &clap::Error) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => key(text).to_owned(),
        Some(ContextValue::Strings(texts)) => {
            let keys: Vec<_> = texts.iter().map(|text| key(text)).collect();
            keys.join(", ")
        }
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            format!("requires {}", text(ContextKind::InvalidArg))
        }
        ErrorKind::ArgumentConflict => format!(
            "{} conflicts with {}",
            text(ContextKind::InvalidArg),
            text(ContextKind::PriorArg)
        ),
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_empty() => {
            "expected a value, got none".to_owned()
        }
        ErrorKind::InvalidValue => format!(
            "expected one of {}, got '{}'",
            text(ContextKind::ValidValue),
            text(ContextKind::InvalidValue)
        ),
        _ => match std::error::Error::source(error) {
            Some(why) => why.to_string(),
            None => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                first.trim_start_matches("error: ").to_owned()
            }
        },
    }
}

/// Returns the key of an option as clap shows it, for example `nfs` for `--nfs <ADDR>`.
fn key(option: &str) -> &str {
    let word = option.split([' ', '[', '=']).next().unwrap_or(option);
    word.strip_prefix("--").unwrap_or(option)
}
