//! External programs that barge is measured and tested with, or that mount its shares: their paths,
//! and how to install them.

use std::path::{Path, PathBuf};

/// An external program and the command that installs it.
#[derive(Clone, Copy)]
pub struct Tool {
    /// Name in reports.
    pub name: &'static str,
    /// Files that are required, all of them.
    pub programs: &'static [&'static str],
    /// Shell command that installs them.
    pub install_command: &'static str,
}

impl Tool {
    /// The 9P server diod.
    pub const DIOD: Tool = Tool::new("diod", &["diod"], "apt-get install diod");
    /// NFS-Ganesha, with the programs that give it a network namespace of its own.
    pub const GANESHA: Tool = Tool::new(
        "nfs-ganesha",
        &["ganesha.nfsd", "rpcbind", "ip", "unshare", "nsenter"],
        "apt-get install nfs-ganesha nfs-ganesha-vfs rpcbind iproute2 util-linux",
    );
    /// The virtiofs daemon in Rust.
    pub const VIRTIOFSD: Tool = Tool::new(
        "virtiofsd",
        &["virtiofsd"],
        "apt-get install libseccomp-dev libcap-ng-dev && cargo install --locked virtiofsd",
    );
    /// The C implementation, part of QEMU until version 7, which Debian 12 has; its directory is
    /// not on the path.
    pub const QEMU_VIRTIOFSD: Tool = Tool::new(
        "QEMU 7's virtiofsd",
        &["../lib/qemu/virtiofsd"],
        "apt-get install qemu-system-common",
    );
    /// Packaged in Debian from 13 on.
    pub const EROFSFUSE: Tool = Tool::new(
        "erofsfuse",
        &["erofsfuse"],
        "PATH=$(barge-guest erofs-utils):$PATH",
    );
    /// squashfs over FUSE.
    pub const SQUASHFUSE: Tool =
        Tool::new("squashfuse", &["squashfuse"], "apt-get install squashfuse");
    /// Makes squashfs images.
    pub const MKSQUASHFS: Tool = Tool::new(
        "mksquashfs",
        &["mksquashfs"],
        "apt-get install squashfs-tools",
    );
    /// Makes EROFS images.
    pub const MKFS_EROFS: Tool =
        Tool::new("mkfs.erofs", &["mkfs.erofs"], "apt-get install erofs-utils");
    /// The I/O tester fio.
    pub const FIO: Tool = Tool::new("fio", &["fio"], "apt-get install fio");
    /// A FUSE mirror of a directory.
    pub const BINDFS: Tool = Tool::new("bindfs", &["bindfs"], "apt-get install bindfs");
    /// Counts system calls.
    pub const STRACE: Tool = Tool::new("strace", &["strace"], "apt-get install strace");
    /// Makes certificates.
    pub const OPENSSL: Tool = Tool::new("openssl", &["openssl"], "apt-get install openssl");
    /// Helper of mount(8) for NFS.
    pub const MOUNT_NFS: Tool =
        Tool::new("mount.nfs", &["mount.nfs"], "apt-get install nfs-common");
    /// Mounts for users other than root.
    pub const FUSERMOUNT: Tool =
        Tool::new("fusermount3", &["fusermount3"], "apt-get install fuse3");
    /// Attaches network block devices.
    pub const NBD_CLIENT: Tool =
        Tool::new("nbd-client", &["nbd-client"], "apt-get install nbd-client");
    /// Boots guests.
    pub const QEMU: Tool = Tool::new(
        "qemu",
        &["qemu-system-x86_64"],
        "apt-get install qemu-system-x86",
    );
    /// Programs for the first file system of a guest.
    pub const GUEST_ROOT: Tool = Tool::new(
        "guest's root",
        &["busybox", "cpio", "xz"],
        "apt-get install busybox-static cpio xz-utils",
    );

    const fn new(
        name: &'static str,
        programs: &'static [&'static str],
        bring: &'static str,
    ) -> Tool {
        Tool {
            name,
            programs,
            install_command: bring,
        }
    }

    /// Returns the files that are in none of `program_dirs`.
    pub fn missing_from(&self, dirs: &[PathBuf]) -> Vec<&'static str> {
        let has = |program: &str| dirs.iter().any(|dir| dir.join(program).is_file());
        let programs = self.programs.iter().copied();
        programs.filter(|program| !has(program)).collect()
    }

    /// Returns the message for a missing program.
    pub fn missing_message(&self) -> String {
        format!(
            "{} is missing: {} brings it",
            self.name, self.install_command
        )
    }
}

/// Returns the directories of programs: those on the path, that of cargo, and /usr/sbin, which is
/// not on the path of users other than root.
pub fn program_dirs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").unwrap_or_default();
    let more = [Path::new(&home).join(".cargo/bin"), "/usr/sbin".into()];
    std::env::split_paths(&path).chain(more).collect()
}

/// Returns the path of a program of barge: in the directory of the running program, or in one of
/// [`program_dirs`].
pub fn companion(name: &str) -> Option<PathBuf> {
    let here = std::env::current_exe().ok();
    let beside = here.map(|program| program.with_file_name(name));
    beside.filter(|file| file.is_file()).or_else(|| find(name))
}

/// Returns the path of a program in [`program_dirs`].
pub fn find(name: &str) -> Option<PathBuf> {
    let all = program_dirs().into_iter().map(|dir| dir.join(name));
    all.into_iter().find(|file| file.is_file())
}
