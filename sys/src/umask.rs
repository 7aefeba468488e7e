//! The file mode creation mask (umask(2)), which Linux keeps for all threads that share their root,
//! working directory and mask (`CLONE_FS` of clone(2)): those of a process, until one unshares.

use rustix::fs::Mode;
use rustix::io::Result;
use rustix::thread::UnshareFlags;

/// Gives the calling thread its own mask, and clears it: files that it creates have exactly the
/// requested modes. Masks of other threads are unchanged. The thread also has its own working
/// directory and root from then on. Returns `PERM` if a sandbox forbids unshare(2).
pub fn clear_own() -> Result<()> {
    // SAFETY: the flag separates the thread's root, working directory and mask only, as copies. It
    // affects no memory or descriptors.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::FS)?;
    }
    rustix::process::umask(Mode::empty());
    Ok(())
}

/// Returns the calling thread's mask, without changing it (proc_pid_status(5), Linux 4.7).
pub fn current() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(mask.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_clears_its_own_mask_alone() {
        let before = current().expect("a mask");
        assert_ne!(before, 0, "the test needs a mask");
        let cleared = std::thread::spawn(|| {
            clear_own().expect("permitted");
            current()
        });
        assert_eq!(cleared.join().expect("no panic"), Some(0));
        assert_eq!(current(), Some(before));
    }
}
