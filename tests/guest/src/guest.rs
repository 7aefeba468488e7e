//! A guest: a machine with a kernel, an initramfs, the host's tree as its root, and two ports to
//! the harness, one for output and one for control.
//!
//! It is independent of servers: the addresses in the mount options must exist when it boots, so
//! several guests can share a server.
//!
//! Not supported: graceful shutdown from outside; a guest ends by itself or is killed.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::channel::{self, Event, Host};
use crate::config::{GuestConfig, Mount};
use crate::kernel::Kernel;
use crate::machine::{Files, Machine};
use crate::{TimedOut, console, initramfs, tail};

/// A script to run in the guest.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name: one word without slashes.
    pub name: String,
    /// The text, for `sh`.
    pub script: String,
    /// Whether it runs in a directory of its own below the mount.
    pub own_dir: bool,
}

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// The individual part.
    pub config: GuestConfig,
    /// Its number, from 1 to `guests`.
    pub number: usize,
    /// The number of guests in the run.
    pub guests: usize,
    /// The lower root below its tmpfs.
    pub root: Mount,
    /// The cases, in execution order.
    pub cases: Vec<Case>,
    /// Timeout of one case.
    pub case_timeout: Duration,
    /// Timeout of the guest, including its boot.
    pub timeout: Duration,
    /// The machine.
    pub machine: Machine,
    /// The search path for scripts.
    pub path: String,
    /// The directory of the scripts, as `$BARGE_SCRIPTS`.
    pub scripts: String,
    /// The directories of the harness that are below the guest's own tmpfs.
    pub below_tmpfs: Vec<PathBuf>,
    /// The directory of tlshd, which runs if the mount uses TLS.
    pub tls: String,
}

/// The result of one case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The name of the case.
    pub name: String,
    /// The script's exit status.
    pub status: i32,
    /// Its duration.
    pub duration: Duration,
    /// Kernel complaints during the case.
    pub kernel_errors: Vec<String>,
}

/// The result of a guest.
#[derive(Debug)]
pub struct Outcome {
    /// The cases that ended, in order.
    pub cases: Vec<CaseResult>,
    /// Time from the machine's start until the share is mounted.
    pub boot: Duration,
    /// Kernel complaints outside of any case.
    pub kernel_errors: Vec<String>,
    /// The reason if not all cases ended: the guest died, a fault, or a timeout.
    pub failure: Option<GuestFailure>,
}

/// The reason why a guest did not finish.
#[derive(Debug)]
pub enum GuestFailure {
    /// A timeout.
    TimedOut(String),
    /// Any other reason.
    Failed(String),
}

impl Outcome {
    /// Returns whether the emulator is at fault: a processor executed an instruction that the
    /// kernel was patching, which happens while several boot, or QEMU aborted in its PCI bus before
    /// the share was mounted.
    pub(crate) fn is_emulator_bug(&self) -> bool {
        let is_patching = |line: &String| line.contains("Oops: int3");
        let halted = |text: &str| text.contains("/hw/pci/") && text.contains("Assertion `");
        self.kernel_errors.iter().any(is_patching)
            || self.boot.is_zero() && self.failure.as_ref().is_some_and(|why| halted(why.text()))
    }

    /// Merges the results of two guests that ran the same cases: a case passes if it passed in
    /// both.
    pub(crate) fn merge(mut self, other: Self) -> Self {
        self.cases.truncate(other.cases.len());
        for (case, other) in self.cases.iter_mut().zip(other.cases) {
            if case.status == 0 {
                case.status = other.status;
            }
            case.duration = case.duration.max(other.duration);
            case.kernel_errors.extend(other.kernel_errors);
        }
        self.boot = self.boot.max(other.boot);
        self.kernel_errors.extend(other.kernel_errors);
        self.failure = self.failure.or(other.failure);
        self
    }
}

impl GuestFailure {
    /// Returns the description.
    pub(crate) fn text(&self) -> &str {
        let (Self::TimedOut(text) | Self::Failed(text)) = self;
        text
    }

    /// Converts the reason to an error of the harness.
    pub fn into_error(self) -> anyhow::Error {
        match self {
            Self::TimedOut(text) => TimedOut(text).into(),
            Self::Failed(text) => anyhow!(text),
        }
    }
}

/// A running guest.
pub(crate) struct Guest {
    process: Child,
    /// Events with their arrival times: the guests of a run are processed one after the other.
    events: Receiver<(Instant, Event)>,
    control: JoinHandle<Result<()>>,
    output: JoinHandle<()>,
    console: PathBuf,
    started: Instant,
    deadline: Instant,
}

