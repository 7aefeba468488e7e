//! Attributes, and the bytes of open files.

use fuse::Request as R;
use fuse::layout::*;
use fuse::message::{Rest, SetxattrIn, Text};
use fuse::numbers::{Fattr, ROOT_ID};
use fuse::server::Options;
use vfs::Errno;

use crate::net::{Net, create, open_with, server};

#[test]
fn bytes_are_written_and_read() {
    let net = Net::new();
    let (file, open) = net.create(ROOT_ID, "a");
    assert_eq!(net.write(open.fh, 0, b"hello"), Ok(5));
    assert_eq!(net.read(open.fh, 1, 100), Ok(b"ello".to_vec()));
    assert_eq!(net.read(open.fh, 5, 100), Ok(vec![]));
    assert_eq!(net.read(open.fh, 0, 0), Ok(vec![]));
    assert_eq!(net.write(open.fh, 0, b""), Ok(0));
    assert_eq!(net.read(open.fh, u64::MAX, 1), Err(Errno::EINVAL));
    assert_eq!(net.getattr(file.nodeid).size, 5);
    let args = FsyncIn {
        fh: open.fh,
        fsync_flags: 1,
    };
    net.ok(file.nodeid, &R::Fsync { args });
    net.release(open.fh);
    assert_eq!(net.read(open.fh, 0, 1), Err(Errno::EBADF));
}

#[test]
fn a_read_is_cut_to_the_room_there_is() {
    let mut net = Net::new();
    let (_, open) = net.create(ROOT_ID, "a");
    net.write(open.fh, 0, b"0123456789").expect("room");
    net.room = 16 + 4;
    assert_eq!(net.read(open.fh, 0, 100), Ok(b"0123".to_vec()));
    net.room = 16;
    assert_eq!(net.read(open.fh, 0, 100), Ok(vec![]));
}

#[test]
fn handles_do_what_they_were_opened_for() {
    let net = Net::new();
    let (file, _) = net.create(ROOT_ID, "a");
    let reading = net.open(file.nodeid, 0).fh;
    let writing = net.open(file.nodeid, 1).fh;
    let appending = net.open(file.nodeid, 0o2001).fh;
    assert_ne!(reading, writing);
    assert_eq!(net.write(reading, 0, b"x"), Err(Errno::EBADF));
    assert_eq!(net.read(writing, 0, 1), Err(Errno::EBADF));
    assert_eq!(net.write(writing, 0, b"xy"), Ok(2));
    assert_eq!(net.append(appending, 0, b"z"), Ok(1));
    assert_eq!(net.read(reading, 0, 9), Ok(b"xyz".to_vec()));
    net.open(file.nodeid, 0o1001);
    assert_eq!(net.getattr(file.nodeid).size, 0);
    assert_eq!(net.err(file.nodeid, &open_with(3)), Errno::EINVAL);
    assert_eq!(net.err(ROOT_ID, &open_with(0)), Errno::EISDIR);
    let args = OpenIn::default();
    assert_eq!(net.err(file.nodeid, &R::Opendir { args }), Errno::ENOTDIR);
    let directory = net.opendir(ROOT_ID).fh;
    assert_eq!(net.read(directory, 0, 1), Err(Errno::EISDIR));
}

/// Linux writes pages of a mapping through any file of the node that is open for writing
/// (`fuse_write_file_get()`), and continues to write through one whose `O_APPEND` fcntl(2) has
/// cleared.
#[test]
fn a_file_open_to_append_is_also_written_in_place() {
    let net = Net::new();
    let (file, _) = net.create(ROOT_ID, "old");
    let answer = net.ok(ROOT_ID, &create("new", 0o2102));
    let (new, created) = answer.split_at(EntryOut::SIZE);
    let created = OpenOut::decode(created).expect("an answer").fh;
    let opened = net.open(file.nodeid, 0o2001).fh;
    let nodes = [
        (file.nodeid, opened),
        (crate::net::entry(new).nodeid, created),
    ];
    for (nodeid, fh) in nodes {
        for text in [b"abc", b"def"] {
            assert_eq!(net.append(fh, 0, text), Ok(3));
        }
        assert_eq!(net.write_with(fh, 1, b"B", 1), Ok(1), "a page");
        assert_eq!(net.write(fh, 4, b"E"), Ok(1), "without O_APPEND");
        let page = WriteIn {
            write_flags: 1,
            flags: 0o2000,
            ..WriteIn::default()
        };
        assert_eq!(net.write_as(fh, 2, b"C", page), Ok(1), "a page");
        let reading = net.open(nodeid, 0).fh;
        assert_eq!(net.read(reading, 0, 99), Ok(b"aBCdEf".to_vec()));
    }
}

