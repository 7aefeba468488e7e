//! Live migration of guests whose root and share are virtiofs devices.
//!
//! A guest works on its share (`migrate.py`) while it moves from one QEMU to the next on this host,
//! each with servers of its own, and then checks that it has lost nothing. A snapshot is a
//! migration to a file, from which the guest is restored twice, each time with a copy of the share.
//!
//! The guest's memory is a file that all its machines map (QEMU's `x-ignore-shared`), unless
//! [`Options::copy_memory`] is set: QEMU 10's TCG may lose a write of the guest while it copies the
//! memory (its dirty bits race with its TLB), with any server, and a program of the guest crashes.
//!
//! Not supported: user-mode Linux, and QEMU before 8.2.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::barrier::GuestBarrier;
use crate::channel::{self, Event, Host};
use crate::config::{GuestConfig, Mount};
use crate::guest::{Case, GuestSpec};
use crate::kernel::{self, Kernel};
use crate::machine::{Files, Machine, TCG, add_machine};
use crate::process_group::ProcessGroup;
use crate::qemu_tree::QemuTree;
use crate::run::Scratch;
use crate::server::{Server, TemplateValues};
use crate::{Dirs, console, initramfs, tail};

/// The script that the guest runs.
const SCRIPT: &str = "migrate.py";

/// The number of processors of the guest.
const CPUS: u16 = 2;

/// The server to test.
#[derive(Clone, Debug)]
pub enum Program {
    /// The path of a barge.
    Barge(String),
    /// The command of another server with virtiofsd's options. It keeps locks in the guest, and may
    /// refuse migrations.
    Virtiofsd(String),
}

impl Program {
    /// Returns the shell words that start it.
    fn command(&self) -> String {
        match self {
            // Locks on the host tell whether they have moved.
            Program::Barge(path) => format!("{path} virtiofsd -o posix_lock,flock"),
            Program::Virtiofsd(command) => command.clone(),
        }
    }
}

/// The options of a test.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kernel line.
    pub kernel: String,
    /// The number of migrations in a row.
    pub rounds: u16,
    /// Whether to restore the guest twice from a snapshot afterwards.
    pub snapshot: bool,
    /// Whether to copy the guest's memory, as a migration to another host does.
    pub copy_memory: bool,
    /// `--migration-mode` of the servers.
    pub mode: String,
    /// The server to test.
    pub server: Program,
    /// The Debian mirror, if not the machine's own.
    pub mirror: Option<String>,
    /// Timeout of the whole test.
    pub timeout: Duration,
    /// Keep the run directory even on success.
    pub keep: bool,
}

/// Runs the test, and prints a line for each migration. Returns an error if the guest loses
/// anything.
pub fn run(dirs: &Dirs, options: &Options) -> Result<()> {
    let mirror = options.mirror.as_deref();
    let machine = Machine::qemu();
    let parts = Parts {
        kernel: Kernel::get(&dirs.cache, &options.kernel, &machine, mirror)?,
        busybox: kernel::busybox(&dirs.cache, mirror)?,
        qemu: QemuTree::get(&dirs.cache, mirror)?,
        dirs,
        options,
        deadline: Instant::now() + options.timeout,
    };
    let mut scratch = Scratch::new(dirs, options.keep)?;
    let outcome = parts.run(&scratch);
    if outcome.is_err() {
        scratch.keep = true;
        eprintln!("barge-guest: logs are in {}", scratch.dir.display());
    }
    outcome
}

struct Parts<'a> {
    kernel: Kernel,
    busybox: Vec<u8>,
    qemu: QemuTree,
    dirs: &'a Dirs,
    options: &'a Options,
    deadline: Instant,
}

/// A virtual machine with its servers.
struct Machinery {
    process: Child,
    monitor: Monitor,
    servers: Vec<Server>,
    threads: Vec<JoinHandle<()>>,
    dir: PathBuf,
}

/// News of the guest.
enum News {
    Event(Event),
    /// A line of the script's output.
    Line(String),
}

