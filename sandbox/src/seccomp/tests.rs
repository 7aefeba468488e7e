//! Compares the filter with the code of the rooms that a confined process runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// The rooms that a process which serves directories runs. Those that connect to other hosts have
/// libraries besides.
const ROOMS: [&str; 14] = [
    "vfs",
    "concurrency",
    "wire",
    "sys",
    "layers",
    "engine",
    "transports",
    "transports/tls",
    "transports/virtqueue",
    "protocols",
    "images",
    "sources/hostdir",
    "sources/image",
    "sources/memory",
];

/// The functions of rustix and of the C library that confined code calls, and their system calls.
const CONFINED: &[(&str, &[i64])] = &[
    ("acceptfrom_with", &[libc::SYS_accept4]),
    ("capabilities", &[libc::SYS_capget]),
    ("capabilities_secure_bits", &[libc::SYS_prctl]),
    ("chmodat", &[libc::SYS_fchmodat]),
    ("chownat", &[libc::SYS_fchownat]),
    ("copy_file_range", &[libc::SYS_copy_file_range]),
    ("dup", &[libc::SYS_dup]),
    ("dup3", &[libc::SYS_dup3]),
    ("eventfd", &[libc::SYS_eventfd2]),
    ("fadvise", &[libc::SYS_fadvise64]),
    ("fallocate", &[libc::SYS_fallocate]),
    ("fchmod", &[libc::SYS_fchmod]),
    ("fchown", &[libc::SYS_fchown]),
    ("fcntl_add_seals", &[libc::SYS_fcntl]),
    ("fcntl_dupfd_cloexec", &[libc::SYS_fcntl]),
    ("fcntl_get_seals", &[libc::SYS_fcntl]),
    ("fcntl_getfl", &[libc::SYS_fcntl]),
    ("fcntl_setfd", &[libc::SYS_fcntl]),
    ("fcntl_setfl", &[libc::SYS_fcntl]),
    ("fcntl_setpipe_size", &[libc::SYS_fcntl]),
    ("fdatasync", &[libc::SYS_fdatasync]),
    ("flock", &[libc::SYS_flock]),
    ("fstat", &[libc::SYS_fstat]),
    ("fstatfs", &[libc::SYS_fstatfs]),
    ("fstatvfs", &[libc::SYS_fstatfs]),
    ("fsync", &[libc::SYS_fsync]),
    ("ftruncate", &[libc::SYS_ftruncate]),
    ("futimens", &[libc::SYS_utimensat]),
    ("getegid", &[libc::SYS_getegid]),
    ("geteuid", &[libc::SYS_geteuid]),
    ("getgid", &[libc::SYS_getgid]),
    ("getgroups", &[libc::SYS_getgroups]),
    ("getpeername", &[libc::SYS_getpeername]),
    ("getrlimit", &[libc::SYS_prlimit64]),
    ("getsockname", &[libc::SYS_getsockname]),
    ("gettid", &[libc::SYS_gettid]),
    ("getuid", &[libc::SYS_getuid]),
    ("getxattr", &[libc::SYS_getxattr]),
    ("inotify::add_watch", &[libc::SYS_inotify_add_watch]),
    ("inotify::init", &[libc::SYS_inotify_init1]),
    ("inotify::remove_watch", &[libc::SYS_inotify_rm_watch]),
    ("lgetxattr", &[libc::SYS_lgetxattr]),
    ("libc::clock_getcpuclockid", &[libc::SYS_clock_getres]),
    ("libc::clock_gettime", &[libc::SYS_clock_gettime]),
    ("libc::fanotify_init", &[libc::SYS_fanotify_init]),
    ("libc::fanotify_mark", &[libc::SYS_fanotify_mark]),
    ("libc::fcntl", &[libc::SYS_fcntl]),
    ("libc::getrandom", &[libc::SYS_getrandom]),
    ("libc::getrusage", &[libc::SYS_getrusage]),
    ("libc::getsockopt", &[libc::SYS_getsockopt]),
    ("libc::ioctl", &[libc::SYS_ioctl]),
    ("libc::madvise", &[libc::SYS_madvise]),
    ("libc::malloc_trim", &[libc::SYS_madvise, libc::SYS_brk]),
    ("libc::mallopt", &[]),
    ("libc::mmap", &[libc::SYS_mmap]),
    ("libc::name_to_handle_at", &[libc::SYS_name_to_handle_at]),
    ("libc::open_by_handle_at", &[libc::SYS_open_by_handle_at]),
    ("libc::preadv2", &[libc::SYS_preadv2]),
    ("libc::pthread_attr_destroy", &[]),
    ("libc::pthread_attr_getstack", &[]),
    // The C library of GNU asks for the processors of a thread, and musl for the pages of a stack.
    (
        "libc::pthread_getattr_np",
        &[libc::SYS_sched_getaffinity, libc::SYS_mremap],
    ),
    ("libc::pthread_self", &[]),
    ("libc::pthread_sigmask", &[libc::SYS_rt_sigprocmask]),
    ("libc::pwritev", &[libc::SYS_pwritev]),
    ("libc::setfsgid", &[libc::SYS_setfsgid]),
    ("libc::setfsuid", &[libc::SYS_setfsuid]),
    ("libc::setsockopt", &[libc::SYS_setsockopt]),
    ("libc::sigaction", &[libc::SYS_rt_sigaction]),
    ("libc::sigaddset", &[]),
    ("libc::sigemptyset", &[]),
    ("libc::sigfillset", &[]),
    ("libc::signal", &[libc::SYS_rt_sigaction]),
    ("libc::signalfd", &[libc::SYS_signalfd4]),
    ("libc::syscall", &[]),
    ("libc::sysconf", &[libc::SYS_sysinfo]),
    ("libc::truncate64", &[libc::SYS_truncate]),
    ("linkat", &[libc::SYS_linkat]),
    ("listen", &[libc::SYS_listen]),
    ("listxattr", &[libc::SYS_listxattr]),
    ("llistxattr", &[libc::SYS_llistxattr]),
    ("lsetxattr", &[libc::SYS_lsetxattr]),
    ("memfd_create", &[libc::SYS_memfd_create]),
    ("mkdirat", &[libc::SYS_mkdirat]),
    ("mknodat", &[libc::SYS_mknodat]),
    ("mmap", &[libc::SYS_mmap]),
    ("mmap_anonymous", &[libc::SYS_mmap]),
    ("mremap", &[libc::SYS_mremap]),
    ("munmap", &[libc::SYS_munmap]),
    ("open", &[libc::SYS_openat]),
    ("openat", &[libc::SYS_openat]),
    ("openat2", &[libc::SYS_openat2]),
    ("pipe_with", &[libc::SYS_pipe2]),
    ("poll", &[libc::SYS_ppoll]),
    ("pread", &[libc::SYS_pread64]),
    ("preadv", &[libc::SYS_preadv]),
    ("preadv2", &[libc::SYS_preadv2]),
    ("pwrite", &[libc::SYS_pwrite64]),
    ("pwritev2", &[libc::SYS_pwritev2]),
    ("read", &[libc::SYS_read]),
    ("readlinkat", &[libc::SYS_readlinkat]),
    ("readv", &[libc::SYS_readv]),
    ("recv", &[libc::SYS_recvfrom]),
    ("recvmsg", &[libc::SYS_recvmsg]),
    ("removexattr", &[libc::SYS_removexattr]),
    ("renameat_with", &[libc::SYS_renameat2]),
    ("sched_setaffinity", &[libc::SYS_sched_setaffinity]),
    ("seek", &[libc::SYS_lseek]),
    ("send", &[libc::SYS_sendto]),
    ("sendmsg", &[libc::SYS_sendmsg]),
    ("set_capabilities", &[libc::SYS_capset]),
    ("set_thread_groups", &[libc::SYS_setgroups]),
    ("setpriority_process", &[libc::SYS_setpriority]),
    ("setrlimit", &[libc::SYS_prlimit64]),
    ("setxattr", &[libc::SYS_setxattr]),
    ("shutdown", &[libc::SYS_shutdown]),
    ("socketpair", &[libc::SYS_socketpair]),
    ("sockopt", &[libc::SYS_getsockopt, libc::SYS_setsockopt]),
    ("splice", &[libc::SYS_splice]),
    ("stat", &[libc::SYS_newfstatat]),
    ("statat", &[libc::SYS_newfstatat]),
    ("statvfs", &[libc::SYS_statfs]),
    ("statx", &[libc::SYS_statx]),
    ("symlinkat", &[libc::SYS_symlinkat]),
    ("sync", &[libc::SYS_sync]),
    ("syncfs", &[libc::SYS_syncfs]),
    ("umask", &[libc::SYS_umask]),
    ("uname", &[libc::SYS_uname]),
    ("unlinkat", &[libc::SYS_unlinkat]),
    ("unshare_unsafe", &[libc::SYS_unshare]),
    ("utimensat", &[libc::SYS_utimensat]),
    ("write", &[libc::SYS_write]),
    ("writev", &[libc::SYS_writev]),
    ("SYS_faccessat2", &[libc::SYS_faccessat2]),
    ("SYS_getdents64", &[libc::SYS_getdents64]),
];

