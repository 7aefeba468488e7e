//! The program `barge-mount-9p`.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::Parser;
use command::{CommandResult, Failure, background, log, notify, signals};
use connect::{ConnectArgs, MountSettings, Relay, unmount};

fn main() -> ExitCode {
    signals::prepare();
    let args = ConnectArgs::parse();
    log::to_stderr(args.log.level(), args.log.log_format);
    run(&args).unwrap_or_else(|failure| failure.report("barge-mount-9p"))
}

fn run(args: &ConnectArgs) -> CommandResult {
    if !args.foreground && !signals::is_background() {
        return background::start(std::env::args_os().collect(), Vec::new(), false);
    }
    let of_dir = |error: io::Error| Failure::new(format!("{}: {error}", args.dir.display()));
    let settings = MountSettings::new(&args.source, &args.options);
    let relay = Relay::connect(&args.source, &settings)?;
    let (here, kernels) = UnixStream::pair().map_err(Failure::new)?;
    let _signals = signals::on_signal(relay.stopper(), None)?;
    relay.start(here.into())?;
    let mounted = settings.mount(&args.source, &args.dir, kernels.as_fd());
    mounted.map_err(of_dir)?;
    // The kernel holds its own reference to the socket.
    drop(kernels);
    background::report_ready(background::READY)?;
    notify::send(&notify::ready("Relaying"));
    relay.wait(|| unmount(&args.dir).map_err(of_dir))?;
    Ok(ExitCode::SUCCESS)
}
