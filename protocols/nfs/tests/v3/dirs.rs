//! READDIR, READDIRPLUS.

use std::collections::BTreeSet;

use nfs::v3::*;

use crate::net::{Net, nothing};

const FILES: usize = 60;

fn filled() -> Net {
    let net = Net::new();
    for number in 0..FILES {
        net.file(format!("file-{number}").as_bytes(), 0o644);
    }
    net
}

fn readdir(
    net: &Net,
    cookie: u64,
    count: u32,
) -> Result<ReadDirOk<'static>, (Status, Option<Attributes>)> {
    let args = ReadDirArgs {
        dir: net.root(),
        cookie,
        verifier: [0; 8],
        count,
    };
    net.v3(Procedure::ReadDir, &args)
}

fn readdirplus(
    net: &Net,
    cookie: u64,
    counts: (u32, u32),
) -> Result<ReadDirPlusOk<'static>, (Status, Option<Attributes>)> {
    let args = ReadDirPlusArgs {
        dir: net.root(),
        cookie,
        verifier: [0; 8],
        dir_count: counts.0,
        max_count: counts.1,
    };
    net.v3(Procedure::ReadDirPlus, &args)
}

#[test]
fn a_listing_in_pieces_has_every_name_once() {
    let net = filled();
    for count in [150, 400, 1 << 16] {
        let (mut cookie, mut names) = (0, Vec::new());
        loop {
            let listed = readdir(&net, cookie, count).expect("listed");
            assert!(listed.attributes.is_some());
            for entry in &listed.entries.0 {
                assert_ne!((entry.fileid, entry.cookie), (0, 0));
                names.push(entry.name);
                cookie = entry.cookie;
            }
            if listed.eof {
                break;
            }
        }
        assert_eq!(names[..2], [&b"."[..], b".."]);
        assert_eq!(names.len(), FILES + 2, "{count}");
        assert_eq!(BTreeSet::from_iter(names).len(), FILES + 2);
    }
}

#[test]
fn answers_are_as_long_as_was_asked_for() {
    let net = filled();
    let mut last = 0;
    for count in (120..2000).step_by(40) {
        let Ok(listed) = readdir(&net, 0, count) else {
            continue;
        };
        let entry = |entry: &Entry<'_>| 4 + 8 + 4 + entry.name.len().next_multiple_of(4) + 8;
        let size = 4 + 84 + 8 + listed.entries.0.iter().map(entry).sum::<usize>() + 4 + 4;
        assert!(size <= count as usize, "{size} {count}");
        assert!(listed.entries.0.len() >= last && !listed.eof);
        last = listed.entries.0.len();
    }
    assert!(last > 30);
    assert_eq!(
        readdir(&net, 0, 100).expect_err("no room").0,
        Status::Toosmall
    );
}

#[test]
fn with_entries_come_attributes_and_handles() {
    let net = filled();
    let (mut cookie, mut count) = (0, 0);
    loop {
        let listed = readdirplus(&net, cookie, (1 << 16, 4000)).expect("listed");
        for EntryPlus {
            entry,
            attributes,
            object,
        } in &listed.entries.0
        {
            let object = object.expect("a handle");
            let attributes = attributes.expect("attributes");
            assert_eq!(attributes.fileid, entry.fileid);
            // The attributes of `.` and `..` have changed, because the directory has been read.
            if !entry.name.starts_with(b".") {
                let found = net.lookup(net.root(), entry.name).expect("found");
                assert_eq!(found.object, object);
                assert_eq!(found.attributes, Some(attributes));
            }
            cookie = entry.cookie;
            count += 1;
        }
        if listed.eof {
            break;
        }
    }
    assert_eq!(count, FILES + 2);
    let few = readdirplus(&net, 0, (100, 4000)).expect("listed");
    assert_eq!(few.entries.0.len(), 3, "of 28, 28 and 36 bytes");
}

#[test]
fn only_directories_are_listed() {
    let net = Net::new();
    let args = ReadDirArgs {
        dir: net.file(b"f", 0o644),
        cookie: 0,
        verifier: [0; 8],
        count: 1000,
    };
    let listed: Result<ReadDirOk<'_>, (Status, Option<Attributes>)> =
        net.v3(Procedure::ReadDir, &args);
    assert_eq!(listed.expect_err("a file").0, Status::Notdir);
}

#[test]
fn who_may_only_search_a_directory_does_not_list_it() {
    let net = Net::new();
    let mode = SetAttributes {
        mode: Some(0o711),
        ..nothing()
    };
    net.setattr(net.root(), mode, None).expect("set");
    let user = net.of_user(1000);
    let listed = readdir(&user, 0, 1000);
    assert_eq!(listed.expect_err("only searched").0, Status::Acces);
    assert!(readdir(&net, 0, 1000).is_ok());
}
