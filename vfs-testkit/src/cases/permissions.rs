//! Permission checks, for subjects that distinguish callers: path_resolution(7), inode(7).

use vfs::{
    Access, Caller, Device, Errno, Groups, Mode, NewNode, OpenFlags, SetAttr, SetTime, Support,
    Time, XattrFlags,
};

use crate::context::{R, RW, TestContext, TestNode, W, ok, refused};
use crate::needs;

const ALICE: Caller = Caller::new(1000, 1000);
const BOB: Caller = Caller::new(1001, 1001);
const EVERYTHING: Access = Access::all();

/// Creates Alice's file in a directory that is writable for all.
fn alices(test: &TestContext, mode: u32) -> (TestNode, TestNode) {
    let dir = test.world_writable_dir();
    let file = ok(dir.as_caller(&ALICE).file("file", b"content"));
    ok(file.chmod(mode));
    (dir, file)
}

/// A new node belongs to its creator.
pub fn what_is_made_belongs_to_its_maker(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let dir = test.world_writable_dir().as_caller(&ALICE);
    let (file, _open) = ok(dir.create("file", RW, 0o644));
    for node in [
        file,
        ok(dir.mkdir("dir", 0o755)),
        ok(dir.symlink("link", b"x")),
        ok(dir.make("fifo", NewNode::Fifo, Mode::without_umask(0o600))),
    ] {
        let attr = node.attr();
        assert_eq!((attr.uid, attr.gid), (1000, 1000), "{:?}", attr.kind);
    }
}

/// The first applicable class decides: owner, then group, then others.
pub fn the_first_class_decides(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let (_dir, file) = alices(test, 0o644);
    let group = Caller::new(1001, 1000);
    for (mode, alice, group_member, bob) in [
        (0o600, true, false, false),
        (0o060, false, true, false),
        (0o006, false, false, true),
        (0o066, false, true, true),
        (0o606, true, false, true),
        (0o000, false, false, false),
    ] {
        ok(file.chmod(mode));
        for (caller, may) in [(&ALICE, alice), (&group, group_member), (&BOB, bob)] {
            for flags in [R, W, RW] {
                match file.as_caller(caller).open(flags) {
                    Ok(_) => assert!(may, "{mode:o} let {caller:?} in"),
                    Err(errno) => {
                        assert!(!may, "{mode:o} kept {caller:?} out");
                        assert_eq!(errno, Errno::EACCES);
                    }
                }
            }
            let granted = ok(file.as_caller(caller).access(Access::READ | Access::WRITE));
            assert_eq!(!granted.is_empty(), may);
        }
    }
}

/// Read and write permission are independent.
pub fn reading_and_writing_are_apart(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let (_dir, file) = alices(test, 0o444);
    ok(file.open(R));
    refused(file.open(W), Errno::EACCES);
    refused(file.open(RW), Errno::EACCES);
    refused(file.open(R | OpenFlags::TRUNC), Errno::EACCES);
    refused(file.truncate(0), Errno::EACCES);
    ok(file.chmod(0o222));
    ok(file.open(W));
    refused(file.open(R), Errno::EACCES);
    refused(file.open(OpenFlags::EXEC), Errno::EACCES);
    assert_eq!(
        ok(file.as_caller(&test.profile.caller).content()),
        b"content"
    );
}

/// [`OpenFlags::OWNER`] admits the owner only.
pub fn an_owner_may_where_that_counts(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let (dir, file) = alices(test, 0o000);
    for flags in [R, W, RW] {
        refused(file.open(flags), Errno::EACCES);
        ok(file.open(flags | OpenFlags::OWNER));
        refused(
            file.as_caller(&BOB).open(flags | OpenFlags::OWNER),
            Errno::EACCES,
        );
    }
    // 9P2000 opens the files that it creates.
    let closed = ok(dir.as_caller(&ALICE).mkdir("closed", 0o700));
    ok(closed.chmod(0o000));
    refused(closed.open(R | OpenFlags::OWNER), Errno::EACCES);
}

