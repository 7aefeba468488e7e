//! Arguments with absolute paths.
//!
//! A process of a mount leaves the current directory of the user who started it, and starts others
//! later; a server carries out a request elsewhere. So the first process decides what relative
//! paths mean, and passes the arguments of [`of_this_process`] on. The type of a value says whether
//! it has paths: [`absolute_value`] knows these types.

use std::any::TypeId;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use remote::{absolute_path, absolute_text};
use transports::Addr;

use crate::mount::options::MountOption;
use crate::serve::args::device::{Drive, NinePDevice, SocketArg, VirtiofsDevice};
use crate::source::{Source, SourceArg};

/// The arguments of this process, if they are others than the system's.
static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Returns the arguments to start this program with again, beginning with its name.
pub(crate) fn of_this_process() -> Vec<OsString> {
    let own = ARGUMENTS.get().cloned();
    own.unwrap_or_else(|| env::args_os().collect())
}

/// Sets the result of [`of_this_process`]. A process does so once.
pub(crate) fn set(arguments: Vec<OsString>) {
    let _ = ARGUMENTS.set(arguments);
}

/// Returns the arguments after the name of `command`, which is built, that `matches` has, with
/// absolute paths, or `None` if all paths are absolute already. The error is one line.
pub(crate) fn absolute(
    command: &Command,
    matches: &ArgMatches,
) -> Result<Option<Vec<OsString>>, String> {
    let mut made = AbsoluteArguments::default();
    made.add(command, matches)?;
    Ok(made.has_changed.then_some(made.all))
}

/// The arguments of a command.
#[derive(Default)]
struct AbsoluteArguments {
    all: Vec<OsString>,
    /// Whether one of them has another path than the one that was given.
    has_changed: bool,
}

impl AbsoluteArguments {
    /// Adds those of `command` and, after them, of its subcommand.
    fn add(&mut self, command: &Command, matches: &ArgMatches) -> Result<(), String> {
        let subcommand = matches.subcommand();
        let (mut positional, mut options) = (Vec::new(), Vec::new());
        for arg in command.get_arguments() {
            let given = matches.value_source(arg.get_id().as_str());
            // Global options are those of the subcommand, too.
            let is_of_other = arg.is_global_set() && subcommand.is_some();
            if given == Some(ValueSource::CommandLine) && !is_of_other {
                let to = match arg.is_positional() {
                    true => &mut positional,
                    false => &mut options,
                };
                self.add_values(arg, matches, to)?;
            }
        }
        let has_dash = |text: &OsString| text.as_encoded_bytes().starts_with(b"-");
        match positional.iter().any(has_dash) {
            true => {
                self.all.append(&mut options);
                self.all.push("--".into());
                self.all.append(&mut positional);
            }
            false => {
                self.all.append(&mut positional);
                self.all.append(&mut options);
            }
        }
        let Some((name, matches)) = subcommand else {
            return Ok(());
        };
        self.all.push(name.into());
        let command = command.find_subcommand(name);
        self.add(command.expect("it was parsed"), matches)
    }

    /// Adds an argument for each occurrence of `arg` to `to`.
    fn add_values(
        &mut self,
        arg: &Arg,
        matches: &ArgMatches,
        to: &mut Vec<OsString>,
    ) -> Result<(), String> {
        let id = arg.get_id().as_str();
        match arg.get_action() {
            ArgAction::SetTrue => to.push(argument(arg, None)),
            ArgAction::Count => {
                to.extend((0..matches.get_count(id)).map(|_| argument(arg, None)));
            }
            _ => {
                let values = matches.try_get_raw(id).ok().flatten();
                for value in values.into_iter().flatten() {
                    let made = absolute_value(arg, value)?;
                    self.has_changed |= made != value;
                    to.push(argument(arg, Some(&made)));
                }
            }
        }
        Ok(())
    }
}

/// Returns the argument that gives `arg` the value `value`, if it takes one.
fn argument(arg: &Arg, value: Option<&OsStr>) -> OsString {
    let mut text = OsString::new();
    match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => {
            text.push(format!("--{long}"));
            text.push(if value.is_some() { "=" } else { "" });
        }
        (None, Some(short)) => text.push(format!("-{short}")),
        (None, None) => {}
    }
    text.push(value.unwrap_or_default());
    text
}

