//! Programs of others that barge is measured and tested with, or that mount what it serves: where they are, and what brings them.

use std::path::{Path, PathBuf};

/// A program, and what brings it.
#[derive(Clone, Copy)]
pub(crate) struct Tool {
    /// What it is called where it is spoken of.
    pub(crate) name: &'static str,
    /// The files that it takes, all of them.
    pub(crate) programs: &'static [&'static str],
    /// What brings them, as what follows `run`.
    pub(crate) bring: &'static str,
}

impl Tool {
    pub(crate) const DIOD: Tool = Tool::of("diod", &["diod"], "apt-get install diod");
    pub(crate) const GANESHA: Tool = Tool::of(
        "nfs-ganesha",
        &["ganesha.nfsd", "rpcbind", "ip", "unshare", "nsenter"],
        "apt-get install nfs-ganesha nfs-ganesha-vfs rpcbind iproute2 util-linux",
    );
    pub(crate) const VIRTIOFSD: Tool = Tool::of(
        "virtiofsd",
        &["virtiofsd"],
        "apt-get install libseccomp-dev libcap-ng-dev && cargo install --locked virtiofsd",
    );
    /// It is in C, and was QEMU's until version 7, which Debian 12 has: beside what is on the path.
    pub(crate) const QEMU_VIRTIOFSD: Tool = Tool::of(
        "QEMU 7's virtiofsd",
        &["../lib/qemu/virtiofsd"],
        "apt-get install qemu-system-common",
    );
    /// Debian has a package of it from 13 on.
    pub(crate) const EROFSFUSE: Tool = Tool::of(
        "erofsfuse",
        &["erofsfuse"],
        "PATH=$(barge-guest erofs-utils):$PATH",
    );
    pub(crate) const SQUASHFUSE: Tool =
        Tool::of("squashfuse", &["squashfuse"], "apt-get install squashfuse");
    pub(crate) const MKSQUASHFS: Tool = Tool::of(
        "mksquashfs",
        &["mksquashfs"],
        "apt-get install squashfs-tools",
    );
    pub(crate) const MKFS_EROFS: Tool =
        Tool::of("mkfs.erofs", &["mkfs.erofs"], "apt-get install erofs-utils");
    pub(crate) const FIO: Tool = Tool::of("fio", &["fio"], "apt-get install fio");
    pub(crate) const BINDFS: Tool = Tool::of("bindfs", &["bindfs"], "apt-get install bindfs");
    pub(crate) const STRACE: Tool = Tool::of("strace", &["strace"], "apt-get install strace");
    pub(crate) const OPENSSL: Tool = Tool::of("openssl", &["openssl"], "apt-get install openssl");
    pub(crate) const MOUNT_NFS: Tool =
        Tool::of("mount.nfs", &["mount.nfs"], "apt-get install nfs-common");
    pub(crate) const FUSERMOUNT: Tool =
        Tool::of("fusermount3", &["fusermount3"], "apt-get install fuse3");
    pub(crate) const NBD_CLIENT: Tool =
        Tool::of("nbd-client", &["nbd-client"], "apt-get install nbd-client");
    pub(crate) const QEMU: Tool = Tool::of(
        "qemu",
        &["qemu-system-x86_64"],
        "apt-get install qemu-system-x86",
    );
    pub(crate) const GUEST_ROOT: Tool = Tool::of(
        "guest's root",
        &["busybox", "cpio", "xz"],
        "apt-get install busybox-static cpio xz-utils",
    );

    const fn of(
        name: &'static str,
        programs: &'static [&'static str],
        bring: &'static str,
    ) -> Tool {
        Tool {
            name,
            programs,
            bring,
        }
    }

    /// Those of its files that are in none of `dirs`.
    pub(crate) fn missing_from(&self, dirs: &[PathBuf]) -> Vec<&'static str> {
        let has = |program: &str| dirs.iter().any(|dir| dir.join(program).is_file());
        let programs = self.programs.iter().copied();
        programs.filter(|program| !has(program)).collect()
    }

    /// What is said where it is missing.
    pub(crate) fn is_missing(&self) -> String {
        format!("{} is missing: {} brings it", self.name, self.bring)
    }
}

/// Where programs are: on the path, where cargo installs them, and where root's are, which are on no other user's path.
pub(crate) fn dirs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").unwrap_or_default();
    let more = [Path::new(&home).join(".cargo/bin"), "/usr/sbin".into()];
    std::env::split_paths(&path).chain(more).collect()
}

/// A program in [`dirs`].
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let all = dirs().into_iter().map(|dir| dir.join(name));
    all.into_iter().find(|file| file.is_file())
}
