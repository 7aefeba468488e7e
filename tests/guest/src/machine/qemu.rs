//! QEMU: an emulated or virtual PC with virtio devices.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};

use super::Files;
use crate::Unavailable;
use crate::config::{GuestConfig, MEMORY, VirtiofsDevice};

const QEMU: &str = "qemu-system-x86_64";

/// The accelerator that works everywhere.
pub(crate) const TCG: &str = "tcg,thread=multi,tb-size=512";

/// The modules of its devices.
pub(super) const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_rng",
    "virtio_net",
    "9pnet_virtio",
    "virtiofs",
];

/// `panic=-1` reboots at once, which `-no-reboot` turns into QEMU's exit. The watchdog timeouts are
/// long because an emulated processor may stall for seconds.
const KERNEL_COMMAND_LINE: &str = "console=ttyS0 loglevel=6 panic=-1 oops=panic mitigations=off random.trust_cpu=on tsc=reliable watchdog_thresh=60 \
     rcupdate.rcu_cpu_stall_timeout=120 net.ifnames=0 audit=0";

pub(super) fn command(
    config: &GuestConfig,
    accel: &str,
    kernel: &Path,
    files: Files,
) -> Result<Command> {
    let mut command = Command::new(QEMU);
    add_machine(&mut command, config.cpus, accel, kernel, files)?;
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
    command.args(["-device", "virtio-rng-pci"]);
    for device in &config.virtiofs {
        command.args(virtiofs_device(device));
    }
    command.args(&config.qemu);
    Ok(command)
}

/// Returns the arguments for a virtiofs device. The maximum request size is the queue's size minus
/// four pages.
pub(crate) fn virtiofs_device(device: &VirtiofsDevice) -> [String; 4] {
    let VirtiofsDevice {
        tag,
        socket,
        queues,
    } = device;
    let device = format!("vhost-user-fs-pci,chardev={tag},tag={tag}");
    [
        "-chardev".into(),
        format!("socket,id={tag},path={socket}"),
        "-device".into(),
        format!("{device},queue-size=1024,num-request-queues={queues}"),
    ]
}

/// Adds arguments for processors, memory, the kernel, the console, and the ports of the harness to
/// a QEMU, and its standard streams.
pub(crate) fn add_machine(
    command: &mut Command,
    cpus: u16,
    accel: &str,
    kernel: &Path,
    files: Files,
) -> Result<()> {
    command.args([
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-m",
        MEMORY,
        "-smp",
        &cpus.to_string(),
    ]);
    // Under TCG a basic CPU is faster than the largest: the guest's C library then does not use
    // AVX, which is emulated.
    let cpu = if accel.starts_with("kvm") {
        "host"
    } else {
        "Nehalem"
    };
    let machine = "q35,memory-backend=memory";
    command.args(["-machine", machine, "-accel", accel, "-cpu", cpu]);
    // Shared memory, so that a vhost-user server can map it.
    let backend = match files.memory {
        Some(path) => format!("memory-backend-file,mem-path={}", path.display()),
        None => "memory-backend-memfd".into(),
    };
    command
        .arg("-object")
        .arg(format!("{backend},id=memory,size={MEMORY}M,share=on"));
    command
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(files.initramfs)
        .args(["-append", &kernel_command_line(accel)]);
    command
        .arg("-serial")
        .arg(format!("file:{}", files.console.display()));
    command.args(["-device", "virtio-serial-pci"]);
    for (name, fd) in [("ctl", files.control), ("out", files.output)] {
        command.args(["-chardev", &format!("socket,id={name},fd={fd}")]);
        command.args([
            "-device",
            &format!("virtserialport,chardev={name},name={name}"),
        ]);
    }
    command
        .stdin(Stdio::null())
        .stdout(files.log.try_clone()?)
        .stderr(files.log);
    Ok(())
}

/// Returns the kernel command line, with the frequency of the time stamp counter if QEMU uses this
/// processor's. Linux would calibrate it with an emulated timer, which is late on a busy machine:
/// its seconds were then a third as long.
fn kernel_command_line(accel: &str) -> String {
    const CALIBRATION_TIME: Duration = Duration::from_millis(20);
    let khz = sys::tsc::khz(CALIBRATION_TIME).filter(|_| accel.starts_with("tcg"));
    let khz = khz.map_or_else(String::new, |khz| format!(" tsc_early_khz={khz}"));
    format!("{KERNEL_COMMAND_LINE}{khz}")
}

/// Returns an error with the reason if QEMU cannot run here.
pub(super) fn check() -> Result<()> {
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