/// Makes the paths in the text of a value absolute: relative ones begin in this directory.
type MakeAbsolute = fn(&str, &Path) -> Result<String, String>;

/// Returns the function for values of `arg`, or `None` if they have no paths.
fn make_absolute(arg: &Arg) -> Option<MakeAbsolute> {
    let with_paths: [(TypeId, MakeAbsolute); 9] = [
        (TypeId::of::<PathBuf>(), absolute_text),
        (TypeId::of::<Source>(), Source::absolute),
        (TypeId::of::<SourceArg>(), SourceArg::absolute),
        (TypeId::of::<remote::ninep::Url>(), remote::Url::absolute),
        (TypeId::of::<MountOption>(), MountOption::absolute),
        (TypeId::of::<Addr>(), absolute_addr),
        (TypeId::of::<VirtiofsDevice>(), SocketArg::absolute),
        (TypeId::of::<NinePDevice>(), SocketArg::absolute),
        (TypeId::of::<Drive>(), SocketArg::absolute),
    ];
    let own = arg.get_value_parser().type_id();
    let found = with_paths.into_iter().find(|(one, _)| own == *one);
    found.map(|(_, function)| function)
}

/// Returns `value`, a valid one of `arg`, with absolute paths. The error is one line.
fn absolute_value(arg: &Arg, value: &OsStr) -> Result<OsString, String> {
    let Some(function) = make_absolute(arg) else {
        return Ok(value.to_owned());
    };
    let failed = |why: String| format!("{}: {why}", arg.get_id());
    let current = env::current_dir();
    let dir = current.as_deref().unwrap_or(Path::new("/"));
    let Some(text) = value.to_str() else {
        return Ok(absolute_path(Path::new(value), dir).into());
    };
    let made = function(text, dir).map_err(failed)?;
    if let Err(error) = &current
        && made != text
    {
        let why = format!("expected an absolute path: the current directory: {error}");
        return Err(failed(why));
    }
    match arg.get_value_delimiter() {
        Some(delimiter) if made.contains(delimiter) => Err(failed(format!(
            "expected a path without '{delimiter}', got '{made}'"
        ))),
        _ => Ok(made.into()),
    }
}

/// Does [`absolute_text`] with the path of an address.
pub(crate) fn absolute_addr(text: &str, dir: &Path) -> Result<String, String> {
    match text.split_once(':') {
        // A name of an abstract socket (unix(7)) is no path.
        Some((kind @ ("unix" | "vsock-uds"), path)) if !path.starts_with('@') => {
            Ok(format!("{kind}:{}", absolute_text(path, dir)?))
        }
        _ => Ok(text.to_owned()),
    }
}

/// The variables of the environment whose values are paths of this host, besides those of object
/// stores: of registries, and of the export to a collector.
const PATH_VARIABLES: &[&str] = &[
    "DOCKER_CONFIG",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
];

