//! The priority of threads.

use rustix::process::setpriority_process;

/// The thread's nice value: the lowest priority.
const NICE: i32 = 19;

/// Lowers the priority of the calling thread, if that is possible.
pub(crate) fn lower_priority() {
    // `None` is this thread alone. A filter of system calls permits no other.
    let _ = setpriority_process(None, NICE);
}
