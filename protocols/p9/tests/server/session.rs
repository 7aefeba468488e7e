//! Start and end of sessions, several exports, limits, many threads.

use std::sync::Arc;

use memory::Memory;
use p9::server::{ExportList, Exports, NumericUsers, Options, Server};
use p9::{Dialect, Fid, Names, Rmessage, Tag, Tmessage as T, Uid};
use vfs::{Call, Errno, Export};
use vfs_testkit::clock;
use wire::{Role, Session};

use crate::net::{FREE, Net, ROOT, errno, server};

#[test]
fn nothing_is_answered_before_a_version_is_agreed_on() {
    let net = Net::silent(&server(Options::default()));
    assert_eq!(net.err(&T::Clunk { fid: ROOT }), Errno::EPROTO);
    let version = |msize, version| T::Version { msize, version };
    let refused = net.send(Tag::NONE, &version(100, b"9P2000"));
    assert_eq!(errno(&refused), Some(Errno::EMSGSIZE));
    net.send(Tag::NONE, &version(8192, b"8P"));
    assert_eq!(net.err(&T::Clunk { fid: ROOT }), Errno::EPROTO);
    net.send(Tag::NONE, &version(8192, b"9P2000"));
    assert_eq!(net.err(&T::Clunk { fid: ROOT }), Errno::EBADF);
}

#[test]
fn no_request_but_version_goes_without_a_tag() {
    let net = Net::attached(Dialect::Linux);
    let reply = net.send(Tag::NONE, &T::Clunk { fid: ROOT });
    assert_eq!(errno(&reply), Some(Errno::EINVAL));
    net.clunk(ROOT);
}

#[test]
fn what_is_framed_well_is_answered_and_what_is_not_ends_the_connection() {
    let net = Net::attached(Dialect::Linux);
    for (bytes, refusal) in [
        // A short Tclunk, a long one, replies, and unknown types.
        (vec![10, 0, 0, 0, 120, 1, 0, 0, 0, 0], Errno::EPROTO),
        (vec![12, 0, 0, 0, 120, 1, 0, 0, 0, 0, 0, 0], Errno::EPROTO),
        (vec![7, 0, 0, 0, 121, 1, 0], Errno::EOPNOTSUPP),
        (vec![7, 0, 0, 0, 106, 1, 0], Errno::EOPNOTSUPP),
        (vec![7, 0, 0, 0, 255, 1, 0], Errno::EOPNOTSUPP),
        (vec![7, 0, 0, 0, 0, 1, 0], Errno::EOPNOTSUPP),
        // Tflush without its tag.
        (vec![7, 0, 0, 0, 108, 1, 0], Errno::EPROTO),
        // A string beyond the end of its message.
        (
            vec![13, 0, 0, 0, 100, 1, 0, 0, 32, 0, 0, 9, 0],
            Errno::EPROTO,
        ),
    ] {
        let reply = net.exchange(&bytes);
        assert_eq!(errno(&reply), Some(refusal), "{bytes:?}");
    }
    assert_eq!(net.session.frame(&[7, 0, 0]), Ok(None));
    assert!(net.session.frame(&[6, 0, 0, 0]).is_err());
    assert!(net.session.frame(&[0xff; 4]).is_err());
    assert!(net.session.role(&[7, 0, 0, 0, 120]).is_err());
    let call = Call::detached();
    assert!(net.try_exchange(&call, &[8, 0, 0, 0, 120, 1, 0]).is_err());
    assert!(net.try_exchange(&call, &[]).is_err());
    // An undecodable Tflush is a request that will be refused.
    let role = net.session.role(&[7, 0, 0, 0, 108, 1, 0]);
    assert_eq!(role, Ok(Role::Request { id: 1 }));
}

/// Returns a server of `one`, `two` and `two/inner`, with `two:a/b` created.
fn exports() -> (Server, ExportList) {
    let names = ["one", "/two", "two/inner"];
    let list = ExportList(
        names
            .map(|name| Arc::new(Export::new(name, Memory::new(clock()))))
            .into(),
    );
    let shared = Arc::new(list.clone());
    let server = Server::new(shared, Arc::new(NumericUsers), Options::default());
    let net = Net::new(&server, Dialect::Linux, 8192);
    net.attach_to(ROOT, 0, b"two");
    for (path, name) in [("", &b"a"[..]), ("a", b"b"), ("", b"outside")] {
        net.walk(ROOT, FREE, path);
        net.ok(&T::Mkdir {
            dfid: FREE,
            name,
            mode: 0o755,
            gid: 0,
        });
        net.clunk(FREE);
    }
    (server, list)
}

