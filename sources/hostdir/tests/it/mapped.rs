//! Owners in extended attributes, byte for byte as in QEMU.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hostdir::{Identity, Options};
use vfs::{
    AttrMask, Caller, Cx, Errno, Kind, Mode, NewNode, Node, OpenFlags, SetAttr, Support, XattrFlags,
};

use crate::fixture::{CALL, Fixture, create, failed, list, name, read, root, user, write};

fn mapped() -> Fixture {
    let fixture = Fixture::new(Options {
        identity: Identity::MappedXattr,
        ..Options::default()
    });
    // The root's owner is the clients' root, for any user that runs this.
    let own = SetAttr {
        uid: Some(0),
        gid: Some(0),
        mode: Some(0o755),
        ..SetAttr::default()
    };
    fixture.root.setattr(&root(), &own).expect("sets");
    fixture
}

fn kept(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    match rustix::fs::lgetxattr(path, format!("user.virtfs.{name}"), &mut value[..]) {
        Ok(len) => Some(value[..len].to_vec()),
        Err(rustix::io::Errno::NODATA) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_bytes_on_the_disk_are_qemu_s() {
    let fixture = mapped();
    let (_entry, file) = create(&root(), &*fixture.root, "f", 0o4755).expect("creates");
    write(&root(), &*file, 0, b"x").expect("writes");
    let own = SetAttr {
        uid: Some(1000),
        gid: Some(0x01020304),
        mode: Some(0o4755),
        ..SetAttr::default()
    };
    file.setattr(&root(), &own).expect("sets");
    let make = |file: &str, what| {
        fixture
            .root
            .make(&root(), name(file), what, Mode::without_umask(0o640))
            .expect("makes")
    };
    make("d", NewNode::Directory);
    make("l", NewNode::Symlink(b"some/where"));
    let device = vfs::Device {
        major: 8,
        minor: 257,
    };
    assert_eq!(make("b", NewNode::BlockDevice(device)).attr.rdev, device);
    make("p", NewNode::Fifo);
    make("s", NewNode::Socket);
    fixture.outside(|dir| {
        let on_disk = |file: &str| std::fs::symlink_metadata(dir.join(file)).expect("there");
        assert_eq!(kept(&dir.join("f"), "uid"), Some(vec![0xe8, 3, 0, 0]));
        assert_eq!(kept(&dir.join("f"), "gid"), Some(vec![4, 3, 2, 1]));
        // S_IFREG | 04755
        assert_eq!(kept(&dir.join("f"), "mode"), Some(vec![0xed, 0x89, 0, 0]));
        assert_eq!(kept(&dir.join("f"), "rdev"), None);
        assert_eq!(on_disk("f").permissions().mode(), 0o100600);
        assert_eq!(kept(&dir.join("d"), "mode"), Some(vec![0xa0, 0x41, 0, 0]));
        assert_eq!(on_disk("d").permissions().mode(), 0o040700);
        // S_IFLNK | 0777, the target as contents
        assert_eq!(kept(&dir.join("l"), "mode"), Some(vec![0xff, 0xa1, 0, 0]));
        assert_eq!(std::fs::read(dir.join("l")).expect("reads"), b"some/where");
        // S_IFBLK | 0640, makedev(8, 257)
        assert_eq!(kept(&dir.join("b"), "mode"), Some(vec![0xa0, 0x61, 0, 0]));
        assert_eq!(
            kept(&dir.join("b"), "rdev"),
            Some(vec![1, 8, 0x10, 0, 0, 0, 0, 0])
        );
        assert_eq!(kept(&dir.join("p"), "mode"), Some(vec![0xa0, 0x11, 0, 0]));
        assert_eq!(kept(&dir.join("s"), "mode"), Some(vec![0xa0, 0xc1, 0, 0]));
        for file in ["l", "b", "p", "s"] {
            assert_eq!(on_disk(file).permissions().mode(), 0o100600, "{file}");
        }
    });
}

#[test]
fn what_qemu_kept_is_shown() {
    let fixture = mapped();
    fixture.outside(|dir| {
        std::fs::write(dir.join("link"), "target").expect("writes");
        std::fs::write(dir.join("plain"), "").expect("writes");
        std::fs::write(dir.join("null"), "").expect("writes");
        let keep = |file: &str, what: &str, bytes: &[u8]| {
            let name = format!("user.virtfs.{what}");
            rustix::fs::setxattr(dir.join(file), name, bytes, rustix::fs::XattrFlags::empty())
                .expect("sets");
        };
        keep("link", "uid", &7u32.to_le_bytes());
        keep("link", "gid", &8u32.to_le_bytes());
        keep("link", "mode", &0o120777u32.to_le_bytes());
        keep("null", "mode", &0o020666u32.to_le_bytes());
        keep("null", "rdev", &0x103u64.to_le_bytes());
        // Invalid values are ignored.
        keep("plain", "uid", b"1");
        keep("plain", "mode", &0o047777u32.to_le_bytes());
    });
    let link = fixture.lookup("link").expect("there");
    assert_eq!(
        (link.attr.kind, link.attr.uid, link.attr.gid),
        (Kind::Symlink, 7, 8)
    );
    assert_eq!((link.attr.mode, link.attr.size), (0o777, 6));
    assert_eq!(link.node.readlink(&root()), Ok(b"target".to_vec()));
    assert_eq!(
        failed(link.node.open(&root(), OpenFlags::READ)),
        Errno::ELOOP
    );
    let null = fixture.lookup("null").expect("there");
    assert_eq!(null.attr.rdev, vfs::Device { major: 1, minor: 3 });
    assert_eq!(
        failed(null.node.open(&root(), OpenFlags::READ)),
        Errno::ENXIO
    );
    let plain = fixture.lookup("plain").expect("there");
    assert_eq!((plain.attr.kind, plain.attr.mode), (Kind::File, 0o7777));
    let entries = list(&root(), &*fixture.root, vfs::ReaddirMode::Entries).expect("lists");
    let kinds: Vec<Kind> = entries
        .iter()
        .map(|entry| entry.3.as_ref().expect("an entry").attr.kind)
        .collect();
    assert_eq!(kinds, [Kind::Symlink, Kind::CharDevice, Kind::File]);
}

#[test]
fn clients_see_nothing_of_how_it_is_kept() {
    let fixture = mapped();
    let (entry, _file) = create(&root(), &*fixture.root, "f", 0o644).expect("creates");
    let node: &dyn Node = &*entry.node;
    node.set_xattr(&root(), b"user.mine", b"1", XattrFlags::empty())
        .expect("sets");
    assert_eq!(node.xattrs(&root()), Ok(b"user.mine\0".to_vec()));
    assert_eq!(node.xattr(&root(), b"user.virtfs.uid"), Err(Errno::ENODATA));
    let set = node.set_xattr(&root(), b"user.virtfs.uid", &[0; 4], XattrFlags::empty());
    assert_eq!(set, Err(Errno::EACCES));
    assert_eq!(
        node.remove_xattr(&root(), b"user.virtfs.mode"),
        Err(Errno::EACCES)
    );
    let acl = node.set_xattr(
        &root(),
        b"system.posix_acl_access",
        &[],
        XattrFlags::empty(),
    );
    assert_eq!(acl, Err(Errno::EOPNOTSUPP));
    let can = vfs::FileSystem::capabilities(&*fixture.fs);
    assert_eq!(
        (can.owners, can.devices, can.acl),
        (Support::Emulated, Support::Emulated, Support::None)
    );
}

#[test]
fn barge_checks_what_the_host_cannot_know() {
    let fixture = mapped();
    let (_entry, file) = create(&root(), &*fixture.root, "f", 0o640).expect("creates");
    write(&root(), &*file, 0, b"secret").expect("writes");
    let open = |who: &Caller, flags| {
        let cx = Cx::new(who, &CALL);
        fixture.lookup("f").expect("there").node.open(&cx, flags)
    };
    let (member, other) = (user(5, 0), user(5, 5));
    let file = open(&member, OpenFlags::READ).expect("by the group");
    assert_eq!(read(&root(), &*file, 0, 9), Ok(b"secret".to_vec()));
    assert_eq!(failed(open(&member, OpenFlags::WRITE)), Errno::EACCES);
    assert_eq!(failed(open(&other, OpenFlags::READ)), Errno::EACCES);
    let as_other = Cx::new(&other, &CALL);
    assert_eq!(
        failed(create(&as_other, &*fixture.root, "g", 0o600)),
        Errno::EACCES
    );
    assert_eq!(
        failed(fixture.root.unlink(&as_other, name("f"), false)),
        Errno::EACCES
    );
    let everyone = SetAttr {
        mode: Some(0o1777),
        ..SetAttr::default()
    };
    fixture.root.setattr(&root(), &everyone).expect("sets");
    assert_eq!(
        failed(fixture.root.unlink(&as_other, name("f"), false)),
        Errno::EPERM
    );
    let (mine, _) = create(&as_other, &*fixture.root, "g", 0o600).expect("creates");
    assert_eq!(mine.attr.uid, 5);
    assert_eq!(
        mine.node.attr(&root(), AttrMask::STAT).map(|attr| attr.uid),
        Ok(5)
    );
    fixture
        .root
        .unlink(&as_other, name("g"), false)
        .expect("his own");
}

#[test]
fn owners_need_extended_attributes() {
    let options = Options {
        identity: Identity::MappedXattr,
        ..Options::default()
    };
    let refused = hostdir::HostDir::open("/proc", options).map(drop);
    assert!(refused.is_err_and(|e| e.to_string().contains("extended attributes")));
}