#[test]
fn a_client_that_writes_behind_reads_what_it_writes() {
    let net = Net::on(&server(Options {
        writeback: true,
        ..Options::default()
    }));
    let (file, _) = net.create(ROOT_ID, "a");
    let open = net.open(file.nodeid, 0o2001);
    assert_eq!(net.write(open.fh, 0, b"abc"), Ok(3));
    assert_eq!(net.write(open.fh, 1, b"B"), Ok(1));
    assert_eq!(net.read(open.fh, 0, 9), Ok(b"aBc".to_vec()));
}

#[test]
fn a_file_without_a_name_is_made_and_outlives_nothing() {
    let net = Net::on(&server(Options {
        tmpfile: true,
        ..Options::default()
    }));
    let args = CreateIn {
        flags: 2,
        mode: 0o100600,
        umask: 0,
        open_flags: 0,
    };
    // Linux sends a name without meaning.
    let name = Text(b"#/1");
    let request = R::Tmpfile { args, name };
    assert_eq!(Net::new().err(ROOT_ID, &request), Errno::ENOSYS);
    let answer = net.ok(ROOT_ID, &request);
    let open = OpenOut::decode(&answer[EntryOut::SIZE..]).expect("an answer");
    assert_eq!(net.write(open.fh, 0, b"x"), Ok(1));
    assert_eq!(crate::net::entry(&answer).attr.nlink, 0);
}

#[test]
fn exclusive_creation_insists() {
    let net = Net::new();
    net.create(ROOT_ID, "a");
    net.create(ROOT_ID, "a");
    assert_eq!(net.err(ROOT_ID, &create("a", 0o302)), Errno::EEXIST);
}

#[test]
fn attributes_change() {
    let net = Net::new();
    let (file, open) = net.create(ROOT_ID, "a");
    let set = |valid: Fattr, fh| {
        let args = SetattrIn {
            valid: valid.bits(),
            fh,
            size: 7,
            mode: 0o106755,
            uid: 11,
            gid: 12,
            mtime: (-5i64) as u64,
            mtimensec: 6,
            ..SetattrIn::default()
        };
        let answer = net.rpc(file.nodeid, &R::Setattr { args })?;
        Ok(AttrOut::decode(&answer).expect("an answer").attr)
    };
    let attr = set(Fattr::MODE | Fattr::UID | Fattr::GID, 0).expect("changed");
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o106755, 11, 12));
    let attr = set(Fattr::SIZE | Fattr::FH | Fattr::KILL_SUIDGID, open.fh).expect("changed");
    assert_eq!((attr.size, attr.mode), (7, 0o100755));
    let attr = set(Fattr::MTIME, 0).expect("changed");
    assert_eq!((attr.mtime as i64, attr.mtimensec), (-5, 6));
    let now = set(Fattr::MTIME | Fattr::MTIME_NOW, 0).expect("changed");
    assert!(now.mtime > 0 && now.mtime < 1 << 62);
    assert_eq!(set(Fattr::SIZE | Fattr::FH, 999), Err(Errno::EBADF));
    let reading = net.open(file.nodeid, 0).fh;
    assert_eq!(set(Fattr::SIZE | Fattr::FH, reading).map(|a| a.size), Ok(7));
}

#[test]
fn an_open_file_tells_its_attributes_without_a_name() {
    let net = Net::new();
    let (file, open) = net.create(ROOT_ID, "a");
    net.ok(ROOT_ID, &R::Unlink { name: Text(b"a") });
    net.forget(file.nodeid, 1);
    let args = GetattrIn {
        getattr_flags: 1,
        fh: open.fh,
    };
    let answer = net.ok(file.nodeid, &R::Getattr { args });
    let attr = AttrOut::decode(&answer).expect("an answer").attr;
    assert_eq!((attr.nlink, attr.ino), (0, file.attr.ino));
    let args = StatxIn {
        getattr_flags: 1,
        fh: open.fh,
        sx_flags: 0,
        sx_mask: 0xfff,
    };
    let answer = net.ok(file.nodeid, &R::Statx { args });
    let stat = StatxOut::decode(&answer).expect("an answer").stat;
    assert_eq!((stat.ino, u32::from(stat.mode)), (attr.ino, attr.mode));
    assert_eq!(stat.mask & 0x7ff, 0x7ff);
}

