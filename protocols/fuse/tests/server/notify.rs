//! Notifications of changes by others, and the validity of caches meanwhile.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use fuse::Request as R;
use fuse::layout::{AttrOut, EntryOut, GetattrIn};
use fuse::message::Text;
use fuse::numbers::ROOT_ID;
use fuse::server::{Cache, Coverage, Notification, Options, Repeat};
use layers::{Layer, forward, stack};
use vfs::{Change, ChangeKinds, ChangedBy, ChangedName, Errno};

use crate::net::{Net, entry, init, lookup, server};

const MINUTE: Duration = Duration::from_secs(60);

/// The coverage of all changes on `device`.
fn coverage(device: u64) -> Coverage {
    Coverage {
        device,
        validity: MINUTE,
        each_write: true,
    }
}

/// A mount whose client is notified of changes of a tree.
fn notified(coverage: Coverage, cache: Cache) -> Net {
    let options = Options {
        cache,
        ..Options::default()
    };
    Net::of(server(options).session().with_notification(coverage))
}

/// The device of a tree in memory.
fn device() -> u64 {
    let fs = memory::Memory::new(vfs_testkit::clock());
    let call = vfs::Call::detached();
    let cx = vfs::Cx::new(&vfs::Caller::ROOT, &call);
    let root = vfs::FileSystem::root(&*fs, &cx).expect("a root");
    root.attr(&cx, vfs::AttrMask::BASIC)
        .expect("attributes")
        .device
}

fn named(dir: u64, name: &[u8]) -> Option<ChangedName<'_>> {
    Some(ChangedName {
        dir,
        path: b"",
        name,
    })
}

/// Returns the messages about `change`, in words: the code, and the bytes after the header.
fn messages(net: &Net, change: &Change<'_>) -> Vec<(i32, Vec<u8>)> {
    let mut sent = Vec::new();
    net.session
        .notify(change, &mut |message| sent.push(message));
    let words = |Notification { message, repeat }| {
        let len = u32::from_le_bytes(message[..4].try_into().expect("four bytes"));
        assert_eq!(len as usize, message.len());
        assert_eq!(message[8..16], [0; 8], "no request's reply");
        let code = i32::from_le_bytes(message[4..8].try_into().expect("four bytes"));
        let expected = match code {
            2 => Repeat::IfUnknown,
            3 => Repeat::Once,
            _ => Repeat::Never,
        };
        assert_eq!(repeat, expected, "a reply may be in flight");
        (code, message[16..].to_vec())
    };
    sent.into_iter().map(words).collect()
}

/// Builds a body of 64-bit numbers and bytes after them.
fn body(numbers: &[i64], rest: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    bytes.extend(rest);
    bytes
}

#[test]
fn a_change_drops_names_attributes_and_contents() {
    let net = notified(coverage(device()), Cache::Auto);
    net.init();
    let (file, _) = net.create(ROOT_ID, "f");
    let (node, root) = (file.nodeid as i64, ROOT_ID as i64);
    let change = |kinds, name, old_name| Change {
        kinds,
        node: Some(file.nodeid),
        name,
        old_name,
        ..Change::default()
    };
    let all = |ino| (2, body(&[ino, 0, 0], b""));
    let attributes = |ino| (2, body(&[ino, -1, 0], b""));
    let expired = |name: &[u8]| {
        let lengths = [name.len() as u8, 0, 0, 0, 1, 0, 0, 0];
        (3, body(&[root], &[&lengths, name, b"\0"].concat()))
    };
    let f = named(ROOT_ID, b"f");
    let sent = messages(&net, &change(ChangeKinds::CONTENTS, f, None));
    assert_eq!(sent, [all(node)]);
    let sent = messages(&net, &change(ChangeKinds::ATTRIBUTES, None, None));
    assert_eq!(sent, [attributes(node)]);
    let sent = messages(&net, &change(ChangeKinds::CREATED, f, None));
    assert_eq!(sent, [expired(b"f"), all(root), attributes(node)]);
    let renamed = change(ChangeKinds::RENAMED, named(ROOT_ID, b"gg"), f);
    let both = [expired(b"f"), all(root), expired(b"gg"), attributes(node)];
    assert_eq!(messages(&net, &renamed), both, "the directory once");
    let deleted = change(ChangeKinds::DELETED, f, None);
    assert_eq!(
        messages(&net, &deleted)[0],
        expired(b"f"),
        "it may have other names"
    );
    let last = Change {
        last_link: true,
        ..deleted
    };
    let lengths = [1, 0, 0, 0, 0, 0, 0, 0];
    let removed = (6, body(&[root, node], &[&lengths[..], b"f\0"].concat()));
    assert_eq!(messages(&net, &last)[0], removed);
    // Nodes and directories that the client does not know, and changes of its own.
    let unknown = Change {
        node: Some(4711),
        name: named(4711, b"f"),
        ..deleted
    };
    assert_eq!(messages(&net, &unknown), []);
    let own = Change {
        by: ChangedBy::ThisProcess,
        ..last
    };
    assert_eq!(messages(&net, &own), []);
    let sent = messages(&net, &Change::OVERFLOW);
    assert_eq!(sent[0], (8, vec![]), "all names at once");
    assert!(sent.contains(&all(node)) && sent.contains(&all(root)));
}