/// Functions that make no call, and modules.
const PURE: &[&str] = &[
    "buffer",
    "cmsg_space",
    "inotify",
    "major",
    "makedev",
    "minor",
    "netlink",
    "page_size",
    "retry_on_intr",
    "spare_capacity",
    "stdin",
];

/// Functions that a broker or holder calls, or a process before it is confined.
const UNCONFINED: &[&str] = &[
    "SYS_mount_setattr",
    "SYS_quotactl_fd",
    "bind",
    "capability_is_in_bounding_set",
    "chmod",
    "configure_capability_in_ambient_set",
    "connect",
    // The user database, which the broker is asked about.
    "libc::getgrgid_r",
    "libc::getgrnam_r",
    "libc::getgrouplist",
    "libc::getpwnam_r",
    "libc::getpwuid_r",
    "mount",
    "mount_remount",
    "remove_capability_from_bounding_set",
    // Sockets of sock_diag(7), which a process opens before.
    "socket_with",
    "unmount",
];

#[test]
fn the_filter_permits_what_the_rooms_that_serve_call() {
    let uses = Uses {
        network: false,
        directories: true,
        changes: true,
    };
    let permitted = calls(uses).expect("rules");
    let table: BTreeMap<&str, &[i64]> = CONFINED.iter().copied().collect();
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for (name, file) in called() {
        seen.insert(name.clone());
        if PURE.contains(&name.as_str()) || UNCONFINED.contains(&name.as_str()) {
            continue;
        }
        let Some(calls) = table.get(name.as_str()) else {
            problems.push(format!("{}: {name} is in no table", file.display()));
            continue;
        };
        let missing = calls.iter().filter(|call| !permitted.contains_key(call));
        problems.extend(missing.map(|call| {
            let file = file.display();
            format!("{file}: {name} takes the system call {call}, which the filter ends")
        }));
    }
    assert_eq!(problems, Vec::<String>::new());
    // The names are found.
    for name in [
        "inotify::init",
        "libc::signalfd",
        "openat2",
        "SYS_getdents64",
    ] {
        assert!(seen.contains(name), "{name}");
    }
}

