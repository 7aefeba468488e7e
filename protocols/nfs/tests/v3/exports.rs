//! Access control by address (RFC 1813 sections 2.6 and 4.4, appendix I): exports with client lists
//! as in exports(5).

use std::sync::Arc;

use layers::squash::{Squash, SquashMode};
use layers::{Admission, Bundle, stack};
use memory::Memory;
use nfs::mount;
use nfs::server::Listed;
use nfs::v3::*;
use vfs::{Export, LocalUsers, Origin, Peer, Time};
use vfs_testkit::clock;

use crate::net::{Host, MOUNT, NLM, NSM, Net, nothing, whole};

/// Exports `a` to some clients, and `b` to all.
fn host() -> Host {
    let lists = "10.0.0.1(rw,no_root_squash) 10.0.0.2(ro,no_root_squash) 10.0.0.3(rw)";
    let lists: Admission = lists.parse().expect("a list");
    let a = stack(Memory::new(clock()), lists);
    let members = [("a", a), ("b", Memory::new(clock()) as _)];
    let members = members.map(|(name, fs)| Arc::new(Export::new(name, fs)));
    Host::over(Bundle::new(&members, Time { sec: 1, nsec: 0 }).expect("a tree"))
}

fn names(net: &Net) -> Vec<Vec<u8>> {
    let args = ReadDirArgs {
        dir: net.root(),
        cookie: 0,
        verifier: [0; 8],
        count: 4096,
    };
    let listed: Result<ReadDirOk<'_>, (Status, Option<Attributes>)> =
        net.v3(Procedure::ReadDir, &args);
    let entries = listed.expect("a listing").entries.0;
    let names = entries.iter().map(|entry| entry.name.to_vec());
    names.filter(|name| !name.starts_with(b".")).collect()
}

/// Creates a file in `a` that only its owner, root, may read.
fn secret(net: &Net) -> Handle {
    let set = SetAttributes {
        mode: Some(0o600),
        ..nothing()
    };
    let root = net.mounted(b"/a").expect("let in");
    let made = net.create(root, b"secret", CreateHow::Guarded(set));
    let file = made.expect("made").object.expect("a handle");
    net.write(file, 0, b"data", Stable::FileSync)
        .expect("written");
    file
}

/// A process of another user of this host learned the names of all exports, and could release the
/// locks of this host's kernel.
#[test]
fn another_local_user_sees_only_exports_that_admit_it_and_releases_no_locks() {
    let share = |list: &str| -> Arc<dyn vfs::FileSystem> {
        let list: Admission = list.parse().expect("a list");
        stack(Memory::new(clock()), list)
    };
    let host = |lists: &[(&str, &str)]| {
        let members = lists
            .iter()
            .map(|(name, list)| Arc::new(Export::new(*name, share(list))));
        let members: Vec<_> = members.collect();
        let tree = Bundle::new(&members, Time { sec: 1, nsec: 0 }).expect("a tree");
        Host::with(tree, |options| {
            let listed = |path: String| Listed {
                path,
                clients: Vec::new(),
                replicas: Vec::new(),
            };
            let names = lists.iter().map(|(name, _)| listed(format!("/{name}")));
            options.listed = std::iter::once(listed("/".into())).chain(names).collect();
        })
    };
    let local = |host: &Host, uid: u32| {
        let origin = Origin::Local {
            addr: "127.0.0.1".parse().ok(),
            owner: vfs::peer::Owner {
                uid,
                gid: None,
                groups: None,
            },
        };
        Net::of_peer(host, Peer::new(origin, &LocalUsers::Privileged, 0))
    };
    let exported = |net: &Net| -> Vec<String> {
        let listed: List<mount::Export<'_>> = whole(net.call((MOUNT, 3, 5), &()).expect("a list"));
        let paths = listed.0.iter().map(|export| export.path);
        paths
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect()
    };
    let restart = |net: &Net| {
        let changed = nfs::nsm::StatChange {
            name: b"guest",
            state: 1,
        };
        [
            net.call((NSM, 1, 6), &changed).map(drop),
            net.call(
                (NLM, 4, 23),
                &nfs::nlm::FreeArgs {
                    caller: b"guest",
                    state: 1,
                },
            )
            .map(drop),
        ]
    };
    let some = host(&[("a", "*"), ("b", "localhost(rw)")]);
    assert_eq!(exported(&local(&some, 0)), ["/", "/a", "/b"]);
    assert_eq!(exported(&local(&some, 1000)), ["/", "/b"]);
    assert_eq!(local(&some, 1000).mounted(b"/a"), Err(mount::Status::Acces));
    assert!(local(&some, 1000).mounted(b"/b").is_ok());
    assert_eq!(restart(&local(&some, 1000)), [Ok(()), Ok(())]);
    let none = host(&[("a", "*"), ("b", "10.0.0.0/8")]);
    assert_eq!(exported(&local(&none, 0)), ["/", "/a", "/b"]);
    assert_eq!(exported(&local(&none, 1000)), [""; 0]);
    assert_eq!(local(&none, 1000).mounted(b"/"), Err(mount::Status::Acces));
    assert!(restart(&local(&none, 1000)).iter().all(Result::is_err));
    assert_eq!(restart(&local(&none, 0)), [Ok(()), Ok(())]);
    // Other hosts see all.
    assert_eq!(exported(&Net::from(&none, "192.0.2.1")).len(), 3);
}

