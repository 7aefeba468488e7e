//! The priority of threads.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// The thread's nice value: the lowest priority.
const NICE: i32 = 19;

/// Lowers the priority of the calling thread, if that is possible.
pub(crate) fn lower_priority() {
    let _ = setpriority_process(Some(gettid()), NICE);
}
