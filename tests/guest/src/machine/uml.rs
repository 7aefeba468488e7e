//! User-mode Linux: a Linux kernel as a process of the host (Documentation/virt/uml).
//!
//! A run has a network namespace with a bridge, which has the host's address in QEMU's user
//! network, and a tap interface for each guest. The guest's root is the host's (`hostfs`).

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::Files;
use crate::config::{GuestConfig, MEMORY};
use crate::cpio::Archive;
use crate::server::HOST;
use crate::{Unavailable, command_output};

/// Messages have times, as the search for complaints expects. Where the kernel and the host can,
/// processes run under a filter of seccomp in place of ptrace, which takes a fifth of the time of a
/// system call; kernels before 6.16 do not know the option.
const KERNEL_COMMAND_LINE: [&str; 6] = [
    "seccomp=auto",
    "printk.time=1",
    "loglevel=6",
    "panic=-1",
    "oops=panic",
    "audit=0",
];

pub(super) fn command(config: &GuestConfig, kernel: &Path, files: Files) -> Result<Command> {
    ensure!(
        config.qemu.is_empty(),
        "user-mode Linux has no devices of QEMU: {:?}",
        config.qemu
    );
    let mut command = program(kernel)?;
    command
        .arg(format!("mem={MEMORY}M"))
        .arg(format!("initrd={}", files.initramfs.display()))
        .arg(format!("uml_dir={}", files.dir.display()))
        .arg("umid=uml")
        .arg(format!(
            "vec0:transport=tap,ifname={},mac=52:54:00:00:00:{:02x},depth=128,gro=1",
            tap(files.number),
            files.number
        ))
        .args(["con=null", "con0=null,fd:1"])
        .arg(format!("ssl0=fd:{}", files.control))
        .arg(format!("ssl1=fd:{}", files.output))
        .args(KERNEL_COMMAND_LINE)
        .stdout(std::fs::File::create(files.console)?)
        .stderr(files.log);
    /// The number of virtiofs among virtio's devices (virtio 1.3, 5).
    const VIRTIO_FS: u8 = 26;
    for device in &config.virtiofs {
        command.arg(format!("virtio_uml.device={}:{VIRTIO_FS}", device.socket));
    }
    Ok(command)
}

/// Returns the command that starts a kernel, without its arguments.
fn program(kernel: &Path) -> Result<Command> {
    let libraries = dir_of(kernel)?;
    // It leaves the process group of the run, so it ends with this thread instead.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "env"])
        .arg(format!("LD_LIBRARY_PATH={}", libraries.display()))
        .arg(kernel)
        // The program names its loader relative to its directory.
        .current_dir(libraries)
        .stdin(Stdio::null());
    Ok(command)
}

/// Returns the directory of a kernel, which has its loader and its C library.
fn dir_of(kernel: &Path) -> Result<&Path> {
    kernel.parent().context("a kernel has a directory")
}

/// Boots a kernel without devices, and returns an error with its last line if it does not reach
/// init.
pub(crate) fn try_boot(kernel: &Path, busybox: &[u8]) -> Result<()> {
    /// The line that init says.
    const REACHED: &str = "barge-guest: init";
    /// Seconds; a boot takes one on an idle machine.
    const PATIENCE: &str = "60";
    let mut archive = Archive::default();
    for dir in ["bin", "dev"] {
        archive.dir(dir);
    }
    archive.device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, busybox);
    let init = format!("#!/bin/busybox sh\necho '{REACHED}'\n/bin/busybox poweroff -f\n");
    archive.file("init", 0o755, init.as_bytes());
    let dir = tempfile::tempdir()?;
    let initramfs = dir.path().join("initramfs");
    std::fs::write(&initramfs, archive.finish())?;
    let started = program(kernel)?;
    let output = Command::new("timeout")
        .args(["--kill-after=5", PATIENCE])
        .arg(started.get_program())
        .args(started.get_args())
        .current_dir(dir_of(kernel)?)
        .stdin(Stdio::null())
        .arg("mem=128M")
        .arg(format!("initrd={}", initramfs.display()))
        .arg(format!("uml_dir={}", dir.path().display()))
        .args(["con=null", "con0=null,fd:1"])
        .args(KERNEL_COMMAND_LINE)
        .output()
        .context("cannot run timeout")?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    ensure!(
        lines.clone().any(|line| line == REACHED),
        "it ends before init with {}: {}",
        output.status,
        lines.next_back().unwrap_or("no word")
    );
    Ok(())
}

/// Returns an error with the reason if user-mode Linux cannot run here.
pub(super) fn check() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(Unavailable(
            "user-mode Linux needs root here, for its network".into()
        ));
    }
    if !Path::new("/dev/net/tun").exists() {
        bail!(Unavailable("user-mode Linux needs /dev/net/tun".into()));
    }
    Ok(())
}

/// Runs `work` in a network namespace with an interface for each guest.
pub(super) fn with_network<T: Send>(
    guests: usize,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let in_namespace = || {
        sys::namespaces::unshare(rustix::thread::UnshareFlags::NEWNET)
            .context("cannot make a network namespace")?;
        let mut script = format!(
            "ip link set lo up && ip link add guests type bridge && ip addr add {HOST}/24 dev guests && ip link set guests up"
        );
        for tap in (1..=guests).map(tap) {
            script += &format!(
                " && ip tuntap add dev {tap} mode tap && ip link set {tap} master guests up"
            );
        }
        command_output(Command::new("sh").args(["-c", &script]))?;
        work()
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(in_namespace);
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns the name of a guest's interface on the host.
fn tap(number: usize) -> String {
    format!("guest{number}")
}

#[cfg(test)]
mod tests {
    use vfs_testkit::write_program;

    use super::*;

    #[test]
    fn a_kernel_that_ends_before_init_says_why() {
        let dir = tempfile::tempdir().expect("a directory");
        let kernel = dir.path().join("linux");
        let boot = |says: &str| {
            write_program(&kernel, format!("#!/bin/sh\necho '{says}'\nexit 1\n"));
            try_boot(&kernel, b"busybox")
        };
        let error = boot("ptrace set fp regs failed, errno = 14").expect_err("no init");
        let error = error.to_string();
        assert!(error.ends_with("errno = 14"), "{error}");
        boot("barge-guest: init").expect("init");
    }
}
