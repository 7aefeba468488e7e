//! What may stand in a file: the options of `barge serve`, as its command line has them. There is no second list of them.

use clap::builder::ArgAction;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Args, Command, CommandFactory};

use crate::cli::Cli;
use crate::serve::{ShareArgs, TermsArgs};

/// The options of `barge serve`, by their long names, which are the keys of a file.
pub(super) struct Schema {
    command: Command,
    shares: Vec<String>,
    /// Those of them that a gate can change.
    terms: Vec<String>,
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// true or false
    Flag,
    /// How often the option would be given
    Count,
    /// A string or a number
    One,
    /// The same, or true for the usual one
    OneOrUsual,
    /// A string, or several in an array
    Many,
}

/// Keys of a share that are no options: what stands beside `--` there.
pub(super) const NAME: &str = "name";
pub(super) const SOURCE: &str = "source";
pub(super) const CLIENTS: &str = "clients";

/// Options that begin with a source's name, which a share has.
pub(super) const DEVICES: [&str; 3] = ["virtiofs", "virtio-9p", "block"];

/// The table of a share.
pub(super) const SHARE: &str = "share";

impl Schema {
    pub(super) fn new() -> Schema {
        let mut all = Cli::command();
        all.build();
        let serve = all.find_subcommand("serve").expect("it is a command");
        let options = |of: Command| of.get_arguments().filter_map(long).collect();
        Schema {
            command: serve.clone(),
            shares: options(ShareArgs::augment_args(Command::new(SHARE))),
            terms: options(TermsArgs::augment_args(Command::new(SHARE))),
        }
    }

    /// The options that are keys, in the order that help has them.
    pub(super) fn options(&self) -> impl Iterator<Item = &Arg> {
        let all = self.command.get_arguments();
        all.filter(|arg| {
            let long = arg.get_long().unwrap_or("help");
            !["help", "version", "config"].contains(&long)
        })
    }

    /// The option that `key` is, if it may stand at the top of a file.
    pub(super) fn option(&self, key: &str) -> Option<&Arg> {
        self.options().find(|arg| arg.get_long() == Some(key))
    }

    /// Whether shares may have the option `key`, each for itself.
    pub(super) fn is_of_share(&self, key: &str) -> bool {
        self.shares.iter().any(|share| share == key)
    }

    /// Whether `key` is on which terms a share is served, which may change while it is.
    pub(super) fn is_term(&self, key: &str) -> bool {
        self.terms.iter().any(|term| term == key)
    }

    /// All keys that may stand at the top.
    pub(super) fn keys(&self) -> Vec<&str> {
        let options = self.options().filter_map(Arg::get_long);
        options.chain([SHARE]).collect()
    }

    /// All keys of a share.
    pub(super) fn share_keys(&self) -> Vec<&str> {
        let own = [NAME, SOURCE, CLIENTS].into_iter().chain(DEVICES);
        own.chain(self.shares.iter().map(String::as_str)).collect()
    }

    /// What `arguments` say together; else why they make no sense, on one line.
    pub(super) fn parse(&self, arguments: &[String]) -> Result<ArgMatches, String> {
        self.run(arguments).map_err(|error| line(&error))
    }

    /// What is wrong with `argument`, wherever it stands.
    pub(super) fn refusal(&self, argument: &str) -> Option<String> {
        let error = self.run(&[argument.to_owned()]).err()?;
        let alone = matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
        );
        (!alone).then(|| line(&error))
    }

    fn run(&self, arguments: &[String]) -> Result<ArgMatches, clap::Error> {
        let program = "barge".to_owned();
        let all = std::iter::once(&program).chain(arguments);
        self.command.clone().try_get_matches_from(all)
    }
}

fn long(arg: &Arg) -> Option<String> {
    arg.get_long().map(str::to_owned)
}

impl Kind {
    /// What the key of `arg` takes.
    pub(super) fn of(arg: &Arg) -> Kind {
        let usual = arg
            .get_num_args()
            .is_some_and(|args| args.min_values() == 0);
        match arg.get_action() {
            ArgAction::SetTrue => Kind::Flag,
            ArgAction::Count => Kind::Count,
            ArgAction::Append => Kind::Many,
            _ if usual => Kind::OneOrUsual,
            _ => Kind::One,
        }
    }

    /// What is expected of it.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Kind::Flag => "true or false",
            Kind::Count => "a number from 0 to 9",
            Kind::One => "a string or a number",
            Kind::OneOrUsual => "true, or a string",
            Kind::Many => "a string, or an array of strings",
        }
    }
}

/// What clap says, without what is for command lines.
fn line(error: &clap::Error) -> String {
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
            format!("expected besides: {}", text(ContextKind::InvalidArg))
        }
        ErrorKind::ArgumentConflict => format!(
            "{} does not go with {}",
            text(ContextKind::InvalidArg),
            text(ContextKind::PriorArg)
        ),
        ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_empty() => {
            "expected something, got nothing".to_owned()
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

/// `--nfs <ADDR>` as a file has it.
fn key(option: &str) -> &str {
    let word = option.split([' ', '[', '=']).next().unwrap_or(option);
    word.strip_prefix("--").unwrap_or(option)
}
