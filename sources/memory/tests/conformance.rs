//! The shared suite on a tree in memory.

use memory::Memory;
use vfs_testkit::{Profile, Subject, clock};

fn subject() -> Subject {
    Subject::new(Memory::new(clock()), Profile::posix())
}

vfs_testkit::conformance!(subject);
