//! The command line: the one definition of help, man pages and completions.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use command::bench::BenchArgs;
use command::log::{LogArgs, LogFormat};
use command::stderr::print_line;

use crate::cache::CacheArgs;
use crate::commands::FileCommand;
use crate::config::Config;
use crate::config::command::ConfigArgs;
use crate::connect::ConnectArgs;
use crate::ctl::CtlArgs;
use crate::doctor::DoctorArgs;
use crate::mount::MountArgs;
use crate::reference::{CompletionsArgs, ManArgs};
use crate::serve::args::ServeArgs;
use crate::serve::broker::parent;
use crate::serve::plan;
use crate::serve::virtiofsd::args::VirtiofsdArgs;
use crate::status::TopArgs;
use crate::watch::WatchArgs;
use crate::{
    arguments, bench, cache, config, connect, ctl, doctor, log, mount, reference, serve, signals,
    status, watch,
};

/// Serve file trees over protocols that virtual machines, containers and hosts can mount
#[derive(Parser)]
#[command(
    name = "barge",
    version,
    long_version = crate::version::long(),
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The configuration of `serve`.
    #[arg(skip)]
    pub(crate) config: Option<Config>,
}

impl Cli {
    /// Parses the arguments of the process. Exits if they are invalid.
    pub(crate) fn read() -> Cli {
        let matches = read_arguments();
        let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let Command::Serve(args) = &cli.command
            && let Some(path) = &args.config
        {
            if let Some(other) = conflicting_argument(&matches) {
                let why = format!("--config replaces all other options: got {other} too");
                Cli::command()
                    .error(ErrorKind::ArgumentConflict, why)
                    .exit();
            }
            match plan::read_config(path) {
                Ok(config) => {
                    add_settings(&mut cli.log, &config);
                    cli.config = Some(config);
                }
                Err(problems) => {
                    print_line(problems);
                    std::process::exit(2);
                }
            }
        }
        if let Command::Serve(_) = &cli.command
            && cli.config.is_none()
            && let Some((_, serve)) = matches.subcommand()
        {
            match Config::of_command_line(serve) {
                Ok(config) => cli.config = Some(config),
                Err(why) => Cli::command().error(ErrorKind::InvalidValue, why).exit(),
            }
        }
        if let Command::Virtiofsd(args) = &mut cli.command
            && let Err(bad) = args.apply_compat()
        {
            Cli::command().error(ErrorKind::InvalidValue, bad).exit();
        }
        cli
    }

    /// Returns the configuration of `barge serve` with `arguments`, or an error.
    pub(crate) fn serve_config(arguments: &[&str]) -> Result<Config, String> {
        let given = ["barge", "serve"].iter().chain(arguments);
        let matches = Cli::command().try_get_matches_from(given);
        let matches = matches.map_err(|error| error.to_string())?;
        let (_, serve) = matches.subcommand().expect("it is there");
        Config::of_command_line(serve)
    }
}

