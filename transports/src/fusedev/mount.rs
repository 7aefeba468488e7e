use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{getgid, getuid};

/// Options of a mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// The source that mount(8) shows.
    pub source: String,
    /// Whether users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Generic mount flags.
    pub flags: Vec<MountFlag>,
}

impl MountOptions {
    /// Returns whether the mount is read-only.
    pub fn is_read_only(&self) -> bool {
        self.bits().contains(MountFlags::RDONLY)
    }

    /// Returns the combined flags for mount(2); the last of contradicting ones wins.
    pub fn bits(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        for option in &self.flags {
            option.apply(&mut flags);
        }
        flags
    }
}

/// A mount of this host.
pub struct Mount {
    device: OwnedFd,
    mountpoint: PathBuf,
    /// Whether fusermount3 mounted it, and unmounts it.
    with_helper: bool,
}

impl Mount {
    /// The file system type that mount(8) shows.
    const TYPE: &str = "fuse.barge";

    /// Mounts a tree at the directory `at`: with mount(2) if this process may, otherwise with
    /// fusermount3(1). Accesses wait until one of its channels is served. The kernel checks
    /// permissions by mode, as for a file system on a disk.
    pub fn new(at: &Path, options: &MountOptions) -> io::Result<Mount> {
        let mountpoint = at.canonicalize()?;
        let (device, with_helper) = match getuid().is_root() {
            true => (mount(&mountpoint, options)?, false),
            false => (mount_with_helper(&mountpoint, options)?, true),
        };
        Ok(Mount {
            device,
            mountpoint,
            with_helper,
        })
    }

    /// Opens another descriptor for requests, for
    /// [`Channels::open`](super::Channels::open).
    pub fn open_device(&self) -> io::Result<OwnedFd> {
        Ok(sys::fuse::clone_device(self.device.as_fd())?)
    }

    /// Detaches the mount. Open files stay open until closed, or this process exits. Dirty pages
    /// are written first, for which a channel has to be served meanwhile.
    pub fn unmount(&self) -> io::Result<()> {
        if self.with_helper {
            return run_helper(
                Command::new(FUSERMOUNT)
                    .args(["-u", "-z", "-q", "--"])
                    .arg(&self.mountpoint),
            );
        }
        Ok(rustix::mount::unmount(
            &self.mountpoint,
            UnmountFlags::DETACH,
        )?)
    }

    /// Makes accesses in progress and all later ones fail, even if a thread of this process waits
    /// in the kernel for one of them. The mount stays. Returns `EPERM` without `CAP_SYS_ADMIN`.
    pub fn abort(&self) -> io::Result<()> {
        // A mount in use is not unmounted.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let _in_use = rustix::fs::open(&self.mountpoint, flags, Mode::empty())?;
        match rustix::mount::unmount(&self.mountpoint, UnmountFlags::FORCE) {
            Ok(()) | Err(Errno::BUSY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Detaches the mount without waiting: accesses in progress and to open files fail. Those to a
    /// mount made by fusermount3 fail when its last descriptor is closed.
    pub fn force_unmount(&self) -> io::Result<()> {
        if self.with_helper {
            return self.unmount();
        }
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        Ok(rustix::mount::unmount(&self.mountpoint, flags)?)
    }
}

/// A mount option that the kernel implements for every file system, with its name in mount(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountFlag {
    name: &'static str,
    set: bool,
    flag: MountFlags,
}

impl MountFlag {
    const ALL: &[MountFlag] = &[
        MountFlag::of("ro", true, MountFlags::RDONLY),
        MountFlag::of("rw", false, MountFlags::RDONLY),
        MountFlag::of("nosuid", true, MountFlags::NOSUID),
        MountFlag::of("suid", false, MountFlags::NOSUID),
        MountFlag::of("nodev", true, MountFlags::NODEV),
        MountFlag::of("dev", false, MountFlags::NODEV),
        MountFlag::of("noexec", true, MountFlags::NOEXEC),
        MountFlag::of("exec", false, MountFlags::NOEXEC),
        MountFlag::of("noatime", true, MountFlags::NOATIME),
        MountFlag::of("atime", false, MountFlags::NOATIME),
        MountFlag::of("nodiratime", true, MountFlags::NODIRATIME),
        MountFlag::of("sync", true, MountFlags::SYNCHRONOUS),
        MountFlag::of("async", false, MountFlags::SYNCHRONOUS),
        MountFlag::of("dirsync", true, MountFlags::DIRSYNC),
    ];

    const fn of(name: &'static str, set: bool, flag: MountFlags) -> MountFlag {
        MountFlag { name, set, flag }
    }

    /// Returns the option of this name, if it is one of these.
    pub fn named(name: &str) -> Option<MountFlag> {
        MountFlag::ALL
            .iter()
            .find(|flag| flag.name == name)
            .copied()
    }

    /// Sets or clears its flag.
    pub fn apply(self, flags: &mut MountFlags) {
        flags.set(self.flag, self.set);
    }
}

/// Returns whether the mount option `name` is for fstab(5) alone, so that helpers ignore it.
pub fn is_fstab_only(name: &str) -> bool {
    let known = [
        "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev",
        "comment",
    ];
    known.contains(&name) || name.starts_with("x-")
}

fn mount(at: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = sys::fuse::open_device()?;
    let mode = rustix::fs::stat(at)?.st_mode;
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        getuid().as_raw(),
        getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("without a zero");
    rustix::mount::mount(
        options.source.as_str(),
        at,
        Mount::TYPE,
        options.bits(),
        data.as_c_str(),
    )?;
    Ok(device)
}

const FUSERMOUNT: &str = "fusermount3";

/// Mounts with fusermount3, which sends the device descriptor over a socket.
fn mount_with_helper(at: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    // Commas separate options.
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={source},subtype=barge,default_permissions");
    if options.allow_other {
        list.push_str(",allow_other");
    }
    for option in &options.flags {
        list.push(',');
        list.push_str(option.name);
    }
    let (ours, theirs) = UnixStream::pair()?;
    fcntl_setfd(&theirs, FdFlags::empty())?;
    run_helper(
        Command::new(FUSERMOUNT)
            .args(["-o", &list, "--"])
            .arg(at)
            .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string()),
    )?;
    drop(theirs);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(&ours, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    device.ok_or_else(|| io::Error::other(format!("{FUSERMOUNT} sent no descriptor")))
}

fn run_helper(command: &mut Command) -> io::Result<()> {
    let output = sys::signals::use_defaults(command).output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other(format!(
            "{FUSERMOUNT} is not installed (package fuse3); users other than root need it to mount"
        )),
        _ => error,
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(stderr.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_contrary_options_counts() {
        let options = |names: &[&str]| MountOptions {
            flags: names
                .iter()
                .filter_map(|name| MountFlag::named(name))
                .collect(),
            ..MountOptions::default()
        };
        assert_eq!(options(&["ro", "rw"]).bits(), MountFlags::empty());
        let both = MountFlags::RDONLY | MountFlags::NOSUID;
        assert_eq!(options(&["rw", "nosuid", "ro"]).bits(), both);
        assert_eq!(MountFlag::named("cache"), None);
    }
}
