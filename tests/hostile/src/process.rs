//! A server in a separate process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use transports::Addr;

/// A process running this package's server. Dropping it stops the server, and panics if it exited
/// with an error.
pub struct Process {
    child: Child,
    /// The server exits at the end of this input.
    stdin: Option<ChildStdin>,
    /// The server's address.
    pub addr: Addr,
}

impl Process {
    /// Runs `program` (`CARGO_BIN_EXE_hostile-server`, which only tests know) over `dir`, or a tree
    /// in memory, with that many file descriptors for the tree. It serves 9P.
    pub fn start(program: &str, dir: Option<&Path>, descriptors: Option<usize>) -> Process {
        Process::spawn("9p", program, dir, descriptors, None)
    }

    /// Runs the same with a virtiofs device.
    pub fn virtiofs(program: &str, dir: Option<&Path>, descriptors: Option<usize>) -> Process {
        Process::spawn("virtiofs", program, dir, descriptors, None)
    }

    /// Runs the same with NFS.
    pub fn nfs(program: &str, dir: &Path) -> Process {
        Process::spawn("nfs", program, Some(dir), None, None)
    }

    /// Serves a tree in memory over `protocol`, with a limit of `connections` for one client.
    pub fn with_connection_limit(program: &str, protocol: &str, connections: usize) -> Process {
        Process::spawn(protocol, program, None, None, Some(connections))
    }

    fn spawn(
        protocol: &str,
        program: &str,
        dir: Option<&Path>,
        descriptors: Option<usize>,
        connections: Option<usize>,
    ) -> Process {
        let mut command = Command::new(program);
        command.arg(protocol).arg(dir.unwrap_or(Path::new("mem:")));
        command.args(descriptors.map(|number| number.to_string()));
        let connections = connections.map(|number| ("HOSTILE_CONNECTIONS", number.to_string()));
        command.envs(connections);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let stdin = child.stdin.take();
        Process {
            child,
            stdin,
            addr: line.trim().parse().expect("an address"),
        }
    }

    /// Returns its resident anonymous memory in bytes.
    pub fn memory(&self) -> u64 {
        // size, resident, shared, …: proc_pid_statm(5).
        let path = format!("/proc/{}/statm", self.child.id());
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|mut file| file.read_to_string(&mut text))
            .expect("figures of a process");
        let pages = |at| -> u64 {
            let field: &str = text.split(' ').nth(at).expect("a field");
            field.parse().expect("a number")
        };
        (pages(1) - pages(2)) * rustix::param::page_size() as u64
    }

    /// Returns its process ID.
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Returns how many of its threads wait in recv(2) (proc_pid_syscall(5)).
    pub fn receiving_threads(&self) -> usize {
        const RECVFROM: &str = if cfg!(target_arch = "x86_64") {
            "45 "
        } else {
            "207 "
        };
        let tasks = format!("/proc/{}/task", self.child.id());
        let tasks = std::fs::read_dir(tasks).expect("it runs");
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("syscall")).ok())
            .filter(|call| call.starts_with(RECVFROM))
            .count()
    }

    /// Returns the number of its open file descriptors.
    pub fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).expect("a process").count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().expect("a child");
        if !std::thread::panicking() {
            assert!(status.success(), "the server ended by {status}");
        }
    }
}

/// Returns the path of the program `barge` if it is built: in the parent of the test's directory.
pub fn barge() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let program = test.parent()?.parent()?.join("barge");
    program.exists().then_some(program)
}