/// Returns the functions of rustix and of the C library that [`ROOMS`] name, each with a file.
fn called() -> BTreeMap<String, PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for room in ROOMS {
        collect(&root.join(room), &mut files);
    }
    let mut all = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("text");
        // Tests come last.
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let lines = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let code: String = lines.map(|line| format!("{line}\n")).collect();
        let found = imported(&code).chain(of_module(&code, "inotify"));
        for name in found.chain(of_c_library(&code)) {
            all.insert(name, file.clone());
        }
    }
    all
}

/// Adds the Rust files of a room.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        if path.is_dir() && !["tests", "benches", "examples", "target"].contains(&name) {
            collect(&path, files);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            files.push(path);
        }
    }
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_function(name: &str) -> bool {
    name != "self" && name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Returns the functions and modules after `rustix::` and the names of its modules.
fn imported(code: &str) -> impl Iterator<Item = String> {
    code.split("rustix::").skip(1).flat_map(|mut rest| {
        while let Some((module, after)) = rest.split_once("::")
            && module.chars().all(is_part)
            && is_function(module)
        {
            rest = after;
        }
        let items = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default(),
            None => rest.split(|c| !is_part(c)).next().unwrap_or_default(),
        };
        let names = items.split(',').map(|item| {
            let name = item.trim().split(' ').next().unwrap_or_default();
            name.to_owned()
        });
        names.filter(|name| is_function(name)).collect::<Vec<_>>()
    })
}

/// Returns the functions that are called as those of `module`.
fn of_module(code: &str, module: &str) -> impl Iterator<Item = String> {
    let prefix = format!("{module}::");
    let parts: Vec<_> = code.split(&prefix).skip(1).map(str::to_owned).collect();
    parts.into_iter().filter_map(move |rest| {
        let (name, _) = rest.split_once('(')?;
        (name.chars().all(is_part) && is_function(name)).then(|| format!("{prefix}{name}"))
    })
}

/// Returns the functions of the C library, and the numbers of system calls.
fn of_c_library(code: &str) -> impl Iterator<Item = String> {
    code.split("libc::").skip(1).filter_map(|rest| {
        let end = rest.find(|c| !is_part(c))?;
        let name = &rest[..end];
        if name.starts_with("SYS_") {
            return Some(name.to_owned());
        }
        (rest[end..].starts_with('(') && is_function(name)).then(|| format!("libc::{name}"))
    })
}
