//! The shared suite over remote, a socket pair, the engine, the NFS server and a tree in memory.

use remote::nfs::Options;
use vfs_testkit::{Profile, Subject};

use super::net::Served;

/// What NFS cannot say.
pub(super) fn any() -> Profile {
    Profile {
        rename_flags: false,
        skip: vec![],
        ..Profile::posix()
    }
}

fn subject(version: (u32, u32), profile: Profile) -> Subject {
    let served = Served::new();
    let fs = served.mount(Options {
        version: Some(version),
        ..Options::default()
    });
    Subject::new(fs, profile)
}

mod v3 {
    fn subject() -> vfs_testkit::Subject {
        super::subject((3, 0), super::any())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_0 {
    fn subject() -> vfs_testkit::Subject {
        super::subject((4, 0), super::any())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_1 {
    fn subject() -> vfs_testkit::Subject {
        super::subject((4, 1), super::any())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_2 {
    fn subject() -> vfs_testkit::Subject {
        super::subject((4, 2), super::any())
    }

    vfs_testkit::conformance!(subject);
}
