//! The processes that are measured.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Failure;

/// A server that runs until it is dropped.
pub(super) struct Process(Child);

impl Process {
    /// Runs `command`, whose output is nobody's business; nothing if there is no such program.
    pub(super) fn start(command: &mut Command) -> Option<Process> {
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        quiet.spawn().ok().map(Process)
    }

    /// This very program, serving `dir` with `options`.
    pub(super) fn barge(dir: &Path, options: &[&str]) -> Result<Process, Failure> {
        let program = std::env::current_exe().map_err(Failure::new)?;
        let mut child = Command::new(program)
            .arg("serve")
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
        let process = Process(child);
        match ready {
            true => Ok(process),
            false => Err(Failure::new("barge did not get ready")),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // None keeps what a kill could lose; an error means it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the package manager knows of a program that does not tell its version itself.
pub(super) fn packaged(package: &str) -> String {
    let query = Command::new("dpkg-query")
        .args(["-W", "-f", "${Version}", package])
        .output();
    let version = query.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    version.unwrap_or_default()
}
