//! A running `barge-csi`, and a client of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use csi::proto::{AccessMode, AccessType, Mode, MountVolume, VolumeCapability};
use hyper_util::rt::TokioIo;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_barge-csi");

/// Returns the program `barge`, which another crate builds into the same directory.
pub(crate) fn barge() -> PathBuf {
    Path::new(PROGRAM).with_file_name("barge")
}

/// Returns whether volumes can be mounted here. Panics if only `barge` is missing.
pub(crate) fn may_mount() -> bool {
    if !geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: volumes take root and /dev/fuse");
        return false;
    }
    let barge = barge();
    assert!(
        barge.is_file(),
        "{}: cargo build -p barge makes it",
        barge.display()
    );
    true
}

/// A directory for one test; its mounts are removed when it is dropped.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(tempfile::tempdir().expect("a directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the path as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Returns a name that no other test uses.
    pub(crate) fn unique(&self, name: &str) -> String {
        let dir = self.0.path().file_name().expect("a directory of its own");
        format!("{name}{}", dir.display())
    }

    /// Makes a directory and returns its path as text.
    pub(crate) fn dir(&self, name: &str) -> String {
        fs::create_dir_all(self.path(name)).expect("made");
        self.text(name)
    }

    /// Writes an executable script.
    pub(crate) fn script(&self, name: &str, text: &str) -> String {
        vfs_testkit::write_program(self.path(name), text);
        self.text(name)
    }

    /// Returns the number of mounts in the directory.
    pub(crate) fn mounts(&self) -> usize {
        let table = sys::mounts::read().expect("read");
        let beneath = |entry: &&sys::mounts::MountEntry| entry.target.starts_with(self.0.path());
        table.iter().filter(beneath).count()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for entry in sys::mounts::read().unwrap_or_default().iter().rev() {
            if entry.target.starts_with(self.0.path()) {
                let _ = unmount(&entry.target, UnmountFlags::DETACH);
            }
        }
    }
}

/// The daemon, which ends when this is dropped.
pub(crate) struct Daemon {
    child: Child,
    log: Arc<Mutex<String>>,
    runtime: Runtime,
    channel: Channel,
}

impl Daemon {
    /// Starts the daemon with its socket and state in `scratch`.
    pub(crate) fn start(scratch: &Scratch, args: &[&str]) -> Daemon {
        let socket = scratch.path("csi.sock");
        let mut child = command(scratch, args)
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let log = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        loop {
            let line = lines.next().expect("it serves").expect("read");
            let ready = line.contains("serving CSI");
            *log.lock().expect("whole") += &(line + "\n");
            if ready {
                break;
            }
        }
        let copy = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *copy.lock().expect("whole") += &(line + "\n");
            }
        });
        let runtime = Runtime::new().expect("a runtime");
        let channel = runtime.block_on(async {
            let connect = tower::service_fn(move |_| {
                let socket = socket.clone();
                async move {
                    tokio::net::UnixStream::connect(socket)
                        .await
                        .map(TokioIo::new)
                }
            });
            let endpoint = Endpoint::from_static("http://localhost");
            endpoint.connect_with_connector(connect).await
        });
        Daemon {
            child,
            log,
            runtime,
            channel: channel.expect("connected"),
        }
    }

    /// Calls a method, such as `Node/NodeGetInfo`.
    pub(crate) fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        self.runtime
            .block_on(call(self.channel.clone(), method, request))
    }

    /// Starts a call on another thread.
    pub(crate) fn start_call<Q, A>(
        &self,
        method: &'static str,
        request: Q,
    ) -> tokio::task::JoinHandle<Result<A, Status>>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        self.runtime
            .spawn(call(self.channel.clone(), method, request))
    }

    /// Returns the result of a call.
    pub(crate) fn finish<A>(
        &self,
        call: tokio::task::JoinHandle<Result<A, Status>>,
    ) -> Result<A, Status> {
        self.runtime.block_on(call).expect("no panic")
    }

    /// Returns whether a call that was given up has ended without a result.
    pub(crate) fn is_cancelled<A>(&self, call: tokio::task::JoinHandle<Result<A, Status>>) -> bool {
        self.runtime
            .block_on(call)
            .is_err_and(|error| error.is_cancelled())
    }

    /// Returns the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("whole").clone()
    }

    /// Ends the daemon with a signal and returns whether it ended with success.
    pub(crate) fn end(mut self, signal: Signal) -> bool {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, signal).expect("it runs");
        self.child.wait().expect("a child").success()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command of a daemon with its socket and, unless `args` name another, its state in
/// `scratch`.
pub(crate) fn command(scratch: &Scratch, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    let endpoint = format!("unix://{}", scratch.text("csi.sock"));
    command.args(["--endpoint", &endpoint, "--node-id", "node-1"]);
    if !args.contains(&"--state-dir") {
        command.arg("--state-dir").arg(scratch.path("state"));
    }
    command.args(args);
    command
}

async fn call<Q, A>(channel: Channel, method: &'static str, request: Q) -> Result<A, Status>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel);
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = format!("/csi.v1.{method}").parse().expect("a path");
    let codec = ProstCodec::<Q, A>::default();
    let response = grpc.unary(Request::new(request), path, codec).await;
    response.map(tonic::Response::into_inner)
}

/// Returns the capability of a file system for `mode`.
pub(crate) fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// Returns the processes whose command lines contain `text`.
pub(crate) fn processes_with(text: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("listed").flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if let (Ok(pid), true) = (name.parse(), line.contains(text)) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}
