//! `barge.toml`: what `barge serve` is told by a file, and `barge config`, which checks and shows one.
//!
//! A key is an option of `barge serve` without its dashes, and takes what that takes: the definition of the command line is that of the
//! file too ([`schema`]). What is read becomes arguments, which clap reads, and so a [`crate::serve`] plan as any other. Besides there are
//! tables of shares, each with the options that may be a share's own.
//!
//! What it lacks on purpose: files that include others, variables, keys of its own beside `name`, `source` and `clients` of shares.

mod page;
mod read;
mod schema;

use std::fmt;
use std::io::{Write, stdout};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Args, Subcommand};

pub(crate) use self::page::page;
use self::schema::{Kind, Schema};
use crate::source::Source;
use crate::{Done, Failure, serve};

#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Say what is wrong with a file, a line for each problem; exit status 2 if anything is. Nothing that it names is opened
    Check {
        /// The file
        #[arg(default_value = USUAL)]
        file: PathBuf,
    },
    /// Print a file with all that holds where it says nothing, as a file
    Show {
        /// The file
        #[arg(default_value = USUAL)]
        file: PathBuf,
    },
}

/// Where the service has its file.
pub(crate) const USUAL: &str = "/etc/barge/barge.toml";

/// `barge config`
pub(crate) fn run(args: &ConfigArgs) -> Done {
    let (What::Check { file } | What::Show { file }) = &args.what;
    let config = match Config::read(file) {
        Ok(config) => config,
        Err(problems) => {
            eprintln!("{problems}");
            return Ok(ExitCode::from(2));
        }
    };
    if let What::Show { .. } = args.what {
        stdout()
            .write_all(config.show().as_bytes())
            .map_err(|error| Failure::new(format!("standard output: {error}")))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A file that has been read, and makes sense.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    path: PathBuf,
    /// What holds for the program, and for shares that say nothing else.
    settings: Vec<Setting>,
    shares: Vec<Share>,
}

/// An option, and what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: Option<String>,
}

impl Setting {
    /// As the command line has it.
    fn argument(&self) -> String {
        match &self.value {
            Some(value) => format!("--{}={value}", self.key),
            None => format!("--{}", self.key),
        }
    }
}

/// A table of a share.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Where in the file it begins.
    at: usize,
    pub(crate) name: Option<String>,
    /// As it was written, and what it is.
    pub(crate) source: (String, Source),
    /// The options that it has a word on, and what: `false` gives none.
    says: Vec<String>,
    settings: Vec<Setting>,
}

