//! Filters of system calls (seccomp(2)).
//!
//! A filter names the calls that serving takes: memory, threads, waiting, descriptors that the
//! process already has, and reading files. It has no call that executes a program, opens a socket,
//! mounts, traces, loads code into the kernel or maps memory as code. Some processes have further
//! calls: those that serve or write directories, and those that connect to other hosts.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// The reaction to a call that the filter does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Installs no filter.
    None,
    /// Kills the process.
    Kill,
    /// Returns `EPERM`.
    Errno,
    /// Carries the call out; the kernel's log has a line of it.
    Log,
    /// Sends `SIGSYS`, which ends the process unless a debugger handles it.
    Trap,
}

/// The uses of a process that take further calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uses {
    /// See [`crate::Confinement::network`].
    pub(crate) network: bool,
    /// See [`crate::Confinement::directories`].
    pub(crate) directories: bool,
    /// See [`crate::Confinement::changes`].
    pub(crate) changes: bool,
}

/// Installs the filter for the calling thread and those that it starts later.
pub(crate) fn install(action: Action, uses: Uses) -> io::Result<()> {
    let action = match action {
        Action::None => return Ok(()),
        Action::Kill => SeccompAction::KillProcess,
        Action::Errno => SeccompAction::Errno(libc::EPERM as u32),
        Action::Log => SeccompAction::Log,
        Action::Trap => SeccompAction::Trap,
    };
    // The C library tries clone(2) next, whose flags a filter can see.
    let no_clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let no_clone3 = compile(
        no_clone3,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
    )?;
    seccompiler::apply_filter(&no_clone3).map_err(io::Error::other)?;
    let calls = compile(
        calls(uses).map_err(io::Error::other)?,
        action,
        SeccompAction::Allow,
    )?;
    seccompiler::apply_filter(&calls).map_err(io::Error::other)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn compile(
    rules: Rules,
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> io::Result<BpfProgram> {
    let filter = || -> Result<BpfProgram, seccompiler::BackendError> {
        SeccompFilter::new(rules, mismatch, matched, ARCH.try_into()?)?.try_into()
    };
    filter().map_err(io::Error::other)
}

/// Returns the permitted calls, with the conditions for their arguments.
fn calls(uses: Uses) -> Result<Rules, seccompiler::BackendError> {
    let Uses {
        network,
        directories,
        changes,
    } = uses;
    let if_needed = |needed, calls: &'static [i64]| match needed {
        true => calls,
        false => &[],
    };
    let connecting = if_needed(network, CONNECTING);
    let writing = if_needed(directories, WRITING);
    let watching = if_needed(changes, WATCHING);
    let permitted = PERMITTED.iter().chain(connecting);
    let permitted = permitted.chain(writing).chain(watching);
    let mut rules: Rules = permitted.map(|call| (*call, Vec::new())).collect();
    let any_of = |argument, values: &[u64]| -> Result<Vec<SeccompRule>, _> {
        let one = |value: &u64| {
            let condition = SeccompCondition::new(argument, Len::Dword, Op::Eq, *value)?;
            SeccompRule::new(vec![condition])
        };
        values.iter().map(one).collect()
    };
    let without = |argument, bits: i32| -> Result<Vec<SeccompRule>, _> {
        let condition = SeccompCondition::new(argument, Len::Dword, Op::MaskedEq(bits as u64), 0)?;
        Ok(vec![SeccompRule::new(vec![condition])?])
    };
    // Threads, but no processes.
    let thread = libc::CLONE_THREAD as u64;
    let thread = SeccompCondition::new(0, Len::Dword, Op::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
    if !directories {
        // O_RDONLY has no bits.
        let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
        rules.insert(libc::SYS_openat, without(2, writes)?);
        #[cfg(target_arch = "x86_64")]
        rules.insert(libc::SYS_open, without(1, writes)?);
    }
    if !network {
        // No code at run time.
        rules.insert(libc::SYS_mmap, without(2, libc::PROT_EXEC)?);
        rules.insert(libc::SYS_mprotect, without(2, libc::PROT_EXEC)?);
        rules.insert(libc::SYS_prctl, any_of(0, &PRCTL)?);
    }
    if changes {
        rules.insert(libc::SYS_fanotify_init, any_of(0, &[GROUP_FLAGS.into()])?);
    }
    // This process and its threads alone: others of the same user are permitted as well. 0 is the
    // calling process or thread.
    rules.insert(libc::SYS_prlimit64, any_of(0, &[0])?);
    rules.insert(libc::SYS_sched_setaffinity, any_of(0, &[0])?);
    rules.insert(libc::SYS_setpriority, own_thread()?);
    let this = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, any_of(0, &[this])?);
    // A thread's own umask, root and working directory.
    rules.insert(libc::SYS_unshare, any_of(0, &[libc::CLONE_FS as u64])?);
    rules.insert(libc::SYS_ioctl, any_of(1, &IOCTL)?);
    Ok(rules)
}

/// Returns the rule of setpriority(2) for the calling thread.
fn own_thread() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let is = |argument, value| SeccompCondition::new(argument, Len::Dword, Op::Eq, value);
    // PRIO_PROCESS is 0; its type differs between C libraries.
    Ok(vec![SeccompRule::new(vec![is(0, 0)?, is(1, 0)?])?])
}

