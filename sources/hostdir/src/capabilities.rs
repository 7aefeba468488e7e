//! The capabilities of an export, determined once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags};
use rustix::io::Errno as Raw;
use rustix::thread::CapabilitySet;
use sys::errno;
use vfs::{Capabilities, Kind, Patience, Result, Support};

use crate::changes::{self, FileSystemWatch};
use crate::node::HostNode;
use crate::proc_fd::ProcPath;
use crate::tree::Tree;

/// Returns an error that states what is missing if the kernel or a sandbox has no openat2(2).
pub(crate) fn require_openat2(fd: BorrowedFd<'_>) -> io::Result<()> {
    // If the root is a file the call returns ENOTDIR, which also proves that it exists.
    match rustix::fs::openat2(fd, c".", OFlags::PATH, Mode::empty(), ResolveFlags::BENEATH) {
        Err(Raw::NOSYS | Raw::PERM) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "expected the openat2 system call (Linux 5.6 or later, and permitted by the sandbox)",
        )),
        _ => Ok(()),
    }
}

/// File systems that can share blocks between files.
const CLONE_FILE_SYSTEMS: [u64; 5] = [
    0x9123_683e, // btrfs
    0x5846_5342, // XFS, since 2018 unless made without
    0xca45_1a4e, // bcachefs
    0x7461_636f, // OCFS2
    0x2fc1_2fc1, // ZFS
];

/// Returns the capabilities of the export of `root`, with owners in extended attributes if
/// `mapped`. `watch` was begun before, if it is set.
pub(crate) fn capabilities(
    root: &HostNode,
    mapped: bool,
    watch: Option<&FileSystemWatch>,
) -> Result<Capabilities> {
    let fd = root.fd(Patience::Full)?;
    let magic = root.device().magic;
    let path = ProcPath::of(fd.as_fd());
    let attribute = |name: &std::ffi::CStr| match rustix::fs::getxattr(
        path.as_c_str(),
        name,
        &mut [0u8; 0][..],
    ) {
        Err(Raw::OPNOTSUPP) => Support::None,
        _ => Support::Native,
    };
    let stat = rustix::fs::fstatvfs(&*fd).map_err(errno)?;
    let read_only = stat.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(Capabilities {
        read_only,
        xattr: attribute(c"user.barge"),
        acl: match mapped {
            true => Support::None,
            false => attribute(c"system.posix_acl_access"),
        },
        host_locks: Support::Native,
        handles: match root.device().mount() {
            Some(_) => Support::Native,
            None => Support::Emulated,
        },
        change: if root.device().stamps_changes() && kernel_at_least(6, 13) {
            Support::Native
        } else {
            Support::Emulated
        },
        changes: changes::support(root, watch),
        holes: Support::Native,
        copy: Support::Native,
        clone: native_if(CLONE_FILE_SYSTEMS.contains(&magic)),
        tmpfile: native_if(root.kind() == Kind::Directory && !read_only && supports_tmpfile(&fd)),
        devices: match mapped {
            true => Support::Emulated,
            false => native_if(sys::caps::have_all(CapabilitySet::MKNOD)),
        },
        owners: match mapped {
            true => Support::Emulated,
            false => native_if(root.host().identity.switches()),
        },
        persistent: true,
        stable_cookies: root.device().has_stable_cookies(),
        no_birth_times: false,
    })
}

fn native_if(yes: bool) -> Support {
    if yes { Support::Native } else { Support::None }
}

fn supports_tmpfile(dir: &crate::descriptors::Fd) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    !matches!(
        rustix::fs::openat(dir, c".", flags, Mode::RUSR),
        Err(Raw::OPNOTSUPP | Raw::ISDIR | Raw::INVAL)
    )
}

fn kernel_at_least(major: u32, minor: u32) -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Returns lines that describe the missing capabilities.
pub(crate) fn limitations(tree: &Tree, root: &HostNode, can: &Capabilities) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |cannot: bool, line: &str| {
        if cannot {
            lines.push(line.to_owned());
        }
    };
    add(
        can.owners == Support::None,
        "all requests run as the user of this process; owners cannot change",
    );
    let by_name = root.device().mount().is_none();
    let recorded = tree.handle_index.is_persistent();
    add(
        by_name && recorded,
        "no kernel file handles: a file that other programs rename is lost to its handles at a restart \
                 and while descriptors are short",
    );
    add(
        by_name && !recorded,
        "no kernel file handles: handles become stale at a restart, and a file that other programs \
                 rename while descriptors are short is lost",
    );
    add(
        can.devices == Support::None,
        "cannot create device nodes (no CAP_MKNOD)",
    );
    add(
        can.xattr == Support::None,
        "the file system has no extended attributes",
    );
    add(can.read_only, "the file system is mounted read-only");
    lines
}
