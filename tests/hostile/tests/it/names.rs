//! Invalid names, and paths that lead out of the tree.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use hostile::raw_client::{ROOT, RawClient, attach, create};
use hostile::server::{Server, Transport, host_dir};
use p9::{Fid, Names, Tmessage as T};
use vfs::Errno;

use crate::over_both;

const ONE: Fid = Fid(1);
const TWO: Fid = Fid(2);

fn bad_names() -> Vec<Vec<u8>> {
    vec![
        b"".into(),
        b".".into(),
        b"..".into(),
        b"/".into(),
        b"/etc/passwd".into(),
        b"../outside".into(),
        b"there/..".into(),
        b"a/b".into(),
        b"\0".into(),
        b"there\0".into(),
        b"..\0".into(),
        vec![b'x'; 256],
        vec![b'x'; 4096],
        vec![b'/'; 7000],
    ]
}

/// Returns every request that takes a name, with `name`; [`ONE`] is a file in the directory
/// [`ROOT`].
fn requests(name: &[u8]) -> Vec<T<'_>> {
    let (mode, gid) = (0o777, 0);
    vec![
        create(ROOT, name),
        T::Symlink {
            fid: ROOT,
            name,
            target: b"/",
            gid,
        },
        T::Mknod {
            dfid: ROOT,
            name,
            mode: 0o100644,
            major: 0,
            minor: 0,
            gid,
        },
        T::Mkdir {
            dfid: ROOT,
            name,
            mode,
            gid,
        },
        T::Link {
            dfid: ROOT,
            fid: ONE,
            name,
        },
        T::Rename {
            fid: ONE,
            dfid: ROOT,
            name,
        },
        T::Renameat {
            olddirfid: ROOT,
            oldname: name,
            newdirfid: ROOT,
            newname: b"renamed",
        },
        T::Renameat {
            olddirfid: ROOT,
            oldname: b"there",
            newdirfid: ROOT,
            newname: name,
        },
        T::Unlinkat {
            dirfid: ROOT,
            name,
            flags: 0,
        },
        T::Unlinkat {
            dirfid: ROOT,
            name,
            flags: 0x200,
        },
        T::Xattrcreate {
            fid: ROOT,
            name,
            size: 1,
            flags: 0,
        },
    ]
}

fn refuses_bad_names(server: &Server) {
    let mut peer = RawClient::connect_attached(&server.addr, 8192);
    peer.walk(ROOT, ONE, &[b"there"]);
    for name in bad_names() {
        let shown = name.escape_ascii().to_string();
        for request in requests(&name) {
            if let T::Xattrcreate { name, .. } = request
                && !name.is_empty()
                && name.len() <= 255
                && !name.contains(&0)
            {
                // Attribute names may contain slashes and dots.
                continue;
            }
            peer.expect_err(&request);
        }
        let walked = peer.try_walk(ROOT, TWO, &[&name]);
        match &name[..] {
            b"." | b".." => {
                assert_eq!(walked.map(|qids| qids.len()), Ok(1));
                peer.expect_ok(&T::Clunk { fid: TWO });
            }
            _ => assert!(walked.is_err(), "{shown}"),
        }
        // After an existing name, an invalid one ends the walk.
        assert_eq!(
            peer.try_walk(ROOT, TWO, &[b".", &name, b"x", b"y"])
                .map(|qids| qids.len() < 4),
            Ok(true)
        );
    }
    peer.walk(ROOT, TWO, &[b"there"]);
}

#[test]
fn bad_names_are_refused_by_a_tree_in_memory() {
    over_both(|server| {
        RawClient::connect_attached(&server.addr, 8192).create(ONE, b"there");
        refuses_bad_names(server);
    });
}

/// Makes a directory `outside`, and serves a directory in it with a file `there`.
fn host() -> (tempfile::TempDir, Server) {
    let outside = tempfile::tempdir().expect("a directory");
    let served = outside.path().join("served");
    fs::create_dir(&served).expect("made");
    fs::write(served.join("there"), b"inside").expect("written");
    fs::write(outside.path().join("secret"), b"outside").expect("written");
    let server = Server::new(Transport::Unix, host_dir(&served, None));
    (outside, server)
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path().display().to_string())
        .collect();
    names.sort();
    names
}

