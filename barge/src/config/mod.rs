//! `barge.toml`, the configuration file of `barge serve`.
//!
//! A key is an option of `barge serve` without its dashes and takes the same values: the definition
//! of the command line is also that of the file ([`schema`]). The settings become arguments that
//! clap parses, and so a [`crate::serve`] plan as any other. Tables of shares contain the options
//! that may differ between shares.
//!
//! A [`Config`] is data: the first process of a server passes it to those that serve, with the
//! contents of the files that shares name ([`files`]). They read neither the file nor the command
//! line.
//!
//! Deliberately absent: includes, variables, and keys without an option except `name`, `source` and
//! `clients` of shares.

pub(crate) mod command;
pub(crate) mod files;
pub(crate) mod live;
pub(crate) mod page;
mod read;
mod schema;

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use serde::{Deserialize, Serialize};

use self::files::Files;
pub(crate) use self::schema::DEVICE_OPTIONS;
use self::schema::{Schema, ValueKind};
use crate::source::{Source, Written, is_name};

/// The configuration file of the service.
pub(crate) const DEFAULT_PATH: &str = "/etc/barge/barge.toml";

/// A valid configuration file, or the same settings from elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    /// The path of the file, or the origin of the settings for messages.
    path: PathBuf,
    /// Whether `path` is that of a file, which can be read again.
    is_file: bool,
    /// Whether shares and endpoints may change while the server runs.
    can_change: bool,
    /// Settings of the program, and defaults of shares.
    settings: Vec<Setting>,
    shares: Vec<Share>,
    files: Files,
}

/// An option and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: Option<String>,
}

impl Setting {
    /// Returns the setting as an argument of the command line.
    fn argument(&self) -> String {
        match &self.value {
            Some(value) => format!("--{}={value}", self.key),
            None => format!("--{}", self.key),
        }
    }
}

/// A table of a share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Share {
    /// Offset in the file, bytes.
    offset: usize,
    pub(crate) name: Option<String>,
    /// Source as it was written, and parsed.
    #[serde(with = "written_source")]
    pub(crate) source: (Written, Source),
    /// Options that the table sets; `false` sets an option without adding an argument.
    keys: Vec<String>,
    settings: Vec<Setting>,
    /// The objects that its paths have led to; none if a process that is not confined serves it.
    pub(crate) objects: Vec<ObjectOf>,
    /// How often its paths were to be followed anew ([`Config::reopen`]), or it was released.
    reopened: u64,
    /// Whether it has given its objects up ([`Config::release`]).
    pub(crate) released: bool,
}

/// An object of the host that a path of a share has led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectOf {
    pub(crate) path: PathBuf,
    /// Its number in the first process of the server.
    pub(crate) number: u32,
    pub(crate) is_directory: bool,
    /// Whether it belongs to the source, and not to another option.
    pub(crate) of_source: bool,
    /// Whether files may be created, changed and removed.
    pub(crate) writable: bool,
}

