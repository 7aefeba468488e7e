//! How much memory a program has, the kernel's cache of what it reads and writes included: a control group.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group. Removed when dropped.
pub(super) struct Limit {
    dir: PathBuf,
    /// What a process's number is written to, to have it in the group.
    members: PathBuf,
}

impl Limit {
    /// The least with which fio runs.
    const LEAST: u64 = 32 << 20;

    /// A group of `bytes`; nothing if none can be made.
    pub(super) fn new(bytes: u64) -> Option<Limit> {
        let name = format!("barge-bench-{}", std::process::id());
        // Version 1 has a hierarchy for memory, version 2 one for everything.
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "tasks"),
            ("/sys/fs/cgroup", "memory.max", "cgroup.procs"),
        ];
        versions.into_iter().find_map(|(top, most, members)| {
            if !Path::new(top).join(members).exists() {
                return None;
            }
            let dir = Path::new(top).join(&name);
            fs::create_dir(&dir).ok()?;
            let limit = Limit {
                members: dir.join(members),
                dir,
            };
            let bytes = bytes.max(Limit::LEAST).to_string();
            fs::write(limit.dir.join(most), bytes).ok()?;
            Some(limit)
        })
    }

    /// The beginning of a command whose program is in the group.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(&self.members).arg(program);
        command
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // An error means that somebody is in there still.
        let _ = fs::remove_dir(&self.dir);
    }
}
