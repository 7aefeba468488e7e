//! LOOKUP, READLINK, REMOVE, RMDIR, RENAME, LINK.

use memory::Memory;
use nfs::v3::*;
use vfs_testkit::clock;

use crate::net::{Host, Net, nothing};

fn dir(net: &Net, name: &[u8]) -> Handle {
    let place = NameArgs {
        dir: net.root(),
        name,
    };
    let attributes = SetAttributes {
        mode: Some(0o755),
        ..nothing()
    };
    let args = MkDirArgs { place, attributes };
    let made: Result<CreateOk, (_, Wcc)> = net.v3(Procedure::MkDir, &args);
    made.expect("made").object.expect("a handle")
}

fn remove(net: &Net, procedure: Procedure, name: &[u8]) -> Result<Wcc, Status> {
    let args = NameArgs {
        dir: net.root(),
        name,
    };
    net.v3(procedure, &args)
        .map_err(|(status, _): (_, Wcc)| status)
}

fn rename(net: &Net, from: &[u8], to: (Handle, &[u8])) -> Result<RenameWcc, Status> {
    let args = RenameArgs {
        from: NameArgs {
            dir: net.root(),
            name: from,
        },
        to: NameArgs {
            dir: to.0,
            name: to.1,
        },
    };
    net.v3(Procedure::Rename, &args)
        .map_err(|(status, _): (_, RenameWcc)| status)
}

#[test]
fn lookup_finds_and_the_dots_are_names_too() {
    let net = Net::new();
    let (root, sub) = (net.root(), dir(&net, b"d"));
    let found = net.lookup(root, b"d").expect("found");
    assert_eq!(found.object, sub);
    assert_eq!(found.attributes, Some(net.getattr(sub)));
    assert_eq!(found.dir, Some(net.getattr(root)));
    assert_eq!(net.lookup(sub, b".").expect("itself").object, sub);
    assert_eq!(net.lookup(sub, b"..").expect("above").object, root);
    assert_eq!(net.lookup(root, b"..").expect("no further").object, root);
}

#[test]
fn lookup_of_what_is_not_there_tells_the_directory() {
    let net = Net::new();
    let failed = |dir, name: &[u8]| net.lookup(dir, name).expect_err("nothing");
    let (status, attributes) = failed(net.root(), b"x");
    assert_eq!(status, Status::Noent);
    assert_eq!(attributes, Some(net.getattr(net.root())));
    assert_eq!(failed(net.root(), &[b'x'; 256]).0, Status::Nametoolong);
    assert_eq!(failed(net.file(b"f", 0o644), b"x").0, Status::Notdir);
}

#[test]
fn readlink_tells_where_a_link_leads_and_nothing_else_does() {
    let net = Net::new();
    let args = SymlinkArgs {
        place: NameArgs {
            dir: net.root(),
            name: b"l",
        },
        attributes: nothing(),
        target: b"../some where",
    };
    let made: Result<CreateOk, (_, Wcc)> = net.v3(Procedure::Symlink, &args);
    let link = made.expect("made").object.expect("a handle");
    let read: Result<ReadLinkOk<'_>, (Status, Option<Attributes>)> =
        net.v3(Procedure::ReadLink, &link);
    let read = read.expect("a link");
    assert_eq!(read.target, b"../some where");
    assert_eq!(read.attributes.expect("attributes").kind, Kind::Symlink);
    let read: Result<ReadLinkOk<'_>, (Status, Option<Attributes>)> =
        net.v3(Procedure::ReadLink, &net.root());
    assert_eq!(read.expect_err("no link").0, Status::Inval);
}

