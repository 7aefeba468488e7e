//! A guest: QEMU with a kernel, an initramfs, the host's tree as its root, and two ports to the
//! harness, one for output and one for control.
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
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::channel::{self, Event, Host};
use crate::kernel::Kernel;
use crate::{TimedOut, Unavailable, console, initramfs, tail};

/// The mount at the guest's `/mnt`.
#[derive(Clone, Debug)]
pub struct Mount {
    /// The file-system type, such as `9p`.
    pub kind: String,
    /// The mount options.
    pub options: String,
    /// The device: an address or a tag.
    pub device: String,
}

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

/// The individual configuration of a guest.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The mount of the share.
    pub mount: Mount,
    /// Types of other file systems that its scripts mount.
    pub kinds: Vec<&'static str>,
    /// Number of processors.
    pub cpus: u16,
    /// Additional arguments for QEMU.
    pub qemu: Vec<String>,
}

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The individual part.
    pub seat: Seat,
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
    /// QEMU's `-accel`.
    pub accel: String,
    /// The search path for scripts.
    pub path: String,
    /// The directory of the scripts, as `$BARGE_SCRIPTS`.
    pub scripts: String,
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
    pub took: Duration,
    /// Kernel complaints during the case.
    pub complaints: Vec<String>,
}

/// The result of a guest.
#[derive(Debug)]
pub struct Outcome {
    /// The cases that ended, in order.
    pub cases: Vec<CaseResult>,
    /// Time from QEMU's start until the share is mounted.
    pub boot: Duration,
    /// Kernel complaints outside of any case.
    pub complaints: Vec<String>,
    /// The reason if not all cases ended: the guest died, a fault, or a timeout.
    pub broken: Option<Broken>,
}

/// The reason why a guest did not finish.
#[derive(Debug)]
pub enum Broken {
    /// A timeout.
    TimedOut(String),
    /// Any other reason.
    Failed(String),
}

impl Outcome {
    /// Returns whether the emulator is at fault: a processor executed an instruction that the
    /// kernel was patching, which happens while several boot, or QEMU aborted in its PCI bus before
    /// the share was mounted.
    pub(crate) fn tripped(&self) -> bool {
        let is_patching = |line: &String| line.contains("Oops: int3");
        let halted = |text: &str| text.contains("/hw/pci/") && text.contains("Assertion `");
        self.complaints.iter().any(is_patching)
            || self.boot.is_zero() && self.broken.as_ref().is_some_and(|why| halted(why.text()))
    }

    /// Merges the results of two guests that ran the same cases: a case passes if it passed in
    /// both.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.cases.truncate(other.cases.len());
        for (case, other) in self.cases.iter_mut().zip(other.cases) {
            if case.status == 0 {
                case.status = other.status;
            }
            case.took = case.took.max(other.took);
            case.complaints.extend(other.complaints);
        }
        self.boot = self.boot.max(other.boot);
        self.complaints.extend(other.complaints);
        self.broken = self.broken.or(other.broken);
        self
    }
}

