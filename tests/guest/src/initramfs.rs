//! The guest's initramfs: busybox, the kernel's modules, both stages of init, and the cases.

use std::path::Path;

use anyhow::Result;

use crate::config::KNFSD;
use crate::cpio::Archive;
use crate::guest::{Case, GuestSpec};
use crate::kernel::Kernel;
use crate::quote;

/// Modules that every guest loads: file systems for its root and for scripts.
const BASE_MODULES: &[&str] = &["9p", "9pnet_fd", "fuse", "overlay"];

/// Returns the archive for a guest with this directory of the run.
pub(crate) fn build(
    spec: &GuestSpec,
    kernel: &Kernel,
    busybox: &[u8],
    dir: &Path,
) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in [
        "bin",
        "dev",
        "proc",
        "sys",
        "barge",
        "barge/bin",
        "barge/cases",
        "barge/modules",
    ] {
        archive.dir(dir);
    }
    // The kernel opens it for init before anything is mounted.
    archive.device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, busybox);
    archive.file("init", 0o755, include_bytes!("init.sh"));
    archive.file("barge/stage2", 0o755, include_bytes!("stage2.sh"));
    for program in ["host", "meet"] {
        archive.file(
            &format!("barge/bin/{program}"),
            0o755,
            include_bytes!("ask.sh"),
        );
    }

    let mount = &spec.config.mount;
    let kinds = [&*spec.root.fs_type, &mount.fs_type]
        .into_iter()
        .chain(spec.config.extra_fs_types.iter().copied());
    let wanted: Vec<&str> = spec
        .machine
        .modules()
        .iter()
        .chain(BASE_MODULES)
        .copied()
        .chain(kinds.flat_map(modules_for_fs).copied())
        .chain(modules_for_devices(&spec.config.qemu).iter().copied())
        .collect();
    let modules = kernel.modules(&wanted)?;
    for (name, bytes) in &modules {
        archive.file(&format!("barge/modules/{name}.ko"), 0o644, bytes);
    }
    let names: Vec<_> = modules.iter().map(|(name, _)| name.as_str()).collect();

    let below_tmpfs: Vec<_> = spec
        .below_tmpfs
        .iter()
        .map(|dir| quote(&dir.display().to_string()))
        .collect();
    let below_tmpfs = below_tmpfs.join(" ");
    let assignments = [
        ("MACHINE", spec.machine.name()),
        ("DIR", &dir.display().to_string()),
        ("MODULES", names.join(" ").as_str()),
        ("ROOT_TYPE", &spec.root.fs_type),
        ("ROOT_OPTIONS", &spec.root.options),
        ("ROOT_DEVICE", &spec.root.device),
        ("MOUNT_TYPE", &mount.fs_type),
        ("MOUNT_OPTIONS", &mount.options),
        ("MOUNT_DEVICE", &mount.device),
        ("GUEST", &spec.number.to_string()),
        ("GUESTS", &spec.guests.to_string()),
        ("CASE_TIMEOUT", &spec.case_timeout.as_secs().to_string()),
        ("PATH", &format!("/run/barge/bin:{}", spec.path)),
        ("BARGE_SCRIPTS", &spec.scripts),
        ("BELOW_TMPFS", &below_tmpfs),
        ("TLSHD", &spec.tls),
    ]
    .map(|(name, value)| format!("{name}={}\n", quote(value)));
    archive.file("barge/env", 0o644, assignments.concat().as_bytes());

    archive.file(
        "barge/cases/order",
        0o644,
        spec.cases
            .iter()
            .map(order_line)
            .collect::<String>()
            .as_bytes(),
    );
    for case in &spec.cases {
        archive.file(
            &format!("barge/cases/{}", case.name),
            0o644,
            case.script.as_bytes(),
        );
    }
    Ok(archive.finish())
}

/// Returns the additional modules for a mount of this type.
fn modules_for_fs(kind: &str) -> &'static [&'static str] {
    match kind {
        "virtiofs" => &["virtiofs"],
        KNFSD => &["loop", "nfsd"],
        "nfs" | "nfs4" => &["nfsv3", "nfsv4", "tls", "gcm", "ghash_generic"],
        // Its CRC dependency requires the generic implementation when it is loaded.
        "erofs" => &["crc32c_generic", "erofs", "virtio_blk"],
        _ => &[],
    }
}

/// Returns the additional modules for QEMU's arguments.
fn modules_for_devices(qemu: &[String]) -> &'static [&'static str] {
    let has = |device: &str| qemu.iter().any(|word| word.contains(device));
    if has("-vsock-") {
        &["vmw_vsock_virtio_transport", "vsock_loopback"]
    } else if has("-blk-") {
        &["virtio_blk", "nbd", "crc32c_generic", "ext4", "quota_v2"]
    } else {
        &[]
    }
}

/// Returns the case's name and its directory below the mount.
fn order_line(case: &Case) -> String {
    format!(
        "{} {}\n",
        case.name,
        if case.own_dir {
            case.name.as_str()
        } else {
            "."
        }
    )
}
