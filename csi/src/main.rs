//! `barge-csi`: the daemon of the CSI plugin, one on each node and one for the controller.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use command::log::{self, LogArgs};
use command::{CommandResult, Failure, signals, tools};
use csi::controller::Controller;
use csi::grpc::{Plugin, Services};
use csi::in_flight::{InFlight, LIMIT};
use csi::mount::{Mounter, enter_cgroup};
use csi::node::Node;
use csi::policy::{DiskCache, Policy};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;

/// The most time until a volume is mounted: less than the kubelet waits for a reply, two minutes.
const MOUNT: Duration = Duration::from_secs(100);

/// The argument that makes this program enter a control group and run a command there, as it does
/// for mounts. It is no part of the command line.
const ENTER_CGROUP: &str = csi::mount::ENTER_CGROUP;

/// CSI plugin: volumes of Kubernetes from images, directories, servers and object stores
#[derive(Parser)]
#[command(name = "barge-csi", version, max_term_width = 100)]
struct ServeArgs {
    /// Unix socket to serve CSI on: unix://PATH
    ///
    /// Its mode is 0600. A socket that no process serves is replaced.
    #[arg(long, value_name = "URL", value_parser = socket_path)]
    endpoint: PathBuf,
    /// Name of this node in the orchestrator
    #[arg(long, value_name = "NAME", value_parser = node_id)]
    node_id: String,
    /// Name of the plugin, as in the CSIDriver object
    #[arg(long, value_name = "NAME", default_value = "barge.csi", value_parser = driver_name)]
    driver_name: String,
    /// Directory that volumes may use directories and images beneath; may be repeated
    ///
    /// Without it, volumes use servers and object stores alone. Symbolic links beneath DIR are not
    /// followed.
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    allow_path: Vec<PathBuf>,
    /// Source that inline volumes may be, or be beneath; may be repeated
    ///
    /// A URL such as s3://BUCKET or https://HOST/DIR, or a path that --allow-path allows too.
    /// Without it, inline volumes are refused: everyone who may create a pod can write one.
    #[arg(long, value_name = "SOURCE", value_parser = allowed_source)]
    allow_inline: Vec<String>,
    /// Disk cache for images in object stores [default: none]
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    cache_dir: Option<PathBuf>,
    /// Maximum size of the disk cache, such as 20G [default: that of barge mount]
    #[arg(long, value_name = "BYTES", requires = "cache_dir", value_parser = size)]
    cache_dir_size: Option<String>,
    /// The program barge [default: beside this program, or in PATH]
    #[arg(long, value_name = "PATH")]
    barge: Option<PathBuf>,
    /// Directory for files that exist while a volume is being mounted
    #[arg(long, value_name = "DIR", default_value = "/run/barge-csi", value_parser = absolute)]
    state_dir: PathBuf,
    /// Control group (version 2) for the processes of mounts, such as /sys/fs/cgroup/barge-csi
    ///
    /// In a container it lets mounts survive a restart of the container, if the container shares
    /// the host's PID namespace. The group is created.
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    cgroup: Option<PathBuf>,
    /// Options of logging.
    #[command(flatten)]
    log: LogArgs,
}

fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or(text.strip_prefix("unix:"));
    absolute(path.unwrap_or(text)).map_err(|_| "expected unix://PATH with an absolute path".into())
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let plain = text.split('/').all(|part| part != "." && part != "..");
    match text.starts_with('/') && plain && !text.contains(',') {
        true => Ok(text.into()),
        false => Err("expected an absolute path without '.', '..' and commas".into()),
    }
}

fn node_id(text: &str) -> Result<String, String> {
    let good = !text.is_empty() && text.len() <= 256 && !text.contains(char::is_control);
    good.then(|| text.into())
        .ok_or_else(|| "expected 1 to 256 bytes".into())
}

fn driver_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let ends = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    (text.len() <= 63 && text.chars().all(plain) && ends(text))
        .then(|| text.into())
        .ok_or_else(|| "expected at most 63 letters, digits, dots and hyphens".into())
}

fn allowed_source(text: &str) -> Result<String, String> {
    let url = text.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.contains(['?', '%'])
    });
    match url || text == "mem:" || absolute(text).is_ok() {
        true => Ok(text.into()),
        false => Err("expected a URL without parameters, an absolute path or mem:".into()),
    }
}

fn size(text: &str) -> Result<String, String> {
    let digits = text.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']);
    let good = text.len() - digits.len() <= 1 && digits.parse::<u64>().is_ok_and(|size| size > 0);
    good.then(|| text.into())
        .ok_or_else(|| "expected a size such as 20G".into())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let result = match arguments.next() {
        Some(first) if first == ENTER_CGROUP => enter(arguments),
        _ => serve(ServeArgs::parse()),
    };
    result.unwrap_or_else(|failure: Failure| {
        eprintln!("barge-csi: {}", failure.message);
        ExitCode::from(failure.status)
    })
}

