//! The shared conformance suite on a directory, as far as the standard library goes.

use stdfs::StdFs;
use tempfile::TempDir;
use vfs::{Caller, Groups};
use vfs_testkit::{Profile, TestSubject};

fn subject() -> TestSubject {
    let dir = TempDir::new().expect("a directory");
    let fs = StdFs::open(dir.path()).expect("opened");
    let profile = Profile {
        caller: Caller {
            uid: sys::process::user(),
            gid: sys::process::group(),
            groups: Groups::Unknown,
        },
        identity: false,
        groups: false,
        root: false,
        atime: false,
        dir_links: false,
        rename_flags: false,
        open_unlinked: false,
        skip: SKIP.to_vec(),
        ..Profile::posix()
    };
    let mut subject = TestSubject::new(fs, profile);
    subject.keep_alive = Box::new(dir);
    subject
}

/// The cases that do not apply.
const SKIP: &[(&str, &str)] = &[
    ("attributes::only_files_are_truncated", SPECIAL),
    (
        "attributes::times_of_other_kinds_are_set",
        "std::fs sets no times of links",
    ),
    ("create::no_umask_of_the_server_applies", SPECIAL),
    ("create::pipes_and_sockets_cannot_be_opened", SPECIAL),
    ("links::a_file_lasts_as_long_as_a_name", LINKS),
    ("links::a_symlink_itself_is_linked", LINKS),
    ("links::linking_a_directory_is_eperm", LINKS),
    ("links::linking_an_unlinked_file_is_enoent", LINKS),
    ("links::linking_over_a_name_is_eexist", LINKS),
    ("links::many_links", LINKS),
    ("links::two_names_one_file", LINKS),
    ("lookup::the_parent_follows_a_rename", RENAMES),
    ("readdir::entries_tell_numbers_and_kinds", SPECIAL),
    ("rename::a_renamed_node_stays_itself", RENAMES),
    ("rename::an_open_file_survives_rename", RENAMES),
    ("rename::rename_between_links_does_nothing", LINKS),
    ("rename::rename_replaces_a_file", RENAMES),
];

const SPECIAL: &str = "std::fs makes no special files";

const LINKS: &str = "std::fs counts no hard links";

const RENAMES: &str = "a node is a path";

vfs_testkit::conformance!(subject);
