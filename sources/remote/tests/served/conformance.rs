//! The shared suite over remote, a socket pair, the engine, the 9P server and a tree in memory.

use p9::Dialect;
use vfs_testkit::{Profile, TestSubject};

use crate::net::Served;

/// The limits of 9P2000.L.
pub(crate) fn linux() -> Profile {
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

fn subject(version: Dialect, msize: u32, profile: Profile) -> TestSubject {
    let served = Served::new();
    let mut subject = TestSubject::new(served.speaking(version, msize), profile);
    subject.keep_alive = Box::new(served);
    subject
}

mod large_messages {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject(p9::Dialect::Linux, (1 << 20) + 24, super::linux())
    }

    vfs_testkit::conformance!(subject);
}

mod small_messages {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject(p9::Dialect::Linux, 8192, super::linux())
    }

    vfs_testkit::conformance!(subject);
}

mod over_a_link_that_comes_again {
    use remote::ninep::{Options, ReconnectingLink, Remote9p, Retry};

    fn subject() -> vfs_testkit::TestSubject {
        let served = super::Served::new();
        let dial = Box::new(|| Err(std::io::ErrorKind::ConnectionRefused.into()));
        let link = ReconnectingLink::new(Box::new(served.link()), dial, Retry::default());
        let options = Options {
            uname: "root".into(),
            ..Options::default()
        };
        let tree = Remote9p::connect(link.expect("a link"), options).expect("attached");
        let mut subject = vfs_testkit::TestSubject::new(tree, super::linux());
        subject.keep_alive = Box::new(served);
        subject
    }

    vfs_testkit::conformance!(subject);
}

/// The further limits of 9P2000.u.
pub(crate) fn unix() -> Profile {
    const CLOCK: &str = "there is no word for the server's clock";
    const LINKS: &str = "links are not counted";
    const MOVES: &str = "files are renamed within their directory only";
    let more = [
        ("attributes::now_is_the_sources_clock", CLOCK),
        ("permissions::times_are_the_owners", CLOCK),
        (
            "permissions::noatime_is_the_owners",
            "there is no word for it",
        ),
        ("lookup::statfs_makes_sense", "figures are made up"),
        ("links::a_symlink_itself_is_linked", LINKS),
        ("links::many_links", LINKS),
        ("links::two_names_one_file", LINKS),
        ("rename::rename_between_links_does_nothing", LINKS),
        ("rename::rename_replaces_a_file", LINKS),
        ("unlinked::a_node_outlasts_its_name", LINKS),
        ("unlinked::an_open_file_outlasts_its_name", LINKS),
        ("limits::names_of_255_bytes", MOVES),
        ("lookup::the_parent_follows_a_rename", MOVES),
        (
            "permissions::changing_a_directory_needs_write_permission",
            MOVES,
        ),
        (
            "permissions::moving_a_directory_needs_write_permission_on_it",
            MOVES,
        ),
        ("rename::a_renamed_node_stays_itself", MOVES),
        ("rename::an_open_file_survives_rename", MOVES),
        ("rename::moves_at_a_time_make_no_loop", MOVES),
        ("rename::no_directory_moves_into_itself", MOVES),
        ("rename::nothing_replaces_its_own_ancestor", MOVES),
        ("unlink::a_removed_directory_takes_nothing", MOVES),
    ];
    let mut profile = linux();
    profile.skip.extend(more);
    Profile {
        time_step: 1_000_000_000,
        dir_links: false,
        atime: false,
        ..profile
    }
}

mod with_9p2000_u {
    fn subject() -> vfs_testkit::TestSubject {
        super::subject(p9::Dialect::Unix, 65536, super::unix())
    }

    vfs_testkit::conformance!(subject);
}
