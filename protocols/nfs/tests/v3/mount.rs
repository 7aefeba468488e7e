//! MOUNT.

use nfs::mount::{Export, Path, Status};
use nfs::v3::{CreateOk, List, MkDirArgs, NameArgs, Procedure, SymlinkArgs, Wcc};

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

#[test]
fn no_path_leads_out_or_through_links() {
    let net = Net::new();
    net.file(b"f", 0o644);
    let place = NameArgs {
        dir: net.root(),
        name: b"link",
    };
    let args = SymlinkArgs {
        place,
        attributes: nothing(),
        target: b"/",
    };
    let _: Result<CreateOk, (_, Wcc)> = net.v3(Procedure::Symlink, &args);
    for (path, status) in [
        (&b"/.."[..], Status::Acces),
        (b"/data/../etc", Status::Acces),
        (b"/none", Status::Noent),
        (b"/f", Status::Notdir),
        (b"/link", Status::Notdir),
        (b"/link/f", Status::Notdir),
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
