//! A guest: QEMU with a kernel, an initramfs, the host's tree as its root, and two ports to the harness, one for output and one for control.
//!
//! It knows nothing of servers: what the mount options name must be there when it boots, so several guests can share one.
//!
//! Lacks: graceful shutdown from outside; a guest ends by itself or is killed.

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

/// What to mount at the guest's `/mnt`.
#[derive(Clone, Debug)]
pub struct Mount {
    /// The file system's type, such as `9p`.
    pub kind: String,
    /// Its options.
    pub options: String,
    /// Its device: an address or a tag.
    pub device: String,
}

/// A script to run in the guest.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name: one word without slashes.
    pub name: String,
    /// Its text, for `sh`.
    pub script: String,
    /// Whether it runs in a directory of its own below the mount.
    pub own_dir: bool,
}

/// What tells one guest of a run from another.
#[derive(Clone, Debug)]
pub struct Seat {
    /// What it mounts.
    pub mount: Mount,
    /// Types of file systems that its scripts mount besides.
    pub kinds: Vec<&'static str>,
    /// Its processors.
    pub cpus: u16,
    /// Further arguments for QEMU.
    pub qemu: Vec<String>,
}

/// What a guest is made of.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its own.
    pub seat: Seat,
    /// Its number, from 1 to that of the run's guests.
    pub number: usize,
    /// How many guests the run has.
    pub guests: usize,
    /// The root below its tmpfs.
    pub root: Mount,
    /// What it runs, in this order.
    pub cases: Vec<Case>,
    /// How long one case may take.
    pub case_timeout: Duration,
    /// How long the guest may take, boot and all.
    pub timeout: Duration,
    /// QEMU's `-accel`.
    pub accel: String,
    /// The search path for scripts.
    pub path: String,
    /// The directory of the scripts, as `$BARGE_SCRIPTS`.
    pub scripts: String,
    /// The directory of tlshd, which runs if the mount is secured.
    pub tls: String,
}

/// How one case ended.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The case.
    pub name: String,
    /// The script's exit status.
    pub status: i32,
    /// How long it ran.
    pub took: Duration,
    /// What the kernel complained of meanwhile.
    pub complaints: Vec<String>,
}

/// How a guest ended.
#[derive(Debug)]
pub struct Outcome {
    /// The cases that ended, in their order.
    pub cases: Vec<CaseResult>,
    /// From QEMU's start to the mounted share.
    pub boot: Duration,
    /// Complaints of the kernel outside of any case.
    pub complaints: Vec<String>,
    /// Why not every case ended, if so: the guest died, a fault, no more time.
    pub broken: Option<Broken>,
}

/// Why a guest did not come to its end.
#[derive(Debug)]
pub enum Broken {
    /// Its time was over.
    TimedOut(String),
    /// Anything else.
    Failed(String),
}

impl Outcome {
    /// Whether the emulator is to blame: one of its processors has run an instruction that the kernel was about to replace in itself, as happens while
    /// several of them boot, or it came to a halt in its own PCI bus, before anything was mounted.
    pub(crate) fn tripped(&self) -> bool {
        let is_patching = |line: &String| line.contains("Oops: int3");
        let halted = |text: &str| text.contains("/hw/pci/") && text.contains("Assertion `");
        self.complaints.iter().any(is_patching)
            || self.boot.is_zero() && self.broken.as_ref().is_some_and(|why| halted(why.text()))
    }

    /// Of two guests that ran the same cases: each has passed where both say so.
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
    /// Why, in words.
    pub(crate) fn text(&self) -> &str {
        let (Self::TimedOut(text) | Self::Failed(text)) = self;
        text
    }

    /// As an error of the harness.
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
    /// With the time when each came: guests of a run are heard one after the other.
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
        // Under TCG a plain CPU is quicker than the largest: the C library of the guest then leaves emulated AVX alone.
        let cpu = if spec.accel.starts_with("kvm") {
            "host"
        } else {
            "Nehalem"
        };
        let machine = "q35,memory-backend=memory";
        command.args(["-machine", machine, "-accel", &spec.accel, "-cpu", cpu]);
        // Memory that a vhost-user server can map.
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

    /// Waits for the guest's end and reads what its kernel said; `progress` hears of each case that ended.
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
                // A guest that was reset begins once more.
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
        // Their streams ended with QEMU.
        self.output
            .join()
            .map_err(|_| anyhow!("the output thread panicked"))?;
        self.control
            .join()
            .map_err(|_| anyhow!("the control thread panicked"))?
            .context("the control port")?;
        Ok(outcome)
    }

    /// A guest that is through powers off at once; one that is not is killed.
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

/// MiB: enough for git and gcc, and for page caches that never have to give way.
const MEMORY: &str = "2048";

/// `panic=-1` reboots at once, which `-no-reboot` makes QEMU's end. The watchdogs get time because an emulated processor may stand still for seconds.
const KERNEL_COMMAND_LINE: &str = "console=ttyS0 loglevel=6 panic=-1 oops=panic mitigations=off random.trust_cpu=on tsc=reliable watchdog_thresh=60 \
     rcupdate.rcu_cpu_stall_timeout=120 net.ifnames=0 audit=0";

/// The same, and how fast the time stamp counter is where QEMU takes this processor's. Linux finds that out by an emulated timer, which comes late on a
/// busy machine: it then took seconds for a third of what they are.
fn kernel_command_line(accel: &str) -> String {
    const TRIED: Duration = Duration::from_millis(20);
    let khz = sys::tsc::khz(TRIED).filter(|_| accel.starts_with("tcg"));
    let khz = khz.map_or_else(String::new, |khz| format!(" tsc_early_khz={khz}"));
    format!("{KERNEL_COMMAND_LINE}{khz}")
}

/// An error with the reason if no guest can run here.
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

/// Whether QEMU has a device for users.
pub(crate) fn has_device(name: &str) -> bool {
    let help = ["-device", &format!("{name},help")].map(str::to_owned);
    let output = Command::new(QEMU).args(help).output();
    output.is_ok_and(|output| output.status.success() && output.stdout.starts_with(name.as_bytes()))
}

/// Copies live; a broken sink must not stop the guest, which would block on its output.
fn copy(from: &mut UnixStream, to: &mut impl Write) {
    let mut buffer = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let _ = to.write_all(&buffer[..count]).and_then(|()| to.flush());
    }
}