impl Parts<'_> {
    fn run(&self, scratch: &Scratch) -> Result<()> {
        let host = |share| -> Result<Arc<Host>> {
            Ok(Arc::new(Host {
                share,
                run: scratch.dir.clone(),
                process_group: ProcessGroup::new()?,
                barrier: GuestBarrier::new(1),
            }))
        };
        let first = host(scratch.create_share()?)?;
        let memory = match self.options.copy_memory {
            true => None,
            false => Some(File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?)),
        };
        let memory = memory.as_ref();
        let (sender, news) = channel();
        let mut number = 1;
        let mut machine = self.start(&first, number, None, memory, &sender)?;
        self.wait_for_turns(&news, &machine, 2)?;
        let (mut downtimes, mut refused) = (Vec::new(), 0);
        for _ in 0..self.options.rounds {
            number += 1;
            let socket = format!(
                "unix:{}",
                scratch.dir.join(format!("move-{number}")).display()
            );
            let mut next = self.start(&first, number, Some(&socket), memory, &sender)?;
            machine.set_capabilities(true, memory.is_some())?;
            next.set_capabilities(true, memory.is_some())?;
            match machine.migrate(&socket, self.deadline)? {
                Some((total, downtime)) => {
                    println!("migrated in {total} ms, downtime {downtime} ms");
                    downtimes.push(downtime);
                    let left = std::mem::replace(&mut machine, next);
                    self.check_end(left.stop())?;
                }
                None => {
                    let errors = machine.errors() + &next.errors();
                    let may_refuse = matches!(self.options.server, Program::Virtiofsd(_));
                    ensure!(may_refuse, "the migration failed\n{errors}");
                    println!("refused, the guest continues at the source\n{errors}");
                    refused += 1;
                    // The servers that have refused the guest may have failed.
                    let _ = next.stop();
                }
            }
            // Those of the guest before it moved do not show that it continues.
            while let Ok(old) = news.try_recv() {
                is_turn(old)?;
            }
            self.wait_for_turns(&news, &machine, 2)?;
        }
        println!("{}, {refused} refused", summary(downtimes));
        if !self.options.snapshot {
            return self.finish(&news, machine, &first);
        }
        let file = scratch.dir.join("snapshot");
        machine.set_capabilities(false, false)?;
        let saved = machine.migrate(&format!("exec:cat >{}", file.display()), self.deadline)?;
        let Some((total, _)) = saved else {
            bail!("the snapshot failed\n{}", machine.errors());
        };
        println!("saved in {total} ms, {} bytes", fs::metadata(&file)?.len());
        let copies = ["copy-1", "copy-2"].map(|name| scratch.dir.join(name));
        for copy in &copies {
            let copied = Command::new("cp")
                .arg("-a")
                .arg(&first.share)
                .arg(copy)
                .status()?;
            ensure!(copied.success(), "cp ended with {copied}");
        }
        machine.stop()?;
        for copy in copies {
            number += 1;
            let host = host(copy)?;
            let (sender, news) = channel();
            let from = format!("exec:cat {}", file.display());
            let machine = self.start(&host, number, Some(&from), None, &sender)?;
            self.wait_for_turns(&news, &machine, 2)?;
            self.finish(&news, machine, &host)?;
            println!("restored");
        }
        Ok(())
    }

    /// Starts servers of the share and a machine, which waits for a migration if `incoming` is
    /// given. `memory` has the memory of a guest that moves from machine to machine.
    fn start(
        &self,
        host: &Arc<Host>,
        number: usize,
        incoming: Option<&str>,
        memory: Option<&File>,
        news: &Sender<News>,
    ) -> Result<Machinery> {
        let dir = host.run.join(format!("machine-{number}"));
        fs::create_dir(&dir)?;
        let values = TemplateValues::allocate(&host.share, &dir, &dir, &dir, "127.0.0.1", 1)?;
        let Options { server, mode, .. } = self.options;
        let server = server.command();
        let mut servers = Vec::new();
        for (name, options) in [
            (
                "share",
                format!("--migration-mode {mode} --shared-dir {{share}} --socket-path {{socket}}"),
            ),
            // It has file systems without handles, and overlayfs does not accept submounts.
            (
                "root",
                "--shared-dir / --socket-path {socket2} --readonly --no-announce-submounts".into(),
            ),
        ] {
            let command = format!("{server} {options}");
            let log = dir.join(format!("{name}.log"));
            servers.push(Server::start(&command, &values, &host.process_group, &log)?);
        }
        let initramfs = dir.join("initramfs");
        fs::write(&initramfs, self.initramfs(&dir)?)?;

        let (control, control_machine) = UnixStream::pair()?;
        let (output, output_machine) = UnixStream::pair()?;
        for inherited in [&control_machine, &output_machine] {
            fcntl_setfd(inherited.as_fd(), FdFlags::empty())?;
        }
        let monitor = dir.join("monitor");
        let opened = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let memory = memory.map(|file| PathBuf::from(opened(file)));
        let files = Files {
            control: control_machine.as_raw_fd(),
            output: output_machine.as_raw_fd(),
            initramfs: &initramfs,
            console: &dir.join("console.log"),
            log: File::create(dir.join("machine.log"))?,
            dir: &dir,
            number,
            memory: memory.as_deref(),
        };
        let mut command = self.qemu.command();
        add_machine(&mut command, CPUS, TCG, &self.kernel.image(), files)?;
        command
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", monitor.display()));
        for (tag, socket) in [("share", "{socket}"), ("root", "{socket2}")] {
            let socket = values.fill(socket);
            command.args(["-chardev", &format!("socket,id={tag},path={socket}")]);
            let device = format!("vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024");
            command.args(["-device", &device]);
        }
        if let Some(from) = incoming {
            command.args(["-incoming", from]);
        }
        let process = host.process_group.spawn(&mut command)?;
        drop((control_machine, output_machine));
        Ok(Machinery {
            process,
            monitor: Monitor::connect(&monitor, self.deadline)
                .with_context(|| tail(&dir.join("machine.log"), 5))?,
            servers,
            threads: forward(control, output, host, news),
            dir,
        })
    }

    fn initramfs(&self, dir: &Path) -> Result<Vec<u8>> {
        let script = self.dirs.scripts.join(SCRIPT);
        let host_locks = matches!(self.options.server, Program::Barge(_));
        let env = [
            ("SNAPSHOT", self.options.snapshot),
            ("HOST_LOCKS", host_locks),
        ]
        .map(|(name, value)| (name.into(), u8::from(value).to_string()));
        let virtiofs = |tag: &str, options: &str| Mount {
            fs_type: "virtiofs".into(),
            options: options.into(),
            device: tag.into(),
        };
        let spec = GuestSpec {
            config: GuestConfig {
                mount: virtiofs("share", "rw"),
                extra_fs_types: Vec::new(),
                cpus: CPUS,
                virtiofs: Vec::new(),
                qemu: Vec::new(),
            },
            number: 1,
            guests: 1,
            root: virtiofs("root", "ro"),
            cases: vec![Case::program("migrate", &script, &[], &env)],
            case_timeout: self.options.timeout,
            timeout: self.options.timeout,
            machine: Machine::qemu(),
            path: self.dirs.path(),
            scripts: self.dirs.scripts.display().to_string(),
            below_tmpfs: self.dirs.below_tmpfs(),
            tls: String::new(),
        };
        initramfs::build(&spec, &self.kernel, &self.busybox, dir)
    }

    /// Waits until the script has completed `turns` more turns.
    fn wait_for_turns(
        &self,
        news: &Receiver<News>,
        machine: &Machinery,
        turns: usize,
    ) -> Result<()> {
        let mut done = 0;
        while done < turns {
            done += usize::from(is_turn(self.next(news, machine)?)?);
        }
        Ok(())
    }

    /// Lets the script end, and returns an error unless it succeeds.
    fn finish(
        &self,
        news: &Receiver<News>,
        mut machine: Machinery,
        host: &Arc<Host>,
    ) -> Result<()> {
        fs::write(host.share.join("stop"), [])?;
        let mut lines = Vec::new();
        let status = loop {
            match self.next(news, &machine)? {
                News::Line(line) => lines.push(line),
                News::Event(Event::End(_, status)) => break status,
                News::Event(Event::Fault(text)) => bail!("{text}"),
                News::Event(_) => {}
            }
        };
        while let Ok(News::Line(line)) = news.try_recv() {
            lines.push(line);
        }
        let last = lines.split_off(lines.len().saturating_sub(10)).join("\n");
        ensure!(status == 0, "the script ended with {status}\n{last}");
        // The number of turns, and of runs of each program.
        println!("{}", last.lines().last().unwrap_or_default());
        loop {
            match self.next(news, &machine)? {
                News::Event(Event::Done) => break,
                News::Event(Event::Fault(text)) => bail!("{text}"),
                _ => {}
            }
        }
        let text = fs::read(machine.dir.join("console.log"))?;
        let complaints = console::kernel_errors_in(&String::from_utf8_lossy(&text), None);
        ensure!(complaints.is_empty(), "kernel: {}", complaints.join("\n"));
        machine.process.wait()?;
        self.check_end(machine.end())
    }

    /// Returns the error of servers that have failed at their end. That of another server is only
    /// printed.
    fn check_end(&self, end: Result<()>) -> Result<()> {
        if let (Program::Virtiofsd(_), Err(error)) = (&self.options.server, &end) {
            println!("{error:#}");
            return Ok(());
        }
        end
    }

    fn next(&self, news: &Receiver<News>, machine: &Machinery) -> Result<News> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        news.recv_timeout(left).map_err(|_| {
            let log = |name: &str| tail(&machine.dir.join(name), 10);
            let logs = ["console.log", "machine.log", "share.log", "root.log"].map(log);
            anyhow!("no news of the guest in time\n{}", logs.join("\n"))
        })
    }
}

