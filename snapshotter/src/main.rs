//! The program `barge-snapshotter`: options, signals and the end.

#![forbid(unsafe_code)]

use std::fs::DirBuilder;
use std::io::{Write, stdout};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use command::snapshotter::SnapshotterArgs;
use command::{CommandResult, Failure, log, notify, signals, tools};
use grpc::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use snapshotter::service::route;
use snapshotter::source::LayerSource;
use snapshotter::{MountConfig, Snapshotter, SnapshotterConfig};

/// Bounds of the server. containerd has one connection.
const LIMITS: Limits = Limits {
    max_streams: 128,
    max_threads: 512,
    // Mounting a layer takes a minute at most. Operations that do not end in time are repaired at
    // the next start.
    stop_timeout: Duration::from_secs(10),
};

fn main() -> ExitCode {
    signals::prepare();
    let args = SnapshotterArgs::parse();
    log::to_stderr(args.log.level(), args.log.log_format);
    run(args).unwrap_or_else(|failure| failure.report("barge-snapshotter"))
}

fn run(args: SnapshotterArgs) -> CommandResult {
    raise_file_limit();
    let is_signed = !args.verify_key.is_empty() || !args.cosign_key.is_empty();
    let sources = layer_sources(&args.layer_source, is_signed)?;
    if sources.is_empty() {
        tracing::warn!(
            "all layers are downloaded: no --verify-key, --cosign-key or --layer-source is given"
        );
    }
    let program = match args.barge.or_else(|| tools::companion("barge")) {
        Some(program) => program,
        // Needed for layers of an earlier configuration alone.
        None if sources.is_empty() => "barge".into(),
        None => {
            let message = "barge is neither beside this program nor on PATH (--barge names it)";
            return Err(Failure::new(message));
        }
    };
    let cache_dir = args.cache_dir.unwrap_or_else(|| args.root.join("cache"));
    let config = SnapshotterConfig {
        mount: MountConfig {
            program,
            cache_dir: Some(std::path::absolute(cache_dir).map_err(Failure::new)?),
            cache_dir_size: args.cache_dir_size,
            verify_keys: args.verify_key,
            cosign_keys: args.cosign_key,
        },
        root: args.root,
        layer_sources: sources,
    };
    let snapshotter = Arc::new(Snapshotter::open(config).map_err(Failure::new)?);
    create_parent(&args.address)?;
    let recovery = snapshotter.clone();
    let ready = || {
        std::thread::spawn(move || recovery.recover());
        let mut out = stdout();
        // The output may be closed.
        let _ = writeln!(out, "ready").and_then(|()| out.flush());
        notify::send(&notify::ready("Serving snapshots"));
    };
    grpc::run(&args.address, LIMITS, ready, move |request| {
        route(snapshotter.clone(), request)
    })
}

/// Creates the directory of the socket, for this user alone.
fn create_parent(socket: &Path) -> Result<(), Failure> {
    let Some(dir) = socket.parent().filter(|dir| !dir.as_os_str().is_empty()) else {
        return Ok(());
    };
    let created = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    created.map_err(|error| Failure::new(format!("{}: {error}", dir.display())))
}

/// Parses the arguments of `--layer-source`; without any, the default. `signed` says whether layers
/// must have a signature.
fn layer_sources(arguments: &[String], signed: bool) -> Result<Vec<LayerSource>, Failure> {
    match arguments {
        [] if signed => Ok(vec![LayerSource::Registry]),
        [] => Ok(Vec::new()),
        [none] if none == "none" => Ok(Vec::new()),
        arguments => {
            let parse = |text: &String| {
                let parsed = text.parse::<LayerSource>();
                parsed.map_err(|why| Failure::usage(format!("--layer-source {text}: {why}")))
            };
            arguments.iter().map(parse).collect()
        }
    }
}

/// Allows as many open files as the administrator does: disk usage takes one for each level.
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        tracing::debug!("limit of open files: {error}");
    }
}
