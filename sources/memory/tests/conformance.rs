//! The shared suite on a tree in memory.

use memory::Memory;
use vfs_testkit::{Profile, TestSubject, clock};

fn subject() -> TestSubject {
    TestSubject::new(Memory::new(clock()), Profile::posix())
}

vfs_testkit::conformance!(subject);