#[test]
fn set_id_bits_go_when_a_file_is_written() {
    let net = Net::on(&server(Options {
        killpriv_v2: true,
        ..Options::default()
    }));
    let (file, open) = net.create(ROOT_ID, "a");
    let set_id = || {
        let args = SetattrIn {
            valid: Fattr::MODE.bits(),
            mode: 0o6755,
            ..SetattrIn::default()
        };
        net.ok(file.nodeid, &R::Setattr { args });
    };
    set_id();
    assert_eq!(net.write_with(open.fh, 0, b"abc", 4), Ok(3));
    assert_eq!(net.getattr(file.nodeid).mode, 0o100755);
    set_id();
    let args = OpenIn {
        flags: 0o1002,
        open_flags: 1,
    };
    net.ok(file.nodeid, &R::Open { args });
    let attr = net.getattr(file.nodeid);
    assert_eq!((attr.mode, attr.size), (0o100755, 0));
}

/// Linux sends a SETATTR without changes before a write that it knows to remove set-id bits, and
/// sends none if its cached mode has no such bits.
#[test]
fn set_id_bits_go_by_requests_that_do_not_say_so() {
    let mut net = Net::new();
    let (file, open) = net.create(ROOT_ID, "a");
    let (_, source) = net.create(ROOT_ID, "b");
    net.write(source.fh, 0, b"abc").expect("room");
    let nothing = R::Setattr {
        args: SetattrIn::default(),
    };
    let allocate = R::Fallocate {
        args: FallocateIn {
            fh: open.fh,
            offset: 0,
            length: 10,
            mode: 0,
        },
    };
    let copy = R::CopyFileRange {
        args: CopyIn {
            fh_in: source.fh,
            off_in: 0,
            nodeid_out: file.nodeid,
            fh_out: open.fh,
            off_out: 0,
            len: 3,
            flags: 0,
        },
    };
    let size = |valid: Fattr| R::Setattr {
        args: SetattrIn {
            valid: (Fattr::SIZE | valid).bits(),
            fh: open.fh,
            ..SetattrIn::default()
        },
    };
    let (by_file, by_path) = (size(Fattr::FH), size(Fattr::LOCKOWNER));
    let cases = [
        (&nothing, 0, 0o100755),
        (&by_file, 0, 0o106755),
        // An overlayfs sends it as its mounter, for any caller.
        (&by_path, 0, 0o100755),
        (&allocate, 0, 0o106755),
        (&allocate, 1000, 0o100755),
        (&copy, 0, 0o106755),
        (&copy, 1000, 0o100755),
    ];
    for (request, uid, expected) in cases {
        net.uid = 0;
        change(&net, file.nodeid, Fattr::MODE);
        // Linux reads the capabilities before each of these, but overlayfs does not for a copy-up.
        assert_eq!(capability(&net, file.nodeid), Err(Errno::ENODATA));
        net.uid = uid;
        net.ok(file.nodeid, request);
        let mode = net.getattr(file.nodeid).mode;
        assert_eq!(mode, expected, "{request:?} by {uid}");
    }
    // Without the granted flag the client means only what the request says.
    let net = Net::on(&server(Options {
        killpriv_v2: false,
        ..Options::default()
    }));
    let (file, _) = net.create(ROOT_ID, "a");
    change(&net, file.nodeid, Fattr::MODE);
    net.ok(file.nodeid, &nothing);
    assert_eq!(net.getattr(file.nodeid).mode, 0o106755);
}

/// CREATE of an existing file of which the client has no entry.
#[test]
fn set_id_bits_go_when_creating_cuts_a_file() {
    let net = Net::new();
    let create = |name: &'static str| {
        let args = CreateIn {
            flags: 0o1102,
            mode: 0o106755,
            umask: 0,
            open_flags: 1,
        };
        let name = Text(name.as_bytes());
        crate::net::entry(&net.ok(ROOT_ID, &R::Create { args, name })).attr
    };
    let (file, open) = net.create(ROOT_ID, "old");
    net.write(open.fh, 0, b"abc").expect("room");
    change(&net, file.nodeid, Fattr::MODE);
    let attr = create("old");
    assert_eq!((attr.mode, attr.size), (0o100755, 0));
    assert_eq!(net.getattr(file.nodeid).mode, 0o100755);
    assert_eq!(create("new").mode, 0o106755);
}

const CAPABILITY: Text<'_> = Text(b"security.capability");

fn change(net: &Net, nodeid: u64, valid: Fattr) {
    let args = SetattrIn {
        valid: valid.bits(),
        mode: 0o6755,
        uid: 11,
        gid: 12,
        ..SetattrIn::default()
    };
    net.ok(nodeid, &R::Setattr { args });
}

