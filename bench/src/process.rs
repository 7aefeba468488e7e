//! The processes to measure.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use command::Failure;

/// A process, killed on drop.
pub(super) struct Process(Child);

impl Process {
    /// Runs `command` and discards its output. Returns `None` if it cannot be started.
    pub(super) fn start(command: &mut Command) -> Option<Process> {
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        quiet.spawn().ok().map(Process)
    }

    /// Runs `barge`, a command without arguments, as a server of `dir` with `options`.
    pub(super) fn serve(
        mut barge: Command,
        dir: &Path,
        options: &[&str],
    ) -> Result<Process, Failure> {
        Process::start_barge(barge.arg("serve").args(options).arg(dir))
    }

    /// Starts barge with `command` and waits until it prints `ready`.
    pub(super) fn start_barge(command: &mut Command) -> Result<Process, Failure> {
        let mut child = command
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

    /// Waits until the process has exited by itself; returns an error if it failed.
    pub(super) fn wait(&mut self) -> Result<(), String> {
        match self.0.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("barge ended with {status}")),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // None of the processes has state to lose; an error means that it has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an error unless the user is root, which `what` requires.
pub(super) fn require_root(what: &str) -> Result<(), Failure> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Failure::new(format!("{what}: it takes user 0"))),
    }
}

/// Runs a program until it exits; returns its standard error if it failed.
pub(super) fn run_command(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&output.stderr);
            Err(format!("{name}: {}", why.trim()))
        }
    }
}

/// Waits up to `time` until `ready` returns true; returns whether it did.
pub(super) fn wait_until(time: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        if ready() {
            return true;
        }
        sleep(Duration::from_millis(10));
    }
    false
}

/// Returns a process and the descendants that the main thread of each has started: some daemons
/// serve from a child process.
pub(super) fn process_tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        next += 1;
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        all.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    all
}

/// The index in /proc/PID/stat, counted from the field after the name, of the CPU times of the
/// waited-for children.
const CUTIME_FIELD: usize = 13;

/// Returns the CPU time of a process and its descendants.
pub(super) fn processor_time(pid: u32) -> Duration {
    let times = process_tree(pid).into_iter().map(sys::usage::process_time);
    times.flatten().sum()
}

/// Returns the peak resident memory of a process in bytes, without file pages (proc_pid_status(5)).
pub(super) fn peak_memory(process: &Path) -> u64 {
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let most = kib("VmHWM").unwrap_or(0);
    most.saturating_sub(kib("RssFile").unwrap_or(0)) << 10
}

/// Returns the CPU time of all children of this process that it has waited for.
pub(super) fn children_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = ticks(&stat, CUTIME_FIELD).unwrap_or(0);
    Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second().max(1) as u32
}

/// Returns the CPU time of the calling thread.
pub(super) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the sum of user and system time in clock ticks from a line of /proc/PID/stat (proc(5));
/// they are `behind` fields after the name.
fn ticks(stat: &str, behind: usize) -> Option<u64> {
    // The second field is a name in parentheses, with arbitrary contents.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(behind);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Loops that keep processors busy at normal priority, until dropped. They are threads, so that
/// none survives this process, however it ends.
pub(super) struct BusyLoops {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyLoops {
    /// Starts `count` loops.
    pub(super) fn start(count: u16) -> Result<BusyLoops, Failure> {
        let mut loops = BusyLoops {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..count {
            let stop = loops.stop.clone();
            let thread = std::thread::Builder::new().name("busy".into());
            let thread = thread.spawn(move || while !stop.load(Ordering::Relaxed) {});
            loops.threads.push(thread.map_err(Failure::new)?);
        }
        Ok(loops)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A loop cannot panic.
            let _ = thread.join();
        }
    }
}

/// Returns a free TCP port.
pub(super) fn free_port() -> Result<u16, Failure> {
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr());
    Ok(free.map_err(Failure::new)?.port())
}

/// Returns the version of a package according to dpkg, for programs that do not print theirs.
pub(super) fn package_version(package: &str) -> String {
    let query = Command::new("dpkg-query")
        .args(["-W", "-f", "${Version}", package])
        .output();
    let version = query.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    version.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_family_has_its_parent() {
        let child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn();
        let mut child = child.expect("runs");
        // The kernel lists children by the thread that started them.
        assert_eq!(super::process_tree(child.id()), [child.id()]);
        drop(child.stdin.take());
        child.wait().expect("ends");
    }

    #[test]
    fn times_stand_behind_the_name() {
        let stat = "7 (a) 1 b) S 1 7 7 0 -1 4194560 1 0 0 0 1 1 30 12 20 0 1 0 5 6 7";
        assert_eq!(super::ticks(stat, super::CUTIME_FIELD), Some(42));
        assert_eq!(super::ticks("7 (a) S", super::CUTIME_FIELD), None);
    }

    #[test]
    fn busy_loops_work_until_they_are_dropped() {
        let loops = super::BusyLoops::start(2).expect("threads");
        let before = super::processor_time(std::process::id());
        let works = || super::processor_time(std::process::id()) > before + WORK;
        assert!(super::wait_until(std::time::Duration::from_secs(60), works));
        let stop = loops.stop.clone();
        drop(loops);
        // All threads have ended: none holds a reference.
        assert_eq!(std::sync::Arc::strong_count(&stop), 1);
    }

    /// More CPU time than the waiting test itself takes.
    const WORK: std::time::Duration = std::time::Duration::from_millis(50);
}
