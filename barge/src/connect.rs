//! `barge connect`: mounts a server with the kernel's 9P client over `trans=fd`, and relays between
//! the two. If the connection to the server is lost, the kernel only waits until it is restored.
//!
//! There are two processes: the holder mounts and unmounts, and the other one relays.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ::connect::{ConnectOption, MountSettings, Relay};
use clap::{Args, ValueEnum};
use remote::ninep::Url;
use rustix::thread::CapabilitySet;
use sandbox::Confinement;

use crate::holder::{HeldMount, Holder, hold};
use crate::mount::HelperArgs;
use crate::serve::args::confinement::{Sandbox, Seccomp};
use crate::{CommandResult, Failure, arguments, background, child, diagnose, signals};

#[derive(Args)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in help are no links"
)]
pub(crate) struct ConnectArgs {
    /// Server to mount: 9p://HOST[:PORT]/ANAME, 9p+unix:SOCKET or 9p+vsock:[CID:]PORT
    source: Url,
    /// Directory to mount it on
    dir: PathBuf,
    /// Mount options
    ///
    /// Options of every file system (ro, nosuid, ...), of the kernel's 9P client (cache=, access=,
    /// msize=, ...), and of the proxy: hard waits without limit for a server that is lost (the
    /// default), retry=SECONDS waits for that time; sandbox=namespace|landlock|none and
    /// seccomp=kill|errno|log|trap|none confine it, as the options of `barge serve` do. Options for
    /// fstab alone are ignored.
    #[arg(short, long = "options", value_name = "OPTION", value_delimiter = ',')]
    options: Vec<MountOption>,
    /// Stay in the foreground and print 'ready' to standard output
    #[arg(short, long)]
    foreground: bool,
    /// Further arguments that mount(8) passes to its helpers.
    #[command(flatten)]
    helper: HelperArgs,
}

/// An option after `-o`.
#[derive(Clone, Debug)]
enum MountOption {
    /// An option that `barge-mount-9p` has as well.
    Mount(ConnectOption),
    /// Confinement of the process that relays.
    Sandbox(Sandbox),
    Seccomp(Seccomp),
}

impl FromStr for MountOption {
    type Err = String;

    fn from_str(text: &str) -> Result<MountOption, String> {
        Ok(match text.split_once('=') {
            Some(("sandbox", value)) => MountOption::Sandbox(Sandbox::from_str(value, false)?),
            Some(("seccomp", value)) => MountOption::Seccomp(Seccomp::from_str(value, false)?),
            _ => MountOption::Mount(text.parse()?),
        })
    }
}

/// The result of all options.
struct ResolvedOptions {
    mount: MountSettings,
    sandbox: Option<Sandbox>,
    seccomp: Option<Seccomp>,
}

/// Combines the options. The last of conflicting options takes precedence.
fn resolve(url: &Url, options: &[MountOption]) -> ResolvedOptions {
    let of_mount = options.iter().filter_map(|option| match option {
        MountOption::Mount(option) => Some(option),
        _ => None,
    });
    let mut resolved = ResolvedOptions {
        mount: MountSettings::new(url, of_mount),
        sandbox: None,
        seccomp: None,
    };
    for option in options {
        match option {
            MountOption::Sandbox(mode) => resolved.sandbox = Some(*mode),
            MountOption::Seccomp(action) => resolved.seccomp = Some(*action),
            MountOption::Mount(_) => {}
        }
    }
    resolved
}

/// `barge connect`
pub(crate) fn run(args: &ConnectArgs) -> CommandResult {
    let options = resolve(&args.source, &args.options);
    if let Some(holder) = Holder::of_this_process()? {
        return relay_for(&holder, args, &options);
    }
    if !signals::is_background() {
        diagnose::check_mount_point(&args.dir)?;
        if !args.foreground {
            return background::start(arguments::of_this_process(), Vec::new(), false);
        }
    }
    let sandbox = options.sandbox;
    let mut mount = NinePMount {
        args,
        options,
        kernels_end: None,
    };
    hold(&mut mount, sandbox)
}

/// A mount of the kernel's 9P client as its holder sees it.
struct NinePMount<'a> {
    args: &'a ConnectArgs,
    options: ResolvedOptions,
    /// The kernel's end of the socket to the process that relays.
    kernels_end: Option<OwnedFd>,
}

impl HeldMount for NinePMount<'_> {
    fn mount(&mut self, _read_only: bool) -> Result<(), Failure> {
        // The kernel holds its own reference to the socket.
        let kernels_end = self.kernels_end.take();
        let kernels_end = kernels_end.ok_or_else(|| Failure::new("expected a socket first"))?;
        let (url, dir) = (&self.args.source, &self.args.dir);
        let mounted = self.options.mount.mount(url, dir, kernels_end.as_fd());
        mounted.map_err(|error| Failure::new(diagnose::mount_error(dir, "9p", &error)))
    }

    fn descriptor(&mut self) -> io::Result<OwnedFd> {
        let (here, there) = UnixStream::pair()?;
        self.kernels_end = Some(here.into());
        Ok(there.into())
    }

    fn unmount(&mut self, _ended: &AtomicBool) -> Result<(), Failure> {
        ::connect::unmount(&self.args.dir)
            .map_err(|error| Failure::new(format!("{}: {error}", self.args.dir.display())))
    }
}

/// Connects to the server, and relays between it and the kernel's client until the mount ends.
fn relay_for(holder: &Arc<Holder>, args: &ConnectArgs, options: &ResolvedOptions) -> CommandResult {
    match options.sandbox {
        Some(Sandbox::None) => child::end_with_parent()?,
        _ => confine(holder, options.seccomp)?,
    }
    let relay = Relay::connect(&args.source, &options.mount)?;
    let kernel = holder.descriptor().map_err(Failure::new)?;
    holder.on_order(relay.stopper(), || {})?;
    relay.start(kernel)?;
    holder.mount(false)?;
    holder.report_ready()?;
    // The holder has unmounted before it orders a stop.
    relay.wait(|| Ok(()))?;
    Ok(ExitCode::SUCCESS)
}

/// Confines this process, which relays.
fn confine(holder: &Holder, seccomp: Option<Seccomp>) -> Result<(), Failure> {
    child::confine(&Confinement {
        paths: Vec::new(),
        objects: Vec::new(),
        namespaces: holder.prepared_namespaces(),
        landlock: true,
        // The paths of sockets, certificates and the files for looking up names may be anywhere.
        kernel_handles: true,
        // For sockets and keys of other users, and ports below 1024 of clients.
        capabilities: (CapabilitySet::DAC_OVERRIDE | CapabilitySet::NET_BIND_SERVICE)
            & sys::caps::effective(),
        network: true,
        directories: false,
        changes: false,
        seccomp: Seccomp::action(seccomp, true),
    })
}