fn give_capability(net: &Net, nodeid: u64) {
    let args = SetxattrIn {
        size: 3,
        ..SetxattrIn::default()
    };
    let (name, value) = (CAPABILITY, Rest(b"cap"));
    net.ok(nodeid, &R::Setxattr { args, name, value });
}

fn capability(net: &Net, nodeid: u64) -> Result<Vec<u8>, Errno> {
    let args = GetxattrIn { size: 100 };
    let name = CAPABILITY;
    net.rpc(nodeid, &R::Getxattr { args, name })
}

/// overlayfs sets capabilities, then the mode, and then the owner of a copied-up file.
#[test]
fn what_overlayfs_copies_up_keeps_its_privileges() {
    let owner = Fattr::UID | Fattr::GID;
    for (killpriv_v2, chown) in [(false, owner), (true, owner | Fattr::KILL_SUIDGID)] {
        let net = Net::on(&server(Options {
            killpriv_v2,
            ..Options::default()
        }));
        for capable in [false, true] {
            let name = if capable { "capable" } else { "plain" };
            let (file, _) = net.create(ROOT_ID, name);
            if capable {
                give_capability(&net, file.nodeid);
            }
            for valid in [Fattr::SIZE | Fattr::LOCKOWNER, Fattr::MODE, chown] {
                change(&net, file.nodeid, valid);
            }
            let attr = net.getattr(file.nodeid);
            assert_eq!((attr.mode, attr.uid, attr.gid), (0o106755, 11, 12));
            assert_eq!(capability(&net, file.nodeid).is_ok(), capable);
        }
    }
}

/// chown(2) reads capabilities first, and only overlayfs sends this sequence of requests.
#[test]
fn privileges_go_with_an_owner() {
    let killing = Fattr::UID | Fattr::GID | Fattr::KILL_SUIDGID;
    let lost = |valid: Fattr, asks: bool| {
        let net = Net::new();
        let (file, _) = net.create(ROOT_ID, "a");
        give_capability(&net, file.nodeid);
        change(&net, file.nodeid, Fattr::MODE);
        if asks {
            capability(&net, file.nodeid).expect("one");
        }
        change(&net, file.nodeid, valid);
        let mode = net.getattr(file.nodeid).mode;
        (mode, capability(&net, file.nodeid))
    };
    let gone = (0o100755, Err(Errno::ENODATA));
    assert_eq!(lost(killing, true), gone);
    assert_eq!(lost(killing - Fattr::GID, false), gone);
    assert_eq!(lost(killing | Fattr::CTIME, false), gone);
    assert_eq!(lost(killing, false), (0o106755, Ok(b"cap".to_vec())));
}

/// A copy-up sets its owner once.
#[test]
fn privileges_go_with_a_second_owner() {
    let net = Net::new();
    let (file, _) = net.create(ROOT_ID, "a");
    let chown = Fattr::UID | Fattr::GID | Fattr::KILL_SUIDGID;
    for (valid, mode) in [
        (Fattr::MODE, 0o106755),
        (chown, 0o106755),
        (chown, 0o100755),
    ] {
        change(&net, file.nodeid, valid);
        assert_eq!(net.getattr(file.nodeid).mode, mode, "{valid:?}");
    }
}

#[test]
fn access_and_figures() {
    let mut net = Net::new();
    let access = |mask| R::Access {
        args: AccessIn { mask },
    };
    net.ok(ROOT_ID, &access(7));
    assert_eq!(net.err(ROOT_ID, &access(8)), Errno::EINVAL);
    net.uid = 1000;
    net.ok(ROOT_ID, &access(5));
    net.ok(ROOT_ID, &access(0));
    assert_eq!(net.err(ROOT_ID, &access(2)), Errno::EACCES);
    let stat = StatFs::decode(&net.ok(ROOT_ID, &R::Statfs {})).expect("an answer");
    assert!(stat.bsize > 0 && stat.namelen == 255);
    net.ok(ROOT_ID, &R::Syncfs {});
}