/// The errors of a file; displayed with one per line.
#[derive(Debug)]
pub(crate) struct ConfigErrors(Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            let end = if at > 0 { "\n" } else { "" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

impl ConfigErrors {
    /// Returns an error of the file at `path` as a whole.
    pub(crate) fn of_file(path: &Path, message: String) -> ConfigErrors {
        ConfigErrors(vec![ConfigError::new(path, "", None, message)])
    }
}

/// An error in a file.
#[derive(Debug)]
struct ConfigError {
    path: PathBuf,
    /// Line and column, counted from 1, or `None` for the file as a whole.
    position: Option<(usize, usize)>,
    message: String,
}

impl ConfigError {
    fn new(path: &Path, text: &str, span: Option<Range<usize>>, message: String) -> ConfigError {
        let at = span.and_then(|span| {
            let before = text.get(..span.start)?;
            let line = before.rsplit('\n').next().unwrap_or(before);
            Some((before.matches('\n').count() + 1, line.chars().count() + 1))
        });
        ConfigError {
            path: path.to_owned(),
            position: at,
            message,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.path.display())?;
        if let Some((line, column)) = self.position {
            write!(f, "{line}:{column}:")?;
        }
        // One line for each error, for programs that parse the output.
        write!(f, " {}", self.message.trim().replace('\n', "; "))
    }
}

impl Config {
    fn new(path: &Path) -> Config {
        Config {
            path: path.to_owned(),
            is_file: true,
            can_change: true,
            settings: Vec::new(),
            shares: Vec::new(),
            files: Files::default(),
        }
    }

    /// Reads the file at `path`, validates each setting and those of each share in combination, and
    /// returns all errors found. Sources are not opened.
    pub(crate) fn read(path: &Path) -> Result<Config, ConfigErrors> {
        Config::of_bytes(path, std::fs::read(path))
    }

    /// Does the same with `text`, the result of reading the file.
    pub(crate) fn of_bytes(path: &Path, text: io::Result<Vec<u8>>) -> Result<Config, ConfigErrors> {
        let text = text.and_then(|text| {
            String::from_utf8(text)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "expected UTF-8"))
        });
        let text = text.map_err(|error| ConfigErrors::of_file(path, error.to_string()))?;
        Config::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Config, ConfigErrors> {
        let mut problems = Vec::new();
        let config = read::read(path, text, Schema::get(), &mut problems);
        if problems.is_empty()
            && let Err((span, why)) = config.check()
        {
            problems.push(ConfigError::new(path, text, Some(span), why));
        }
        match problems.is_empty() {
            true => Ok(config),
            false => {
                problems.sort_by_key(|problem| problem.position);
                Err(ConfigErrors(problems))
            }
        }
    }

    /// Checks the settings of each share in combination.
    fn check(&self) -> Result<(), (Range<usize>, String)> {
        for share in &self.shares {
            let together = self.share_matches(share);
            together.map_err(|why| (share.offset..share.offset, why))?;
        }
        Ok(())
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shares(&self) -> &[Share] {
        &self.shares
    }

    pub(crate) fn shares_mut(&mut self) -> &mut [Share] {
        &mut self.shares
    }

    /// Returns the numbers of the objects of all shares.
    pub(crate) fn objects(&self) -> impl Iterator<Item = u32> {
        let objects = self.shares.iter().flat_map(|share| &share.objects);
        objects.map(|object| object.number)
    }

    /// Returns the paths of the objects of all shares.
    pub(crate) fn object_paths(&self) -> impl Iterator<Item = &Path> {
        let objects = self.shares.iter().flat_map(|share| &share.objects);
        objects.map(|object| &*object.path)
    }

    /// Makes the shares that are opened as in `running` stay the objects that they are there.
    pub(crate) fn keep_objects_of(&mut self, running: &Config) {
        let mut kept = Vec::new();
        for share in &self.shares {
            let mut others = running.shares.iter();
            let same = others.find(|it| {
                it.name == share.name && running.line_settings(it) == self.line_settings(share)
            });
            kept.push(same.map(|it| (it.objects.clone(), it.reopened, it.released)));
        }
        for (share, kept) in self.shares.iter_mut().zip(kept) {
            if let Some((objects, reopened, released)) = kept {
                (share.objects, share.reopened, share.released) = (objects, reopened, released);
            }
        }
    }

    /// Makes the server follow the paths of the share called `name` anew; the share without a name
    /// is "". Returns `false` if there is none.
    pub(crate) fn reopen(&mut self, name: &str) -> bool {
        self.drop_objects(name, false)
    }

    /// Makes the share called `name` give its objects up until it is reopened. Returns `false` if
    /// there is none.
    pub(crate) fn release(&mut self, name: &str) -> bool {
        self.drop_objects(name, true)
    }

    fn drop_objects(&mut self, name: &str, released: bool) -> bool {
        let own = |share: &&mut Share| share.name.as_deref().unwrap_or_default() == name;
        let share = self.shares.iter_mut().find(own);
        let found = share.map(|share| {
            share.objects.clear();
            share.reopened += 1;
            share.released = released;
        });
        found.is_some()
    }

    /// Returns whether shares and endpoints may change while the server runs.
    pub(crate) fn can_change(&self) -> bool {
        self.can_change
    }

    /// Returns the contents of the files that shares name.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Drops the shares whose names `is_kept` refuses, with their devices and lists of clients.
    pub(crate) fn retain_shares(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.shares
            .retain(|share| is_kept(share.name.as_deref().unwrap_or_default()));
        self.settings.retain(|setting| {
            let value = setting.value.as_deref().unwrap_or_default();
            let name = match &*setting.key {
                "export" => client_list_name(value),
                key if DEVICE_OPTIONS.contains(&key) => match value.split_once('=') {
                    Some((name, _)) if is_name(name) => name,
                    _ => return true,
                },
                _ => return true,
            };
            is_kept(name)
        });
    }

    /// Parses the settings of the program, without those of shares.
    pub(crate) fn matches(&self) -> Result<ArgMatches, String> {
        Schema::get().parse(&arguments(&self.settings))
    }

    /// Parses the settings of the program with those of `share` in their place.
    pub(crate) fn share_matches(&self, share: &Share) -> Result<ArgMatches, String> {
        Schema::get().parse(&arguments(self.share_settings(share)))
    }

    /// Returns the settings of `share`, and those of the program for options that `share` does not
    /// set.
    fn share_settings<'a>(&'a self, share: &'a Share) -> Vec<&'a Setting> {
        let rest = self
            .settings
            .iter()
            .filter(|setting| !share.keys.contains(&setting.key));
        rest.chain(&share.settings).collect()
    }

    /// Returns the settings that determine how `share` is opened, without those of access and its
    /// limits, and the objects that it consists of. A share of the same name is reopened only if
    /// these differ.
    pub(crate) fn opening_settings(&self, share: &Share) -> Vec<Setting> {
        let mut settings = self.line_settings(share);
        let numbers = share.objects.iter().map(|it| u64::from(it.number));
        settings.extend(numbers.chain([share.reopened]).map(|number| Setting {
            key: "object".to_owned(),
            value: Some(number.to_string()),
        }));
        settings
    }

    /// Returns the settings that determine how `share` is opened, without the objects.
    fn line_settings(&self, share: &Share) -> Vec<Setting> {
        let schema = Schema::get();
        let mut settings: Vec<Setting> = self
            .share_settings(share)
            .into_iter()
            .filter(|setting| {
                schema.is_share_option(&setting.key) && !schema.is_changeable_option(&setting.key)
            })
            .cloned()
            .collect();
        settings.push(Setting {
            key: schema::SOURCE.to_owned(),
            value: Some(share.source.0.for_parser().to_owned()),
        });
        settings.sort();
        settings
    }

    /// Returns the options outside shares that differ from those of `other`: they cannot change
    /// while the program runs.
    pub(crate) fn changed_keys(&self, other: &Config) -> Vec<String> {
        let schema = Schema::get();
        let fixed = |config: &Config| {
            let fixed = config
                .settings
                .iter()
                .filter(|setting| !live::is_live(&setting.key))
                .filter(|setting| !schema.is_share_option(&setting.key));
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

    /// Formats the configuration as a file with all defaults. Tables of shares contain only their
    /// own settings.
    fn to_toml(&self) -> String {
        let schema = Schema::get();
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
            text.push_str(&setting_line(key, ValueKind::of(arg), given, &values));
        }
        self.add_shares(schema, &mut text);
        text
    }

    /// Formats the tables of shares.
    fn add_shares(&self, schema: &Schema, text: &mut String) {
        for share in &self.shares {
            text.push_str("\n[[share]]\n");
            for (key, value) in [
                (schema::NAME, share.name.as_deref()),
                (schema::SOURCE, Some(share.source.0.for_parser())),
            ] {
                if let Some(value) = value {
                    text.push_str(&format!("{key} = {}\n", quoted(value)));
                }
            }
            for key in &share.keys {
                let all = share.settings.iter().filter(|setting| setting.key == *key);
                let given = all.clone().count();
                let values: Vec<_> = all.filter_map(|setting| setting.value.clone()).collect();
                let arg = schema.option(key).expect("it was found when it was read");
                text.push_str(&setting_line(key, ValueKind::of(arg), given, &values));
            }
        }
    }
}

/// Returns the name of the share that a line of `--export` is for.
fn client_list_name(line: &str) -> &str {
    let name = line.split(char::is_whitespace).next().unwrap_or_default();
    name.trim_start_matches('/')
}

/// A source in data: its text as it was written, with secrets.
mod written_source {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::source::{Source, Written};

    pub(super) fn serialize<S: Serializer>(
        (written, _): &(Written, Source),
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(written.for_parser())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<(Written, Source), D::Error> {
        Written::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

fn setting_line(key: &str, kind: ValueKind, given: usize, values: &[String]) -> String {
    let value = match (kind, values) {
        (ValueKind::Flag, _) => (given > 0).to_string(),
        (ValueKind::Count, _) => given.to_string(),
        (ValueKind::OptionalValue, []) if given > 0 => true.to_string(),
        (ValueKind::List, values) => {
            let all: Vec<_> = values.iter().map(|value| quoted(value)).collect();
            format!("[{}]", all.join(", "))
        }
        (_, [value]) => quoted(value),
        // The option is not set and has no default.
        _ => return String::new(),
    };
    format!("{key} = {value}\n")
}

/// Quotes `text` as a string of TOML.
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
