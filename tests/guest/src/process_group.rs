//! The process group of a run, which is killed when the run ends.
//!
//! Its leader waits for the end of its input and then kills the group. The input is a pipe from
//! this process, which closes when [`ProcessGroup`] is dropped or this process dies. Since the
//! leader lives as long as the group is used, the group's ID is not reused.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

pub(crate) struct ProcessGroup {
    leader: Child,
}

impl ProcessGroup {
    pub(crate) fn new() -> Result<Self> {
        let leader = Command::new("sh")
            .args(["-c", "read _; kill -KILL 0"])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot run sh")?;
        Ok(Self { leader })
    }

    /// Starts a command in the group.
    pub(crate) fn spawn(&self, command: &mut Command) -> Result<Child> {
        command.process_group(self.leader.id().cast_signed());
        command
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        drop(self.leader.stdin.take());
        // Killed by itself, so the status is irrelevant.
        let _ = self.leader.wait();
    }
}