#[test]
fn caches_are_valid_for_long_only_while_changes_are_reported() {
    let valid = |net: &Net, name: &str| {
        let found = net.lookup(ROOT_ID, name);
        (found.entry_valid, found.attr_valid)
    };
    let absent = |net: &Net| {
        net.rpc(ROOT_ID, &lookup("absent"))
            .map(|reply| entry(&reply))
    };
    let net = notified(coverage(device()), Cache::Auto);
    net.init();
    net.create(ROOT_ID, "f");
    assert_eq!(valid(&net, "f"), (60, 60));
    let missing = absent(&net).expect("a negative entry");
    assert_eq!((missing.nodeid, missing.entry_valid), (0, 60));
    let args = GetattrIn::default();
    let attr = net.ok(ROOT_ID, &R::Getattr { args });
    assert_eq!(AttrOut::decode(&attr).map(|attr| attr.attr_valid), Ok(60));
    let mut sent = 0;
    net.session.end_notification(&mut |_| sent += 1);
    assert!(sent > 0);
    assert_eq!(valid(&net, "f"), (1, 1), "the stream is over");
    assert_eq!(absent(&net), Err(Errno::ENOENT));
    // Another device, another cache mode, and a client that cannot drop all names at once.
    for (net, minor, expected) in [
        (notified(coverage(device() + 1), Cache::Auto), 45, (1, 1)),
        (notified(coverage(device()), Cache::Never), 45, (0, 0)),
        (notified(coverage(device()), Cache::Auto), 43, (1, 60)),
    ] {
        net.ok(ROOT_ID, &init(7, minor, crate::net::OFFERED));
        net.create(ROOT_ID, "f");
        assert_eq!(valid(&net, "f"), expected);
        assert_eq!(absent(&net), Err(Errno::ENOENT));
    }
}

#[test]
fn attributes_of_files_are_valid_for_a_second_unless_each_write_is_reported() {
    let some = Coverage {
        each_write: false,
        ..coverage(device())
    };
    let net = notified(some, Cache::Auto);
    net.init();
    net.create(ROOT_ID, "f");
    net.mkdir(ROOT_ID, "d");
    let symlink = R::Symlink {
        name: Text(b"l"),
        target: Text(b"f"),
    };
    net.ok(ROOT_ID, &symlink);
    for (name, attributes) in [("f", 1), ("d", 60), ("l", 60)] {
        let found = net.lookup(ROOT_ID, name);
        assert_eq!(
            (found.entry_valid, found.attr_valid),
            (60, attributes),
            "{name}"
        );
    }
    let missing = net.ok(ROOT_ID, &lookup("absent"));
    assert_eq!(entry(&missing).entry_valid, 60);
}

/// Runs a change while a look-up is in progress.
struct During(Arc<OnceLock<OnLookup>>);

/// A function of the number of the node that was found.
type OnLookup = Box<dyn Fn(u64) + Send + Sync>;
impl Layer for During {
    fn lookup(
        &self,
        inner: &dyn vfs::Node,
        cx: &vfs::Cx<'_>,
        name: vfs::Name<'_>,
    ) -> vfs::Result<vfs::Entry> {
        let found = inner.lookup(cx, name)?;
        if let Some(change) = self.0.get() {
            change(found.node.id());
        }
        Ok(found)
    }

    forward! { capabilities id above }

    forward! { all but lookup }
}

#[test]
fn a_reply_from_before_a_change_is_not_cached() {
    let during = Arc::new(OnceLock::new());
    let fs = stack(
        memory::Memory::new(vfs_testkit::clock()),
        During(during.clone()),
    );
    let export = Arc::new(vfs::Export::new("", fs));
    let server = fuse::server::Server::new(export, Options::default());
    let net = Net::of(server.session().with_notification(coverage(device())));
    net.init();
    net.create(ROOT_ID, "f");
    let weak: Weak<_> = Arc::downgrade(&net.session);
    let change = move |node| {
        if let Some(session) = weak.upgrade() {
            let change = Change {
                kinds: ChangeKinds::ATTRIBUTES,
                node: Some(node),
                ..Change::default()
            };
            session.notify(&change, &mut |_| ());
        }
    };
    let found: EntryOut = net.lookup(ROOT_ID, "f");
    assert_eq!(found.attr_valid, 60);
    assert!(during.set(Box::new(change)).is_ok());
    assert_eq!(net.lookup(ROOT_ID, "f").attr_valid, 0);
}
