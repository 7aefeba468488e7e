//! Network namespaces (network_namespaces(7)).

use rustix::io::Result;
use rustix::thread::UnshareFlags;

/// Moves the calling thread to a new network namespace, whose only interface is a loopback that is
/// down. Processes and threads that it starts later are in that namespace too; other threads are
/// not. Returns `PERM` without `CAP_SYS_ADMIN`.
pub fn enter_new() -> Result<()> {
    // SAFETY: the flag separates the thread's view of the network only. It affects no memory or
    // descriptors.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_a_namespace_alone() {
        let current = || std::fs::read_link("/proc/thread-self/ns/net").expect("procfs");
        let before = current();
        let entered = std::thread::spawn(move || enter_new().map(|()| current()));
        match entered.join().expect("no panic") {
            Ok(entered) => assert_ne!(entered, before),
            Err(error) => assert_eq!(error, rustix::io::Errno::PERM),
        }
        assert_eq!(current(), before);
    }
}
