//! A network of its own: nfs-ganesha insists on a portmapper, and its own must not be in anybody's way.

use std::fs::{File, read_link, read_to_string};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread::scope;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::{Process, wait_until};

/// A network with nothing in it but loopback, and perhaps a portmapper.
pub(super) struct Network {
    /// What lives in it as long as it does.
    keeper: Process,
    space: File,
}

/// The portmapper and Ganesha both have files below /run.
const RUN: &str =
    "mount -t tmpfs none /run && mkdir /run/ganesha && ip link set lo up && exec rpcbind -f";

impl Network {
    /// Nothing if it cannot be had here: it takes user 0.
    pub(super) fn make() -> Option<Network> {
        let network = Network::kept_by(RUN)?;
        network.listens(PORTMAPPER).then_some(network)
    }

    /// One with nothing in it but loopback; nothing if it cannot be had here: it takes user 0.
    pub(super) fn bare() -> Option<Network> {
        let network = Network::kept_by("ip link set lo up && exec sleep infinity")?;
        let connects = || {
            let free = TcpListener::bind(("127.0.0.1", 0))?;
            TcpStream::connect(free.local_addr()?)
        };
        let is_up = || network.within(connects).is_ok_and(|done| done.is_ok());
        wait_until(Duration::from_secs(5), is_up).then_some(network)
    }

    fn kept_by(script: &str) -> Option<Network> {
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
        Some(Network { keeper, space })
    }

    /// How many bytes have come over its loopback, of whatever kind.
    pub(super) fn received(&self) -> std::io::Result<u64> {
        let figures = self.within(|| read_to_string("/proc/thread-self/net/dev"))??;
        let lines = figures
            .lines()
            .filter_map(|line| line.trim().strip_prefix("lo:"));
        let mut received = lines.filter_map(|line| line.split_whitespace().next()?.parse().ok());
        received
            .next()
            .ok_or_else(|| std::io::Error::other("there is no loopback"))
    }

    /// Does something in it.
    pub(super) fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> std::io::Result<T> {
        // A thread stays where it has moved to: another one does.
        let moved = || {
            move_into_link_name_space(self.space.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(what())
        };
        let done = scope(|threads| threads.spawn(moved).join());
        done.unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")))
    }

    /// Whether somebody listens at a port, or will soon.
    pub(super) fn listens(&self, port: u16) -> bool {
        let connects = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        wait_until(Duration::from_secs(30), || {
            self.within(connects).unwrap_or(false)
        })
    }

    /// The beginning of a command whose program has this network, but the files of everybody.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        let keeper = self.keeper.pid().to_string();
        command.args(["--target", &keeper, "--net"]);
        command
    }

    /// Starts what runs in it, where it has a /run of its own.
    pub(super) fn start(&self, program: &str, args: &[&str]) -> Option<Process> {
        let mut command = Command::new("nsenter");
        command
            .arg("--target")
            .arg(self.keeper.pid().to_string())
            .args(["--net", "--mount", program])
            .args(args);
        Process::start(&mut command)
    }
}

const PORTMAPPER: u16 = 111;
