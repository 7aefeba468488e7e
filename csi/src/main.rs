//! `barge-csi`: the daemon of the CSI plugin, one on each node and one for the controller.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use command::csi::CsiArgs;
use command::{CommandResult, Failure, log, signals, state_dir, tools};
use csi::controller::Controller;
use csi::grpc::{Plugin, Services};
use csi::in_flight::{InFlight, MAX_OPERATIONS, MAX_QUERIES};
use csi::mount::{ENTER_CGROUP, Mounter, enter_cgroup};
use csi::node::Node;
use csi::policy::{DiskCache, Policy};
use grpc::Limits;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use sys::probes::Probes;

/// Time for a volume to be mounted: less than the kubelet waits for a reply, two minutes.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(100);

/// Bounds of the server. An orchestrator has a few connections.
const LIMITS: Limits = Limits {
    max_streams: 256,
    // Some more, as calls that are refused need one for a moment.
    max_threads: MAX_OPERATIONS + MAX_QUERIES + 16,
    // DeleteVolume takes five minutes at most.
    stop_timeout: Duration::from_secs(310),
};

fn main() -> ExitCode {
    signals::prepare();
    let mut arguments = std::env::args_os().skip(1);
    let result = match arguments.next() {
        Some(first) if first == ENTER_CGROUP => enter(arguments),
        _ => serve(CsiArgs::parse()),
    };
    result.unwrap_or_else(|failure: Failure| failure.report("barge-csi"))
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

fn serve(args: CsiArgs) -> CommandResult {
    log::to_stderr(args.log.level(), args.log.log_format);
    let barge = args.barge.or_else(|| tools::companion("barge"));
    let barge = barge.ok_or_else(|| {
        Failure::usage("the program barge is neither beside barge-csi nor in PATH: use --barge")
    })?;
    let barge = absolute_program(barge).map_err(Failure::new)?;
    let _lock = lock_state_dir(&args.state_dir)?;
    if let Some(cgroup) = &args.cgroup {
        let failed = |error| Failure::new(format!("{}: {error}", cgroup.display()));
        fs::create_dir_all(cgroup).map_err(failed)?;
    }
    let mounter = Mounter {
        barge,
        state_dir: args.state_dir,
        cgroup: args.cgroup,
        timeout: MOUNT_TIMEOUT,
        probes: Probes::default(),
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
    let in_flight = InFlight::new(MAX_OPERATIONS);
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
            queries: InFlight::new(MAX_QUERIES),
        },
    });
    let ready = || tracing::info!("serving CSI on {}", args.endpoint.display());
    grpc::run(&args.endpoint, LIMITS, ready, move |request| {
        plugin.clone().route(request)
    })
}

/// Returns the path of `program` for processes with another current directory. A name alone is
/// looked up in PATH.
fn absolute_program(program: PathBuf) -> io::Result<PathBuf> {
    match program.components().count() {
        1 => Ok(program),
        _ => std::path::absolute(program),
    }
}

/// Creates the state directory, for this user alone, and locks it until the result is dropped.
/// Returns an error for a directory that other users can write to: its contents are mounted, and
/// removed.
fn lock_state_dir(dir: &Path) -> Result<File, Failure> {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", dir.display()));
    let mut builder = fs::DirBuilder::new();
    let created = builder.mode(0o700).recursive(true).create(dir);
    created.map_err(failed)?;
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let file = open(dir, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(failed)?;
    state_dir::check(dir, &metadata).map_err(Failure::new)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            let text = "another process uses this directory: see --state-dir";
            Err(failed(io::Error::other(text)))
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_program_is_found_from_another_directory() {
        let dir = std::env::current_dir().expect("a directory");
        let program = |path: &str| absolute_program(path.into()).expect("a path");
        assert_eq!(program("bin/barge"), dir.join("bin/barge"));
        assert_eq!(program("./barge"), dir.join("barge"));
        assert_eq!(program("barge"), Path::new("barge"));
        assert_eq!(program("/bin/barge"), Path::new("/bin/barge"));
    }
}
