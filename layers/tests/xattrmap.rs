//! Renamed extended attributes, on a tree in memory.

use std::sync::Arc;

use layers::{XattrMap, stack};
use memory::{Memory, Options};
use vfs::{AllocateMode, Caller, Errno, FileSystem, OpenFlags, SetAttr, Support, Time, XattrFlags};
use vfs_testkit::context::{RW, TestNode, W, ok, refused};
use vfs_testkit::run;

const ALICE: Caller = Caller::new(1000, 1000);
const SET: XattrFlags = XattrFlags::empty();
const CAPABILITY: &[u8] = b"security.capability";

/// Returns the root of the same tree with and without the map.
fn both(map: &str, who: &Caller) -> (TestNode, TestNode) {
    let options = Options {
        mode: 0o777,
        ..Options::default()
    };
    let below = Memory::with_options(Arc::new(|| Time { sec: 1, nsec: 0 }), options);
    let above = stack(below.clone(), map.parse::<XattrMap>().expect("a map"));
    (root(above, who), root(below, &Caller::ROOT))
}

fn root(fs: Arc<dyn FileSystem>, who: &Caller) -> TestNode {
    TestNode {
        node: ok(run(who, |cx| fs.root(cx))),
        caller: who.clone(),
    }
}

#[test]
fn attributes_have_other_names_below() {
    let (above, below) = both("/map/trusted./user.virtiofs./", &Caller::ROOT);
    let file = ok(above.file("file", b""));
    let raw = ok(below.lookup("file"));
    ok(file.set_xattr(b"trusted.a", b"1", SET));
    ok(file.set_xattr(b"user.b", b"2", SET));
    ok(raw.set_xattr(b"trusted.host", b"3", SET));
    let mapped = &b"user.virtiofs.trusted.a"[..];
    assert_eq!(ok(raw.xattr(mapped)), b"1");
    assert_eq!(ok(file.xattr(b"trusted.a")), b"1");
    assert_eq!(ok(file.xattrs()), [&b"trusted.a"[..], b"user.b"]);
    refused(file.xattr(mapped), Errno::EPERM);
    refused(file.set_xattr(mapped, b"x", SET), Errno::EPERM);
    refused(file.xattr(b"trusted.host"), Errno::ENODATA);
    ok(file.remove_xattr(b"trusted.a"));
    refused(raw.xattr(mapped), Errno::ENODATA);
}

#[test]
fn what_is_guarded_stays_guarded() {
    let (above, below) = both(":map::user.virtiofs.:", &ALICE);
    let raw = ok(below.file("file", b""));
    for name in [&b"user.a"[..], b"trusted.a", b"security.a"] {
        let name = [b"user.virtiofs.", name].concat();
        ok(raw.set_xattr(&name, b"label", SET));
    }
    ok(raw.chmod(0o600));
    let file = ok(above.lookup("file"));
    assert_eq!(ok(file.xattr(b"security.a")), b"label");
    refused(file.xattr(b"user.a"), Errno::EACCES);
    refused(file.xattr(b"trusted.a"), Errno::ENODATA);
    ok(raw.chmod(0o666));
    ok(file.set_xattr(b"user.a", b"x", SET));
    assert_eq!(ok(file.xattrs()), [&b"security.a"[..], b"user.a"]);
    for name in [&b"trusted.a"[..], b"security.a"] {
        refused(file.set_xattr(name, b"x", SET), Errno::EPERM);
        refused(file.remove_xattr(name), Errno::EPERM);
    }
}

/// As Linux does for the attribute's own name.
#[test]
fn file_capabilities_go_when_a_file_changes() {
    let (above, below) = both(":map::user.virtiofs.:", &ALICE);
    let file = ok(above.file("file", b"content"));
    let raw = ok(below.lookup("file"));
    let open = ok(file.open(RW));
    let cut = SetAttr {
        size: Some(3),
        ..SetAttr::default()
    };
    let kill = SetAttr {
        kill_priv: true,
        ..SetAttr::default()
    };
    let cutting = W | OpenFlags::TRUNC;
    let changes: [(&str, &dyn Fn() -> vfs::Result<()>); 7] = [
        ("write", &|| open.write(0, b"x").map(drop)),
        ("allocate", &|| open.allocate(AllocateMode::Extend, 0, 10)),
        ("truncate", &|| file.truncate(2).map(drop)),
        ("ftruncate", &|| open.set(cut).map(drop)),
        ("kill_priv", &|| file.set(kill).map(drop)),
        ("open", &|| file.open(cutting).map(drop)),
        ("create", &|| above.create("file", cutting, 0o644).map(drop)),
    ];
    let mapped = [b"user.virtiofs.", CAPABILITY].concat();
    for (what, change) in changes {
        ok(raw.set_xattr(&mapped, b"caps", SET));
        ok(file.chmod(0o644));
        assert_eq!(ok(file.xattr(CAPABILITY)), b"caps", "chmod leaves it");
        ok(change());
        refused(file.xattr(CAPABILITY), Errno::ENODATA);
        assert!(ok(raw.xattrs()).is_empty(), "{what}");
    }
    ok(raw.set_xattr(&mapped, b"caps", SET));
    ok(raw.chown(Some(0), Some(0)));
    refused(file.open(W | OpenFlags::TRUNC), Errno::EACCES);
    assert_eq!(ok(file.xattr(CAPABILITY)), b"caps", "nothing was cut");
}

#[test]
fn acls_that_become_mere_attributes_are_not_enforced() {
    let acl = |map: &str| {
        let map = map.parse::<XattrMap>().expect("a map");
        let inner = vfs::Capabilities {
            acl: Support::Native,
            ..Default::default()
        };
        layers::Layer::capabilities(&map, inner).acl
    };
    assert_eq!(acl(":map::user.virtiofs.:"), Support::None);
    assert_eq!(acl("/bad/all/system./system./ /ok/all///"), Support::None);
    assert_eq!(acl(":map:trusted.:user.virtiofs.:"), Support::Native);
}
