//! The program `barge-agent`: options, a thread for each mount, and the end.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::io::{Write, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{ExitCode, exit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agent::session::{self, Target};
use clap::Parser;
use command::agent::{AgentArgs, AgentMount};
use command::stderr::print_line;
use command::{CommandResult, Failure, log, notify, signals};
use rustix::fs::{Mode, OFlags};
use transports::{Addr, Link, StreamLink, dial};

/// Pauses between two attempts to connect: at first, and at most.
const RETRY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];

fn main() -> ExitCode {
    signals::prepare();
    let args = AgentArgs::parse();
    log::to_stderr(args.log.level(), args.log.log_format);
    run(args).unwrap_or_else(|failure| failure.report("barge-agent"))
}

/// The server's end of the channel.
enum Server {
    At(Addr),
    /// A device of virtio-serial.
    Port(String),
}

impl Server {
    fn parse(text: &str, mounts: usize) -> Result<Server, Failure> {
        if !text.starts_with('/') {
            let addr = text.parse();
            return addr
                .map(Server::At)
                .map_err(|error| Failure::usage(format!("--connect: {error}")));
        }
        match mounts {
            1 => Ok(Server::Port(text.into())),
            _ => Err(Failure::usage(format!(
                "--connect {text}: expected one --mount for a serial port, got {mounts}"
            ))),
        }
    }

    fn connect(&self) -> std::io::Result<StreamLink> {
        match self {
            Server::At(addr) => dial(addr),
            Server::Port(path) => {
                let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let link = StreamLink::new(rustix::fs::open(path, flags, Mode::empty())?, path)?;
                // A dialled connection has timeouts of its own.
                link.set_timeouts(session::SILENCE, session::SILENCE)?;
                Ok(link)
            }
        }
    }
}

fn run(args: AgentArgs) -> CommandResult {
    let server = Server::parse(&args.connect, args.mounts.len())?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("expected to run as root"));
    }
    let _signals = signals::on_signal(|| exit(0), None)?;
    let waiting = AtomicUsize::new(args.mounts.len());
    std::thread::scope(|scope| {
        for mount in &args.mounts {
            scope.spawn(|| {
                let serve = || serve(&server, mount, &waiting, &args);
                let Err(_) = catch_unwind(AssertUnwindSafe(serve));
                // Without this thread, its mount would not be notified.
                let dir = mount.dir.display();
                print_line(format_args!("barge-agent: {dir}: a thread has panicked"));
                exit(1)
            });
        }
    });
    unreachable!("the process ends with the first thread")
}

/// Repeats the changes of one mount, until the end of the process. `waiting` is the number of
/// mounts whose changes have not been reported yet.
fn serve(
    server: &Server,
    mount: &AgentMount,
    waiting: &AtomicUsize,
    args: &AgentArgs,
) -> Infallible {
    let mut target = Target {
        share: &mount.share,
        path: &mount.dir,
        remount: args.remount_rw,
        again: false,
    };
    let mut pause = RETRY[0];
    let mut reported = false;
    let mut begun = false;
    loop {
        let why = match server.connect() {
            Ok(link) => {
                let ended = session::run(&link, target, &mut || {
                    tracing::info!("{}: changes are reported", mount.dir.display());
                    begun = true;
                    if !std::mem::replace(&mut reported, true)
                        && waiting.fetch_sub(1, Ordering::SeqCst) == 1
                    {
                        announce();
                    }
                });
                ended.to_string()
            }
            Err(error) => format!("cannot connect: {error}"),
        };
        target.again = reported;
        let message = format!("{}: {why}", mount.dir.display());
        if args.once {
            // The other mounts end with the process.
            print_line(format_args!("barge-agent: {message}"));
            exit(1);
        }
        if std::mem::take(&mut begun) {
            pause = RETRY[0];
        }
        tracing::warn!("{message}: next attempt in {:.1} s", pause.as_secs_f32());
        std::thread::sleep(pause);
        pause = (pause * 2).min(RETRY[1]);
    }
}

/// Reports that all mounts are notified.
fn announce() {
    let mut out = stdout();
    // The output may be closed.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
    notify::send(&notify::ready("Reporting changes"));
}