#[test]
fn an_aname_is_an_exports_name_and_a_path_below() {
    let list = exports().1;
    let resolve = |aname: &'static str| {
        let (export, rest) = list.resolve(aname.as_bytes())?;
        Some((
            export.name.clone(),
            std::str::from_utf8(rest).expect("ASCII"),
        ))
    };
    let some = |name: &str, rest| Some((name.to_owned(), rest));
    assert_eq!(resolve("one"), some("one", ""));
    assert_eq!(resolve("//one/"), some("one", ""));
    assert_eq!(resolve("one/x/y"), some("one", "/x/y"));
    assert_eq!(resolve("two/x"), some("/two", "/x"));
    assert_eq!(resolve("two/inner/x"), some("two/inner", "/x"));
    assert_eq!(resolve("two/innermost"), some("/two", "/innermost"));
    assert_eq!(resolve("oneself"), None);
    assert_eq!(resolve(""), None);
}

#[test]
fn an_empty_aname_is_the_only_exports() {
    let only = ExportList(vec![Arc::new(Export::new("one", Memory::new(clock())))]);
    for aname in ["", "/", "//"] {
        let (export, rest) = only.resolve(aname.as_bytes()).expect("the only one");
        assert_eq!((export.name.as_str(), rest), ("one", &b""[..]), "{aname}");
    }
    assert!(only.resolve(b"x").is_none());
    assert!(ExportList::default().resolve(b"").is_none());
}

#[test]
fn an_attach_below_a_root_never_leaves_it() {
    let (server, _) = exports();
    let net = Net::new(&server, Dialect::Linux, 8192);
    net.attach_to(ROOT, 0, b"two");
    net.attach_to(Fid(1), 0, b"/two//a/./b");
    let b = net.walk(ROOT, Fid(2), "a/b")[1];
    assert_eq!(net.walk(Fid(1), Fid(3), "../..").pop(), Some(b));
    let attach = |aname| T::Attach {
        fid: FREE,
        afid: Fid::NONE,
        uname: b"",
        aname,
        n_uname: Uid(0),
    };
    assert_eq!(net.err(&attach(&b"two/a/../a"[..])), Errno::EACCES);
    assert_eq!(net.err(&attach(b"two/none")), Errno::ENOENT);
    assert_eq!(net.err(&attach(b"three")), Errno::ENOENT);
    // A directory was moved out of it: `..` does not lead outside.
    net.ok(&T::Mkdir {
        dfid: Fid(2),
        name: b"c",
        mode: 0o755,
        gid: 0,
    });
    net.walk(Fid(1), Fid(4), "c");
    net.ok(&T::Renameat {
        olddirfid: Fid(2),
        oldname: b"c",
        newdirfid: ROOT,
        newname: b"c",
    });
    let escape = T::Walk {
        fid: Fid(4),
        newfid: FREE,
        names: Names::new(&[b"..", b"outside"]),
    };
    assert_eq!(net.err(&escape), Errno::ENOENT);
}

#[test]
fn nothing_is_moved_or_linked_between_exports() {
    let (server, _) = exports();
    let net = Net::new(&server, Dialect::Linux, 8192);
    net.attach_to(ROOT, 0, b"two");
    net.attach_to(Fid(1), 0, b"one");
    net.walk(ROOT, Fid(2), "a");
    let (olddirfid, newdirfid) = (ROOT, Fid(1));
    for request in [
        T::Renameat {
            olddirfid,
            oldname: b"a",
            newdirfid,
            newname: b"a",
        },
        T::Rename {
            fid: Fid(2),
            dfid: Fid(1),
            name: b"a",
        },
        T::Link {
            dfid: Fid(1),
            fid: Fid(2),
            name: b"a",
        },
    ] {
        assert_eq!(net.err(&request), Errno::EXDEV, "{request:?}");
    }
}

#[test]
fn fids_are_bounded_and_given_back() {
    let options = Options {
        max_fids: 10,
        ..Options::default()
    };
    let net = Net::on(&server(options), Dialect::Linux);
    for round in 0..3 {
        (1..10).for_each(|fid| drop(net.walk(ROOT, Fid(fid), "")));
        let one_more = T::Walk {
            fid: ROOT,
            newfid: FREE,
            names: Names::new(&[]),
        };
        assert_eq!(net.err(&one_more), Errno::EMFILE, "round {round}");
        (1..10).for_each(|fid| net.clunk(Fid(fid)));
    }
    let nofid = T::Walk {
        fid: ROOT,
        newfid: Fid::NONE,
        names: Names::new(&[]),
    };
    assert_eq!(net.err(&nofid), Errno::EBADF);
}

