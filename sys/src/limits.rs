//! Limits of this process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many descriptors this process may have open now (the soft `RLIMIT_NOFILE`).
pub fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit of open descriptors to the hard one, and says what it is then. A
/// refusal leaves it as it was.
pub fn raise_descriptors() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // Refused only by a sandbox that forbids the call; what the limit is then is the answer.
    let _ = setrlimit(Resource::Nofile, raised);
    make_room();
    descriptors()
}

/// Has the kernel's table of descriptors be large now, while there is one thread. It doubles when it is full, and in a process of several
/// threads whoever opens the file that it is too small for waits each time until all processors have seen the new one (`expand_files` in
/// the kernel's fs/file.c): some 10 ms.
fn make_room() {
    // 8 bytes each, for the caches of a busy server.
    const ROOM: u64 = 16 << 10;
    let last = descriptors().min(ROOM).saturating_sub(1);
    // Without it all works, later.
    let _ = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), last as i32);
}

/// Sets both limits of open descriptors; raising the hard one needs privileges (`EPERM`).
pub fn set_descriptors(limit: u64) -> io::Result<()> {
    let limit = Some(limit);
    let both = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Nofile, both)?;
    make_room();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raising_never_lowers() {
        let before = descriptors();
        assert!(raise_descriptors() >= before);
        assert_eq!(raise_descriptors(), descriptors());
    }
}
