//! A request that would block leaves no trace and is answered when it is served again.

use std::sync::Arc;

use fuse::Request as R;
use fuse::layout::*;
use fuse::message::{Rest, SetxattrIn, Text};
use fuse::numbers::ROOT_ID;
use fuse::server::{Options, Server};
use vfs::{Capabilities, Errno, Export, Groups, Kind, Op, Patience, Support};
use vfs_testkit::script::{Answer as Scripted, Script};

use crate::net::{Net, create, entry, lookup, open_with};

const DIR: u64 = 10;
const FILE: u64 = 20;
const LINK: u64 = 60;

/// Returns a mount of a scripted tree with a node of each kind, and an open directory and file.
fn scripted() -> (Arc<Script>, Net, u64, u64) {
    let script = Script::new();
    script.set_capabilities(Capabilities {
        holes: Support::Native,
        ..Capabilities::default()
    });
    let export = Arc::new(Export::new("", script.clone()));
    let options = Options {
        tmpfile: true,
        ..Options::default()
    };
    let net = Net::on(&Server::new(export, options));
    for (id, kind) in [
        (DIR, Kind::Directory),
        (FILE, Kind::File),
        (LINK, Kind::Symlink),
    ] {
        script.next(Op::Lookup, Scripted::Node(id, kind));
        assert_eq!(net.lookup(ROOT_ID, "name").nodeid, id);
    }
    let dir = net.opendir(DIR).fh;
    let file = net.open(FILE, 2).fh;
    (script, net, dir, file)
}

/// Returns requests, each with its node and the operation that may block.
fn requests(dir: u64, file: u64) -> Vec<(Op, u64, R<'static>)> {
    let name = Text(b"name");
    let read = |fh| ReadIn {
        fh,
        size: 4096,
        ..ReadIn::default()
    };
    let create_in = CreateIn {
        flags: 2,
        ..CreateIn::default()
    };
    let lock = LkIn {
        fh: file,
        end: 9,
        kind: 1,
        ..LkIn::default()
    };
    let fsync = |fh| FsyncIn { fh, fsync_flags: 0 };
    vec![
        (Op::Lookup, DIR, lookup("name")),
        (Op::Attr, DIR, lookup(".")),
        (Op::Parent, DIR, lookup("..")),
        (
            Op::Attr,
            FILE,
            R::Getattr {
                args: GetattrIn::default(),
            },
        ),
        (
            Op::FileAttr,
            FILE,
            R::Statx {
                args: StatxIn {
                    getattr_flags: 1,
                    fh: file,
                    ..StatxIn::default()
                },
            },
        ),
        (
            Op::Setattr,
            FILE,
            R::Setattr {
                args: SetattrIn::default(),
            },
        ),
        (
            Op::Access,
            FILE,
            R::Access {
                args: AccessIn { mask: 4 },
            },
        ),
        (Op::Statfs, FILE, R::Statfs {}),
        (Op::Sync, FILE, R::Syncfs {}),
        (Op::Readlink, LINK, R::Readlink {}),
        (Op::Open, FILE, open_with(0)),
        (Op::Create, DIR, create("name", 2)),
        (
            Op::Tmpfile,
            DIR,
            R::Tmpfile {
                args: create_in,
                name,
            },
        ),
        (
            Op::Make,
            DIR,
            R::Mkdir {
                args: MkdirIn::default(),
                name,
            },
        ),
        (
            Op::Link,
            DIR,
            R::Link {
                args: LinkIn { oldnodeid: FILE },
                name,
            },
        ),
        (Op::Unlink, DIR, R::Unlink { name }),
        (
            Op::Rename,
            DIR,
            R::Rename {
                args: RenameIn { newdir: DIR },
                name,
                newname: name,
            },
        ),
        (Op::Read, FILE, R::Read { args: read(file) }),
        (Op::Fsync, FILE, R::Fsync { args: fsync(file) }),
        (Op::Fsync, DIR, R::Fsyncdir { args: fsync(dir) }),
        (
            Op::Flush,
            FILE,
            R::Flush {
                args: FlushIn {
                    fh: file,
                    lock_owner: 0,
                },
            },
        ),
        (
            Op::Seek,
            FILE,
            R::Lseek {
                args: LseekIn {
                    fh: file,
                    offset: 0,
                    whence: 3,
                },
            },
        ),
        (
            Op::Allocate,
            FILE,
            R::Fallocate {
                args: FallocateIn {
                    fh: file,
                    length: 1,
                    ..FallocateIn::default()
                },
            },
        ),
        (
            Op::Copy,
            FILE,
            R::CopyFileRange {
                args: CopyIn {
                    fh_in: file,
                    fh_out: file,
                    ..CopyIn::default()
                },
            },
        ),
        (Op::Readdir, DIR, R::Readdir { args: read(dir) }),
        (Op::Parent, DIR, R::Readdir { args: read(dir) }),
        (Op::Readdir, DIR, R::Readdirplus { args: read(dir) }),
        (Op::HostLock, FILE, R::Setlk { args: lock }),
        (Op::HostLockHolder, FILE, R::Getlk { args: lock }),
        (
            Op::Xattr,
            FILE,
            R::Getxattr {
                args: GetxattrIn { size: 0 },
                name,
            },
        ),
        (
            Op::Xattrs,
            FILE,
            R::Listxattr {
                args: GetxattrIn { size: 0 },
            },
        ),
        (
            Op::SetXattr,
            FILE,
            R::Setxattr {
                args: SetxattrIn::default(),
                name,
                value: Rest(b""),
            },
        ),
        (Op::RemoveXattr, FILE, R::Removexattr { name }),
    ]
}