#[test]
fn rfc1813_i_who_is_not_listed_mounts_nothing_and_sees_nothing_of_it() {
    let host = host();
    let [listed, stranger] = ["10.0.0.1", "10.0.0.9"].map(|addr| Net::from(&host, addr));
    assert_eq!(names(&listed), [b"a", b"b"]);
    assert_eq!(names(&stranger), [b"b"]);
    assert_eq!(stranger.mounted(b"/a"), Err(mount::Status::Acces));
    assert!(stranger.mounted(b"/b").is_ok());
    let refused = stranger.lookup(stranger.root(), b"a");
    assert_eq!(refused.expect_err("refused").0, Status::Acces);
}

#[test]
fn rfc1813_2_6_a_handle_lets_nobody_in() {
    let host = host();
    let listed = Net::from(&host, "10.0.0.1");
    let file = secret(&listed);
    let root = listed.mounted(b"/a").expect("let in");
    let stranger = Net::from(&host, "10.0.0.9");
    let acces = Status::Acces;
    assert_eq!(
        stranger.read(file, 0, 4).expect_err("refused"),
        (acces, None)
    );
    let refused = stranger.write(file, 0, b"x", Stable::FileSync);
    assert_eq!(refused.expect_err("refused"), (acces, Wcc::default()));
    let refused = stranger.lookup(root, b"secret");
    assert_eq!(refused.expect_err("refused"), (acces, None));
    let refused = stranger.create(root, b"new", CreateHow::Unchecked(nothing()));
    assert_eq!(refused.expect_err("refused").0, acces);
    let refused: Result<Attributes, (Status, ())> = stranger.v3(Procedure::GetAttr, &file);
    assert_eq!(refused.expect_err("refused").0, acces);
}

#[test]
fn rfc1813_2_6_each_is_let_in_as_its_line_says() {
    let host = host();
    let [full, reader, squashed] =
        ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|addr| Net::from(&host, addr));
    let file = secret(&full);
    assert_eq!(full.read(file, 0, 4).expect("read").data, b"data");
    assert_eq!(reader.read(file, 0, 4).expect("read").data, b"data");
    let refused = reader.write(file, 0, b"x", Stable::FileSync);
    assert_eq!(refused.expect_err("refused").0, Status::Rofs);
    // Root at another address has the file open, and the owner has the caller's uid.
    for _ in 0..2 {
        let refused = squashed.read(file, 0, 4);
        assert_eq!(refused.expect_err("refused").0, Status::Acces);
        full.read(file, 0, 4).expect("read");
    }
}

