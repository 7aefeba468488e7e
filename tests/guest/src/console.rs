//! The kernel console: detection of messages that make a run fail although its script succeeded.

/// Messages that a healthy guest never prints.
const ERROR_PATTERNS: &[&str] = &[
    "BUG:",
    "kernel BUG at",
    "Oops",
    "WARNING: CPU",
    // `WARNING: FILE:LINE at FUNCTION, CPU#0: …` of newer kernels, such as 7.2.
    ", CPU#",
    "general protection fault",
    "Kernel panic",
    "blocked for more than",
    "possible circular locking",
    "possible recursive locking",
    "inconsistent lock state",
    "rcu_sched self-detected",
    "rcu_preempt self-detected",
    "rcu: INFO:",
    "soft lockup",
    "Unable to handle",
    "refcount_t:",
    "Objects remaining",
    "Slab cache still has objects",
    "Out of memory",
    "segfault at",
    "traps:",
    "not responding, timed out",
    "Busy inodes after unmount",
    "VFS: Close: file count",
    "list_add corruption",
    "list_del corruption",
];

/// Subsystems of the file system under test: their messages above debug level are complaints,
/// except those in `HARMLESS`.
const WATCHED_SUBSYSTEMS: &[&str] = &[
    "9p:",
    "9pnet:",
    "9pnet_fd:",
    "9p_fd:",
    "netfs:",
    "fscache:",
    "FS-Cache:",
    "fuse:",
    "virtio-fs:",
    "virtiofs:",
    "nfs:",
    "NFS:",
    "RPC:",
    "lockd:",
];

const HARMLESS: &[&str] = &[
    // Printed once when a module is loaded.
    "Installing v9fs 9p2000 file system support",
    "Installing 9P2000 support",
    "FS-Cache: Loaded",
    "netfs: FS-Cache loaded",
    "Registered named UNIX socket transport",
    "Registered udp transport",
    "Registered tcp transport",
    "Registered tcp NFSv4.1 backchannel",
    "Registered tcp-with-tls transport",
    "Registering the id_resolver key type",
];

/// Harmless messages of NFS in one case: its name, a part of the message, and its end.
const HARMLESS_IN: &[(&str, &str, &str)] = &[
    // Linux takes requests for locks that are in flight when it reclaims for lost locks
    // (`nfs4_reclaim_open_state`). The script always requests locks, and a second client tries to
    // get those that the guest holds.
    ("takeover", ": lost ", " locks"),
];

/// The marker that stage two writes to the kernel log at the start of each case; after the last
/// case it names `-`.
const CASE_MARKER: &str = "barge-guest: case ";

/// Returns the complaints in a console log during a case, or outside of any.
pub(crate) fn kernel_errors_in(log: &str, case: Option<&str>) -> Vec<String> {
    let mut current = None;
    let mut found = Vec::new();
    for line in log.lines().map(str::trim_end) {
        if let Some((_, name)) = line.split_once(CASE_MARKER) {
            current = (name != "-").then_some(name);
        } else if current == case && is_kernel_error(line) && !is_harmless_in(case, line) {
            found.push(line.to_owned());
        }
    }
    found
}

fn is_harmless_in(case: Option<&str>, line: &str) -> bool {
    HARMLESS_IN.iter().any(|(name, text, end)| {
        case == Some(name) && line.contains("] NFS: ") && line.contains(text) && line.ends_with(end)
    })
}

fn is_kernel_error(line: &str) -> bool {
    // A kernel message: `[   12.345678] text`; other lines come from the init script.
    let Some((_, text)) = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
    else {
        return false;
    };
    let watched = WATCHED_SUBSYSTEMS
        .iter()
        .any(|prefix| text.starts_with(prefix));
    ERROR_PATTERNS.iter().any(|bad| text.contains(bad))
        || (watched && !HARMLESS.iter().any(|harmless| text.contains(harmless)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_found_and_greetings_are_not() {
        let log = "[    0.1] Linux version 6.12\r\n[    1.0] 9p: Installing v9fs 9p2000 file system support\r\n\
                   [    0.5] Spectre V2 : WARNING: Unprivileged eBPF is enabled\r\nBUG: said by a script\r\n\
                   [    2.0] barge-guest: case git\r\n\
                   [    9.5] 9pnet: bogus RWRITE count (8192 > 4096)\r\n[   10.0] WARNING: CPU: 1 PID: 77 at fs/netfs/x.c:1\r\n\
                   [   10.5] WARNING: fs/netfs/x.c:1 at netfs_x+0x1/0x2, CPU#0: git/77\r\n\
                   [   11.0] barge-guest: case fio\r\n\
                   [  130.0] INFO: task fio:123 blocked for more than 120 seconds.\r\n\
                   [  140.0] barge-guest: case -\r\n[  141.0] VFS: Busy inodes after unmount of 9p\r\n";
        assert_eq!(kernel_errors_in(log, None).len(), 1);
        let git = kernel_errors_in(log, Some("git"));
        assert_eq!(git.len(), 3, "{git:?}");
        assert!(git[0].ends_with("(8192 > 4096)"));
        assert_eq!(kernel_errors_in(log, Some("fio")).len(), 1);
    }

    #[test]
    fn requests_in_flight_are_no_lost_locks_of_the_case_that_sends_them() {
        let log = |case| {
            format!(
                "[    2.0] barge-guest: case {case}\r\n[    9.5] NFS: 10.0.2.3: lost 2 locks\r\n\
                 [    9.6] NFS: nfs4_reclaim_open_state: unhandled error -10026\r\n"
            )
        };
        assert_eq!(kernel_errors_in(&log("restart"), Some("restart")).len(), 2);
        let takeover = kernel_errors_in(&log("takeover"), Some("takeover"));
        assert_eq!(takeover.len(), 1, "{takeover:?}");
        assert!(takeover[0].contains("unhandled error"));
    }
}
