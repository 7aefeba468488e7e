//! The virtiofs servers, each on the same directory.

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use remote::virtiofs::{Channel, Options, WaitMode};

use crate::process::{Process, package_version};
use crate::protocol::Started;
use crate::workspace::Workspace;
use command::tools::{Tool, find};

/// The command line of a server.
pub(super) struct Server {
    launch: Launch,
    barge: PathBuf,
    share: PathBuf,
    run: PathBuf,
}

enum Launch {
    Barge(Vec<String>),
    /// A program, and its options without the socket and the shared directory.
    Peer(PathBuf, Vec<String>, OptionSyntax),
}

/// The syntax of a peer's options for the socket and the shared directory.
#[derive(Clone, Copy)]
enum OptionSyntax {
    /// That of virtiofsd in Rust.
    Rust,
    /// That of QEMU's own daemon in C, up to version 7.
    C,
}

/// A running server with its client.
#[derive(Clone)]
pub(super) struct Running {
    /// Dropped before its server.
    pub(super) channel: Arc<Channel>,
    pub(super) process: Arc<Process>,
}

/// Returns the server of this name in the table.
pub(super) fn named(workspace: &Workspace, name: &str) -> Started<Server> {
    let mut words = name.split(' ');
    let (program, options) = (words.next().unwrap_or_default(), words.map(str::to_owned));
    match program {
        "barge" => {
            let how = Launch::Barge(options.collect());
            Started::Running(name.to_owned(), server(workspace, how))
        }
        "virtiofsd" => {
            let Some(program) = find("virtiofsd") else {
                return Started::Missing(Tool::VIRTIOFSD.missing_message());
            };
            let options: Vec<String> = options.collect();
            let pool = options.last().map_or("", String::as_str);
            let name = format!("{} pool {pool}", version(&program));
            let how = Launch::Peer(program, options, OptionSyntax::Rust);
            Started::Running(name, server(workspace, how))
        }
        _ => {
            let Some(program) = find(Tool::QEMU_VIRTIOFSD.programs[0]) else {
                return Started::Missing(Tool::QEMU_VIRTIOFSD.missing_message());
            };
            let version = package_version("qemu-system-common");
            let version = version.split(['+', '-']).next().unwrap_or_default();
            let version = version.rsplit(':').next().unwrap_or_default();
            let how = Launch::Peer(program, Vec::new(), OptionSyntax::C);
            Started::Running(format!("C virtiofsd {version}"), server(workspace, how))
        }
    }
}

fn server(workspace: &Workspace, how: Launch) -> Server {
    Server {
        launch: how,
        barge: workspace.barge.clone(),
        share: workspace.share.clone(),
        run: workspace.run_dir.clone(),
    }
}

/// Returns the program's version line, such as `virtiofsd 1.14.0`.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let output = output.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    output.unwrap_or_default()
}

impl Server {
    /// Starts the server and mounts it with `queues` queues and a driver that waits for replies in
    /// mode `waiting`.
    pub(super) fn start(&self, queues: usize, waiting: WaitMode) -> Result<Running, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let socket = self.run.join(format!("virtiofs-{number}.sock"));
        let process = self.spawn(&socket)?;
        let deadline = Instant::now() + Duration::from_secs(5);
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => {
                    return Err(format!("did not get ready within 5 s: {error}"));
                }
                Err(_) => sleep(Duration::from_millis(2)),
            }
        };
        let options = Options {
            queues,
            depth: 64,
            waiting,
            ..Options::default()
        };
        let channel = Channel::mount(stream, options).map_err(|error| error.to_string())?;
        Ok(Running {
            channel,
            process: Arc::new(process),
        })
    }

    fn spawn(&self, socket: &Path) -> Result<Process, String> {
        let (program, options, words) = match &self.launch {
            Launch::Barge(options) => {
                let socket = socket.display().to_string();
                let mut all = vec!["--virtiofs", &socket, "--virtiofs-allow-direct-io"];
                all.extend(options.iter().map(String::as_str));
                return Process::serve(Command::new(&self.barge), &self.share, &all)
                    .map_err(|error| error.message);
            }
            Launch::Peer(program, options, words) => (program, options, words),
        };
        let mut command = Command::new(program);
        command.args(options);
        match words {
            OptionSyntax::Rust => command
                .args([OsStr::new("--socket-path"), socket.as_os_str()])
                .args([OsStr::new("--shared-dir"), self.share.as_os_str()])
                .arg("--allow-direct-io"),
            OptionSyntax::C => command
                .arg(format!("--socket-path={}", socket.display()))
                .args(["-o", &format!("source={}", self.share.display())])
                .args(["-o", "allow_direct_io"]),
        };
        Process::start(&mut command).ok_or_else(|| format!("cannot run {}", program.display()))
    }
}