#[test]
fn a_request_that_would_block_is_answered_with_more_patience() {
    let (script, net, dir, file) = scripted();
    for (op, node, request) in requests(dir, file) {
        script.take_calls();
        script.next(op, Scripted::NeedsPatience(Patience::Full));
        // The harness checks that an incomplete reply stays empty.
        if let Err(errno) = net.rpc(node, &request) {
            panic!("{request:?}: {errno}");
        }
        let asked: Vec<Patience> = script
            .calls()
            .iter()
            .filter(|call| call.op == op)
            .map(|call| call.patience)
            .collect();
        let all = [Patience::None, Patience::Brief, Patience::Full];
        assert!(asked.starts_with(&all), "{request:?}: {asked:?}");
        script.forget(op);
    }
}

#[test]
fn a_request_that_would_block_counts_nothing() {
    let (script, net, dir, _) = scripted();
    let listing = || Scripted::Entries(vec![(b"x".to_vec(), 99, Kind::File)]);
    script.next(Op::Readdir, Scripted::NeedsPatience(Patience::Full));
    script.next(Op::Readdir, listing());
    let listed = net.list(DIR, dir, 0, 4096, true).expect("entries");
    assert_eq!(listed.len(), 3);
    net.forget(99, 1);
    assert_eq!(net.err(99, &lookup("x")), Errno::ESTALE);
    script.next(Op::Make, Scripted::NeedsPatience(Patience::Brief));
    script.next(Op::Make, Scripted::Node(98, Kind::Directory));
    let made = net.mkdir(DIR, "x");
    net.forget(made.nodeid, 1);
    assert_eq!(net.err(98, &lookup("x")), Errno::ESTALE);
}

#[test]
fn a_listing_that_fails_on_the_way_is_good_as_far_as_it_went() {
    let (script, net, dir, _) = scripted();
    script.next(Op::Readdir, Scripted::Fail(Errno::EACCES));
    let listed = net.list(DIR, dir, 0, 4096, false).expect("entries");
    assert_eq!(listed.len(), 2);
    script.next(Op::Readdir, Scripted::Fail(Errno::EACCES));
    let behind = listed[1].off;
    assert_eq!(net.list(DIR, dir, behind, 4096, false), Err(Errno::EACCES));
}

#[test]
fn an_errno_that_the_kernel_does_not_take_becomes_eio() {
    let (script, net, ..) = scripted();
    script.next(Op::Lookup, Scripted::Fail(Errno::from_raw(524)));
    assert_eq!(net.err(DIR, &lookup("x")), Errno::EIO);
}

#[test]
fn another_device_is_a_mount_of_its_own() {
    let (script, net, ..) = scripted();
    let mut attr = vfs_testkit::script::default_attr(FILE, Kind::File);
    attr.device = 7;
    script.next(Op::Attr, Scripted::Attr(attr));
    // The same node as its own parent.
    let seen = net.lookup(FILE, ".");
    assert_eq!(seen.attr.flags, 1);
    let seen = entry(&net.ok(FILE, &lookup(".")));
    assert_eq!(seen.attr.flags, 1);
}

#[test]
fn the_group_that_decides_comes_along() {
    let (script, net, ..) = scripted();
    let mut message = Vec::new();
    let header = fuse::Header {
        nodeid: DIR,
        uid: 5,
        gid: 6,
        ..Default::default()
    };
    let mkdir = R::Mkdir {
        args: MkdirIn::default(),
        name: Text(b"x"),
    };
    mkdir.encode(crate::net::FORM, header, &mut message);
    for word in [16u32, 32, 1, 77] {
        message.extend(word.to_le_bytes());
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_le_bytes());
    message[36] = 2;
    net.exchange(&message).expect("made");
    let caller = script.calls().pop().expect("a call").caller;
    assert_eq!((caller.uid, caller.gid), (5, 6));
    assert_eq!(caller.groups, Groups::Known([77].into()));
}