/// Supplementary groups are honoured.
pub fn supplementary_groups_count(test: &TestContext) {
    needs!(
        test.profile.identity && test.profile.groups,
        "supplementary groups"
    );
    let (_dir, file) = alices(test, 0o640);
    let member = |groups: &[u32]| Caller {
        groups: Groups::Known(groups.into()),
        ..BOB
    };
    ok(file.as_caller(&member(&[5, 1000, 7])).open(R));
    refused(file.as_caller(&member(&[5, 7])).open(R), Errno::EACCES);
    refused(file.as_caller(&member(&[])).open(R), Errno::EACCES);
    ok(file.chmod(0o604));
    refused(file.as_caller(&member(&[1000])).open(R), Errno::EACCES);
}

/// The super-user may read and write all files, and execute those that anyone may execute.
pub fn the_super_user_overrides(test: &TestContext) {
    needs!(test.profile.identity && test.profile.root, "a super-user");
    let (_dir, file) = alices(test, 0o000);
    let root = file.as_caller(&Caller::ROOT);
    ok(root.open(RW));
    refused(root.open(OpenFlags::EXEC), Errno::EACCES);
    assert_eq!(ok(root.access(EVERYTHING)), Access::READ | Access::WRITE);
    ok(file.chmod(0o001));
    ok(root.open(OpenFlags::EXEC));
    assert_eq!(ok(root.access(EVERYTHING)), EVERYTHING);
}

/// A directory is searched with execute and listed with read permission.
pub fn searching_and_listing_are_apart(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let dir = ok(test
        .world_writable_dir()
        .as_caller(&ALICE)
        .mkdir("dir", 0o755));
    ok(dir.file("file", b""));
    ok(dir.chmod(0o311));
    ok(dir.as_caller(&BOB).lookup("file"));
    refused(dir.as_caller(&BOB).open(R), Errno::EACCES);
    ok(dir.chmod(0o744));
    refused(dir.as_caller(&BOB).lookup("file"), Errno::EACCES);
    refused(dir.as_caller(&BOB).lookup("missing"), Errno::EACCES);
    assert_eq!(ok(dir.as_caller(&BOB).list()).len(), 1);
}

/// Adding and removing names needs write permission; other errors take precedence.
pub fn changing_a_directory_needs_write_permission(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let commons = test.world_writable_dir();
    let dir = ok(commons.as_caller(&ALICE).mkdir("dir", 0o755));
    ok(dir.file("file", b""));
    ok(dir.mkdir("sub", 0o755));
    let bobs = ok(commons.as_caller(&BOB).file("bobs", b""));
    let (commons, bob) = (commons.as_caller(&BOB), dir.as_caller(&BOB));
    refused(bob.create("new", RW, 0o644), Errno::EACCES);
    refused(bob.mkdir("new", 0o755), Errno::EACCES);
    refused(bob.symlink("new", b"x"), Errno::EACCES);
    refused(bob.link("new", &bobs), Errno::EACCES);
    refused(bob.unlink("file"), Errno::EACCES);
    refused(bob.rmdir("sub"), Errno::EACCES);
    refused(bob.rename("file", &bob, "new"), Errno::EACCES);
    refused(commons.rename("bobs", &bob, "new"), Errno::EACCES);
    refused(bob.unlink("missing"), Errno::ENOENT);
    refused(bob.mkdir("file", 0o755), Errno::EEXIST);
    ok(bob.create("file", R, 0o644));
}

/// In a sticky directory, only the owner of the file or of the directory may remove names.
pub fn sticky_directories_protect_names(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let commons = test.world_writable_dir();
    let dir = ok(commons.as_caller(&ALICE).mkdir("sticky", 0o777));
    ok(dir.chmod(0o1777));
    let bob = dir.as_caller(&BOB);
    ok(dir.file("alices", b""));
    ok(bob.file("bobs", b""));
    let carol = dir.as_caller(&Caller::new(1002, 1002));
    ok(carol.file("carols", b""));
    refused(bob.unlink("alices"), Errno::EPERM);
    refused(bob.rename("alices", &bob, "mine"), Errno::EPERM);
    refused(bob.rename("bobs", &bob, "alices"), Errno::EPERM);
    ok(bob.rename("bobs", &bob, "still-bobs"));
    ok(bob.unlink("still-bobs"));
    ok(dir.unlink("carols"));
    ok(carol.file("more", b""));
    ok(dir.as_caller(&test.profile.caller).unlink("more"));
}