/// Returns the variables of the environment that have relative paths, with absolute ones.
pub(crate) fn absolute_variables() -> Vec<(OsString, OsString)> {
    let Ok(dir) = env::current_dir() else {
        return Vec::new();
    };
    let is_path = |name: &OsString| {
        let name = name.to_str();
        name.is_some_and(|name| PATH_VARIABLES.contains(&name) || objects::is_path_variable(name))
    };
    let relative = env::vars_os().filter(|(name, value)| {
        let path = Path::new(value);
        is_path(name) && path.is_relative() && !value.is_empty()
    });
    relative
        .map(|(name, value)| (name, absolute_path(Path::new(&value), &dir).into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// The arguments without paths of this host.
    const WITHOUT_PATHS: &[&str] = &[
        "9p-fd-passing",
        "admit",
        "anon-gid",
        "anon-uid",
        "client",
        "client-limit",
        "cache-dir-size",
        "clients",
        "foreground",
        "fuse",
        "help",
        "hide",
        "identity",
        "json",
        "limit",
        "log-format",
        "map-gid",
        "map-uid",
        "n",
        "otlp",
        "quota",
        "quota-inodes",
        "read-only",
        "sloppy",
        "slow-ms",
        "squash",
        "subcommand",
        "t",
        "target",
        "timeout",
        "verbose",
        "version",
        "xattrmap",
    ];

    fn check_decided(command: &Command) {
        for arg in command.get_arguments() {
            let name = arg.get_long().unwrap_or(arg.get_id().as_str());
            // That of other commands is the name of a share.
            let is_name = ["evict", "limit", "release", "reopen"].contains(&command.get_name())
                && name == "share";
            let is_listed = WITHOUT_PATHS.contains(&name) || is_name;
            // Those of barge connect are names, numbers and flags.
            let is_of_connect = command.get_name() == "connect" && name == "options";
            assert_ne!(
                make_absolute(arg).is_some(),
                is_listed || is_of_connect,
                "{} {name}: expected a type with paths, or a line in the list",
                command.get_name()
            );
        }
        command.get_subcommands().for_each(check_decided);
    }

    #[test]
    fn whether_an_argument_has_paths_is_decided_for_each() {
        let mut cli = Cli::command();
        cli.build();
        for name in ["mount", "connect", "ctl"] {
            let command = cli.find_subcommand(name).expect("a command");
            let own = command.clone().disable_help_subcommand(true);
            check_decided(&own);
        }
    }

    /// Returns the arguments with absolute paths, in which `DIR` stands for the current directory,
    /// or `None` if all are absolute.
    fn absolute_of(given: &[&str]) -> Option<Vec<String>> {
        let mut cli = Cli::command();
        let matches = cli.clone().try_get_matches_from(given).expect("valid");
        cli.build();
        let made = absolute(&cli, &matches).expect("made")?;
        let dir = env::current_dir().expect("a directory");
        let dir = dir.to_str().expect("UTF-8");
        let text = |one: OsString| one.into_string().expect("UTF-8").replace(dir, "DIR");
        Some(made.into_iter().map(text).collect())
    }

    #[test]
    fn a_mount_is_described_without_the_current_directory() {
        let given = [
            "barge",
            "-v",
            "mount",
            "./a",
            "b",
            "-o",
            "ro,cache_dir=c,http=unix:d",
            "-o",
            "soft",
            "--verify-key",
            "k",
            "--verify-key=/l",
            "--overlay=o",
            "--record-trace",
            "t",
            "-fsn",
            "-t",
            "barge",
            "--log-format=json",
        ];
        let made = absolute_of(&given).expect("some are relative");
        let expected = [
            "mount",
            "DIR/a",
            "DIR/b",
            "--options=ro",
            "--options=cache_dir=DIR/c",
            "--options=http=unix:DIR/d",
            "--options=soft",
            "--foreground",
            "--overlay=DIR/o",
            "--verify-key=DIR/k",
            "--verify-key=/l",
            "--record-trace=DIR/t",
            "-n",
            "-s",
            "-tbarge",
            "--verbose",
            "--log-format=json",
        ];
        assert_eq!(made, expected);
        let again: Vec<_> = made.iter().map(|text| text.replace("DIR", "/d")).collect();
        let again: Vec<_> = ["barge"]
            .into_iter()
            .chain(again.iter().map(String::as_str))
            .collect();
        assert_eq!(absolute_of(&again), None);
        let remote = absolute_of(&["barge", "connect", "9p+unix:s?msize=8192", "/m", "-ohard"]);
        let expected = [
            "connect",
            "9p+unix:DIR/s?msize=8192",
            "/m",
            "--options=hard",
        ];
        assert_eq!(remote.expect("a relative socket"), expected);
    }

    #[test]
    fn what_is_added_has_the_paths_of_the_caller() {
        let given = [
            "barge",
            "ctl",
            "--control=unix:c",
            "add",
            "--overlay",
            "o",
            "--record-trace=list",
            "--9p",
            "unix:p",
            "--nbd",
            "tcp:h:1",
            "--virtiofs",
            "v,tag=x",
            "--block=d,file=f,ro",
            "--cache-dir",
            "./cache",
            "--",
            "-b=./s",
        ];
        let made = absolute_of(&given).expect("some are relative");
        assert_eq!(made[..2], ["ctl", "add"]);
        assert_eq!(made[made.len() - 2..], ["--", "-b=DIR/s"]);
        for one in [
            "--control=unix:DIR/c",
            "--overlay=DIR/o",
            "--record-trace=DIR/list",
            "--9p=unix:DIR/p",
            "--nbd=tcp:h:1",
            "--virtiofs=DIR/v,tag=x",
            "--block=DIR/d,file=f,ro",
            "--cache-dir=DIR/cache",
        ] {
            assert!(made.iter().any(|other| other == one), "{one} in {made:?}");
        }
    }
}
