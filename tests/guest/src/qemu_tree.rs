//! Debian's newest QEMU, for devices that the machine's version cannot migrate.
//!
//! It comes with its libraries and runs with their loader, as tlshd does. The unpacked packages are
//! in `qemu-trixie/` of the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::kernel::{self, Apt};

/// A suite with QEMU 8.2 or later, whose vhost-user file systems migrate.
const SUITE: &str = "trixie";

/// QEMU, its firmware and libraries, whose package names depend on the suite.
const PACKAGES: &[&str] = &[
    "libaio1t64",
    "libatomic1",
    "libblkid1",
    "libbpf1",
    "libbz2-1.0",
    "libc6",
    "libcap2",
    "libcapstone5",
    "libdaxctl1",
    "libelf1t64",
    "libfdt1",
    "libffi8",
    "libfuse3-4",
    "libgcc-s1",
    "libglib2.0-0t64",
    "libgmp10",
    "libgnutls30t64",
    "libhogweed6t64",
    "libibverbs1",
    "libidn2-0",
    "libjpeg62-turbo",
    "libkmod2",
    "liblzma5",
    "libmount1",
    "libncursesw6",
    "libndctl6",
    "libnettle8t64",
    "libnl-3-200",
    "libnl-route-3-200",
    "libnuma1",
    "libp11-kit0",
    "libpcre2-8-0",
    "libpixman-1-0",
    "libpmem1",
    "libpng16-16t64",
    "librdmacm1t64",
    "libsasl2-2",
    "libseccomp2",
    "libselinux1",
    "libslirp0",
    "libssl3t64",
    "libtasn1-6",
    "libtinfo6",
    "libudev1",
    "libunistring5",
    "liburing2",
    "libuuid1",
    "libvdeplug2t64",
    "libzstd1",
    "qemu-system-common",
    "qemu-system-data",
    "qemu-system-x86",
    "seabios",
    "zlib1g",
];

/// An unpacked QEMU.
pub(crate) struct QemuTree(PathBuf);

impl QemuTree {
    /// Returns the unpacked packages, which are fetched if missing.
    pub(crate) fn get(cache: &Path, mirror: Option<&str>) -> Result<Self> {
        let _lock = kernel::lock(cache)?;
        let dir = cache.join("qemu-trixie");
        if !dir.exists() {
            let tree = Apt::new(cache, SUITE, mirror)?.unpack(PACKAGES)?;
            fs::rename(tree, &dir)?;
        }
        Ok(Self(dir))
    }

    /// Returns a command that runs it.
    pub(crate) fn command(&self) -> Command {
        let usr = self.0.join("usr");
        let mut command = Command::new(usr.join("lib64/ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(usr.join("lib/x86_64-linux-gnu"))
            .arg(usr.join("bin/qemu-system-x86_64"));
        for firmware in ["qemu", "seabios"] {
            command.arg("-L").arg(usr.join("share").join(firmware));
        }
        command
    }
}
