//! The shared suite over remote, a socket pair, the engine, the NFS server and a tree in memory.

use remote::nfs::Options;
use vfs_testkit::{Profile, TestSubject};

use super::net::Served;

/// The limits of NFS.
fn any(more: &[(&'static str, &'static str)]) -> Profile {
    let mut skip = vec![
        ("unlinked::a_node_outlasts_its_name", CLOSED),
        ("unlinked::a_name_used_again_is_another_file", CLOSED),
        ("unlinked::a_symlink_outlasts_its_name", CLOSED),
        (
            "attributes::reading_moves_atime",
            "there is no word for reading without a trace",
        ),
        (
            "permissions::noatime_is_the_owners",
            "there is no word for it",
        ),
    ];
    skip.extend(more);
    Profile {
        rename_flags: false,
        skip,
        ..Profile::posix()
    }
}

pub(crate) fn v3() -> Profile {
    any(&[
        (
            "permissions::an_open_file_outlasts_its_permissions",
            "v3 opens nothing: each read and write is checked by itself",
        ),
        (
            "permissions::reading_and_writing_are_apart",
            "v3 opens nothing: an owner may always write, for a file may have been opened before it lost that",
        ),
    ])
}

const FLOCK: (&str, &str) = (
    "locks::flock_does_not_see_byte_ranges",
    "NFS has one kind of lock",
);

/// The reason for unlinked nodes that are not open.
const CLOSED: &str = "nothing says that it is in use: when its name goes, it goes";

/// The limits of v4 for unlinked nodes.
fn v4(more: &[(&'static str, &'static str)]) -> Profile {
    let mut profile = any(&[FLOCK, ("locks::locks_outlast_names", CLOSED)]);
    profile.skip.extend(more);
    profile
}

pub(super) fn v4_0() -> Profile {
    v4(&[])
}

pub(crate) fn v4_1() -> Profile {
    v4(&[(
        "permissions::extended_attributes_are_guarded",
        "NFS has the attributes of users only",
    )])
}

pub(super) fn subject(version: (u32, u32), profile: Profile) -> TestSubject {
    let served = Served::new();
    let fs = served.mount(Options {
        version: Some(version),
        ..Options::default()
    });
    TestSubject::new(fs, profile)
}

mod v3 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((3, 0), super::v3())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_0 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((4, 0), super::v4_0())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_1 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((4, 1), super::v4_1())
    }

    vfs_testkit::conformance!(subject);
}

mod v4_2 {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject((4, 2), super::v4_1())
    }

    vfs_testkit::conformance!(subject);
}