#[test]
fn holes_copies_and_space() {
    let net = Net::new();
    let (_, from) = net.create(ROOT_ID, "a");
    let (_, to) = net.create(ROOT_ID, "b");
    net.write(from.fh, 0, &[1; 100]).expect("room");
    let copy = |wide, flags| {
        let args = CopyIn {
            fh_in: from.fh,
            off_in: 0,
            nodeid_out: 0,
            fh_out: to.fh,
            off_out: 10,
            len: 1000,
            flags,
        };
        match wide {
            true => R::CopyFileRange64 { args },
            false => R::CopyFileRange { args },
        }
    };
    assert_eq!(net.ok(ROOT_ID, &copy(false, 0))[..4], [100, 0, 0, 0]);
    assert_eq!(net.ok(ROOT_ID, &copy(true, 0)), 100u64.to_le_bytes());
    assert_eq!(net.err(ROOT_ID, &copy(true, 1)), Errno::EINVAL);
    assert_eq!(net.read(to.fh, 9, 2), Ok(vec![0, 1]));
    let allocate = |offset, length, mode| R::Fallocate {
        args: FallocateIn {
            fh: to.fh,
            offset,
            length,
            mode,
        },
    };
    net.ok(ROOT_ID, &allocate(0, 1000, 0));
    net.ok(ROOT_ID, &allocate(10, 5, 3));
    assert_eq!(net.read(to.fh, 10, 6), Ok(vec![0, 0, 0, 0, 0, 1]));
    assert_eq!(net.err(ROOT_ID, &allocate(0, 1, 0x80)), Errno::EOPNOTSUPP);
    assert_eq!(net.err(ROOT_ID, &allocate(1, u64::MAX, 0)), Errno::EFBIG);
    assert_eq!(net.err(ROOT_ID, &allocate(1, 0, 0)), Errno::EINVAL);
    let seek = |offset, whence| R::Lseek {
        args: LseekIn {
            fh: from.fh,
            offset,
            whence,
        },
    };
    assert_eq!(net.ok(ROOT_ID, &seek(0, 4)), 100u64.to_le_bytes());
    assert_eq!(net.ok(ROOT_ID, &seek(5, 3)), 5u64.to_le_bytes());
    assert_eq!(net.err(ROOT_ID, &seek(100, 3)), Errno::ENXIO);
    assert_eq!(net.err(ROOT_ID, &seek(0, 0)), Errno::EINVAL);
}

#[test]
fn extended_attributes() {
    let net = Net::new();
    let (file, _) = net.create(ROOT_ID, "a");
    let name = Text(b"user.a");
    let set = |size, value| R::Setxattr {
        args: SetxattrIn {
            size,
            flags: 0,
            setxattr_flags: 0,
        },
        name,
        value: fuse::message::Rest(value),
    };
    let get = |size| R::Getxattr {
        args: GetxattrIn { size },
        name,
    };
    let list = |size| R::Listxattr {
        args: GetxattrIn { size },
    };
    assert_eq!(net.err(file.nodeid, &get(0)), Errno::ENODATA);
    net.ok(file.nodeid, &set(5, b"value"));
    assert_eq!(net.ok(file.nodeid, &get(0)), [5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(net.ok(file.nodeid, &get(9)), b"value");
    assert_eq!(net.err(file.nodeid, &get(4)), Errno::ERANGE);
    assert_eq!(net.ok(file.nodeid, &list(99)), b"user.a\0");
    assert_eq!(net.ok(file.nodeid, &list(0))[0], 7);
    assert_eq!(net.err(file.nodeid, &set(6, b"short")), Errno::EINVAL);
    assert_eq!(net.err(file.nodeid, &set(1 << 20, b"")), Errno::E2BIG);
    net.ok(file.nodeid, &R::Removexattr { name });
    assert_eq!(net.err(file.nodeid, &get(0)), Errno::ENODATA);
    let acl = R::Getxattr {
        args: GetxattrIn { size: 0 },
        name: Text(b"system.posix_acl_access"),
    };
    assert_eq!(net.err(file.nodeid, &acl), Errno::EOPNOTSUPP);
    let without = Net::on(&server(Options {
        xattr: false,
        ..Options::default()
    }));
    assert_eq!(without.err(ROOT_ID, &get(0)), Errno::ENOSYS);
    assert_eq!(without.err(ROOT_ID, &list(0)), Errno::ENOSYS);
}

#[test]
fn there_are_only_so_many_handles() {
    let net = Net::on(&server(Options {
        max_handles: 2,
        ..Options::default()
    }));
    let (file, open) = net.create(ROOT_ID, "a");
    let other = net.open(file.nodeid, 0);
    assert_eq!(net.err(file.nodeid, &open_with(0)), Errno::ENFILE);
    assert_eq!(net.err(ROOT_ID, &create("b", 2)), Errno::ENFILE);
    net.release(open.fh);
    let next = net.open(file.nodeid, 0);
    assert!(![open.fh, other.fh].contains(&next.fh));
    assert_eq!(net.err(ROOT_ID, &crate::net::lookup("b")), Errno::ENOENT);
}