/// Returns whether the script has completed a turn. Returns an error if it has failed or ended.
fn is_turn(news: News) -> Result<bool> {
    match news {
        News::Line(line) if line.starts_with("failed: ") => bail!("{line}"),
        News::Line(line) => Ok(line.starts_with("turn ")),
        News::Event(Event::Ready | Event::Begin(_)) => Ok(false),
        News::Event(Event::Fault(text)) => bail!("{text}"),
        News::Event(event) => bail!("the script ended early: {event:?}"),
    }
}

impl Machinery {
    /// Sets whether the source of a move learns if the destination has accepted the guest, and
    /// whether both map the same memory.
    fn set_capabilities(&mut self, return_path: bool, same_memory: bool) -> Result<()> {
        let capabilities = [
            ("return-path", return_path),
            ("x-ignore-shared", same_memory),
        ]
        .map(|(name, on)| format!(r#"{{"capability": "{name}", "state": {on}}}"#));
        let capabilities = capabilities.join(", ");
        let arguments = format!(r#""arguments": {{"capabilities": [{capabilities}]}}"#);
        self.monitor
            .execute("migrate-set-capabilities", &arguments)?;
        Ok(())
    }

    /// Moves the guest to `to`, and returns the milliseconds of the move and of the guest's stop.
    /// Returns none if the move fails: the guest continues here.
    fn migrate(&mut self, to: &str, deadline: Instant) -> Result<Option<(u64, u64)>> {
        let fast = r#""arguments": {"max-bandwidth": 8589934592, "downtime-limit": 300}"#;
        self.monitor.execute("migrate-set-parameters", fast)?;
        self.monitor
            .execute("migrate", &format!(r#""arguments": {{"uri": "{to}"}}"#))?;
        loop {
            let answer = self
                .monitor
                .execute("query-migrate", r#""arguments": {}"#)?;
            let is = |status: &str| answer.contains(&format!(r#""status": "{status}""#));
            if is("completed") {
                let time = |key| number(&answer, key);
                return Ok(Some((time("total-time"), time("downtime"))));
            }
            if is("failed") {
                return Ok(None);
            }
            ensure!(
                Instant::now() < deadline,
                "the migration takes too long: {answer}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the lines with errors in the logs.
    fn errors(&self) -> String {
        let mut errors = String::new();
        for (name, words) in [
            ("share.log", ["ERROR", "panicked"]),
            ("root.log", ["ERROR", "panicked"]),
            // QEMU marks no errors.
            ("machine.log", ["rror", "ailed"]),
        ] {
            let log = fs::read(self.dir.join(name)).unwrap_or_default();
            for line in String::from_utf8_lossy(&log).lines() {
                if words.iter().any(|word| line.contains(word)) {
                    errors += &format!("{name}: {line}\n");
                }
            }
        }
        errors
    }

    /// Ends the machine that its guest has left, and its servers.
    fn stop(mut self) -> Result<()> {
        // The connection may end before the reply.
        let _ = self.monitor.execute("quit", r#""arguments": {}"#);
        self.process.wait()?;
        self.end()
    }

    fn end(self) -> Result<()> {
        for server in self.servers {
            server.stop()?;
        }
        for thread in self.threads {
            thread
                .join()
                .map_err(|_| anyhow!("a port's thread panicked"))?;
        }
        Ok(())
    }
}

/// Forwards the events and the output of a guest.
fn forward(
    control: UnixStream,
    output: UnixStream,
    host: &Arc<Host>,
    news: &Sender<News>,
) -> Vec<JoinHandle<()>> {
    let (sender, events) = channel();
    let host = host.clone();
    let (of_events, of_lines) = (news.clone(), news.clone());
    vec![
        std::thread::spawn(move || {
            // The error is that of a machine that was stopped.
            let _ = channel::serve(control, &host, None, &sender);
        }),
        std::thread::spawn(move || {
            while let Ok((_, event)) = events.recv() {
                let _ = of_events.send(News::Event(event));
            }
        }),
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = of_lines.send(News::Line(line));
            }
        }),
    ]
}

/// QEMU's monitor (QMP).
struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    fn connect(socket: &Path, deadline: Instant) -> Result<Self> {
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut monitor = Self {
            stream: BufReader::new(stream),
        };
        monitor.line()?;
        monitor.execute("qmp_capabilities", r#""arguments": {}"#)?;
        Ok(monitor)
    }

    /// Executes a command, and returns the line of its result.
    fn execute(&mut self, command: &str, arguments: &str) -> Result<String> {
        let line = format!("{{\"execute\": \"{command}\", {arguments}}}\n");
        self.stream.get_mut().write_all(line.as_bytes())?;
        loop {
            let line = self.line()?;
            if line.starts_with(r#"{"return""#) {
                return Ok(line);
            }
            ensure!(!line.starts_with(r#"{"error""#), "{command}: {line}");
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        // An answer has some kilobytes.
        let most = self.stream.by_ref().take(1 << 20).read_line(&mut line)?;
        ensure!(most > 0, "QEMU closed its monitor");
        Ok(line)
    }
}

/// Returns a line about the milliseconds for which the guest was stopped.
fn summary(mut downtimes: Vec<u64>) -> String {
    downtimes.sort_unstable();
    let (Some(least), Some(most)) = (downtimes.first(), downtimes.last()) else {
        return "no migrations".into();
    };
    let count = downtimes.len();
    let median = downtimes[count / 2];
    format!("{count} migrations, downtime: median {median} ms, {least} to {most} ms")
}

/// Returns the number under `key` in a line of JSON, 0 without one.
fn number(json: &str, key: &str) -> u64 {
    let after = json.split(&format!(r#""{key}": "#)).nth(1).unwrap_or("");
    let digits = after.split(|letter: char| !letter.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries() {
        let line = "3 migrations, downtime: median 20 ms, 3 to 100 ms";
        assert_eq!(summary(vec![100, 3, 20]), line);
        assert_eq!(summary(vec![]), "no migrations");
    }

    #[test]
    fn numbers_of_a_reply() {
        let reply = r#"{"return": {"status": "completed", "total-time": 1803, "downtime": 12}}"#;
        assert_eq!(number(reply, "total-time"), 1803);
        assert_eq!(number(reply, "downtime"), 12);
        assert_eq!(number(reply, "setup-time"), 0);
    }
}