#[test]
fn what_was_answered_to_one_address_is_no_answer_to_another() {
    let host = host();
    let [full, stranger] = ["10.0.0.1", "10.0.0.9"].map(|addr| Net::from(&host, addr));
    let root = full.mounted(b"/a").expect("let in");
    let set = NameArgs {
        dir: root,
        name: b"dir",
    };
    let make = MkDirArgs {
        place: set,
        attributes: nothing(),
    };
    let call = full.bytes((crate::net::NFS, 3, Procedure::MkDir as u32), &make);
    let made = full.exchange(&call).expect("results");
    assert_eq!(full.exchange(&call), Ok(made), "the same answer again");
    let refused = stranger.exchange(&call).expect("results");
    assert_eq!(refused[..4], (Status::Acces as u32).to_be_bytes());
    assert!(refused.len() < made.len());
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..nothing()
    }
}

/// Returns two servers of one tree that squash root: one by a client list, which squashes all users
/// at 10.0.0.3, and one for all clients.
fn squashed(tree: &Arc<Memory>) -> [Host; 2] {
    let list = "10.0.0.2(rw) 10.0.0.3(rw,all_squash)";
    let list: Admission = list.parse().expect("a list");
    let generally = Squash::new(SquashMode::Root);
    [
        Host::over(stack(tree.clone(), list)),
        Host::over(stack(tree.clone(), generally)),
    ]
}

#[test]
fn rfc1813_4_4_owners_are_those_that_the_export_makes_of_callers() {
    let tree = Memory::new(clock());
    let unsquashed = Net::on(&Host::over(tree.clone()));
    let everybodys = unsquashed.setattr(unsquashed.root(), mode(0o777), None);
    everybodys.expect("set");
    let roots = unsquashed.file(b"roots", 0o444);
    let shorter = SetAttributes {
        size: Some(1),
        ..nothing()
    };
    let hosts = squashed(&tree);
    for (host, name) in hosts.iter().zip([b"one", b"two"]) {
        let root = Net::from(host, "10.0.0.2");
        let alice = root.of_user(1000);
        let hers = alice.file(name, 0o444);
        // Later than the creator's cached open file is closed.
        host.later(60);
        let written = alice.write(hers, 0, b"hers", Stable::Unstable);
        written.expect("its owner");
        alice.setattr(hers, shorter, None).expect("its owner");
        let all = Net::from(&hosts[0], "10.0.0.3").of_user(1000);
        for (who, file) in [(&alice, roots), (&root, roots), (&root, hers), (&all, hers)] {
            let refused = who.write(file, 0, b"x", Stable::Unstable);
            assert_eq!(refused.expect_err("no owner").0, Status::Acces);
            let refused = who.setattr(file, shorter, None);
            assert_eq!(refused.expect_err("no owner").0, Status::Acces);
        }
    }
}

#[test]
fn rfc1813_i_a_path_may_lead_through_what_is_closed_for_who_is_let_in() {
    let tree = Memory::new(clock());
    let unsquashed = Net::on(&Host::over(tree.clone()));
    let make = |dir, name, bits| {
        let make = MkDirArgs {
            place: NameArgs { dir, name },
            attributes: mode(bits),
        };
        let made: Result<CreateOk, (Status, Wcc)> = unsquashed.v3(Procedure::MkDir, &make);
        made.expect("made").object.expect("a handle")
    };
    let closed = make(unsquashed.root(), b"closed", 0o700);
    let inside = make(closed, b"inside", 0o755);
    let hosts = squashed(&tree);
    for host in &hosts {
        let net = Net::from(host, "10.0.0.2");
        assert_eq!(net.mounted(b"/closed/inside"), Ok(inside));
        assert_eq!(net.mounted(b"/closed/none"), Err(mount::Status::Noent));
        let refused = net.lookup(closed, b"inside");
        assert_eq!(refused.expect_err("it is closed").0, Status::Acces);
    }
    let stranger = Net::from(&hosts[0], "10.0.0.9");
    for path in [&b"/closed/inside"[..], b"/closed/none"] {
        assert_eq!(stranger.mounted(path), Err(mount::Status::Acces));
    }
}
