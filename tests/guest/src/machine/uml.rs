//! User-mode Linux: a Linux kernel as a process of the host (Documentation/virt/uml).
//!
//! A run has a network namespace with a bridge, which has the host's address in QEMU's user
//! network, and a tap interface for each guest. The guest's root is the host's (`hostfs`).

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::Files;
use crate::config::{GuestConfig, MEMORY};
use crate::server::HOST;
use crate::{Unavailable, command_output};

/// Messages have times, as the search for complaints expects.
const KERNEL_COMMAND_LINE: [&str; 5] = [
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
    let libraries = kernel.parent().context("a kernel has a directory")?;
    // It leaves the process group of the run, so it ends with this thread instead.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "env"])
        .arg(format!("LD_LIBRARY_PATH={}", libraries.display()))
        .arg(kernel)
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
        // The kernel's loader is named relative to its directory, which has its C library too.
        .current_dir(libraries)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(files.console)?)
        .stderr(files.log);
    Ok(command)
}

/// Returns whether user-mode Linux can run here.
pub(super) fn available() -> bool {
    check().is_ok()
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
