//! GETATTR, SETATTR, ACCESS, FSSTAT, FSINFO, PATHCONF.

use nfs::v3::*;

use crate::net::{Net, nothing};

#[test]
fn getattr_tells_what_a_node_is() {
    let net = Net::new();
    let root = net.getattr(net.root());
    assert_eq!((root.kind, root.mode), (Kind::Directory, 0o755));
    assert_ne!(root.fileid, 0);
    let file = net.getattr(net.file(b"f", 0o640));
    assert_eq!((file.kind, file.mode, file.nlink), (Kind::File, 0o640, 1));
    assert_eq!(file.fsid, root.fsid);
}

#[test]
fn setattr_changes_what_is_named_and_tells_before_and_after() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let before = net.getattr(file);
    let set = SetAttributes {
        mode: Some(0o600),
        uid: Some(12),
        size: Some(5),
        mtime: SetTime::At(Time { sec: 9, nsec: 8 }),
        ..nothing()
    };
    let wcc = net.setattr(file, set, None).expect("set");
    let was = wcc.before.expect("before");
    assert_eq!((was.size, was.ctime), (0, before.ctime));
    let is = wcc.after.expect("after");
    assert_eq!((is.mode, is.uid, is.size), (0o600, 12, 5));
    assert_eq!(is.mtime, Time { sec: 9, nsec: 8 });
    assert_eq!(net.getattr(file), is);
}

#[test]
fn a_guard_holds_off_whoever_has_not_seen_the_last_change() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let seen = net.getattr(file).ctime;
    let mode = |mode| SetAttributes {
        mode: Some(mode),
        ..nothing()
    };
    assert!(net.setattr(file, mode(0o600), Some(seen)).is_ok());
    let (status, wcc) = net
        .setattr(file, mode(0o666), Some(seen))
        .expect_err("held off");
    assert_eq!(status, Status::NotSync);
    assert_eq!(wcc.after.expect("attributes").mode, 0o600);
}

#[test]
fn a_size_is_for_files_alone() {
    let net = Net::new();
    let size = SetAttributes {
        size: Some(0),
        ..nothing()
    };
    let failed = net
        .setattr(net.root(), size, None)
        .expect_err("a directory");
    assert_eq!(failed.0, Status::Isdir);
}

#[test]
fn access_says_what_the_caller_may_do() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let may = |net: &Net, object, access| -> u32 {
        let args = AccessArgs { object, access };
        let done: Result<AccessOk, (_, Option<Attributes>)> = net.v3(Procedure::Access, &args);
        done.expect("an answer").access
    };
    let other = net.of_user(1000);
    assert_eq!(may(&other, file, 0x3f), access::READ);
    assert_eq!(may(&other, file, access::MODIFY), 0);
    assert_eq!(
        may(&net, file, 0x3f),
        access::READ | access::MODIFY | access::EXTEND
    );
    assert_eq!(may(&other, net.root(), 0x3f), access::READ | access::LOOKUP);
    assert_eq!(
        may(&net, net.root(), 0x3f),
        0x3f & !access::EXECUTE,
        "nobody executes a directory"
    );
}

#[test]
fn file_systems_tell_their_figures() {
    let net = Net::new();
    let root = net.root();
    let stat: Result<FsStatOk, (_, Option<Attributes>)> = net.v3(Procedure::FsStat, &root);
    let stat = stat.expect("figures");
    assert!(stat.free_bytes > 0 && stat.free_bytes <= stat.total_bytes);
    assert!(stat.attributes.is_some());
    let info: Result<FsInfoOk, (_, Option<Attributes>)> = net.v3(Procedure::FsInfo, &root);
    let info = info.expect("figures");
    assert_eq!((info.read_max, info.write_max), (1 << 20, 1 << 20));
    assert_eq!(info.properties, 0x1b);
    let conf: Result<PathConfOk, (_, Option<Attributes>)> = net.v3(Procedure::PathConf, &root);
    let conf = conf.expect("figures");
    assert_eq!(conf.name_max, 255);
    assert!(conf.no_trunc && conf.chown_restricted && conf.case_preserving);
    assert!(!conf.case_insensitive);
}
