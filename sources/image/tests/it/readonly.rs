//! Refused operations and access checks.

use vfs::{Caller, Errno, Groups, Handle, OpenFlags, SetAttr, XattrFlags};
use vfs_testkit::run;

use crate::bed::Bed;
use crate::compare::root;
use crate::tree::planted;

fn bed() -> Option<Bed> {
    Bed::make(&["-zlz4"], planted().path())
        .inspect_err(|why| eprintln!("skipped: {why}"))
        .ok()
}

#[test]
fn nothing_can_be_changed() {
    let Some(bed) = bed() else { return };
    let fs = bed.open();
    let root = root(&fs);
    let file = root.lookup("text-1").expect("there");
    assert_eq!(root.mkdir("new", 0o755).map(drop), Err(Errno::EROFS));
    assert_eq!(root.mkdir("empty", 0o755).map(drop), Err(Errno::EEXIST));
    assert_eq!(root.symlink("link", b"x").map(drop), Err(Errno::EEXIST));
    assert_eq!(
        root.link("linked-again", &file).map(drop),
        Err(Errno::EROFS)
    );
    assert_eq!(root.unlink("text-1"), Err(Errno::EROFS));
    assert_eq!(root.unlink("none"), Err(Errno::ENOENT));
    assert_eq!(root.rename("text-1", &root, "text-2"), Err(Errno::EROFS));
    assert_eq!(file.open(OpenFlags::WRITE).map(drop), Err(Errno::EROFS));
    assert_eq!(
        file.open(OpenFlags::READ | OpenFlags::TRUNC).map(drop),
        Err(Errno::EROFS)
    );
    assert_eq!(file.set(SetAttr::default()).map(drop), Err(Errno::EROFS));
    assert_eq!(
        file.set_xattr(b"user.a", b"", XattrFlags::empty()),
        Err(Errno::EROFS)
    );
    assert_eq!(file.remove_xattr(b"user.a"), Err(Errno::EROFS));
    assert_eq!(
        root.lookup("fifo")
            .expect("there")
            .open(OpenFlags::READ)
            .map(drop),
        Err(Errno::ENXIO)
    );
    assert_eq!(
        root.lookup("link")
            .expect("there")
            .open(OpenFlags::READ)
            .map(drop),
        Err(Errno::ELOOP)
    );
    assert_eq!(file.lookup("below").map(drop), Err(Errno::ENOTDIR));
}

#[test]
fn permissions_are_those_of_the_image() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: owners need root");
        return;
    }
    let Some(bed) = bed() else { return };
    let fs = bed.open();
    let may_read = |name: &str, uid, gid, groups: &[u32]| {
        let who = Caller {
            uid,
            gid,
            groups: Groups::Known(groups.into()),
        };
        let file = root(&fs).as_caller(&who).lookup(name).expect("found");
        file.open(OpenFlags::READ).is_ok()
    };
    assert!(!may_read("noise-511", 5, 5, &[]) && may_read("noise-511", 0, 0, &[]));
    assert!(may_read("text-513", 5, 5, &[]));
    // An ACL allows user 1000 to read, but not other users.
    assert!(may_read("text-511", 1000, 5, &[]));
    assert!(!may_read("text-511", 1001, 5, &[]));
    let who = Caller::new(5, 5);
    let wide = root(&fs).as_caller(&who).lookup("wide").expect("found");
    assert!(wide.lookup("0").is_ok(), "it may be searched");
    assert_eq!(wide.open(OpenFlags::READ).map(drop), Err(Errno::EACCES));
    let shares = root(&fs).as_caller(&who).lookup("shares-1").expect("found");
    assert_eq!(shares.xattr(b"trusted.overlay.opaque"), Err(Errno::ENODATA));
    assert!(
        !shares
            .xattrs()
            .expect("listed")
            .contains(&b"trusted.overlay.opaque".to_vec())
    );
}

/// A handle comes from a client: it may name any bytes as an inode, in any directory.
#[test]
fn forged_handles_are_stale() {
    let Some(bed) = bed() else { return };
    let genuine = root(&bed.open())
        .lookup("deep")
        .expect("there")
        .handle()
        .expect("a handle");
    // A newly opened image has an empty table of known nodes.
    let fs = bed.open();
    use vfs::FileSystem;
    let resolve = |bytes: &[u8]| {
        let handle = Handle::new(bytes).expect("short");
        run(&Caller::ROOT, |cx| fs.resolve(cx, &handle)).map(drop)
    };
    assert_eq!(resolve(genuine.bytes()), Ok(()));
    for len in 0..genuine.bytes().len() {
        assert_eq!(resolve(&genuine.bytes()[..len]), Err(Errno::ESTALE));
    }
    // A known node is accepted, whatever parent the handle names.
    let mut bytes = genuine.bytes().to_vec();
    bytes[16..24].fill(0xff);
    assert_eq!(resolve(&bytes), Ok(()));
    let nid = u64::from_le_bytes(bytes[8..16].try_into().expect("8"));
    let mut taken = 0;
    for forged in (0..5000).chain([u64::MAX, 1 << 63, u64::MAX / 32]) {
        bytes[8..16].copy_from_slice(&forged.to_le_bytes());
        bytes[16..24].copy_from_slice(&nid.to_le_bytes());
        match resolve(&bytes) {
            Ok(()) => taken += 1,
            answer => assert_eq!(answer, Err(Errno::ESTALE), "{forged}"),
        }
    }
    // The directory itself, its one child, and the root.
    assert!((1..=3).contains(&taken), "{taken}");
}
