//! Cache modes of the kernel's 9P client. The guest itself makes the mounts, one at a time, from
//! one server, or from a QEMU disk with a file in the same memory.

use std::time::Duration;

use super::{TableConfig, with_port_file};
use crate::mounts::MountConfig;

/// Space for two files of any reasonable size; the file is sparse.
const MAKE_DISK: &str = "truncate -s 2G {share}/disk && mkfs.ext4 -q {share}/disk && exec";

pub(super) fn config(barge: &str, rounds: Option<u16>) -> TableConfig {
    let mount = MountConfig::named("none");
    let serve = format!(
        "sh -c '{MAKE_DISK} {barge} serve {{share}} {}'",
        mount.address().replace("{listen}", "127.0.0.1")
    );
    let mut guest = mount.guest_config(&[]);
    let drive = "if=none,id=disk,format=raw,file={share}/disk";
    let device = "virtio-blk-pci,drive=disk";
    let disk = ["-drive", drive, "-device", device];
    guest.qemu.extend(disk.map(String::from));
    TableConfig {
        name: "caches",
        server_commands: vec![with_port_file("port", &serve)],
        guest,
        env: vec![("BARGE", barge.to_owned())],
        size: 32,
        rounds: rounds.unwrap_or(5),
        timeout: Duration::from_secs(720),
    }
}