/// Enters a control group and becomes the command: `CGROUP PROGRAM ARGUMENT…`.
fn enter(mut arguments: impl Iterator<Item = OsString>) -> CommandResult {
    let (Some(cgroup), Some(program)) = (arguments.next(), arguments.next()) else {
        return Err(Failure::usage("expected a control group and a program"));
    };
    let cgroup = PathBuf::from(cgroup);
    let error = enter_cgroup(&cgroup, Command::new(&program).args(arguments));
    let text = format!("{} in {}: {error}", program.display(), cgroup.display());
    Err(Failure::new(text))
}

fn serve(args: ServeArgs) -> CommandResult {
    log::to_stderr(args.log.level(), args.log.log_format);
    let barge = args.barge.or_else(|| tools::companion("barge"));
    let barge = barge.ok_or_else(|| {
        Failure::usage("the program barge is neither beside barge-csi nor in PATH: use --barge")
    })?;
    let _lock = lock_state_dir(&args.state_dir)?;
    if let Some(cgroup) = &args.cgroup {
        let failed = |error| Failure::new(format!("{}: {error}", cgroup.display()));
        fs::create_dir_all(cgroup).map_err(failed)?;
    }
    let mounter = Mounter {
        barge,
        state_dir: args.state_dir,
        cgroup: args.cgroup,
        timeout: MOUNT,
    };
    let failed = |error| Failure::new(format!("{}: {error}", mounter.state_dir.display()));
    mounter.clean().map_err(failed)?;
    let policy = Policy {
        allow_paths: args.allow_path,
        allow_inline: args.allow_inline,
        cache: args.cache_dir.map(|dir| DiskCache {
            dir,
            size: args.cache_dir_size,
        }),
    };
    let in_flight = InFlight::default();
    let plugin = Plugin::new(Services {
        name: args.driver_name,
        controller: Controller {
            policy: policy.clone(),
            in_flight: in_flight.clone(),
        },
        node: Node {
            id: args.node_id,
            policy,
            mounter,
            in_flight,
        },
    });
    // One thread receives; the operations have threads of their own. Some more, as operations that
    // were refused need one for a moment.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(LIMIT + 16)
        .enable_all()
        .build()
        .map_err(Failure::new)?;
    let result = runtime.block_on(listen(plugin, &args.endpoint));
    // A thread that waits for a file system may never end.
    runtime.shutdown_background();
    result
}

/// Creates the state directory, for this user alone, and locks it until the result is dropped.
fn lock_state_dir(dir: &Path) -> Result<OwnedFd, Failure> {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", dir.display()));
    let mut builder = fs::DirBuilder::new();
    let created = builder.mode(0o700).recursive(true).create(dir);
    created.map_err(failed)?;
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let file = open(dir, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            let text = "another process uses this directory: see --state-dir";
            Err(failed(io::Error::other(text)))
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Serves until SIGTERM or SIGINT, and then finishes the calls in flight. A second signal ends the
/// process at once.
async fn listen(plugin: Plugin, endpoint: &Path) -> CommandResult {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", endpoint.display()));
    let stop = Arc::new(Notify::new());
    let stopped = stop.clone();
    let _signals = signals::on_signal(move || stopped.notify_one(), None)?;
    let listener = bind(endpoint).map_err(failed)?;
    tracing::info!("serving CSI on {}", endpoint.display());
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(256)
        .serve_with_incoming_shutdown(plugin, UnixListenerStream::new(listener), async move {
            stop.notified().await;
        });
    server.await.map_err(Failure::new)?;
    let _ = fs::remove_file(endpoint);
    Ok(ExitCode::SUCCESS)
}

/// Listens on a Unix socket of mode 0600. Replaces a socket that no process serves.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixStream::connect(path) {
        Ok(_) => return Err(io::Error::other("another process serves this socket")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let umask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(umask);
    listener
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        ServeArgs::command().debug_assert();
        for bad in [
            &["barge-csi"][..],
            &["barge-csi", "--endpoint", "unix:///s"],
            &["barge-csi", "--endpoint", "tcp://h:1", "--node-id", "n"],
            &["barge-csi", "--endpoint", "unix:///s", "--node-id", ""],
            &[
                "barge-csi",
                "--endpoint",
                "unix:///s",
                "--node-id",
                "n",
                "--allow-path",
                "srv",
            ],
            &[
                "barge-csi",
                "--endpoint",
                "unix:///s",
                "--node-id",
                "n",
                "--allow-inline",
                "s3:",
            ],
            &[
                "barge-csi",
                "--endpoint",
                "unix:///s",
                "--node-id",
                "n",
                "--driver-name",
                "a_b",
            ],
        ] {
            assert!(ServeArgs::try_parse_from(bad).is_err(), "{bad:?}");
        }
        let good = [
            "barge-csi",
            "--endpoint",
            "unix:///csi/csi.sock",
            "--node-id",
            "n",
        ];
        let serve = ServeArgs::try_parse_from(good).expect("good");
        assert_eq!(serve.endpoint, PathBuf::from("/csi/csi.sock"));
        assert!(serve.allow_path.is_empty() && serve.allow_inline.is_empty());
    }
}
