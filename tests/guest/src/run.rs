//! One run: a scratch share, servers, guests, and a result.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use vfs_testkit::write_program;

use crate::barrier::GuestBarrier;
use crate::channel::Host;
use crate::config::{GuestConfig, Mount, Needs};
use crate::guest::{Case, CaseResult, Guest, GuestFailure, GuestSpec, Outcome};
use crate::kernel::{self, Kernel};
use crate::machine::Machine;
use crate::process_group::ProcessGroup;
use crate::server::{Server, TemplateValues};
use crate::{Dirs, quote, tlshd, tools};

/// A run: servers, guests and scripts. Templates may contain `{share}`, `{port}` to `{port4}`,
/// `{socket}` to `{socket3}`, `{listen}`, `{host}`, `{peer}`, `{run}`, `{tls}` and `{tools}`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kernel line, or [`kernel::NEWEST`].
    pub kernel: String,
    /// The commands that start servers on address `{listen}`; none if QEMU serves, or no server is
    /// needed.
    pub server_commands: Vec<String>,
    /// The guests, which run the same cases concurrently. Mounts and arguments are templates. The
    /// last one may serve the others, at `{peer}`, and then runs no cases.
    pub guests: Vec<GuestConfig>,
    /// The root of the guests, if not the host's; a template.
    pub root: Option<Mount>,
    /// The directory to serve; a scratch directory if none.
    pub share: Option<PathBuf>,
    /// The cases.
    pub cases: Vec<Case>,
    /// Timeout of one case.
    pub case_timeout: Duration,
    /// Timeout from the guest's start to its end.
    pub timeout: Duration,
    /// The machine; the fastest one that has the guests' devices if none.
    pub machine: Option<Machine>,
    /// The Debian mirror, if not the machine's own.
    pub mirror: Option<String>,
    /// Keep the run directory even on success.
    pub keep: bool,
}

/// Runs a plan. The scripts' output goes to a sink for each guest; `progress` is called for each
/// case that ended. If a server fails, the outcome is broken.
pub fn run<W: Write + Send + 'static>(
    dirs: &Dirs,
    plan: &Plan,
    sink: impl Fn() -> W + Send,
    progress: impl FnMut(&CaseResult) + Send,
) -> Result<Outcome> {
    // Missing files are fetched here, since the run's network may not reach a mirror.
    let mirror = plan.mirror.as_deref();
    let (machine, line) = kernel::choose(
        &dirs.cache,
        &plan.kernel,
        plan.needs(),
        plan.machine.as_ref(),
        mirror,
    )?;
    machine.check()?;
    let kernel = Kernel::get(&dirs.cache, line, &machine, mirror)?;
    let busybox = kernel::busybox(&dirs.cache, mirror)?;
    let secure = |seat: &GuestConfig| seat.mount.options.contains("xprtsec=");
    let tls = match plan.guests.iter().any(secure) {
        true => tlshd::get(&dirs.cache, mirror)?,
        false => tlshd::directory(&dirs.cache),
    };
    let parts = SharedParts {
        machine,
        kernel,
        busybox,
        tls,
    };
    let guests = plan.guests.len();
    parts
        .machine
        .with_network(guests, || run_on(&parts, dirs, plan, sink, progress))
}

/// The parts of guests that a run shares with others.
struct SharedParts {
    machine: Machine,
    kernel: Kernel,
    busybox: Vec<u8>,
    /// The directory of tlshd.
    tls: PathBuf,
}

fn run_on<W: Write + Send + 'static>(
    parts: &SharedParts,
    dirs: &Dirs,
    plan: &Plan,
    sink: impl Fn() -> W,
    mut progress: impl FnMut(&CaseResult),
) -> Result<Outcome> {
    let SharedParts {
        machine,
        busybox,
        tls,
        ..
    } = parts;
    let mut scratch = Scratch::new(dirs, plan.keep)?;
    let share = match &plan.share {
        Some(share) => share
            .canonicalize()
            .with_context(|| format!("no share {}", share.display()))?,
        None => scratch.create_share()?,
    };

    let address = TemplateValues::allocate(
        &share,
        &scratch.dir,
        tls,
        &tools::install_root(&dirs.cache),
        machine.listen(),
        plan.guests.len(),
    )?;
    let is_client = |seat: &&GuestConfig| !seat.is_server();
    let clients = plan.guests.iter().filter(is_client).count();
    let host = Arc::new(Host {
        share,
        run: scratch.dir.clone(),
        process_group: ProcessGroup::new()?,
        barrier: GuestBarrier::new(clients),
    });
    let servers = start_servers(plan, &address, busybox, &host)?;
    let (guests, serving) = boot_guests(parts, dirs, plan, (&address, clients), &host, sink)?;
    let mut outcome = guests
        .into_iter()
        .map(|guest| guest.finish(&mut progress))
        .reduce(|one, other| Ok(one?.merge(other?)))
        .context("a run has a guest")??;
    for guest in serving {
        outcome.kernel_errors.extend(guest.end()?);
    }
    for server in servers {
        if let Err(error) = server.stop() {
            // A server's failure explains those of the guests.
            outcome.failure = Some(GuestFailure::Failed(error.to_string()));
        }
    }
    scratch.keep |= outcome.failure.is_some()
        || !outcome.kernel_errors.is_empty()
        || outcome.cases.iter().any(|case| !case.passed());
    if scratch.keep {
        eprintln!("barge-guest: logs are in {}", scratch.dir.display());
    }
    Ok(outcome)
}

