//! MOUNT.

use nfs::mount::{Export, Path, Status};
use nfs::v3::{CreateOk, Handle, List, MkDirArgs, NameArgs, Procedure, SymlinkArgs, Wcc};

use crate::net::{MOUNT, Net, nothing, whole};

#[test]
fn a_path_leads_to_the_root_or_a_directory_below() {
    let net = Net::new();
    let root = net.root();
    let place = NameArgs {
        dir: root,
        name: b"sub",
    };
    let attributes = nothing();
    let args = MkDirArgs { place, attributes };
    let made: Result<CreateOk, (_, Wcc)> = net.v3(Procedure::MkDir, &args);
    let sub = made.expect("made").object.expect("a handle");
    for path in ["/", "", "/data", "data", "/data/", "//."] {
        assert_eq!(net.mounted(path.as_bytes()), Ok(root), "{path}");
    }
    for path in ["/sub", "/data/sub", "data/./sub/"] {
        assert_eq!(net.mounted(path.as_bytes()), Ok(sub), "{path}");
    }
}

/// Creates a directory, or a link to `target`, with this name in `dir`.
fn make(net: &Net, dir: Handle, name: &[u8], target: Option<&[u8]>) -> Handle {
    let place = NameArgs { dir, name };
    let attributes = nothing();
    let made: Result<CreateOk, (_, Wcc)> = match target {
        None => net.v3(Procedure::MkDir, &MkDirArgs { place, attributes }),
        Some(target) => {
            let args = SymlinkArgs {
                place,
                attributes,
                target,
            };
            net.v3(Procedure::Symlink, &args)
        }
    };
    made.expect("made").object.expect("a handle")
}

#[test]
fn links_are_followed_within_the_export() {
    let net = Net::new();
    let root = net.root();
    let [a, b] = [&b"a"[..], b"b"].map(|name| make(&net, root, name, None));
    let deep = make(&net, a, b"deep", None);
    make(&net, root, b"to-a", Some(b"a"));
    make(&net, root, b"to-deep", Some(b"to-a//./deep/"));
    make(&net, deep, b"to-b", Some(b"../../b"));
    make(&net, deep, b"up", Some(b".."));
    for (path, found) in [
        ("/to-a", a),
        ("/data/to-a/deep", deep),
        ("/to-deep", deep),
        ("/to-deep/to-b", b),
        ("/to-deep/up/deep/to-b/../to-a", a),
        ("/a/../b", b),
    ] {
        assert_eq!(net.mounted(path.as_bytes()), Ok(found), "{path}");
    }
}

#[test]
fn no_path_leads_out() {
    let net = Net::new();
    net.file(b"f", 0o644);
    let root = net.root();
    let dir = make(&net, root, b"dir", None);
    make(&net, root, b"host", Some(b"/"));
    make(&net, dir, b"out", Some(b"../.."));
    make(&net, dir, b"out-and-in", Some(b"../../data/dir"));
    make(&net, root, b"file", Some(b"f"));
    make(&net, root, b"around", Some(b"around"));
    for (path, status) in [
        (&b"/.."[..], Status::Acces),
        (b"/data/../etc", Status::Acces),
        (b"/none", Status::Noent),
        (b"/f", Status::Notdir),
        (b"/f/..", Status::Notdir),
        (b"/host", Status::Acces),
        (b"/host/etc", Status::Acces),
        (b"/dir/out", Status::Acces),
        (b"/dir/out-and-in", Status::Acces),
        (b"/file", Status::Notdir),
        (b"/around", Status::Io),
        (&[b'/'; 1025], Status::Nametoolong),
    ] {
        assert_eq!(net.mounted(path), Err(status), "{}", path.escape_ascii());
    }
}

#[test]
fn exports_are_listed_and_mounts_are_not_kept() {
    let net = Net::new();
    let listed: List<Export<'_>> = whole(net.call((MOUNT, 3, 5), &()).expect("results"));
    assert_eq!(listed.0[0].path, b"/data");
    assert_eq!(listed.0[0].groups.0, [&b"10.0.0.0/8"[..], b"*"]);
    assert_eq!(net.call((MOUNT, 3, 2), &()), Ok(&[0; 4][..]));
    for (procedure, results) in [(0, &b""[..]), (4, b"")] {
        assert_eq!(net.call((MOUNT, 3, procedure), &()), Ok(results));
    }
    let path = Path { bytes: b"/" };
    assert_eq!(net.call((MOUNT, 3, 3), &path), Ok(&b""[..]));
    assert_eq!(net.call((MOUNT, 1, 3), &path), Err(2), "another version");
}
