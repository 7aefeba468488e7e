//! Masks and actions of signals (signal(7)), which a process inherits from its parent and passes on
//! to the programs that it starts. An action with a handler is not passed on: execve(2) makes it
//! the default one.
//!
//! Deliberately absent: handlers, which `signal-hook` has, but for that of [`crate::sigbus`].

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{io, ptr};

/// Undoes what a parent may have left behind that disables a program: unblocks all signals for the
/// calling thread and those that it starts, and gives SIGCHLD its default action, as waitpid(2)
/// fails for children of a process that ignores it.
pub fn reset_inherited() -> io::Result<()> {
    unblock_all()?;
    set_action(libc::SIGCHLD, libc::SIG_DFL)
}

/// Blocks all signals for the calling thread, and for a program that it executes. They stay pending
/// until [`unblock_all`].
pub fn block_all() -> io::Result<()> {
    set_mask(Mask::All)
}

/// Unblocks all signals for the calling thread and those that it starts.
pub fn unblock_all() -> io::Result<()> {
    set_mask(Mask::None)
}

/// Ignores SIGTTOU: a process in the background that writes to a terminal with `stty tostop` would
/// be stopped. A handler does not do: the write would fail.
pub fn ignore_terminal_stop() -> io::Result<()> {
    set_action(libc::SIGTTOU, libc::SIG_IGN)
}

/// Lets `command` start its program with no signal blocked, and with the default actions of the
/// signals that this program ignores. The standard library does so for SIGPIPE.
pub fn use_defaults(command: &mut Command) -> &mut Command {
    let reset = || {
        unblock_all()?;
        set_action(libc::SIGTTOU, libc::SIG_DFL)
    };
    // SAFETY: after fork(2) the closure makes two system calls that are async-signal-safe
    // (signal-safety(7)); it does not allocate, lock, or use memory of other threads. Its errors
    // are numbers.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(reset)
    }
}

/// The signals that a thread blocks.
#[derive(Clone, Copy)]
enum Mask {
    None,
    All,
}

/// Sets the signals that the calling thread blocks.
fn set_mask(mask: Mask) -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the calls fill in and read one signal set that lives here; none keeps it.
    #[allow(unsafe_code)]
    let error = unsafe {
        match mask {
            Mask::None => libc::sigemptyset(set.as_mut_ptr()),
            Mask::All => libc::sigfillset(set.as_mut_ptr()),
        };
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), ptr::null_mut())
    };
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Sets the action of `signal` to `SIG_DFL` or `SIG_IGN`.
fn set_action(signal: libc::c_int, action: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: neither action is a function that could be called.
    #[allow(unsafe_code)]
    let before = unsafe { libc::signal(signal, action) };
    match before {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a mask of the signals of a child, from proc_pid_status(5).
    fn mask(command: &mut Command, name: &str) -> u64 {
        let output = command.arg("/proc/self/status").output().expect("runs");
        let status = String::from_utf8(output.stdout).expect("text");
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(mask.expect("a mask").trim(), 16).expect("a number")
    }

    #[test]
    fn a_child_has_default_actions_and_no_blocked_signal() {
        ignore_terminal_stop().expect("ignored");
        let bit = 1 << (libc::SIGTTOU - 1);
        let ignored = |command: &mut Command| mask(command, "SigIgn:") & bit;
        assert_eq!(ignored(&mut Command::new("cat")), bit);
        assert_eq!(ignored(use_defaults(&mut Command::new("cat"))), 0);
        // This thread receives lease breaks, and blocks their signals.
        let _listener = crate::lease::BreakListener::on_this_thread().expect("listens");
        let blocked = mask(use_defaults(&mut Command::new("cat")), "SigBlk:");
        assert_eq!(blocked, 0);
    }
}
