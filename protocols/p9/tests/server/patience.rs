//! A request that would block, or is parked, leaves no trace and is answered when it is served
//! again.

use std::sync::Arc;

use p9::server::{ExportList, NumericUsers, Options, Server};
use p9::{Data, Datasync, Dialect, Fid, Names, Stat, Tag, Tmessage as T, Uid};
use vfs::peer::Owner;
use vfs::{Call, Caller, Errno, Export, Groups, Kind, LocalUsers, Op, Origin, Patience, Peer};
use vfs_testkit::script::{Answer as Scripted, Latch, Script};
use wire::ServeOutcome;

use crate::net::{FREE, Net, ROOT, checked, errno};

const DIR: Fid = Fid(1);
const FILE: Fid = Fid(2);
const OPEN_DIR: Fid = Fid(3);
const OPEN_FILE: Fid = Fid(4);
const DRAFT: Fid = Fid(5);
const LINK: Fid = Fid(6);

/// Returns a connection over a script, with one fid of each kind.
fn scripted(dialect: Dialect) -> (Arc<Script>, Net) {
    let script = Script::new();
    let export = Arc::new(Export::new("", script.clone()));
    let server = Server::new(
        Arc::new(ExportList(vec![export])),
        Arc::new(NumericUsers),
        Options::default(),
    );
    let net = Net::on(&server, dialect);
    for (fid, id, kind) in [
        (DIR, 10, Kind::Directory),
        (FILE, 20, Kind::File),
        (OPEN_DIR, 30, Kind::Directory),
        (OPEN_FILE, 40, Kind::File),
        (DRAFT, 50, Kind::File),
        (LINK, 60, Kind::Symlink),
    ] {
        script.next(Op::Lookup, Scripted::Node(id, kind));
        net.walk(ROOT, fid, "name");
    }
    match dialect {
        Dialect::Linux => {
            net.ok(&T::Lopen {
                fid: OPEN_DIR,
                flags: 0,
            });
            net.ok(&T::Lopen {
                fid: OPEN_FILE,
                flags: 2,
            });
            net.ok(&T::Xattrcreate {
                fid: DRAFT,
                name: b"user.a",
                size: 0,
                flags: 0,
            });
        }
        Dialect::Plan9 | Dialect::Unix => {
            net.ok(&T::Open {
                fid: OPEN_DIR,
                mode: 0,
            });
            net.ok(&T::Open {
                fid: OPEN_FILE,
                mode: 2,
            });
        }
    }
    (script, net)
}

