//! The 9P servers, each on the same directory.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use transports::{Addr, dial};

use crate::process::{Process, free_port, package_version};
use crate::workspace::Workspace;
use command::Failure;

/// A server with its addresses.
pub(super) struct Server {
    pub(super) unix: Addr,
    pub(super) tcp: Addr,
    /// The server's name of the directory.
    pub(super) aname: String,
    pub(super) process: Process,
}

/// Starts barge as a server with `options`.
pub(super) fn barge(workspace: &Workspace, options: &[&str]) -> Result<Server, Failure> {
    let (unix, tcp) = addresses(&workspace.run_dir, &format!("barge{}", options.concat()))?;
    let (by_unix, by_tcp) = (unix.to_string(), tcp.to_string());
    let mut all = vec!["--9p", &by_unix, "--9p", &by_tcp];
    all.extend(options);
    Ok(Server {
        process: Process::serve(workspace.barge(), &workspace.share, &all)?,
        unix,
        tcp,
        aname: String::new(),
    })
}

/// Starts diod; returns `None` if it is not installed.
pub(super) fn diod(workspace: &Workspace) -> Result<Option<(String, Server)>, Failure> {
    let dir = &workspace.share;
    let (unix, tcp) = addresses(&workspace.run_dir, "diod")?;
    let (Addr::Unix(path), Addr::Tcp { host, port }) = (&unix, &tcp) else {
        return Err(Failure::new("addresses() makes one of each"));
    };
    let mut command = Command::new("diod");
    command
        .args(["-f", "-n", "-L", "/dev/null", "-l"])
        .arg(path)
        .args(["-l", &format!("{host}:{port}"), "-e"])
        .arg(dir);
    let Some(process) = Process::start(&mut command) else {
        return Ok(None);
    };
    let aname = dir.display().to_string();
    let server = Server {
        unix,
        tcp,
        aname,
        process,
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while dial(&server.unix).is_err() || dial(&server.tcp).is_err() {
        if Instant::now() > deadline {
            return Err(Failure::new("diod did not get ready within 5 s"));
        }
        sleep(Duration::from_millis(10));
    }
    let name = format!("diod {}", package_version("diod"));
    Ok(Some((name.trim_end().to_owned(), server)))
}

fn addresses(run: &Path, name: &str) -> Result<(Addr, Addr), Failure> {
    let port = free_port()?;
    Ok((
        Addr::Unix(run.join(format!("{name}.sock"))),
        Addr::Tcp {
            host: "127.0.0.1".into(),
            port,
        },
    ))
}
