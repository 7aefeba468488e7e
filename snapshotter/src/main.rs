//! The program `barge-snapshotter`: options, signals and the end.

#![forbid(unsafe_code)]

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use command::snapshotter::SnapshotterArgs;
use command::{CommandResult, Failure, log, notify, signals, tools};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use snapshotter::server::{self, Socket};
use snapshotter::source::LayerSource;
use snapshotter::{MountConfig, Snapshotter, SnapshotterConfig};
use tokio::sync::watch;

fn main() -> ExitCode {
    let args = SnapshotterArgs::parse();
    log::to_stderr(args.log.level(), args.log.log_format);
    run(args).unwrap_or_else(|failure| {
        eprintln!("barge-snapshotter: {}", failure.message);
        ExitCode::from(failure.status)
    })
}

fn run(args: SnapshotterArgs) -> CommandResult {
    let (sender, stop) = watch::channel(false);
    let _signals = signals::on_signal(move || sender.send_modify(|stop| *stop = true), None)?;
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
            cache_size: args.cache_size,
            verify_keys: args.verify_key,
            cosign_keys: args.cosign_key,
        },
        root: args.root,
        layer_sources: sources,
    };
    let snapshotter = Arc::new(Snapshotter::open(config).map_err(Failure::new)?);
    let failed = |error| Failure::new(format!("{}: {error}", args.address.display()));
    let socket = Socket::bind(&args.address).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::new)?;
    let recovery = snapshotter.clone();
    std::thread::spawn(move || recovery.recover());
    runtime.block_on(async {
        let served = server::serve(&socket, snapshotter, stop);
        let mut out = stdout();
        // Clients may connect since the bind. The output may be closed.
        let _ = writeln!(out, "ready").and_then(|()| out.flush());
        notify::send(&notify::ready("Serving snapshots"));
        served.await.map_err(failed)
    })?;
    // Operations that did not end in time are repaired at the next start.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
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
