//! A memory limit for a program, including the page cache of its files: a control group.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group, removed on drop.
pub(super) struct MemoryLimit {
    dir: PathBuf,
    /// The file to write a process id to, which moves the process to the group.
    procs: PathBuf,
}

impl MemoryLimit {
    /// The least memory in bytes that fio runs with.
    const MIN: u64 = 32 << 20;

    /// Creates a group limited to `bytes`. Returns `None` if that is impossible.
    pub(super) fn new(bytes: u64) -> Option<MemoryLimit> {
        let name = format!("barge-bench-{}", std::process::id());
        // Version 1 has a hierarchy for memory, version 2 a single one.
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
            let limit = MemoryLimit {
                procs: dir.join(members),
                dir,
            };
            let bytes = bytes.max(MemoryLimit::MIN).to_string();
            fs::write(limit.dir.join(most), bytes).ok()?;
            Some(limit)
        })
    }

    /// Returns the start of a command whose program runs in the group.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(&self.procs).arg(program);
        command
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // An error means that a process is still in the group.
        let _ = fs::remove_dir(&self.dir);
    }
}