impl Broken {
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
    qemu: Child,
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
        spec: &Spec,
        kernel: &Kernel,
        busybox: &[u8],
        dir: &Path,
        host: &Arc<Host>,
        mut sink: impl Write + Send + 'static,
    ) -> Result<Self> {
        let initramfs = dir.join("initramfs");
        fs::write(&initramfs, initramfs::build(spec, kernel, busybox)?)?;
        let console = dir.join("console.log");
        let (control, control_qemu) = UnixStream::pair()?;
        let (mut output, output_qemu) = UnixStream::pair()?;
        for inherited in [control_qemu.as_fd(), output_qemu.as_fd()] {
            fcntl_setfd(inherited, FdFlags::empty())?;
        }

        let mut command = Command::new(QEMU);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-m",
            MEMORY,
            "-smp",
            &spec.seat.cpus.to_string(),
        ]);
        // Under TCG a basic CPU is faster than the largest: the guest's C library then does not use
        // AVX, which is emulated.
        let cpu = if spec.accel.starts_with("kvm") {
            "host"
        } else {
            "Nehalem"
        };
        let machine = "q35,memory-backend=memory";
        command.args(["-machine", machine, "-accel", &spec.accel, "-cpu", cpu]);
        // Shared memory, so that a vhost-user server can map it.
        command.arg("-object").arg(format!(
            "memory-backend-memfd,id=memory,size={MEMORY}M,share=on"
        ));
        command
            .arg("-kernel")
            .arg(kernel.image())
            .arg("-initrd")
            .arg(&initramfs)
            .args(["-append", &kernel_command_line(&spec.accel)]);
        command
            .arg("-serial")
            .arg(format!("file:{}", console.display()));
        command.args([
            "-fsdev",
            "local,id=root,path=/,security_model=passthrough,readonly=on,multidevs=remap",
        ]);
        command.args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]);
        command.args([
            "-netdev",
            "user,id=net",
            "-device",
            "virtio-net-pci,netdev=net,romfile=",
        ]);
        command.args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]);
        for (name, fd) in [
            ("ctl", control_qemu.as_raw_fd()),
            ("out", output_qemu.as_raw_fd()),
        ] {
            command.args(["-chardev", &format!("socket,id={name},fd={fd}")]);
            command.args([
                "-device",
                &format!("virtserialport,chardev={name},name={name}"),
            ]);
        }
        let log = fs::File::create(dir.join("qemu.log"))?;
        command
            .args(&spec.seat.qemu)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);

        let started = Instant::now();
        let qemu = host.family.spawn(&mut command)?;
        drop((control_qemu, output_qemu));
        let (sender, events) = channel();
        let host = Arc::clone(host);
        Ok(Self {
            qemu,
            events,
            control: std::thread::spawn(move || channel::serve(control, &host, &sender)),
            output: std::thread::spawn(move || copy(&mut output, &mut sink)),
            console,
            started,
            deadline: started + spec.timeout,
        })
    }

    /// Waits until the guest ends and reads its console log; `progress` is called for each case
    /// that ended.
    pub(crate) fn finish(mut self, mut progress: impl FnMut(&CaseResult)) -> Result<Outcome> {
        let mut outcome = Outcome {
            cases: Vec::new(),
            boot: Duration::ZERO,
            complaints: Vec::new(),
            broken: None,
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
                    let complaints = console::complaints_in(&self.console_text(), Some(&name));
                    outcome.cases.push(CaseResult {
                        name,
                        status,
                        took,
                        complaints,
                    });
                    progress(&outcome.cases[outcome.cases.len() - 1]);
                }
                Ok((_, Event::Done)) => break,
                Ok((_, Event::Fault(text))) => {
                    outcome.broken = Some(Broken::Failed(text));
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let what = running
                        .as_ref()
                        .map_or("the guest".to_owned(), |(name, _)| name.clone());
                    outcome.broken = Some(Broken::TimedOut(format!(
                        "{what} is not through after {:?}",
                        self.started.elapsed()
                    )));
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    outcome.broken = Some(Broken::Failed("the guest died".into()));
                    break;
                }
            }
        }
        self.end()?;
        outcome.complaints = console::complaints_in(&self.console_text(), None);
        if let (Some(Broken::TimedOut(text) | Broken::Failed(text)), Some((name, _))) =
            (&mut outcome.broken, &running)
        {
            *text = format!("{text} (in {name})");
            outcome
                .complaints
                .extend(console::complaints_in(&self.console_text(), Some(name)));
        }
        if let Some(Broken::TimedOut(text) | Broken::Failed(text)) = &mut outcome.broken {
            for (what, log) in [
                ("console", self.console.clone()),
                ("qemu", self.console.with_file_name("qemu.log")),
            ] {
                let end = tail(&log, 15);
                if !end.is_empty() {
                    *text += &format!("\n--- end of the {what} log\n{end}");
                }
            }
        }
        // Their streams were closed by QEMU's end.
        self.output
            .join()
            .map_err(|_| anyhow!("the output thread panicked"))?;
        self.control
            .join()
            .map_err(|_| anyhow!("the control thread panicked"))?
            .context("the control port")?;
        Ok(outcome)
    }

    /// Ends QEMU: a finished guest powers off at once; any other is killed.
    fn end(&mut self) -> Result<()> {
        let patience = Instant::now() + Duration::from_secs(10);
        while Instant::now() < patience.min(self.deadline) {
            if self.qemu.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(())
    }

    fn console_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }
}

const QEMU: &str = "qemu-system-x86_64";

/// Memory in MiB: enough for git and gcc, and for page caches without reclaim.
const MEMORY: &str = "2048";

/// `panic=-1` reboots at once, which `-no-reboot` turns into QEMU's exit. The watchdog timeouts are
/// long because an emulated processor may stall for seconds.
const KERNEL_COMMAND_LINE: &str = "console=ttyS0 loglevel=6 panic=-1 oops=panic mitigations=off random.trust_cpu=on tsc=reliable watchdog_thresh=60 \
     rcupdate.rcu_cpu_stall_timeout=120 net.ifnames=0 audit=0";

/// Returns the kernel command line, with the frequency of the time stamp counter if QEMU uses this
/// processor's. Linux would calibrate it with an emulated timer, which is late on a busy machine:
/// its seconds were then a third as long.
fn kernel_command_line(accel: &str) -> String {
    const TRIED: Duration = Duration::from_millis(20);
    let khz = sys::tsc::khz(TRIED).filter(|_| accel.starts_with("tcg"));
    let khz = khz.map_or_else(String::new, |khz| format!(" tsc_early_khz={khz}"));
    format!("{KERNEL_COMMAND_LINE}{khz}")
}

/// Returns an error with the reason if no guest can run here.
pub fn available() -> Result<()> {
    match Command::new(QEMU).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => bail!(Unavailable(format!(
            "{QEMU} --version ended with {}",
            output.status
        ))),
        Err(error) => bail!(Unavailable(format!("no {QEMU}: {error}"))),
    }
}

/// Returns whether QEMU has a device that users can instantiate.
pub(crate) fn has_device(name: &str) -> bool {
    let help = ["-device", &format!("{name},help")].map(str::to_owned);
    let output = Command::new(QEMU).args(help).output();
    output.is_ok_and(|output| output.status.success() && output.stdout.starts_with(name.as_bytes()))
}

/// Copies as data arrives; ignores errors of the sink, since the guest would block on its output.
fn copy(from: &mut UnixStream, to: &mut impl Write) {
    let mut buffer = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let _ = to.write_all(&buffer[..count]).and_then(|()| to.flush());
    }
}
