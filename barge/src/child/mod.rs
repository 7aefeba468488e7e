//! Processes that serve as children of another process of this program. The parent is not confined;
//! it carries out requests of its children ([`message`]) that their confinement forbids.

pub(crate) mod message;
pub(crate) mod users;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rustix::process::Signal;
use sandbox::{ChildNamespace, Confinement, Namespaces};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::serve::args::confinement::Sandbox;
use crate::serve::broker::upgrade::MANIFEST;
use crate::{Failure, arguments, confinement};

/// The environment variable with the options of a child, as JSON.
const OPTIONS: &str = "BARGE_CHILD";

/// Returns the options that the parent of this process has given it, if it has such a parent.
pub(crate) fn options<O: DeserializeOwned>() -> Option<Result<O, Failure>> {
    let text = env::var_os(OPTIONS)?;
    let options = serde_json::from_slice(text.as_bytes());
    Some(options.map_err(|error| Failure::new(format!("{OPTIONS}: {error}"))))
}

/// Returns whether a process of this program has started this one.
#[cfg(feature = "otel")]
pub(crate) fn is_child() -> bool {
    env::var_os(OPTIONS).is_some()
}

/// Takes over a descriptor that the options of this process name.
pub(crate) fn inherited(number: i32) -> Result<OwnedFd, Failure> {
    sys::inherit::fd(number).map_err(|error| Failure::new(format!("{OPTIONS}: {error}")))
}

/// The path of this program while it runs, whatever is installed at its own path.
const PROGRAM: &str = "/proc/self/exe";

/// Returns the command that starts this program again with the same arguments.
pub(crate) fn command() -> Command {
    command_of(Path::new(PROGRAM))
}

/// Returns the command that starts `program`, this one or another version of it, with the same
/// arguments.
pub(crate) fn command_of(program: &Path) -> Command {
    let mut command = command_without_arguments(program);
    command.args(arguments::of_this_process().into_iter().skip(1));
    command
}

/// Returns the command that starts this program again with `arguments`.
pub(crate) fn command_with(arguments: impl IntoIterator<Item = String>) -> Command {
    let mut command = command_without_arguments(Path::new(PROGRAM));
    command.args(arguments);
    command
}

/// Executes this program again in this process, with the same arguments and the environment
/// variable `name`. Returns only if that fails.
pub(crate) fn execute_itself(name: &str, value: &OsStr) -> io::Error {
    let mut command = named(Path::new(PROGRAM));
    command.args(arguments::of_this_process().into_iter().skip(1));
    command.env(name, value).exec()
}

fn command_without_arguments(program: &Path) -> Command {
    let mut command = named(program);
    // Signals of the terminal reach it through this process.
    command.process_group(0);
    command
}

/// Returns the command that starts `program` with the name of this one.
fn named(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some(name) = env::args_os().next() {
        command.arg0(name);
    }
    command.env_remove(MANIFEST);
    command
}

/// The namespaces that a parent prepares for its children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildNamespaces {
    /// `None` if Landlock confines them alone.
    kind: Option<Namespaces>,
    /// Whether children are not started without them.
    required: bool,
}

impl ChildNamespaces {
    /// Returns those for the value of `--sandbox`.
    pub(crate) fn new(sandbox: Option<Sandbox>) -> Result<ChildNamespaces, Failure> {
        let required = sandbox == Some(Sandbox::Namespace);
        let kind = Namespaces::for_this_process();
        let kind = match sandbox {
            Some(Sandbox::Landlock | Sandbox::None) => None,
            _ if kind == Namespaces::Privileged => Some(kind),
            _ if required => {
                return Err(Failure::new(
                    "sandbox namespace: expected the super-user, with CAP_SYS_ADMIN",
                ));
            }
            _ => None,
        };
        Ok(ChildNamespaces { kind, required })
    }

