//! A network namespace: nfs-ganesha requires a portmapper, which must not collide with the host's.

use std::fs::{File, read_link, read_to_string};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread::scope;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::{Process, wait_until};

/// A network namespace with only loopback in it, and perhaps a portmapper.
pub(super) struct Network {
    /// The process that keeps the namespaces alive.
    holder: Process,
    namespace: File,
}

/// The portmapper and Ganesha both keep files below /run.
const PORTMAPPER_SCRIPT: &str =
    "mount -t tmpfs none /run && mkdir /run/ganesha && ip link set lo up && exec rpcbind -f";

impl Network {
    /// Creates a network namespace with a portmapper. Returns `None` if that is impossible, for
    /// example because the user is not root.
    pub(super) fn with_portmapper() -> Option<Network> {
        let network = Network::held_by(PORTMAPPER_SCRIPT)?;
        network.wait_for_listener(PORTMAPPER).then_some(network)
    }

    /// Creates a network namespace with only loopback in it. Returns `None` if that is impossible,
    /// for example because the user is not root.
    pub(super) fn loopback_only() -> Option<Network> {
        let network = Network::held_by("ip link set lo up && exec sleep infinity")?;
        let connects = || {
            let free = TcpListener::bind(("127.0.0.1", 0))?;
            TcpStream::connect(free.local_addr()?)
        };
        let is_up = || network.run_inside(connects).is_ok_and(|done| done.is_ok());
        wait_until(Duration::from_secs(5), is_up).then_some(network)
    }

    fn held_by(script: &str) -> Option<Network> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", script]);
        let keeper = Process::start(&mut command)?;
        let path = format!("/proc/{}/ns/net", keeper.pid());
        let ours = read_link("/proc/thread-self/ns/net").ok()?;
        let made = || read_link(&path).is_ok_and(|theirs| theirs != ours);
        if !wait_until(Duration::from_secs(5), made) {
            return None;
        }
        let space = File::open(&path).ok()?;
        Some(Network {
            holder: keeper,
            namespace: space,
        })
    }

    /// Returns the number of bytes received on its loopback interface.
    pub(super) fn received(&self) -> std::io::Result<u64> {
        let figures = self.run_inside(|| read_to_string("/proc/thread-self/net/dev"))??;
        let lines = figures
            .lines()
            .filter_map(|line| line.trim().strip_prefix("lo:"));
        let mut received = lines.filter_map(|line| line.split_whitespace().next()?.parse().ok());
        received
            .next()
            .ok_or_else(|| std::io::Error::other("there is no loopback"))
    }

    /// Calls `what` on a thread in the namespace.
    pub(super) fn run_inside<T: Send>(
        &self,
        what: impl FnOnce() -> T + Send,
    ) -> std::io::Result<T> {
        // A thread stays in the namespace that it has entered, so a new thread does the work.
        let moved = || {
            move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(what())
        };
        let done = scope(|threads| threads.spawn(moved).join());
        done.unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")))
    }

    /// Waits up to 30 s until a server listens on `port` in the namespace; returns whether one
    /// does.
    pub(super) fn wait_for_listener(&self, port: u16) -> bool {
        let connects = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        wait_until(Duration::from_secs(30), || {
            self.run_inside(connects).unwrap_or(false)
        })
    }

    /// Returns the start of a command that runs in the network namespace, but in the host's mount
    /// namespace.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        let keeper = self.holder.pid().to_string();
        command.args(["--target", &keeper, "--net"]);
        command
    }

    /// Starts a program in the network and mount namespaces, with their own /run.
    pub(super) fn start(&self, program: &str, args: &[&str]) -> Option<Process> {
        let mut command = Command::new("nsenter");
        command
            .arg("--target")
            .arg(self.holder.pid().to_string())
            .args(["--net", "--mount", program])
            .args(args);
        Process::start(&mut command)
    }
}

const PORTMAPPER: u16 = 111;
