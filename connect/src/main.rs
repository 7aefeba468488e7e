//! The program `barge-mount-9p`.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Parser;
use command::{CommandResult, Failure, background, log, notify, signals};
use connect::{ConnectArgs, MountSettings, unmount};
use remote::ninep::{Url, relay};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use transports::{Link, StreamLink};

/// The time that open files have to be closed after a signal.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let args = ConnectArgs::parse();
    log::to_stderr(args.log.level(), args.log.log_format);
    run(&args).unwrap_or_else(|failure| {
        eprintln!("barge-mount-9p: {}", failure.message);
        ExitCode::from(failure.status)
    })
}

/// The end of a mount.
enum Event {
    /// A signal to stop.
    Stop,
    /// umount(8), or a server that was not restored in time.
    Ended(io::Result<()>),
}

fn run(args: &ConnectArgs) -> CommandResult {
    if !args.foreground && !signals::is_background() {
        return background::start(false);
    }
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", args.source));
    let of_dir = |error: io::Error| Failure::new(format!("{}: {error}", args.dir.display()));
    let settings = MountSettings::new(&args.source, &args.options);
    let source = Url {
        retry: settings.retry,
        ..args.source.clone()
    };
    let server = Arc::new(source.dial().map_err(failed)?);
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let pair = socketpair(family, kind, SocketFlags::CLOEXEC, None);
    let (here, kernels) = pair.map_err(Failure::new)?;
    let client = Arc::new(StreamLink::new(here, "the kernel").map_err(Failure::new)?);
    let (sender, receiver) = channel();
    let stop = sender.clone();
    // Fails only if the receiver is gone, when the mount has ended anyway.
    let _signals = signals::on_signal(move || drop(stop.send(Event::Stop)), None)?;
    let passed = {
        let server = server.clone();
        move || relay(client, server)
    };
    // The kernel's client sends requests during mount(2).
    std::thread::spawn(move || sender.send(Event::Ended(passed())));
    let mounted = settings.mount(&args.source, &args.dir, kernels.as_fd());
    mounted.map_err(of_dir)?;
    drop(kernels);
    background::report_ready(background::READY)?;
    notify::send(&notify::ready("Relaying"));
    let mut event = receiver.recv();
    if let Ok(Event::Stop) = event {
        unmount(&args.dir).map_err(of_dir)?;
        let Ok(ended) = receiver.recv_timeout(CLOSE_TIMEOUT) else {
            // Programs still have files open: they get errors.
            server.hang_up();
            return Ok(ExitCode::SUCCESS);
        };
        event = Ok(ended);
    }
    match event {
        Ok(Event::Ended(Err(error))) => Err(failed(error)),
        _ => Ok(ExitCode::SUCCESS),
    }
}
