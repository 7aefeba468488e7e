//! `barge connect`: mounts a server with the kernel's 9P client over `trans=fd`, and relays between
//! the two. If the connection to the server is lost, the kernel only waits until it is restored.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;
use remote::ninep::{ReconnectingLink, Retry, Url, relay};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use transports::StreamLink;
use transports::fusedev::MountFlag;

use crate::mount::HelperArgs;
use crate::mount::options::is_fstab_only;
use crate::{CommandResult, Failure, background, diagnose, service, signals};

#[derive(Args)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "brackets in help are no links"
)]
pub(crate) struct ConnectArgs {
    /// Server to mount: 9p://HOST[:PORT]/ANAME or 9p+unix:SOCKET
    source: Url,
    /// Directory to mount it on
    dir: PathBuf,
    /// Mount options
    ///
    /// Options of every file system (ro, nosuid, ...), of the kernel's 9P client (cache=, access=,
    /// msize=, ...), and of the proxy: hard waits without limit for a server that is lost (the
    /// default), retry=SECONDS waits for that time. Options for fstab alone are ignored.
    #[arg(short, long = "options", value_name = "OPTION", value_delimiter = ',')]
    options: Vec<ConnectOption>,
    /// Stay in the foreground and print 'ready' to standard output
    #[arg(short, long)]
    foreground: bool,
    /// Further arguments that mount(8) passes to its helpers.
    #[command(flatten)]
    helper: HelperArgs,
}

/// An option after `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ConnectOption {
    /// A flag of every file system.
    Flag(MountFlag),
    Retry(Retry),
    /// An option of the kernel's 9P client.
    Client(String),
    /// An option for fstab, or the default.
    Ignored,
}

impl FromStr for ConnectOption {
    type Err = String;

    fn from_str(text: &str) -> Result<ConnectOption, String> {
        if let Some(flag) = MountFlag::named(text) {
            return Ok(ConnectOption::Flag(flag));
        }
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        Ok(match name {
            "hard" if text == name => ConnectOption::Retry(Retry::Forever),
            "retry" => {
                let seconds = value.parse().map_err(|_| "expected retry=SECONDS")?;
                ConnectOption::Retry(Retry::For(Duration::from_secs(seconds)))
            }
            "trans" | "rfdno" | "wfdno" | "port" | "version" | "aname" | "uname" => {
                return Err(format!("unexpected {name}=: the source determines it"));
            }
            "" => return Err("expected a mount option, got an empty one".into()),
            "defaults" | "relatime" | "norelatime" => ConnectOption::Ignored,
            name if is_fstab_only(name) => ConnectOption::Ignored,
            _ => ConnectOption::Client(text.into()),
        })
    }
}

/// The result of all options.
struct ResolvedOptions {
    flags: MountFlags,
    retry: Retry,
    /// Options of the kernel's client, except for its descriptors.
    client: Vec<String>,
}

/// Combines the options. The last of conflicting options takes precedence.
fn resolve(url: &Url, options: &[ConnectOption]) -> ResolvedOptions {
    let mut settled = ResolvedOptions {
        flags: MountFlags::empty(),
        // A mount must not end because the server was not restarted in time.
        retry: Retry::Forever,
        client: vec!["version=9p2000.L".into()],
    };
    for (name, value) in [("aname", &url.options.aname), ("uname", &url.options.uname)] {
        if !value.is_empty() {
            settled.client.push(format!("{name}={value}"));
        }
    }
    // The maximum of the kernel's client for descriptors; its default is an eighth of it.
    settled.client.push("msize=1048576".into());
    for option in options {
        match option {
            ConnectOption::Flag(flag) => flag.apply(&mut settled.flags),
            ConnectOption::Retry(retry) => settled.retry = *retry,
            ConnectOption::Client(option) => settled.client.push(option.clone()),
            ConnectOption::Ignored => {}
        }
    }
    settled
}

/// `barge connect`
pub(crate) fn run(args: &ConnectArgs) -> CommandResult {
    if !signals::is_background() {
        diagnose::check_mount_point(&args.dir)?;
        if !args.foreground {
            return background::start();
        }
    }
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", args.source));
    let settled = resolve(&args.source, &args.options);
    let source = Url {
        retry: settled.retry,
        ..args.source.clone()
    };
    let server = Arc::new(source.dial().map_err(failed)?);
    let (ours, kernels) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(Failure::new)?;
    let client = Arc::new(StreamLink::new(ours, "the kernel").map_err(Failure::new)?);
    let (sender, receiver) = channel();
    let stop = sender.clone();
    // Fails only if the receiver is gone, when the mount has ended anyway.
    let signals = signals::on_signal(move || drop(stop.send(Event::Stop)), None)?;
    let passed = {
        let server = server.clone();
        move || relay(client, server)
    };
    // The kernel's client sends requests during mount(2).
    std::thread::spawn(move || sender.send(Event::Ended(passed())));
    let fd = kernels.as_raw_fd();
    let data = format!(
        "trans=fd,rfdno={fd},wfdno={fd},{}",
        settled.client.join(",")
    );
    let data = std::ffi::CString::new(data).map_err(Failure::usage)?;
    rustix::mount::mount(
        args.source.to_string(),
        &args.dir,
        "9p",
        settled.flags,
        data.as_c_str(),
    )
    .map_err(|error| Failure::new(diagnose::mount_error(&args.dir, "9p", &error.into())))?;
    // The kernel holds its own reference to the socket.
    drop(kernels);
    background::report_ready()?;
    service::notify_ready("ready");
    let done = wait_for_end(args, &receiver, &server);
    drop(signals);
    done
}

/// The end of a mount.
enum Event {
    /// A signal to stop.
    Stop,
    /// umount(8), or a server that was not restored in time.
    Ended(std::io::Result<()>),
}

fn wait_for_end(
    args: &ConnectArgs,
    receiver: &std::sync::mpsc::Receiver<Event>,
    server: &ReconnectingLink,
) -> CommandResult {
    let mut event = receiver.recv();
    if let Ok(Event::Stop) = event {
        rustix::mount::unmount(&args.dir, UnmountFlags::DETACH)
            .map_err(|error| Failure::new(format!("{}: {error}", args.dir.display())))?;
        let Ok(ended) = receiver.recv_timeout(service::CLOSE_TIMEOUT) else {
            // Programs still have files open: they get errors.
            transports::Link::hang_up(server);
            return Ok(ExitCode::SUCCESS);
        };
        event = Ok(ended);
    }
    match event {
        Ok(Event::Ended(Err(error))) => Err(Failure::new(format!("{}: {error}", args.source))),
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_mounts_and_ours_and_the_clients() {
        let url: Url = "9p://h/srv".parse().expect("a url");
        let all = "ro,nosuid,cache=mmap,msize=65536,retry=5,_netdev,x-systemd.automount";
        let options: Result<Vec<_>, String> = all.split(',').map(str::parse).collect();
        let settled = resolve(&url, &options.expect("all known"));
        assert_eq!(settled.flags, MountFlags::RDONLY | MountFlags::NOSUID);
        assert_eq!(settled.retry, Retry::For(Duration::from_secs(5)));
        assert_eq!(
            settled.client.join(","),
            "version=9p2000.L,aname=/srv,msize=1048576,cache=mmap,msize=65536"
        );
        assert_eq!(resolve(&url, &[]).retry, Retry::Forever);
        for bad in ["", "trans=tcp", "port=564", "aname=x", "retry=ever"] {
            assert!(bad.parse::<ConnectOption>().is_err(), "{bad}");
        }
    }
}