/// In a set-gid directory, new nodes have its group, and new directories inherit the bit.
pub fn set_gid_directories_pass_their_group_on(test: &TestContext) {
    needs!(
        test.profile.identity && test.profile.root,
        "callers and groups"
    );
    let dir = test.world_writable_dir();
    ok(dir.chown(None, Some(2000)));
    ok(dir.chmod(0o2777));
    let alice = dir.as_caller(&ALICE);
    let file = ok(alice.file("file", b"")).attr();
    assert_eq!((file.uid, file.gid, file.mode), (1000, 2000, 0o644));
    let sub = ok(alice.mkdir("sub", 0o755)).attr();
    assert_eq!((sub.gid, sub.mode), (2000, 0o2755));
    let program = ok(alice.create("program", RW, 0o2775)).0.attr();
    assert_eq!(
        program.mode, 0o775,
        "who is not of the group makes no set-gid program"
    );
}

/// Only the owner may change permissions.
pub fn chmod_is_the_owners(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let (_dir, file) = alices(test, 0o666);
    refused(file.as_caller(&BOB).chmod(0o777), Errno::EPERM);
    ok(file.as_caller(&test.profile.caller).chmod(0o600));
    ok(file.chmod(0o640));
}

/// Only members of the group can set set-gid.
pub fn chmod_sets_set_gid_for_members_only(test: &TestContext) {
    needs!(
        test.profile.identity && test.profile.root,
        "callers and groups"
    );
    let (_dir, file) = alices(test, 0o644);
    assert_eq!(ok(file.chmod(0o2755)).mode, 0o2755);
    ok(file.as_caller(&Caller::ROOT).chown(None, Some(2000)));
    assert_eq!(ok(file.chmod(0o2755)).mode, 0o755);
    assert_eq!(ok(file.as_caller(&Caller::ROOT).chmod(0o2755)).mode, 0o2755);
}

/// Only the super-user may change the owner; the owner may change the group to one of their own.
pub fn chown_is_the_super_users(test: &TestContext) {
    needs!(
        test.profile.identity && test.profile.groups,
        "callers and groups"
    );
    let (_dir, file) = alices(test, 0o644);
    refused(file.chown(Some(1001), None), Errno::EPERM);
    refused(file.chown(None, Some(1001)), Errno::EPERM);
    refused(file.as_caller(&BOB).chown(Some(1001), None), Errno::EPERM);
    refused(file.as_caller(&BOB).chown(None, Some(1001)), Errno::EPERM);
    refused(file.as_caller(&BOB).chown(Some(1000), None), Errno::EPERM);
    refused(file.as_caller(&BOB).chown(None, Some(1000)), Errno::EPERM);
    ok(file.chown(Some(1000), Some(1000)));
    let member = Caller {
        groups: Groups::Known([3000].into()),
        ..ALICE
    };
    assert_eq!(
        ok(file.as_caller(&member).chown(None, Some(3000))).gid,
        3000
    );
}

/// Only the owner may set a specific time; every writer may set the present one.
pub fn times_are_the_owners(test: &TestContext) {
    needs!(
        test.profile.identity && test.profile.time_step > 0,
        "callers and times"
    );
    let (_dir, file) = alices(test, 0o666);
    let set = |time| SetAttr {
        atime: Some(time),
        mtime: Some(time),
        ..SetAttr::default()
    };
    let moment = set(SetTime::At(Time { sec: 7, nsec: 0 }));
    ok(file.set(moment));
    refused(file.as_caller(&BOB).set(moment), Errno::EPERM);
    ok(file.as_caller(&BOB).set(set(SetTime::Now)));
    ok(file.chmod(0o644));
    refused(file.as_caller(&BOB).set(set(SetTime::Now)), Errno::EACCES);
}

