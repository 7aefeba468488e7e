//! Signals of other threads, as `/proc` shows them (proc_pid_status(5)).

use std::fs;
use std::sync::LazyLock;

/// Returns whether the thread `id` has received a signal that will end its process: one whose
/// default action is to terminate it or to dump core (signal(7)), and which is neither handled,
/// ignored nor blocked. Returns false if that is unknown: there is no such thread, this process may
/// not see it, or `/proc` is not that of this process's PID namespace.
pub fn will_end(id: u32) -> bool {
    if id == 0 || !*IS_OWN_PROC {
        return false;
    }
    let status = fs::read_to_string(format!("/proc/{id}/status"));
    status.is_ok_and(|status| has_ending_signal(&status))
}

/// Whether `/proc` names threads as this process does. One of another PID namespace, mounted in a
/// container for example, gives the same numbers to other threads.
static IS_OWN_PROC: LazyLock<bool> = LazyLock::new(|| {
    let status = fs::read_to_string("/proc/self/status");
    status.is_ok_and(|status| {
        // One number for each namespace from that of `/proc` to that of the process.
        let numbers = field(&status, "NSpid").map(|numbers| numbers.split_whitespace().count());
        numbers.is_none_or(|count| count == 1)
    })
});

/// Returns whether a thread with this status has received a signal that ends it.
fn has_ending_signal(status: &str) -> bool {
    let set = |name| field(status, name).and_then(|set| u64::from_str_radix(set, 16).ok());
    let sets = ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"].map(set);
    let [
        Some(own),
        Some(shared),
        Some(blocked),
        Some(ignored),
        Some(handled),
    ] = sets
    else {
        return false;
    };
    (own | shared) & !(blocked | ignored | handled) & ending() != 0
}

/// Returns the value of a field.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Returns the signals whose default action ends the process: all but those that stop it, continue
/// it or do nothing.
fn ending() -> u64 {
    let others = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    others
        .iter()
        .fold(u64::MAX, |set, &signal| set & !bit(signal))
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A status with these sets: pending for the thread and the process, blocked, ignored, handled.
    fn status(sets: [u64; 5]) -> String {
        let [own, shared, blocked, ignored, handled] = sets;
        format!(
            "Name:\tcat\nPid:\t7\nSigQ:\t0/96\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n\
             SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{handled:016x}\n"
        )
    }

    #[test]
    fn a_signal_ends_a_thread_that_does_nothing_about_it() {
        let term = bit(libc::SIGTERM);
        for ending in [
            [bit(libc::SIGKILL), 0, 0, 0, 0],
            [0, term, 0, 0, bit(libc::SIGALRM)],
            [0, bit(libc::SIGQUIT), term, 0, 0],
            [0, bit(64), 0, 0, 0],
        ] {
            assert!(has_ending_signal(&status(ending)), "{ending:x?}");
        }
        let others = bit(libc::SIGTSTP) | bit(libc::SIGCHLD) | bit(libc::SIGWINCH);
        for going_on in [
            [0, 0, 0, 0, 0],
            [term, 0, term, 0, 0],
            [0, term, 0, term, 0],
            [term, term, 0, 0, term],
            [others, others, 0, 0, 0],
        ] {
            assert!(!has_ending_signal(&status(going_on)), "{going_on:x?}");
        }
    }

    #[test]
    fn a_status_that_is_none_tells_nothing() {
        for text in ["", "SigPnd:\t1ff\n", "SigPnd: x\nShdPnd:\nSigBlk:\n"] {
            assert!(!has_ending_signal(text), "{text:?}");
        }
    }

    #[test]
    fn this_thread_does_not_end() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(*IS_OWN_PROC && !will_end(own) && !will_end(0) && !will_end(u32::MAX));
    }
}