/// Starts the servers of a plan.
fn start_servers(
    plan: &Plan,
    address: &TemplateValues,
    busybox: &[u8],
    host: &Host,
) -> Result<Vec<Server>> {
    let needs_busybox = |command: &String| command.contains("{run}/busybox");
    if plan.server_commands.iter().any(needs_busybox) {
        let file = host.run.join("busybox");
        write_program(&file, busybox);
    }
    let start = |(number, command): (usize, &String)| {
        let log = host.run.join(format!("server-{number}.log"));
        Server::start(command, address, &host.process_group, &log)
    };
    (1..).zip(&plan.server_commands).map(start).collect()
}

/// Boots the guests of a plan, of which `clients` run its cases: these, and those that serve them,
/// which are ready before.
fn boot_guests<W: Write + Send + 'static>(
    parts: &SharedParts,
    dirs: &Dirs,
    plan: &Plan,
    (address, clients): (&TemplateValues, usize),
    host: &Arc<Host>,
    sink: impl Fn() -> W,
) -> Result<(Vec<Guest>, Vec<Guest>)> {
    let machine = &parts.machine;
    let boot = |(number, seat): (usize, &GuestConfig)| {
        let dir = host.run.join(format!("guest-{number}"));
        fs::create_dir(&dir)?;
        let spec = GuestSpec {
            config: seat.map(|template| address.fill(template)),
            number,
            guests: clients,
            root: match &plan.root {
                Some(root) => root.map(|template| address.fill(template)),
                None => machine.root(),
            },
            cases: plan.cases.clone(),
            case_timeout: plan.case_timeout,
            timeout: plan.timeout,
            machine: machine.clone(),
            path: dirs.path(),
            scripts: dirs.scripts.display().to_string(),
            below_tmpfs: dirs.below_tmpfs(),
            tls: parts.tls.display().to_string(),
        };
        Guest::boot(&spec, &parts.kernel, &parts.busybox, &dir, host, sink())
    };
    let (serving, others): (Vec<_>, Vec<_>) = (1..)
        .zip(&plan.guests)
        .partition(|(_, seat)| seat.is_server());
    let mut serving: Vec<_> = serving.into_iter().map(boot).collect::<Result<_>>()?;
    for guest in &mut serving {
        guest.wait_until_ready()?;
    }
    let guests: Vec<_> = others.into_iter().map(boot).collect::<Result<_>>()?;
    Ok((guests, serving))
}

impl Plan {
    /// Returns the needs of the guests. User-mode Linux does not reach servers that listen on
    /// loopback.
    fn needs(&self) -> Needs {
        let on_loopback = self
            .server_commands
            .iter()
            .any(|command| command.contains("{port") && !command.contains("{listen}"));
        let devices = self.guests.iter().map(GuestConfig::needs).max();
        if on_loopback {
            Needs::Qemu
        } else {
            devices.unwrap_or(Needs::Nothing)
        }
    }
}

impl CaseResult {
    /// Returns whether the script succeeded without kernel complaints.
    pub fn passed(&self) -> bool {
        self.status == 0 && self.kernel_errors.is_empty()
    }
}

impl Case {
    /// Returns a case with the text of an `sh` script, which need not exist in the guest's root.
    pub fn text(name: &str, file: &Path) -> Result<Self> {
        let script = fs::read_to_string(file);
        Ok(Self {
            name: name.into(),
            script: script.with_context(|| format!("no script {}", file.display()))?,
            own_dir: false,
        })
    }

    /// Returns a case that runs a program with arguments and environment; the program must exist in
    /// the guest.
    pub fn program(name: &str, program: &Path, args: &[String], env: &[(String, String)]) -> Self {
        let mut script = String::new();
        for (name, value) in env {
            script += &format!("export {name}={}\n", quote(value));
        }
        script += &format!("exec {}", quote(&program.display().to_string()));
        for arg in args {
            script += &format!(" {}", quote(arg));
        }
        Self {
            name: name.into(),
            script: script + "\n",
            own_dir: false,
        }
    }
}

/// The run directory: logs, the initramfs and the share. Removed unless `keep` is set.
pub(crate) struct Scratch {
    pub(crate) dir: PathBuf,
    pub(crate) keep: bool,
}

impl Scratch {
    pub(crate) fn new(dirs: &Dirs, keep: bool) -> Result<Self> {
        let runs = dirs.cache.join("runs");
        fs::create_dir_all(&runs)?;
        let pid = std::process::id();
        for number in 0_u32.. {
            let dir = runs.join(format!("{pid}-{number}"));
            match fs::create_dir(&dir) {
                Ok(()) => return Ok(Self { dir, keep }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", dir.display()));
                }
            }
        }
        unreachable!("a run has a free number")
    }

    /// Makes an empty directory to serve, which any user may enter.
    pub(crate) fn create_share(&self) -> Result<PathBuf> {
        let share = self.dir.join("share");
        fs::create_dir(&share)?;
        fs::set_permissions(&share, fs::Permissions::from_mode(0o755))?;
        Ok(share)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_mounts_take_further_options() {
        let mount = Mount::usual("9p", None, &["cache=mmap".into(), "msize=65536".into()]);
        assert_eq!(
            mount.options,
            "trans=tcp,port={port},version=9p2000.L,cache=mmap,msize=65536"
        );
        assert_eq!(
            Mount::usual("9p", None, &["trans=virtio".into()]).device,
            "share"
        );
        assert_eq!(Mount::usual("tmpfs", None, &[]).options, "rw");
    }

    #[test]
    fn a_program_keeps_its_words() {
        let case = Case::program(
            "x",
            Path::new("/a b"),
            &["it's".into()],
            &[("K".into(), "1 2".into())],
        );
        assert_eq!(case.script, "export K='1 2'\nexec '/a b' 'it'\\''s'\n");
    }
}