impl Guest {
    /// Boots a guest; its scripts' output goes to `sink`, its files to `dir`.
    pub(crate) fn boot(
        spec: &GuestSpec,
        kernel: &Kernel,
        busybox: &[u8],
        dir: &Path,
        host: &Arc<Host>,
        mut sink: impl Write + Send + 'static,
    ) -> Result<Self> {
        let initramfs = dir.join("initramfs");
        fs::write(&initramfs, initramfs::build(spec, kernel, busybox, dir)?)?;
        let console = dir.join("console.log");
        let (control, control_machine) = UnixStream::pair()?;
        let (mut output, output_machine) = UnixStream::pair()?;
        for inherited in [control_machine.as_fd(), output_machine.as_fd()] {
            fcntl_setfd(inherited, FdFlags::empty())?;
        }

        let files = Files {
            control: control_machine.as_raw_fd(),
            output: output_machine.as_raw_fd(),
            initramfs: &initramfs,
            console: &console,
            log: fs::File::create(dir.join("machine.log"))?,
            dir,
            number: spec.number,
            memory: None,
        };
        let mut command = spec.machine.command(&spec.config, &kernel.image(), files)?;
        let started = Instant::now();
        let process = host.process_group.spawn(&mut command)?;
        drop((control_machine, output_machine));
        let (sender, events) = channel();
        let host = Arc::clone(host);
        let replies = spec.machine.reads_files().then(|| dir.to_owned());
        Ok(Self {
            process,
            events,
            control: std::thread::spawn(move || {
                channel::serve(control, &host, replies.as_deref(), &sender)
            }),
            output: std::thread::spawn(move || copy(&mut output, &mut sink)),
            console,
            started,
            deadline: started + spec.timeout,
        })
    }

    /// Waits until the share is mounted.
    pub(crate) fn wait_until_ready(&mut self) -> Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let why = match self.events.recv_timeout(left) {
            Ok((_, Event::Ready)) => return Ok(()),
            Ok((_, Event::Fault(text))) => text,
            Ok(_) => "it runs cases".into(),
            Err(RecvTimeoutError::Timeout) => "it is not ready in time".into(),
            Err(RecvTimeoutError::Disconnected) => "it died".into(),
        };
        let log = tail(&self.console, 15);
        Err(anyhow!(
            "the guest that serves: {why}\n--- end of the console log\n{log}"
        ))
    }

    /// Kills the guest, and returns the complaints of its kernel.
    pub(crate) fn end(mut self) -> Result<Vec<String>> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(console::kernel_errors_in(&self.console_text(), None))
    }

    /// Waits until the guest ends and reads its console log; `progress` is called for each case
    /// that ended.
    pub(crate) fn finish(mut self, mut progress: impl FnMut(&CaseResult)) -> Result<Outcome> {
        let mut outcome = Outcome {
            cases: Vec::new(),
            boot: Duration::ZERO,
            kernel_errors: Vec::new(),
            failure: None,
        };
        let mut running: Option<(String, Instant)> = None;
        loop {
            match self
                .events
                .recv_timeout(self.deadline.saturating_duration_since(Instant::now()))
            {
                Ok((when, Event::Ready)) if outcome.boot.is_zero() => {
                    outcome.boot = when - self.started;
                }
                // A guest that was reset begins again.
                Ok((_, Event::Ready)) => {}
                Ok((when, Event::Begin(name))) => {
                    running.get_or_insert((name, when));
                }
                Ok((when, Event::End(name, status))) => {
                    let took = running
                        .take()
                        .map_or(Duration::ZERO, |(_, since)| when - since);
                    let complaints = console::kernel_errors_in(&self.console_text(), Some(&name));
                    outcome.cases.push(CaseResult {
                        name,
                        status,
                        duration: took,
                        kernel_errors: complaints,
                    });
                    progress(&outcome.cases[outcome.cases.len() - 1]);
                }
                Ok((_, Event::Done)) => break,
                Ok((_, Event::Fault(text))) => {
                    outcome.failure = Some(GuestFailure::Failed(text));
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let what = running
                        .as_ref()
                        .map_or("the guest".to_owned(), |(name, _)| name.clone());
                    outcome.failure = Some(GuestFailure::TimedOut(format!(
                        "{what} is not through after {:?}",
                        self.started.elapsed()
                    )));
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    outcome.failure = Some(GuestFailure::Failed("the guest died".into()));
                    break;
                }
            }
        }
        self.shut_down()?;
        outcome.kernel_errors = console::kernel_errors_in(&self.console_text(), None);
        if let (Some(GuestFailure::TimedOut(text) | GuestFailure::Failed(text)), Some((name, _))) =
            (&mut outcome.failure, &running)
        {
            *text = format!("{text} (in {name})");
            outcome
                .kernel_errors
                .extend(console::kernel_errors_in(&self.console_text(), Some(name)));
        }
        if let Some(GuestFailure::TimedOut(text) | GuestFailure::Failed(text)) =
            &mut outcome.failure
        {
            for (what, log) in [
                ("console", self.console.clone()),
                ("machine", self.console.with_file_name("machine.log")),
            ] {
                let end = tail(&log, 15);
                if !end.is_empty() {
                    *text += &format!("\n--- end of the {what} log\n{end}");
                }
            }
        }
        // Their streams were closed by the machine's end.
        self.output
            .join()
            .map_err(|_| anyhow!("the output thread panicked"))?;
        self.control
            .join()
            .map_err(|_| anyhow!("the control thread panicked"))?
            .context("the control port")?;
        Ok(outcome)
    }

    /// Ends the machine: a finished guest powers off at once; any other is killed.
    fn shut_down(&mut self) -> Result<()> {
        let patience = Instant::now() + Duration::from_secs(10);
        while Instant::now() < patience.min(self.deadline) {
            if self.process.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    fn console_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }
}

/// Copies as data arrives; ignores errors of the sink, since the guest would block on its output.
fn copy(from: &mut UnixStream, to: &mut impl Write) {
    let mut buffer = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let _ = to.write_all(&buffer[..count]).and_then(|()| to.flush());
    }
}