/// Runs the program with the arguments of this process, and returns its exit status.
pub fn main() -> ExitCode {
    if let Some(status) = parent::run() {
        return status;
    }
    signals::prepare();
    let cli = Cli::read();
    match &cli.command {
        Command::Virtiofsd(args) => log::start_daemon(&cli.log, args.log_level(), args.syslog()),
        Command::Serve(_) | Command::Mount(_) | Command::Connect(_) => log::start(&cli.log),
        _ => log::start_quiet(&cli.log),
    }
    let done = match &cli.command {
        Command::Serve(_) => serve::run(cli.config.expect("it has been read"), &cli.log),
        Command::Virtiofsd(args) => serve::run_virtiofsd(args),
        Command::Mount(args) => mount::run(args),
        Command::Connect(args) => connect::run(args),
        Command::File(command) => command.run(),
        Command::Watch(args) => watch::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Config(args) => config::command::run(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Top(args) => status::top(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions(args) => reference::completions(args, &mut Cli::command()),
        Command::Man(args) => reference::man(args, Cli::command()),
    };
    done.unwrap_or_else(|failure| failure.report("barge"))
}

/// The commands that other processes carry out, later or elsewhere: those that serve a mount, which
/// leave the current directory, and a server.
const CARRIED_OUT_ELSEWHERE: [&str; 3] = ["mount", "connect", "ctl"];

/// Parses the arguments of the process, with absolute paths for other processes. Exits if they are
/// invalid.
fn read_arguments() -> ArgMatches {
    let given: Vec<_> = std::env::args_os().collect();
    let matches = Cli::command().get_matches_from(multicall_arguments(given.clone()));
    let name = matches.subcommand_name().unwrap_or_default();
    if !CARRIED_OUT_ELSEWHERE.contains(&name) {
        return matches;
    }
    let mut command = Cli::command();
    command.build();
    let made = match arguments::absolute(&command, &matches) {
        Ok(None) => return matches,
        Ok(Some(made)) => made,
        Err(why) => Cli::command().error(ErrorKind::InvalidValue, why).exit(),
    };
    // The name of the program may select the command.
    let skipped = usize::from(command_of_program(&given).is_some());
    let program = given.into_iter().take(1);
    let absolute: Vec<_> = program.chain(made.into_iter().skip(skipped)).collect();
    arguments::set(absolute.clone());
    Cli::command().get_matches_from(multicall_arguments(absolute))
}

/// Returns an argument of `barge serve` that conflicts with `--config`: any but that and the
/// options of logging.
fn conflicting_argument(matches: &ArgMatches) -> Option<String> {
    let (_, serve) = matches.subcommand()?;
    let given = |id: &&str| serve.value_source(id) == Some(ValueSource::CommandLine);
    let mut ids = serve.ids().map(clap::Id::as_str).filter(given);
    // Ids of argument groups are among them, too.
    let is_option = |id: &&str| serve.try_get_raw(id).is_ok();
    let other =
        ids.find(|id| !["config", "verbose", "log_format"].contains(id) && is_option(id))?;
    let mut cli = Cli::command();
    let arg = cli
        .find_subcommand_mut("serve")?
        .get_arguments()
        .find(|arg| arg.get_id() == other)?;
    Some(
        arg.get_long()
            .map_or("a source".into(), |long| format!("--{long}")),
    )
}

/// Names of the program that select a command: the daemon that virtual machine monitors start, and
/// helpers of mount(8).
const PROGRAM_NAMES: [(&str, &str); 4] = [
    ("virtiofsd", "virtiofsd"),
    ("mount.barge", "mount"),
    ("mount.fuse.barge", "mount"),
    ("mount.barge9p", "connect"),
];

fn multicall_arguments(mut given: Vec<OsString>) -> Vec<OsString> {
    if let Some(command) = command_of_program(&given) {
        given.insert(1, command.into());
    }
    given
}

/// Returns the command that the name of the program selects, if it does.
fn command_of_program(given: &[OsString]) -> Option<&'static str> {
    let program = given.first().map(Path::new).and_then(Path::file_name)?;
    let known = PROGRAM_NAMES.iter().find(|(name, _)| program == *name);
    known.map(|(_, command)| *command)
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve trees until SIGTERM or SIGINT
    Serve(Box<ServeArgs>),
    /// Share a directory with a virtual machine, with the options of virtiofsd 1.14
    Virtiofsd(Box<VirtiofsdArgs>),
    /// Mount a source on a directory of this host
    Mount(Box<MountArgs>),
    /// Mount a 9P server with the kernel's client, through a proxy that reconnects to it
    Connect(ConnectArgs),
    #[command(flatten)]
    File(Box<FileCommand>),
    /// Print the changes of a directory until interrupted
    Watch(WatchArgs),
    /// List, fetch, remove and verify images that are cached on this host
    Cache(CacheArgs),
    /// Check or show a configuration file of `barge serve`
    Config(ConfigArgs),
    /// List and change the shares, endpoints and clients of a server that has --control
    Ctl(CtlArgs),
    /// Show the activity of a server that has --http
    Top(TopArgs),
    /// Report which features work on this host, and how to enable the others
    Doctor(DoctorArgs),
    /// Compare barge with its peers
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print a man page, or write all of them to a directory
    Man(ManArgs),
}

/// Adds the settings of `config` to the options of logging; the command line takes precedence.
fn add_settings(log: &mut LogArgs, config: &Config) {
    let matches = config.matches().expect("it has been checked");
    let file = LogArgs::from_arg_matches(&matches).expect("it has been checked");
    log.verbose = log.verbose.max(file.verbose);
    if log.log_format == LogFormat::Text {
        log.log_format = file.log_format;
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn each_option_of_serve_has_a_heading_and_one_line_of_short_help() {
        let mut cli = super::Cli::command();
        cli.build();
        let serve = cli.find_subcommand("serve").expect("a command");
        let shown = |option: &&clap::Arg| !option.is_hide_set() && !option.is_positional();
        for option in serve.get_arguments().filter(shown) {
            let long = option.get_long().expect("a long name");
            if ["help", "version"].contains(&long) {
                continue;
            }
            assert!(option.get_help_heading().is_some(), "--{long}");
            let help = option.get_help().expect("help").to_string();
            assert!(help.chars().count() <= 88, "--{long}: {help}");
        }
    }

    #[test]
    fn options_of_a_protocol_have_its_prefix() {
        let mut cli = super::Cli::command();
        cli.build();
        let serve = cli.find_subcommand("serve").expect("a command");
        let prefixes = [
            ("9P", ["9p", "virtio-9p"]),
            ("NFS", ["nfs", "nfs"]),
            ("virtiofs", ["virtiofs", "virtiofs"]),
            ("Block", ["block", "nbd"]),
        ];
        for option in serve.get_arguments() {
            let heading = option.get_help_heading().unwrap_or_default();
            let long = option.get_long().unwrap_or_default();
            let begins = |word: &str| {
                let rest = long.strip_prefix(word);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            };
            for (protocol, words) in prefixes {
                let has = words.into_iter().any(begins);
                assert_eq!(has, heading == protocol, "--{long}");
            }
        }
    }

    #[test]
    fn the_definition_is_sound() {
        super::Cli::command().debug_assert();
    }
}