/// What is wrong with a file, one for each line.
#[derive(Debug)]
pub(crate) struct Problems(Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            let end = if at > 0 { "\n" } else { "" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

/// What is wrong in one place.
#[derive(Debug)]
struct Problem {
    path: PathBuf,
    /// Line and column, from 1 on; none is the file's as a whole.
    at: Option<(usize, usize)>,
    message: String,
}

impl Problem {
    fn new(path: &Path, text: &str, span: Option<Range<usize>>, message: String) -> Problem {
        let at = span.and_then(|span| {
            let before = text.get(..span.start)?;
            let line = before.rsplit('\n').next().unwrap_or(before);
            Some((before.matches('\n').count() + 1, line.chars().count() + 1))
        });
        Problem {
            path: path.to_owned(),
            at,
            message,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some((line, column)) = self.at {
            write!(f, "{line}:{column}:")?;
        }
        // One line each, for whoever reads them by lines.
        write!(f, " {}", self.message.trim().replace('\n', "; "))
    }
}

impl Config {
    fn new(path: &Path) -> Config {
        Config {
            path: path.to_owned(),
            settings: Vec::new(),
            shares: Vec::new(),
        }
    }

    /// Reads the file at `path`, and says all that is wrong with it. Nothing that it names is opened.
    pub(crate) fn read(path: &Path) -> Result<Config, Problems> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Problems(vec![Problem::new(path, "", None, error.to_string())]))?;
        Config::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Config, Problems> {
        let mut problems = Vec::new();
        let config = read::read(path, text, &Schema::new(), &mut problems);
        if problems.is_empty()
            && let Err((span, why)) = config.check()
        {
            problems.push(Problem::new(path, text, span, why));
        }
        match problems.is_empty() {
            true => Ok(config),
            false => {
                problems.sort_by_key(|problem| problem.at);
                Err(Problems(problems))
            }
        }
    }

    /// What is wrong with all of it together.
    fn check(&self) -> Result<(), (Option<Range<usize>>, String)> {
        for share in &self.shares {
            let together = self.share_matches(share);
            together.map_err(|why| (Some(share.at..share.at), why))?;
        }
        serve::check(self).map_err(|why| (None, why.message))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// What the program is told, but for its shares.
    pub(crate) fn matches(&self) -> Result<ArgMatches, String> {
        Schema::new().parse(&arguments(&self.settings))
    }

    /// The same, with what `share` has of its own.
    pub(crate) fn share_matches(&self, share: &Share) -> Result<ArgMatches, String> {
        Schema::new().parse(&arguments(self.of_share(share)))
    }

    /// What `share` says, and what holds where it says nothing.
    fn of_share<'a>(&'a self, share: &'a Share) -> Vec<&'a Setting> {
        let rest = self
            .settings
            .iter()
            .filter(|setting| !share.says.contains(&setting.key));
        rest.chain(&share.settings).collect()
    }

    /// All that decides on how `share` is opened, but not on which terms it is served: another share of its name is the same if this is.
    pub(crate) fn opening(&self, share: &Share) -> Vec<Setting> {
        let schema = Schema::new();
        let mut settings: Vec<Setting> = self
            .of_share(share)
            .into_iter()
            .filter(|setting| schema.is_of_share(&setting.key) && !schema.is_term(&setting.key))
            .cloned()
            .collect();
        settings.push(Setting {
            key: schema::SOURCE.to_owned(),
            value: Some(share.source.0.clone()),
        });
        settings.sort();
        settings
    }

    /// The options that are not shares' and differ from those of `other`: what cannot change while the program runs.
    pub(crate) fn differs(&self, other: &Config) -> Vec<String> {
        let schema = Schema::new();
        let fixed = |config: &Config| {
            let fixed = config
                .settings
                .iter()
                .filter(|setting| setting.key != "export" && !schema.is_of_share(&setting.key));
            fixed.cloned().collect::<Vec<_>>()
        };
        let (one, other) = (fixed(self), fixed(other));
        let of = |all: &[Setting], key: &str| -> Vec<Setting> {
            all.iter().filter(|one| one.key == key).cloned().collect()
        };
        let keys = one.iter().chain(&other).map(|setting| &setting.key);
        let mut keys: Vec<String> = keys
            .filter(|key| of(&one, key) != of(&other, key))
            .cloned()
            .collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// As a file, with what holds where this says nothing. What a share does not say is what stands above.
    fn show(&self) -> String {
        let schema = Schema::new();
        let matches = self.matches().expect("it has been checked");
        let mut text = String::new();
        for arg in schema.options() {
            let key = arg.get_long().expect("options have names");
            let values = matches.try_get_raw(arg.get_id().as_str()).ok().flatten();
            let values: Vec<String> = values
                .into_iter()
                .flatten()
                .map(|value| value.to_string_lossy().into_owned())
                .collect();
            let given = self.settings.iter().filter(|one| one.key == key).count();
            text.push_str(&shown(key, Kind::of(arg), given, &values));
        }
        for share in &self.shares {
            text.push_str("\n[[share]]\n");
            for (key, value) in [
                (schema::NAME, &share.name),
                (schema::SOURCE, &Some(share.source.0.clone())),
            ] {
                if let Some(value) = value {
                    text.push_str(&format!("{key} = {}\n", quoted(value)));
                }
            }
            for key in &share.says {
                let all = share.settings.iter().filter(|setting| setting.key == *key);
                let given = all.clone().count();
                let values: Vec<_> = all.filter_map(|setting| setting.value.clone()).collect();
                let arg = schema.option(key).expect("it was found when it was read");
                text.push_str(&shown(key, Kind::of(arg), given, &values));
            }
        }
        text
    }
}

fn shown(key: &str, kind: Kind, given: usize, values: &[String]) -> String {
    let value = match (kind, values) {
        (Kind::Flag, _) => (given > 0).to_string(),
        (Kind::Count, _) => given.to_string(),
        (Kind::OneOrUsual, []) if given > 0 => true.to_string(),
        (Kind::Many, values) => {
            let all: Vec<_> = values.iter().map(|value| quoted(value)).collect();
            format!("[{}]", all.join(", "))
        }
        (_, [value]) => quoted(value),
        // There is no default to be shown.
        _ => return String::new(),
    };
    format!("{key} = {value}\n")
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(char))),
            char => quoted.push(char),
        }
    }
    quoted + "\""
}

fn arguments<'a>(settings: impl IntoIterator<Item = &'a Setting>) -> Vec<String> {
    settings.into_iter().map(Setting::argument).collect()
}

#[cfg(test)]
mod tests;