/// Returns requests of 9P2000.L, each with the operation that may block.
fn requests() -> Vec<(Op, T<'static>)> {
    let name = &b"name"[..];
    vec![
        (
            Op::Root,
            T::Attach {
                fid: FREE,
                afid: Fid::NONE,
                uname: b"",
                aname: b"",
                n_uname: Uid(0),
            },
        ),
        (
            Op::Attr,
            T::Attach {
                fid: FREE,
                afid: Fid::NONE,
                uname: b"",
                aname: b"",
                n_uname: Uid(0),
            },
        ),
        (
            Op::Lookup,
            T::Walk {
                fid: DIR,
                newfid: FREE,
                names: Names::new(&[b"name"]),
            },
        ),
        (
            Op::Parent,
            T::Walk {
                fid: DIR,
                newfid: FREE,
                names: Names::new(&[b".."]),
            },
        ),
        (
            Op::Attr,
            T::Walk {
                fid: DIR,
                newfid: DIR,
                names: Names::new(&[b"."]),
            },
        ),
        (
            Op::Open,
            T::Lopen {
                fid: FILE,
                flags: 0,
            },
        ),
        (
            Op::FileAttr,
            T::Lopen {
                fid: FILE,
                flags: 0,
            },
        ),
        (
            Op::Create,
            T::Lcreate {
                fid: DIR,
                name,
                flags: 1,
                mode: 0o644,
                gid: 0,
            },
        ),
        (
            Op::Make,
            T::Symlink {
                fid: DIR,
                name,
                target: b"t",
                gid: 0,
            },
        ),
        (
            Op::Make,
            T::Mknod {
                dfid: DIR,
                name,
                mode: 0,
                major: 0,
                minor: 0,
                gid: 0,
            },
        ),
        (
            Op::Make,
            T::Mkdir {
                dfid: DIR,
                name,
                mode: 0,
                gid: 0,
            },
        ),
        (
            Op::Link,
            T::Link {
                dfid: DIR,
                fid: FILE,
                name,
            },
        ),
        (
            Op::Rename,
            T::Renameat {
                olddirfid: DIR,
                oldname: name,
                newdirfid: ROOT,
                newname: name,
            },
        ),
        (
            Op::Unlink,
            T::Unlinkat {
                dirfid: DIR,
                name,
                flags: 0,
            },
        ),
        (
            Op::Attr,
            T::Getattr {
                fid: FILE,
                mask: 0x7ff,
            },
        ),
        (
            Op::FileAttr,
            T::Getattr {
                fid: OPEN_FILE,
                mask: 0x7ff,
            },
        ),
        (Op::Setattr, size(FILE)),
        (Op::FileSetattr, size(OPEN_FILE)),
        (Op::Statfs, T::Statfs { fid: FILE }),
        (Op::Readlink, T::Readlink { fid: LINK }),
        (
            Op::Read,
            T::Read {
                fid: OPEN_FILE,
                offset: 0,
                count: 10,
            },
        ),
        (
            Op::Write,
            T::Write {
                fid: OPEN_FILE,
                offset: 0,
                data: Data(b"data"),
            },
        ),
        (
            Op::Fsync,
            T::Fsync {
                fid: OPEN_FILE,
                datasync: Datasync(0),
            },
        ),
        (
            Op::Readdir,
            T::Readdir {
                fid: OPEN_DIR,
                offset: 0,
                count: 1000,
            },
        ),
        (
            Op::Xattr,
            T::Xattrwalk {
                fid: FILE,
                newfid: FREE,
                name,
            },
        ),
        (
            Op::Xattrs,
            T::Xattrwalk {
                fid: FILE,
                newfid: FREE,
                name: b"",
            },
        ),
        (
            Op::HostLock,
            T::Lock {
                fid: OPEN_FILE,
                kind: 1,
                flags: 0,
                start: 0,
                length: 0,
                proc_id: 1,
                client_id: b"",
            },
        ),
        (
            Op::HostLockHolder,
            T::Getlock {
                fid: OPEN_FILE,
                kind: 1,
                start: 0,
                length: 0,
                proc_id: 1,
                client_id: b"",
            },
        ),
        (Op::SetXattr, T::Clunk { fid: DRAFT }),
        (Op::Flush, T::Clunk { fid: OPEN_FILE }),
    ]
}

fn size(fid: Fid) -> T<'static> {
    T::Setattr {
        fid,
        valid: 8,
        mode: 0,
        uid: 0,
        gid: 0,
        size: 3,
        atime_sec: 0,
        atime_nsec: 0,
        mtime_sec: 0,
        mtime_nsec: 0,
    }
}

fn encoded(net: &Net, request: &T<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    request.encode(net.dialect, Tag(1), &mut message);
    message
}

fn assert_would_block(net: &Net, call: &Call, patience: Patience, request: &T<'_>) {
    let (answer, _) = net.serve(call, patience, &encoded(net, request));
    assert_eq!(answer, ServeOutcome::WouldBlock, "{request:?}");
}

fn assert_done(net: &Net, call: &Call, request: &T<'_>) {
    let message = encoded(net, request);
    let (answer, reply) = net.serve(call, Patience::Full, &message);
    assert_eq!(answer, ServeOutcome::Done, "{request:?}");
    let reply = checked(net.dialect, &message, reply);
    assert_eq!(errno(&reply), None, "{request:?}: {reply:?}");
}

/// Messages that create files name a group, which the client chooses among the caller's.
#[test]
fn a_local_user_attaches_as_itself_and_creates_in_its_own_groups_alone() {
    let (script, net) = scripted(Dialect::Linux);
    let owner = Owner {
        uid: 1000,
        gid: None,
        groups: None,
    };
    let peer = Peer::new(
        Origin::Local { addr: None, owner },
        &LocalUsers::default(),
        0,
    );
    peer.set_owner(Caller {
        uid: 1000,
        gid: 100,
        groups: Groups::Known([4].into()),
    });
    let call = Call::detached().with_peer(Arc::new(peer));
    let attach = T::Attach {
        fid: FREE,
        afid: Fid::NONE,
        uname: b"root",
        aname: b"",
        n_uname: Uid(0),
    };
    assert_done(&net, &call, &attach);
    for (gid, acts) in [(0, 100), (4, 4), (42, 100), (u32::MAX, 100)] {
        let mkdir = T::Mkdir {
            dfid: FREE,
            name: b"name",
            mode: 0o755,
            gid,
        };
        assert_done(&net, &call, &mkdir);
        let calls = script.calls();
        let made = calls.iter().rfind(|called| called.op == Op::Make);
        let caller = &made.expect("made").caller;
        assert_eq!((caller.uid, caller.gid), (1000, acts), "gid {gid}");
    }
}

