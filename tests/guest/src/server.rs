//! A server: any command that serves a directory on a port or socket.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::process_group::ProcessGroup;
use crate::{fill, tail};

/// Timeout for a server to accept connections, and to stop.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The address of the host's loopback in QEMU's user network.
pub(crate) const HOST: &str = "10.0.2.2";

/// A running server.
pub struct Server {
    child: Child,
    log: PathBuf,
    /// Whether it ends when its guest does, as virtiofsd.
    ends_with_guest: bool,
}

/// The addresses of servers, and the values of template placeholders.
pub struct TemplateValues {
    values: Vec<(&'static str, String)>,
}

/// For several servers, or several guests of one.
const PORTS: [&str; 4] = ["port", "port2", "port3", "port4"];
const SOCKETS: [&str; 3] = ["socket", "socket2", "socket3"];

impl TemplateValues {
    /// Chooses free ports for servers that listen on address `listen`, and names for sockets in the
    /// run directory `run`. `tls` is the directory of certificates, if there are any, and `tools`
    /// that of the harness's programs; `guests` is their number.
    pub fn allocate(
        share: &Path,
        run: &Path,
        tls: &Path,
        tools: &Path,
        listen: &str,
        guests: usize,
    ) -> Result<Self> {
        let mut values = vec![
            ("listen", listen.into()),
            ("share", share.display().to_string()),
            ("host", HOST.into()),
            // The address of a guest that serves the others, which is the last one (`init.sh`).
            ("peer", format!("10.0.2.{}", 14 + guests)),
            ("tls", tls.display().to_string()),
            ("tools", tools.join("bin").display().to_string()),
            ("run", run.display().to_string()),
        ];
        // All listeners stay open until the end, so that the ports differ.
        let mut held = Vec::new();
        for name in PORTS {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            values.push((name, listener.local_addr()?.port().to_string()));
            held.push(listener);
        }
        for name in SOCKETS {
            values.push((name, run.join(name).display().to_string()));
        }
        Ok(Self { values })
    }

    /// Replaces `{share}`, `{port}` to `{port4}`, `{socket}` to `{socket3}`, `{listen}`,
    /// `{host}`, `{peer}`, `{run}`, `{tls}` and `{tools}` in a template.
    pub fn fill(&self, template: &str) -> String {
        fill(template, &self.values)
    }

    /// Returns whether all ports and sockets in a command accept connections or exist.
    fn accepts(&self, command: &str) -> bool {
        let named = |name: &&str| command.contains(&format!("{{{name}}}"));
        let value = |name: &str| self.fill(&format!("{{{name}}}"));
        PORTS.into_iter().filter(named).all(|port| {
            TcpStream::connect(format!("{}:{}", Ipv4Addr::LOCALHOST, value(port))).is_ok()
        }) && SOCKETS
            .into_iter()
            .filter(named)
            .all(|socket| Path::new(&value(socket)).exists())
    }
}

/// Returns whether a command starts virtiofsd, or barge in its place.
fn is_virtiofsd(command: &str) -> bool {
    let words = command.split(' ').take(2);
    let mut names = words.filter_map(|word| word.rsplit('/').next());
    names.any(|name| name.starts_with("virtiofsd"))
}

impl Server {
    /// Starts a shell command and waits until the ports in it accept connections and the sockets
    /// exist.
    pub(crate) fn start(
        command: &str,
        address: &TemplateValues,
        family: &ProcessGroup,
        log: &Path,
    ) -> Result<Self> {
        let output = File::create(log)?;
        let child = family.spawn(
            Command::new("sh")
                .args(["-c", &format!("exec {}", address.fill(command))])
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output),
        )?;
        let mut server = Self {
            child,
            log: log.into(),
            ends_with_guest: is_virtiofsd(command),
        };
        let started = Instant::now();
        loop {
            server.check()?;
            if address.accepts(command) {
                return Ok(server);
            }
            ensure!(
                started.elapsed() < TIMEOUT,
                "the server does not accept after {TIMEOUT:?}: {}",
                tail(&server.log, 5)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error if the server has exited or panicked.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server ended with {status}: {}", tail(&self.log, 5));
        }
        self.check_log()
    }

    /// Returns an error if the server has panicked.
    fn check_log(&self) -> Result<()> {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        match log.lines().find(|line| line.contains("panicked at")) {
            Some(line) => bail!("the server panicked: {line}"),
            None => Ok(()),
        }
    }

    /// Stops the server with SIGTERM. Returns an error if it had exited before, unless it ends with
    /// its guest; if it fails, or does not stop.
    pub(crate) fn stop(mut self) -> Result<()> {
        if self.ends_with_guest
            && let Some(status) = self.child.try_wait()?
        {
            let log = tail(&self.log, 5);
            ensure!(status.success(), "the server ended with {status}: {log}");
            return self.check_log();
        }
        self.check()?;
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("a process has a number")?;
        kill_process(pid, Signal::TERM)?;
        let told = Instant::now();
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if told.elapsed() > TIMEOUT => {
                    bail!("the server does not stop {TIMEOUT:?} after SIGTERM")
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        ensure!(
            status.success() || status.signal() == Some(Signal::TERM.as_raw()),
            "the server ended with {status}: {}",
            tail(&self.log, 5)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_end_with_their_guest() {
        for command in [
            "virtiofsd --shared-dir {share}",
            "/opt/virtiofsd-1.14 --shared-dir {share}",
            "target/debug/barge virtiofsd --shared-dir {share}",
        ] {
            assert!(is_virtiofsd(command), "{command}");
        }
        assert!(!is_virtiofsd(
            "barge serve /srv/virtiofsd --virtiofs {socket}"
        ));
    }
}