#[test]
fn a_tree_of_any_depth_is_walked_and_forgotten() {
    let net = Net::attached(Dialect::Linux);
    net.walk(ROOT, Fid(1), "");
    for _ in 0..20_000 {
        net.ok(&T::Mkdir {
            dfid: Fid(1),
            name: b"d",
            mode: 0o755,
            gid: 0,
        });
        net.walk(Fid(1), Fid(1), "d");
    }
    net.clunk(Fid(1));
}

#[test]
fn threads_share_a_connection_and_a_fid() {
    let net = Net::attached(Dialect::Linux);
    net.walk(ROOT, Fid(1), "");
    net.ok(&T::Lcreate {
        fid: Fid(1),
        name: b"f",
        flags: 2,
        mode: 0o644,
        gid: 0,
    });
    std::thread::scope(|scope| {
        for thread in 1..5u32 {
            let net = &net;
            scope.spawn(move || {
                for round in 0..200 {
                    let fid = Fid(thread * 100);
                    net.walk(ROOT, fid, "f");
                    net.ok(&T::Lopen { fid, flags: 2 });
                    net.write(Fid(1), thread.into(), b"x");
                    net.read(fid, 0, 10);
                    // Two threads contend for one fid; the loser gets an error.
                    let shared = T::Walk {
                        fid: ROOT,
                        newfid: Fid(50),
                        names: Names::new(&[b"f"]),
                    };
                    for request in [
                        shared,
                        T::Lopen {
                            fid: Fid(50),
                            flags: 0,
                        },
                        T::Clunk { fid: Fid(50) },
                    ] {
                        if let Some(errno) = errno(&net.rpc(&request)) {
                            let told = [Errno::EBADF, Errno::EINVAL];
                            assert!(told.contains(&errno), "round {round}: {errno}");
                        }
                    }
                    net.clunk(fid);
                }
            });
        }
    });
    assert_eq!(net.read(Fid(1), 0, 100), b"\0xxxx");
}

/// Thand is available only after both sides agreed on it, and until the next Tversion.
#[test]
fn files_are_asked_for_where_both_have_agreed_to_that() {
    let export = Export::new("", Memory::new(clock())).with_fd_passing(true);
    let exports = Arc::new(ExportList(vec![Arc::new(export)]));
    let server = Server::new(exports, Arc::new(NumericUsers), Options::default());
    let hand = |fid| T::Hand { fid };
    for (hands_over, said, answered) in [
        (true, Dialect::FD_PASSING, Dialect::FD_PASSING),
        (false, Dialect::FD_PASSING, "9P2000.L"),
        (true, "9P2000.L", "9P2000.L"),
        (true, "9P2000.L.hand.more", "9P2000.L"),
        (true, "9P2000.L.han", "9P2000.L"),
    ] {
        let mut net = Net::silent(&server.clone().with_fd_passing(hands_over));
        let greet = |net: &Net, version: &str| {
            let (msize, version) = (8192, version.as_bytes());
            match net.send(Tag::NONE, &T::Version { msize, version }) {
                Rmessage::Version { version, .. } => version.to_vec(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(greet(&net, said), answered.as_bytes(), "{said}");
        net.dialect = Dialect::Linux;
        net.attach(ROOT, 0);
        let agreed = answered == Dialect::FD_PASSING;
        let expected = if agreed {
            Errno::EBADF
        } else {
            Errno::EOPNOTSUPP
        };
        assert_eq!(net.err(&hand(FREE)), expected, "{said}");
        assert_eq!(net.err(&hand(ROOT)), expected, "it is not open");
        net.rpc(&T::Lopen {
            fid: ROOT,
            flags: 0,
        });
        assert_eq!(net.err(&hand(ROOT)), Errno::EOPNOTSUPP, "a directory");
        net.attach(Fid(1), 0);
        net.rpc(&T::Lcreate {
            fid: Fid(1),
            name: b"f",
            flags: 2,
            mode: 0o600,
            gid: 0,
        });
        assert_eq!(
            net.err(&hand(Fid(1))),
            Errno::EOPNOTSUPP,
            "none of a host's"
        );
        net.dialect = Dialect::Plan9;
        greet(&net, "9P2000.L");
        net.dialect = Dialect::Linux;
        assert_eq!(net.err(&hand(FREE)), Errno::EOPNOTSUPP);
    }
}