#[test]
fn remove_takes_files_and_rmdir_directories() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    dir(&net, b"d");
    assert_eq!(remove(&net, Procedure::RmDir, b"f"), Err(Status::Notdir));
    assert_eq!(remove(&net, Procedure::Remove, b"d"), Err(Status::Isdir));
    assert_eq!(remove(&net, Procedure::Remove, b"."), Err(Status::Inval));
    let wcc = remove(&net, Procedure::Remove, b"f").expect("removed");
    assert!(wcc.before.is_some() && wcc.after == Some(net.getattr(net.root())));
    assert!(remove(&net, Procedure::RmDir, b"d").is_ok());
    assert_eq!(remove(&net, Procedure::Remove, b"f"), Err(Status::Noent));
    let attributes: Result<Attributes, (Status, ())> = net.v3(Procedure::GetAttr, &file);
    assert_eq!(attributes, Err((Status::Stale, ())), "nobody keeps it");
}

#[test]
fn what_others_remove_is_stale_at_once() {
    let tree = Memory::new(clock());
    let net = Net::on(&Host::over(tree.clone()));
    let others = Net::on(&Host::over(tree));
    let file = net.file(b"f", 0o644);
    net.getattr(file);
    remove(&others, Procedure::Remove, b"f").expect("removed");
    let attributes: Result<Attributes, (Status, ())> = net.v3(Procedure::GetAttr, &file);
    assert_eq!(attributes, Err((Status::Stale, ())));
}

#[test]
fn what_others_remove_takes_no_space_for_long() {
    let tree = Memory::new(clock());
    let net = Net::on(&Host::over(tree.clone()));
    let others = Net::on(&Host::over(tree));
    let free = || {
        let stat: Result<FsStatOk, (_, Option<Attributes>)> =
            others.v3(Procedure::FsStat, &others.root());
        stat.expect("figures").free_bytes
    };
    let before = free();
    let file = net.file(b"f", 0o644);
    net.write(file, 0, &[1; 1 << 20], Stable::FileSync)
        .expect("written");
    remove(&others, Procedure::Remove, b"f").expect("removed");
    assert!(free() < before, "the server has it at hand");
    net.host.later(5);
    net.host.later(5);
    assert_eq!(free(), before);
    let attributes: Result<Attributes, (Status, ())> = net.v3(Procedure::GetAttr, &file);
    assert_eq!(attributes, Err((Status::Stale, ())));
}

#[test]
fn a_file_that_has_another_name_stays() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let place = NameArgs {
        dir: net.root(),
        name: b"g",
    };
    let args = LinkArgs {
        object: file,
        place,
    };
    let wcc: Result<LinkWcc, (Status, LinkWcc)> = net.v3(Procedure::Link, &args);
    let wcc = wcc.expect("linked");
    assert_eq!(wcc.object.expect("attributes").nlink, 2);
    assert!(wcc.dir.after.is_some());
    let again: Result<LinkWcc, (Status, LinkWcc)> = net.v3(Procedure::Link, &args);
    assert_eq!(again.expect_err("it is there").0, Status::Exist);
    remove(&net, Procedure::Remove, b"f").expect("removed");
    assert_eq!(net.getattr(file).nlink, 1);
}

#[test]
fn rename_moves_and_tells_both_directories() {
    let net = Net::new();
    let (file, over) = (net.file(b"f", 0o644), net.file(b"o", 0o644));
    let sub = dir(&net, b"d");
    let wcc = rename(&net, b"f", (sub, b"g")).expect("moved");
    assert_eq!(wcc.from.after, Some(net.getattr(net.root())));
    assert_eq!(wcc.to.after, Some(net.getattr(sub)));
    assert_eq!(net.lookup(sub, b"g").expect("there").object, file);
    assert_eq!(rename(&net, b"f", (sub, b"h")), Err(Status::Noent));
    assert_eq!(rename(&net, b"d", (sub, b"loop")), Err(Status::Inval));
    assert_eq!(rename(&net, b"o", (file, b"x")), Err(Status::Notdir));
    rename(&net, b"o", (sub, b"g")).expect("over it");
    assert_eq!(net.lookup(sub, b"g").expect("there").object, over);
    let gone: Result<Attributes, (Status, ())> = net.v3(Procedure::GetAttr, &file);
    assert_eq!(gone, Err((Status::Stale, ())));
}
