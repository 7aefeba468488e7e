//! Counts the system calls of a server with strace(1).

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::process::process_tree;

/// The note for reports in which they are not counted.
pub(super) const STRACE_MISSING: &str =
    "system calls are not counted: Debian's package strace is missing";

/// Counts the system calls of process `pid` and its descendants, in all their threads, while `work`
/// runs. Returns `None` without strace or the permission to trace. `log` is a file to write.
pub(super) fn count(pid: u32, log: &Path, work: impl FnOnce()) -> Option<u64> {
    let _ = std::fs::remove_file(log);
    let family = process_tree(pid);
    let mut strace = Command::new("strace")
        .args(["-f", "-c", "-U", "calls,name", "-o"])
        .arg(log)
        .args(family.iter().flat_map(|pid| ["-p".into(), pid.to_string()]))
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let attached = family.iter().all(|&pid| await_tracer(pid));
    if attached {
        work();
    }
    let strace_pid = Pid::from_raw(i32::try_from(strace.id()).ok()?)?;
    let _ = kill_process(strace_pid, Signal::INT);
    let _ = strace.wait();
    let text = std::fs::read_to_string(log).ok()?;
    if attached { total(&text) } else { None }
}

/// Waits up to 3 s until all threads of `pid` are traced; returns whether they are.
fn await_tracer(pid: u32) -> bool {
    let traced = |status: std::io::Result<String>| {
        status.is_ok_and(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("TracerPid:"));
            line.is_some_and(|tracer| tracer.trim() != "0")
        })
    };
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        let all = tasks.is_ok_and(|tasks| {
            let mut paths = tasks.flatten().map(|task| task.path().join("status"));
            paths.all(|path| traced(std::fs::read_to_string(path)))
        });
        if all {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .rev()
        .find(|line| line.trim_end().ends_with("total"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_total_is_the_last_line() {
        let text = "calls syscall\n----- ----\n 7 read\n 3 write\n----- ----\n 10 total\n";
        assert_eq!(super::total(text), Some(10));
        assert_eq!(super::total("strace: attach failed\n"), None);
    }
}
