//! Running instances of `barge serve`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use vfs_testkit::wait_until;

/// The path of the program.
pub(crate) const BARGE: &str = env!("CARGO_BIN_EXE_barge");

/// A server that is killed when it is dropped.
pub(crate) struct ServerProcess {
    child: Child,
    /// The lines that it printed before `ready`.
    pub(crate) output: Vec<String>,
}

impl ServerProcess {
    /// Starts `barge serve` on a free port of this host.
    pub(crate) fn start(args: &[&str]) -> ServerProcess {
        let mut command = Command::new(BARGE);
        command
            .args(["serve", "--9p", "tcp:127.0.0.1:0"])
            .args(args);
        ServerProcess::run(command)
    }

    /// Starts a server with `command`.
    pub(crate) fn run(mut command: Command) -> ServerProcess {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let out = child.stdout.take().expect("piped");
        let lines = BufReader::new(out).lines().map_while(Result::ok);
        let said: Vec<String> = lines.take_while(|line| line != "ready").collect();
        ServerProcess {
            child,
            output: said,
        }
    }

    /// Starts a server with `command`, which has `--ready json`, and returns the object.
    pub(crate) fn run_until_json(mut command: Command) -> (ServerProcess, serde_json::Value) {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        out.read_line(&mut line).expect("a line");
        let output = Vec::new();
        let ready = serde_json::from_str(&line).expect("JSON");
        (ServerProcess { child, output }, ready)
    }

    /// Returns the port in its mount command.
    pub(crate) fn port(&self) -> u16 {
        let port = self.output.iter().find_map(|line| {
            let (_, rest) = line.split_once("port=")?;
            rest.split(',').next()?.parse().ok()
        });
        port.unwrap_or_else(|| panic!("a port in {:?}", self.output))
    }

    /// Runs `barge` on this server: the URL of `path` replaces `{}` in the arguments.
    pub(crate) fn barge(&self, args: &[&str], path: &str) -> Output {
        let url = format!("9p://127.0.0.1:{}/{path}", self.port());
        let args = args.iter().map(|arg| arg.replace("{}", &url));
        Command::new(BARGE).args(args).output().expect("runs")
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the id of the process that serves: the child of the [broker](Self::broker_id), or
    /// that if it has none.
    pub(crate) fn serving_id(&self) -> u32 {
        serving_id(self.broker_id())
    }

    /// Returns the id of the process that starts those that serve: after an upgrade, the child of
    /// the first one that was started with a manifest, the newest if there are two.
    pub(crate) fn broker_id(&self) -> u32 {
        let has_manifest = |id: &u32| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable.starts_with(b"BARGE_UPGRADE="))
        };
        let newest = children(self.id()).into_iter().rfind(has_manifest);
        newest.unwrap_or(self.id())
    }

    /// Returns the ids of the processes that serve, in the order of their start.
    pub(crate) fn serving_ids(&self) -> Vec<u32> {
        children(self.broker_id())
    }

    /// Kills all processes that serve, and waits until others have taken their places.
    pub(crate) fn crash(&self) {
        let killed = self.serving_ids();
        for &id in &killed {
            let pid = Pid::from_raw(id as i32).expect("a process");
            kill_process(pid, Signal::KILL).expect("it runs");
        }
        wait_until("others serve", || {
            let now = self.serving_ids();
            now.len() == killed.len() && !now.iter().any(|id| killed.contains(id))
        });
    }

    /// Stops it with a signal, and returns its exit status.
    pub(crate) fn stop(self) -> std::process::ExitStatus {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, Signal::TERM).expect("asked");
        self.wait()
    }

    /// Waits until it ends, and returns its exit status.
    pub(crate) fn wait(mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it did not end within 10 s");
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let serving = self.serving_ids();
        // An error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The kernel ends them afterwards.
        let deadline = Instant::now() + Duration::from_secs(5);
        let runs = |id: &u32| Path::new(&format!("/proc/{id}")).exists();
        while serving.iter().any(runs) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the id of the only child that the main thread of process `id` has started, or `id` if it
/// has none.
pub(crate) fn serving_id(id: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    children.unwrap_or_default().trim().parse().unwrap_or(id)
}

/// Returns the ids of the children of process `id`, in the order of their start. There are none if
/// it has ended.
pub(crate) fn children(id: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task"));
    let children = tasks
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children: String = children.collect();
    let ids = children
        .split_whitespace()
        .map(|id| id.parse().expect("a number"));
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    ids
}

/// Returns the standard output of a program that succeeded.
pub(crate) fn stdout_of(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Returns the standard error of a program that failed.
pub(crate) fn stderr_of(output: &Output) -> String {
    assert!(!output.status.success(), "it succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns whether a program is installed.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| Path::new(&dir).join(program).is_file())
}