const PRCTL: [u64; 6] = [
    libc::PR_GET_SECUREBITS as u64,
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    // Names memory, which the C library does for debuggers.
    libc::PR_SET_VMA as u64,
    libc::PR_SET_TIMERSLACK as u64,
    // PR_GET_AUXV (`linux/prctl.h`): the size of a page, for one.
    0x4155_5856,
];

/// TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO and FIOCLEX (`asm-generic/ioctls.h`); FICLONE,
/// FICLONERANGE and FS_IOC_FIEMAP (`linux/fs.h`); FUSE_DEV_IOC_BACKING_OPEN and
/// FUSE_DEV_IOC_BACKING_CLOSE (`linux/fuse.h`). Their type differs between C libraries.
const IOCTL: [u64; 10] = [
    0x5401,
    0x5413,
    0x541B,
    0x5421,
    0x5451,
    0x4004_9409,
    0x4020_940D,
    0xC020_660B,
    0x4010_E501,
    0x4004_E502,
];

/// The call that watches directories with a group of [`GROUP_FLAGS`].
const WATCHING: &[i64] = &[libc::SYS_fanotify_mark];

/// The flags of the groups that report changes: with these, events name objects and carry no
/// descriptors, and no process waits for an answer (`FAN_CLASS_NOTIF` has no bits).
const GROUP_FLAGS: u32 = libc::FAN_CLOEXEC
    | libc::FAN_NONBLOCK
    | libc::FAN_REPORT_FID
    | libc::FAN_REPORT_DFID_NAME
    | FAN_REPORT_TARGET_FID;

/// `linux/fanotify.h`.
const FAN_REPORT_TARGET_FID: u32 = 0x1000;

/// The calls that open files to write them, that change names and attributes, and that take leases.
/// A process without directories opens files to read them only.
const WRITING: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    // Leases of files, which delegations take (`sources/hostdir/src/lease.rs`).
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_linkat,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_open_by_handle_at,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_removexattr,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_setxattr,
    libc::SYS_signalfd4,
    libc::SYS_symlinkat,
    libc::SYS_truncate,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// The further calls of a process that connects to other hosts: sockets, and the libraries by which
/// the C library looks up names (nsswitch.conf(5)).
const CONNECTING: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_prctl,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_socket,
];

/// `cachestat(2)` (`asm-generic/unistd.h`), which musl's headers lack.
const SYS_CACHESTAT: i64 = 451;

/// The calls that are permitted with any arguments.
const PERMITTED: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    // It cannot be executed: execve(2) and executable mappings are not permitted.
    libc::SYS_memfd_create,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads, time and signals of the process itself.
    libc::SYS_clone3,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_membarrier,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_uname,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // Descriptors, and sockets that the process was given.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_pipe2,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Payload.
    SYS_CACHESTAT,
    libc::SYS_copy_file_range,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_write,
    libc::SYS_writev,
    // Files.
    libc::SYS_chdir,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchdir,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_umask,
    // The identity that a request acts as.
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getuid,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    // The older forms of some of these, which the C library uses where they exist.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

#[cfg(test)]
mod tests;
