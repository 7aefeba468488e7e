//! The shared suite over remote, a socket pair, the engine, the 9P server and a tree in memory.

use p9::Dialect;
use vfs_testkit::{Profile, Subject};

use crate::net::Served;

/// What 9P2000.L cannot say.
fn linux() -> Profile {
    Profile {
        groups: false,
        rename_flags: false,
        skip: vec![
            (
                "locks::flock_does_not_see_byte_ranges",
                "9P has one kind of lock",
            ),
            (
                "permissions::the_first_class_decides",
                "an attach names a user, whose groups are the server's to know",
            ),
        ],
        ..Profile::posix()
    }
}

fn subject(version: Dialect, msize: u32, profile: Profile) -> Subject {
    let served = Served::new();
    let mut subject = Subject::new(served.speaking(version, msize), profile);
    subject.keep = Box::new(served);
    subject
}

mod large_messages {
    fn subject() -> vfs_testkit::Subject {
        super::subject(p9::Dialect::Linux, (1 << 20) + 24, super::linux())
    }

    vfs_testkit::conformance!(subject);
}

mod small_messages {
    fn subject() -> vfs_testkit::Subject {
        super::subject(p9::Dialect::Linux, 8192, super::linux())
    }

    vfs_testkit::conformance!(subject);
}