#[test]
fn a_client_that_writes_behind_opens_what_it_may_not_read_as_it_asked() {
    let script = Script::new();
    let export = Arc::new(Export::new("", script.clone()));
    let options = Options {
        writeback: true,
        ..Options::default()
    };
    let net = Net::on(&Server::new(export, options));
    script.next(Op::Lookup, Scripted::Node(FILE, Kind::File));
    net.lookup(ROOT_ID, "name");
    script.next(Op::Open, Scripted::Fail(Errno::EACCES));
    let fh = net.open(FILE, 0o2001).fh;
    let opens: Vec<String> = script
        .calls()
        .into_iter()
        .filter(|call| call.op == Op::Open)
        .map(|call| call.arguments)
        .collect();
    assert_eq!(opens.len(), 2);
    assert!(opens.iter().all(|flags| !flags.contains("APPEND")));
    assert_eq!(net.read(fh, 0, 1), Err(Errno::EBADF));
}

/// A source without privileges refuses `O_NOATIME` to the guest's root.
#[test]
fn a_time_of_last_read_that_cannot_be_left_alone_is_not() {
    let (script, net, ..) = scripted();
    let before = script.calls().len();
    script.next(Op::Open, Scripted::Fail(Errno::EPERM));
    net.open(FILE, 0o1000000);
    script.next(Op::Open, Scripted::Fail(Errno::EPERM));
    assert_eq!(net.err(FILE, &open_with(0)), Errno::EPERM);
    let calls = script.calls().split_off(before);
    let opens = calls.iter().filter(|call| call.op == Op::Open);
    let noatime: Vec<bool> = opens
        .map(|call| call.arguments.contains("NOATIME"))
        .collect();
    assert_eq!(noatime, [true, false, false]);
}

#[test]
fn a_file_is_no_root() {
    let script = Script::new();
    script.always(Op::Root, Scripted::Node(1, Kind::File));
    let export = Arc::new(Export::new("", script));
    let net = Net::silent(&Server::new(export, Options::default()));
    let asked = crate::net::init(7, 45, crate::net::OFFERED);
    assert_eq!(net.err(ROOT_ID, &asked), Errno::ENOTDIR);
}

#[test]
fn where_nothing_has_a_time_of_birth_statx_is_not_known() {
    let net = |no_births| {
        let script = Script::new();
        script.set_capabilities(Capabilities {
            no_birth_times: no_births,
            ..Capabilities::default()
        });
        let export = Arc::new(Export::new("", script));
        Net::on(&Server::new(export, Options::default()))
    };
    let args = StatxIn {
        sx_mask: 0xfff,
        ..StatxIn::default()
    };
    let asked = R::Statx { args };
    assert_eq!(net(true).err(ROOT_ID, &asked), Errno::ENOSYS);
    net(false).ok(ROOT_ID, &asked);
}

#[test]
fn with_acls_the_umask_comes_along_and_set_gid_goes() {
    let script = Script::new();
    script.set_capabilities(Capabilities {
        acl: Support::Native,
        ..Capabilities::default()
    });
    let export = Arc::new(Export::new("", script.clone()));
    let options = Options {
        posix_acl: true,
        ..Options::default()
    };
    let net = Net::on(&Server::new(export, options));
    let mkdir = R::Mkdir {
        args: MkdirIn {
            mode: 0o777,
            umask: 0o22,
        },
        name: Text(b"x"),
    };
    net.ok(ROOT_ID, &mkdir);
    let made = script.calls().pop().expect("a call");
    assert!(made.arguments.contains("umask: 18"), "{}", made.arguments);
    let mut attr = vfs_testkit::script::default_attr(1, Kind::Directory);
    attr.mode = 0o2755;
    script.next(Op::Attr, Scripted::Attr(attr));
    let set = R::Setxattr {
        args: SetxattrIn {
            setxattr_flags: 1,
            ..SetxattrIn::default()
        },
        name: Text(b"system.posix_acl_access"),
        value: Rest(b""),
    };
    script.take_calls();
    net.ok(ROOT_ID, &set);
    let last = script.calls().pop().expect("a call");
    assert_eq!(last.op, Op::Setattr);
    assert!(
        last.arguments.contains("mode: Some(493)"),
        "{}",
        last.arguments
    );
}