/// A write by anyone but the super-user clears set-id bits.
pub fn writing_takes_set_id_away(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let (_dir, file) = alices(test, 0o6777);
    ok(ok(file.as_caller(&BOB).open(W)).write(0, b"x"));
    assert_eq!(file.attr().mode, 0o777);
    ok(file.chmod(0o6777));
    ok(file.as_caller(&BOB).truncate(1));
    assert_eq!(file.attr().mode, 0o777);
}

/// An open file remains usable after a change of its permissions.
pub fn an_open_file_outlasts_its_permissions(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let (_dir, file) = alices(test, 0o666);
    let open = ok(file.as_caller(&BOB).open(RW));
    ok(file.chmod(0o000));
    assert_eq!(ok(open.read(0, 7)), b"content");
    ok(open.write(0, b"CON"));
    let size = SetAttr {
        size: Some(3),
        ..SetAttr::default()
    };
    ok(open.set(size));
    let mode = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    refused(open.set(mode), Errno::EPERM);
}

/// Moving a directory to another one needs write permission on it: its `..` changes.
pub fn moving_a_directory_needs_write_permission_on_it(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let commons = test.world_writable_dir();
    let alice = commons.as_caller(&ALICE);
    ok(alice.mkdir("readonly", 0o555));
    let to = ok(alice.mkdir("to", 0o777));
    ok(commons
        .as_caller(&BOB)
        .rename("readonly", &commons.as_caller(&BOB), "renamed"));
    refused(alice.rename("renamed", &to, "moved"), Errno::EACCES);
}

/// Only the super-user may create device nodes.
pub fn devices_are_the_super_users(test: &TestContext) {
    let able = test.profile.identity && test.caps.devices > Support::None;
    needs!(able, "callers and devices");
    let alice = test.world_writable_dir().as_caller(&ALICE);
    let device = Device { major: 1, minor: 3 };
    for what in [NewNode::CharDevice(device), NewNode::BlockDevice(device)] {
        refused(
            alice.make("null", what, Mode::without_umask(0o666)),
            Errno::EPERM,
        );
    }
}

/// Only the owner may read without updating atime.
pub fn noatime_is_the_owners(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let (_dir, file) = alices(test, 0o666);
    ok(file.open(R | OpenFlags::NOATIME));
    refused(
        file.as_caller(&BOB).open(R | OpenFlags::NOATIME),
        Errno::EPERM,
    );
}

/// Attributes `user.` need the file's permissions, `trusted.` the super-user.
pub fn extended_attributes_are_guarded(test: &TestContext) {
    let able = test.profile.identity && test.caps.xattr > Support::None;
    needs!(able, "callers and extended attributes");
    let (_dir, file) = alices(test, 0o644);
    let set = XattrFlags::empty();
    ok(file.set_xattr(b"user.a", b"x", set));
    refused(
        file.as_caller(&BOB).set_xattr(b"user.a", b"y", set),
        Errno::EACCES,
    );
    refused(file.as_caller(&BOB).remove_xattr(b"user.a"), Errno::EACCES);
    assert_eq!(ok(file.as_caller(&BOB).xattr(b"user.a")), b"x");
    ok(file.chmod(0o600));
    refused(file.as_caller(&BOB).xattr(b"user.a"), Errno::EACCES);
    refused(file.set_xattr(b"trusted.a", b"x", set), Errno::EPERM);
    refused(file.xattr(b"trusted.a"), Errno::ENODATA);
}

/// A look-up in a directory without search permission is refused.
pub fn every_directory_on_the_way_is_searched(test: &TestContext) {
    needs!(test.profile.identity, "callers that are told apart");
    let dir = ok(test
        .world_writable_dir()
        .as_caller(&ALICE)
        .mkdir("closed", 0o700));
    ok(dir.file("file", b""));
    let bob = dir.as_caller(&BOB);
    refused(bob.lookup("file"), Errno::EACCES);
    refused(bob.create("file", R, 0o644), Errno::EACCES);
    refused(bob.mkdir("file", 0o755), Errno::EACCES);
    refused(bob.unlink("file"), Errno::EACCES);
    refused(bob.rename("file", &bob, "x"), Errno::EACCES);
}
