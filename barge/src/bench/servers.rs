//! The servers that are measured: each a process of its own, on the same directory.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use transports::{Addr, dial};

use crate::Failure;

/// A server that runs until it is dropped.
pub(super) struct Server {
    pub(super) name: String,
    pub(super) unix: Addr,
    pub(super) tcp: Addr,
    /// What it calls the directory.
    pub(super) aname: String,
    child: Child,
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ours and diod keep nothing that a kill could lose; an error means it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This very program, serving `dir` with `options`, with its sockets in `run`.
pub(super) fn barge(dir: &Path, run: &Path, options: &[&str]) -> Result<Server, Failure> {
    let program = std::env::current_exe().map_err(Failure::new)?;
    let (unix, tcp) = addresses(run, &format!("barge{}", options.concat()))?;
    let mut child = Command::new(program)
        .args(["serve", "--9p", &unix.to_string(), "--9p", &tcp.to_string()])
        .args(options)
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::new(format!("cannot run barge: {error}")))?;
    let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
    let ready = lines
        .into_iter()
        .flatten()
        .map_while(Result::ok)
        .any(|line| line == "ready");
    let name = [&["barge"], options].concat().join(" ");
    let server = Server {
        name,
        unix,
        tcp,
        aname: String::new(),
        child,
    };
    if ready {
        Ok(server)
    } else {
        Err(Failure::new("barge did not get ready"))
    }
}

/// diod, if it is installed.
pub(super) fn diod(dir: &Path, run: &Path) -> Result<Option<Server>, Failure> {
    let (unix, tcp) = addresses(run, "diod")?;
    let (Addr::Unix(path), Addr::Tcp { host, port }) = (&unix, &tcp) else {
        return Err(Failure::new("addresses() makes one of each"));
    };
    let started = Command::new("diod")
        .args(["-f", "-n", "-L", "/dev/null", "-l"])
        .arg(path)
        .args(["-l", &format!("{host}:{port}"), "-e"])
        .arg(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = started else { return Ok(None) };
    let aname = dir.display().to_string();
    let server = Server {
        name: version_of_diod(),
        unix,
        tcp,
        aname,
        child,
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while dial(&server.unix).is_err() || dial(&server.tcp).is_err() {
        if Instant::now() > deadline {
            return Err(Failure::new("diod did not get ready within 5 s"));
        }
        sleep(Duration::from_millis(10));
    }
    Ok(Some(server))
}

/// `diod 1.0.24`, as the package manager knows it; the program itself does not tell.
fn version_of_diod() -> String {
    let query = Command::new("dpkg-query")
        .args(["-W", "-f", "${Version}", "diod"])
        .output();
    let version = query.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    format!("diod {}", version.unwrap_or_default())
        .trim_end()
        .to_owned()
}

fn addresses(run: &Path, name: &str) -> Result<(Addr, Addr), Failure> {
    let port = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|free| free.local_addr())
        .map_err(Failure::new)?
        .port();
    Ok((
        Addr::Unix(run.join(format!("{name}.sock"))),
        Addr::Tcp {
            host: "127.0.0.1".into(),
            port,
        },
    ))
}