#[test]
fn bad_names_are_refused_by_a_host_directory_and_change_nothing_outside() {
    let (outside, server) = host();
    let before =
        [outside.path().to_owned(), outside.path().join("served")].map(|dir| listing(&dir));
    refuses_bad_names(&server);
    let after = [outside.path().to_owned(), outside.path().join("served")].map(|dir| listing(&dir));
    assert_eq!(before, after);
}

#[test]
fn dots_lead_no_further_than_the_root() {
    let (_outside, server) = host();
    let mut peer = RawClient::connect_attached(&server.addr, 8192);
    let root = peer.walk(ROOT, ONE, &[b"."])[0];
    for qid in peer.walk(ROOT, TWO, &[&b".."[..]; 16]) {
        assert_eq!(qid, root);
    }
    assert_eq!(
        peer.try_walk(TWO, Fid(3), &[b"..", b"secret"])
            .map(|qids| qids.len()),
        Ok(1)
    );
    for aname in [
        &b".."[..],
        b"/..",
        b"../secret",
        b"/etc",
        b"there/../..",
        b"\0",
        b"./../served",
    ] {
        let attach = match attach(aname) {
            T::Attach {
                afid,
                uname,
                aname,
                n_uname,
                ..
            } => T::Attach {
                fid: Fid(9),
                afid,
                uname,
                aname,
                n_uname,
            },
            other => other,
        };
        peer.expect_err(&attach);
    }
}

#[test]
fn links_that_lead_outside_are_not_followed() {
    let (outside, server) = host();
    let served = outside.path().join("served");
    symlink("/", served.join("slash")).expect("made");
    symlink("..", served.join("dots")).expect("made");
    symlink("../secret", served.join("leak")).expect("made");
    let mut peer = RawClient::connect_attached(&server.addr, 8192);
    for (link, name) in [("slash", "etc"), ("dots", "secret"), ("leak", "x")] {
        let walked = peer.try_walk(ROOT, ONE, &[link.as_bytes(), name.as_bytes()]);
        assert_eq!(walked.map(|qids| qids.len()), Ok(1), "{link}");
        peer.walk(ROOT, ONE, &[link.as_bytes()]);
        for flags in [0, 2, 0o1002, 0o200000] {
            peer.expect_err(&T::Lopen { fid: ONE, flags });
        }
        for request in requests(b"new") {
            // The link does not work as a directory.
            match request {
                T::Mkdir {
                    name, mode, gid, ..
                } => peer.expect_err(&T::Mkdir {
                    dfid: ONE,
                    name,
                    mode,
                    gid,
                }),
                T::Symlink {
                    name, target, gid, ..
                } => peer.expect_err(&T::Symlink {
                    fid: ONE,
                    name,
                    target,
                    gid,
                }),
                T::Lcreate { name, .. } => peer.expect_err(&create(ONE, name)),
                _ => Errno::EIO,
            };
        }
        // Nor as the name of a file to create.
        peer.walk(ROOT, TWO, &[]);
        assert!(peer.try_create(TWO, link.as_bytes()).is_err());
        peer.expect_ok(&T::Clunk { fid: TWO });
        peer.expect_ok(&T::Clunk { fid: ONE });
    }
    assert_eq!(
        fs::read(outside.path().join("secret")).expect("there"),
        b"outside"
    );
    assert!(!outside.path().join("new").exists());
}

#[test]
fn more_names_than_a_walk_may_have_are_refused() {
    over_both(|server| {
        let mut peer = RawClient::connect_attached(&server.addr, 8192);
        // Encoded by hand: the encoder asserts that the count is valid.
        let mut walk = vec![0, 0, 0, 0, 110, 1, 0];
        walk.extend([0; 4]);
        walk.extend([1, 0, 0, 0]);
        walk.extend(17u16.to_le_bytes());
        walk.extend([1, 0, b'.'].repeat(17));
        let size = walk.len() as u32;
        walk[..4].copy_from_slice(&size.to_le_bytes());
        peer.send(&walk);
        assert!(hostile::raw_client::errno(&peer.reply().1).is_some());
        assert_eq!(peer.expect_err(&T::Clunk { fid: ONE }), Errno::EBADF);
        let dots = [&b"."[..]; 16];
        let names = Names::new(&dots);
        peer.expect_ok(&T::Walk {
            fid: ROOT,
            newfid: ONE,
            names,
        });
    });
}