#[test]
fn what_would_block_is_served_again_with_more_patience() {
    for (op, request) in requests() {
        let (script, net) = scripted(Dialect::Linux);
        script.next(op, Scripted::NeedsPatience(Patience::Full));
        let call = Call::detached();
        for patience in [Patience::None, Patience::Brief, Patience::None] {
            assert_would_block(&net, &call, patience, &request);
        }
        assert_done(&net, &call, &request);
    }
}

#[test]
fn what_is_parked_is_served_again_when_woken() {
    for (op, request) in requests() {
        let (script, net) = scripted(Dialect::Linux);
        let latch = Latch::new();
        script.next(op, Scripted::Park(latch.clone()));
        let parked = net.park(&request).parked();
        assert!(!parked.is_woken());
        latch.open();
        assert!(parked.is_woken(), "{request:?} for {op}");
        let reply = net.resume(parked).reply();
        assert_eq!(errno(&reply), None, "{request:?} for {op}");
    }
}

#[test]
fn an_error_takes_back_the_answer_that_was_begun() {
    for (op, request) in requests() {
        let (script, net) = scripted(Dialect::Linux);
        script.next(op, Scripted::Fail(Errno::EIO));
        if op == Op::Readdir {
            // `.` and `..` are returned; the error follows after them.
            net.ok(&request);
            let offset = 0x7fff_ffe0_0d07_0002;
            script.next(op, Scripted::Fail(Errno::EIO));
            let rest = T::Readdir {
                fid: OPEN_DIR,
                offset,
                count: 1000,
            };
            assert_eq!(net.err(&rest), Errno::EIO);
            continue;
        }
        assert_eq!(net.err(&request), Errno::EIO, "{request:?} for {op}");
    }
}

#[test]
fn two_steps_of_the_old_dialects_are_taken_with_full_patience_only() {
    let mut change = Stat::UNTOUCHED;
    change.name = b"new";
    change.mode = 0o600;
    for request in [
        T::Create {
            fid: DIR,
            name: b"d",
            perm: 0x8000_01ed,
            mode: 0,
            extension: p9::Extension(b""),
        },
        T::Wstat {
            fid: FILE,
            stat: change,
        },
    ] {
        let (script, net) = scripted(Dialect::Unix);
        script.always(Op::Lookup, Scripted::Node(20, Kind::File));
        script.take_calls();
        let call = Call::detached();
        for patience in [Patience::None, Patience::Brief] {
            assert_would_block(&net, &call, patience, &request);
            let changes = [Op::Make, Op::Rename, Op::Setattr];
            assert!(!script.ops().iter().any(|op| changes.contains(op)));
        }
        assert_done(&net, &call, &request);
    }
}

#[test]
fn callers_are_whom_they_attached_as() {
    let (script, net) = scripted(Dialect::Linux);
    net.attach(Fid(100), 1000);
    script.take_calls();
    net.walk(Fid(100), Fid(101), "name");
    net.ok(&T::Lopen {
        fid: Fid(101),
        flags: 0,
    });
    let callers = |script: &Script| -> Vec<(u32, u32)> {
        let calls = script.take_calls();
        calls.iter().map(|c| (c.caller.uid, c.caller.gid)).collect()
    };
    assert!(callers(&script).iter().all(|&who| who == (1000, 1000)));
    // A new file has the group that the message names.
    script.next(Op::Lookup, Scripted::Node(10, Kind::Directory));
    net.walk(Fid(100), Fid(102), "dir");
    callers(&script);
    net.ok(&T::Mkdir {
        dfid: Fid(102),
        name: b"d",
        mode: 0o755,
        gid: 7,
    });
    assert_eq!(callers(&script), [(1000, 7)]);
}
