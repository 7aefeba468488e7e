//! Cache modes of the kernel's 9P client. The guest itself makes the mounts, one at a time, from
//! one server, or from a QEMU disk with a file in the same memory.

use std::time::Duration;

use super::{Subject, with_port_told};
use crate::ways::Way;

/// Space for two files of any reasonable size; the file is sparse.
const DISK: &str = "truncate -s 2G {share}/disk && mkfs.ext4 -q {share}/disk && exec";

pub(super) fn subject(barge: &str, rounds: Option<u16>) -> Subject {
    let way = Way::named("none");
    let serve = format!(
        "sh -c '{DISK} {barge} serve {{share}} {}'",
        way.address().replace("{listen}", "127.0.0.1")
    );
    let mut seat = way.seat(&[]);
    let drive = "if=none,id=disk,format=raw,file={share}/disk";
    let device = "virtio-blk-pci,drive=disk";
    let disk = ["-drive", drive, "-device", device];
    seat.qemu.extend(disk.map(String::from));
    Subject {
        name: "caches",
        serve: vec![with_port_told("port", &serve)],
        seat,
        env: vec![("BARGE", barge.to_owned())],
        size: 32,
        rounds: rounds.unwrap_or(5),
        timeout: Duration::from_secs(720),
    }
}