    /// Returns those for children whose parent [copies](sandbox::root::copy_object) the objects in
    /// their roots.
    pub(crate) fn with_copies(sandbox: Option<Sandbox>) -> Result<ChildNamespaces, Failure> {
        let all = ChildNamespaces::new(sandbox)?;
        if all.kind.is_none() || sandbox::root::can_copy() {
            return Ok(all);
        }
        let why = "the mount namespace belongs to another user namespace";
        if all.required {
            return Err(Failure::new(format!("sandbox namespace: {why}")));
        }
        tracing::info!("{why}: confined by Landlock alone");
        Ok(ChildNamespaces { kind: None, ..all })
    }

    /// Starts a child with `command` and the options that `options` returns, which gets whether
    /// the child is prepared for namespaces.
    pub(crate) fn start<O: Serialize>(
        self,
        mut command: Command,
        options: impl Fn(bool) -> O,
    ) -> io::Result<Child> {
        let mut start = |namespaces| {
            let text = serde_json::to_string(&options(namespaces))?;
            command.env(OPTIONS, text).spawn()
        };
        let Some(namespaces) = self.kind else {
            return start(false);
        };
        let own = ChildNamespace::current()?;
        match own.check().and_then(|()| namespaces.prepare()) {
            Ok(()) => {
                let child = start(true);
                own.restore()?;
                child
            }
            Err(error) if self.required => Err(io::Error::other(error)),
            Err(error) => {
                tracing::info!("{error}: confined by Landlock alone");
                start(false)
            }
        }
    }
}

/// Makes the kernel kill this process, a child, when its parent ends: no successor of the parent
/// then finds the state in use.
pub(crate) fn end_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(Failure::new)
}

/// Confines this process, a child, before it starts a thread. It then also [ends with its
/// parent](end_with_parent).
pub(crate) fn confine(confinement: &Confinement) -> Result<(), Failure> {
    end_with_parent()?;
    confine_survivor(confinement)
}

/// Confines this process, a child that goes on when its parent ends, before it starts a thread.
pub(crate) fn confine_survivor(confinement: &Confinement) -> Result<(), Failure> {
    confinement::log_missing_barriers();
    if let Err(error) = raise_oom_score() {
        tracing::debug!("{OOM_SCORE}: {error}");
    }
    // They read files of /proc that a root of its own does not have.
    let _ = (
        sys::usage::running_threads(),
        sys::usage::lease_break_time(),
    );
    confinement.enter().map_err(Failure::new)
}

/// The file of the out-of-memory killer's preference (proc_pid_oom_score_adj(5)).
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Added to the preference of a process that serves, in thousandths of the memory of its control
/// group: more than a parent is larger than a child that has just started, and no more than a
/// user's programs have with systemd.
const OOM_SCORE_ADDED: i32 = 100;

/// Makes the out-of-memory killer prefer this process to its parent, which starts another one:
/// without its parent, the server or mount ends.
fn raise_oom_score() -> io::Result<()> {
    let score = fs::read_to_string(OOM_SCORE)?;
    let score: i32 = score.trim().parse().map_err(io::Error::other)?;
    fs::write(OOM_SCORE, (score + OOM_SCORE_ADDED).min(1000).to_string())
}

/// The exit status of a Rust program whose main thread panicked.
const PANICKED: i32 = 101;

/// The end of a child.
pub(crate) enum End {
    /// By itself, with this status.
    Exit(u8),
    /// By a crash, as the end of a sentence about the process.
    Crash(String),
}

impl End {
    pub(crate) fn of(status: ExitStatus) -> End {
        match (status.code(), status.signal()) {
            (Some(PANICKED), _) => End::Crash("has panicked".into()),
            (Some(code), _) => End::Exit(u8::try_from(code).unwrap_or(1)),
            (None, signal) => {
                let signal = signal.unwrap_or_default();
                let hint = match signal == Signal::SYS.as_raw() {
                    true => " after a system call that seccomp does not permit",
                    false => "",
                };
                End::Crash(format!("was ended by signal {signal}{hint}"))
            }
        }
    }
}
