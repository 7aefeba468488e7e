//! Requests of agents never change the source, whatever is announced and whatever changes at the
//! same moment.

use std::sync::Arc;

use layers::poke::{AGENT_UIDS, Agent, MAX_AGENTS, Poke, Pokes};
use layers::{Admission, stack};
use memory::Memory;
use vfs::{
    Attr, AttrMask, Call, Caller, Cx, Entry, Errno, FileSystem, Kind, Mode, Name, NewNode, Node,
    OpenFlags, Peer, RenameFlags, SetAttr, SetTime, Time,
};
use vfs_testkit::{TestPayload, clock};

const MODE: Mode = Mode::without_umask(0o644);
const UID: u32 = AGENT_UIDS.start + 7;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

/// A tree, the same with the layer, an agent, and the client that it is.
struct Scene {
    below: Arc<dyn FileSystem>,
    above: Arc<dyn FileSystem>,
    pokes: Arc<Pokes>,
    agent: Agent,
    call: Call,
    caller: Caller,
}

fn call_from(host: u8) -> Call {
    let peer = Peer::remote([10, 0, 0, host].into(), 700);
    Call::detached().with_peer(Arc::new(peer))
}

impl Scene {
    fn new() -> Scene {
        let below: Arc<dyn FileSystem> = Memory::new(clock());
        let pokes = Pokes::new([7; 16]);
        let above = stack(below.clone(), pokes.clone());
        let agent = pokes.add(UID, b"challenge".to_vec()).expect("room");
        let scene = Scene {
            below,
            above,
            pokes,
            agent,
            call: call_from(1),
            caller: Caller::new(UID, 0),
        };
        let asked = scene.root().lookup(&scene.cx(), name("challenge"));
        assert_eq!(asked.map(drop), Err(Errno::ENOENT));
        let key = scene.call.peer().map(Peer::key);
        assert_eq!(scene.agent.client(), Some(key));
        scene
    }

    /// Returns a stand-in of a file that clients do not know.
    fn unknown(&self) -> Entry {
        self.pokes.removed(&*self.below, None, Kind::File)
    }

    /// The context of the agent.
    fn cx(&self) -> Cx<'_> {
        Cx::new(&self.caller, &self.call)
    }

    fn root(&self) -> Arc<dyn Node> {
        let call = Call::detached();
        self.above
            .root(&Cx::new(&Caller::ROOT, &call))
            .expect("a root")
    }

    /// Calls `run` with the root below the layer, as a program of the host.
    fn host<T>(&self, run: impl FnOnce(&dyn Node, &Cx<'_>) -> vfs::Result<T>) -> T {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let root = self.below.root(&cx).expect("a root");
        run(&*root, &cx).expect("done")
    }

    fn make(&self, text: &str, what: NewNode<'_>) -> Entry {
        self.host(|root, cx| root.make(cx, name(text), what, MODE))
    }

    /// Returns whether the host has the name.
    fn has(&self, text: &str) -> bool {
        self.host(|root, cx| match root.lookup(cx, name(text)) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        })
    }

    fn dir(&self) -> u64 {
        self.root().id()
    }

    fn announce_delete(&self, text: &str, removed: &Entry) {
        self.agent.announce(Poke::Delete {
            dir: self.dir(),
            name: text.into(),
            entry: self
                .pokes
                .removed(&*self.below, Some(removed.node.id()), removed.attr.kind),
            above: Vec::new(),
        });
    }

    fn look_up(&self, text: &str) -> vfs::Result<Attr> {
        Ok(self.root().lookup(&self.cx(), name(text))?.attr)
    }
}

#[test]
fn a_removal_is_answered_once_and_without_effect() {
    let scene = Scene::new();
    let file = scene.make("file", NewNode::File);
    let root = scene.root();
    let call = Call::detached();
    let program = Cx::new(&Caller::ROOT, &call);
    let known = root.lookup(&program, name("file")).expect("found");
    scene.host(|root, cx| root.unlink(cx, name("file"), false));
    assert_eq!(
        scene.look_up("file"),
        Err(Errno::ENOENT),
        "not before it is announced"
    );
    scene.announce_delete("file", &file);
    let shown = scene.look_up("file").expect("shown");
    assert_eq!(
        (shown.id, shown.kind, shown.nlink),
        (known.node.id(), Kind::File, 1)
    );
    let others = root.lookup(&program, name("file"));
    assert_eq!(
        others.map(drop),
        Err(Errno::ENOENT),
        "others see the tree as it is"
    );
    // Created again at the same moment.
    scene.make("file", NewNode::File);
    assert_eq!(root.unlink(&scene.cx(), name("file"), false), Ok(()));
    assert!(scene.has("file"));
    assert!(scene.agent.withdraw());
    assert_eq!(
        root.unlink(&scene.cx(), name("file"), false),
        Err(Errno::EISDIR)
    );
    assert_eq!(
        root.unlink(&scene.cx(), name("file"), true),
        Err(Errno::EPERM)
    );
    assert!(scene.has("file"));
}

#[test]
fn an_object_that_the_client_has_made_again_is_left_to_it() {
    let scene = Scene::new();
    let file = scene.make("file", NewNode::File);
    let (root, cx) = (scene.root(), scene.cx());
    let guest = Cx::new(&Caller::ROOT, &scene.call);
    root.lookup(&guest, name("file")).expect("found");
    scene.host(|root, cx| root.unlink(cx, name("file"), false));
    let own = root
        .make(&guest, name("file"), NewNode::File, MODE)
        .expect("made");
    scene.announce_delete("file", &file);
    assert_eq!(scene.look_up("file").map(|attr| attr.id), Ok(own.node.id()));
    let removed = root.unlink(&cx, name("file"), false);
    assert_eq!(removed, Err(Errno::EPERM));
    let new = scene.make("new", NewNode::File);
    scene.agent.announce(Poke::Rename {
        from: (scene.dir(), b"file".to_vec()),
        to: (scene.dir(), b"new".to_vec()),
        entry: new,
        replaced: scene.unknown(),
    });
    assert_eq!(scene.look_up("file").map(|attr| attr.id), Ok(own.node.id()));
    let renamed = root.rename(&cx, name("file"), &*root, name("new"), RenameFlags::empty());
    assert_eq!(renamed, Err(Errno::EPERM));
    // The client removes it: the old name is gone, and the poke goes on.
    root.unlink(&guest, name("file"), false).expect("removed");
    let renamed = root.rename(&cx, name("file"), &*root, name("new"), RenameFlags::empty());
    assert_eq!(renamed, Ok(()));
}

#[test]
fn an_object_that_the_host_has_made_again_is_not_the_clients() {
    let scene = Scene::new();
    let (root, cx) = (scene.root(), scene.cx());
    let guest = Cx::new(&Caller::ROOT, &scene.call);
    let own = root
        .make(&guest, name("file"), NewNode::File, MODE)
        .expect("made");
    root.make(&guest, name("old"), NewNode::File, MODE)
        .expect("made");
    root.lookup(&guest, name("old")).expect("found");
    let moved = root.rename(
        &guest,
        name("old"),
        &*root,
        name("renamed"),
        RenameFlags::empty(),
    );
    moved.expect("renamed");
    let client = scene.call.account().client();
    let is_own = |text: &str| {
        let object = root.lookup(&guest, name(text)).expect("found");
        let dir = scene.dir();
        scene
            .pokes
            .is_own_object(client, dir, text.as_bytes(), &object)
    };
    assert!(is_own("file") && is_own("renamed"));
    // As git checkout does: a removal, and a new file with the old name.
    for text in ["file", "renamed"] {
        scene.host(|root, cx| root.unlink(cx, name(text), false));
        scene.make(text, NewNode::File);
        assert!(!is_own(text), "{text}");
    }
    scene.announce_delete("file", &own);
    assert_eq!(root.unlink(&cx, name("file"), false), Ok(()));
    assert!(scene.has("file"));
    // A change that fails leaves the name to its owner.
    root.make(&guest, name("kept"), NewNode::File, MODE)
        .expect("made");
    let again = root.make(&guest, name("kept"), NewNode::Directory, MODE);
    assert_eq!(again.map(drop), Err(Errno::EEXIST));
    assert!(is_own("kept"));
}

#[test]
fn an_object_that_may_have_another_name_has_no_stand_in_of_its_number() {
    let scene = Scene::new();
    let root = scene.root();
    let call = Call::detached();
    let program = Cx::new(&Caller::ROOT, &call);
    let make = || {
        let id = scene.make("one", NewNode::File).node.id();
        scene.host(|root, cx| {
            let one = root.lookup(cx, name("one"))?.node;
            root.link(cx, name("two"), &*one)
        });
        (id, root.lookup(&program, name("one")).expect("found"))
    };
    let remove = |text| scene.host(|root, cx| root.unlink(cx, name(text), false));
    let removed = |id| {
        scene
            .pokes
            .removed(&*scene.below, Some(id), Kind::File)
            .node
    };
    let (id, found) = make();
    drop(found);
    remove("one");
    remove("two");
    assert!(removed(id).id() >> 63 == 1, "its attributes have two links");
    let (id, found) = make();
    found.node.handle(&program).expect("a handle");
    drop(found);
    remove("one");
    assert_eq!(removed(id).id(), id);
    remove("two");
    assert_eq!(removed(id).id(), id, "its handle shows that it is gone");
}

#[test]
fn a_client_that_the_list_refuses_is_not_authorised() {
    let clients: Admission = "10.0.0.1(rw,insecure)".parse().expect("a list");
    let below = stack(Memory::new(clock()), clients);
    let pokes = Pokes::new([7; 16]);
    let above = stack(below, pokes.clone());
    let agent = pokes.add(UID, b"challenge".to_vec()).expect("room");
    let call = Call::detached();
    let root = above.root(&Cx::new(&Caller::ROOT, &call)).expect("a root");
    for (host, answer) in [(2, Errno::EACCES), (1, Errno::ENOENT)] {
        let call = call_from(host);
        let asked = root.lookup(&Cx::new(&Caller::new(UID, 0), &call), name("challenge"));
        assert_eq!(asked.map(drop), Err(answer));
        assert_eq!(agent.client().is_some(), answer == Errno::ENOENT);
    }
}

#[test]
fn an_unknown_object_has_a_stand_in() {
    let scene = Scene::new();
    for (kind, dir) in [(Kind::File, false), (Kind::Directory, true)] {
        let entry = scene.pokes.removed(&*scene.below, None, kind);
        scene.announce_delete("gone", &entry);
        let shown = scene.look_up("gone").expect("shown");
        assert_eq!(shown.kind, kind);
        assert!(shown.id >> 63 == 1, "no number of the source");
        let root = scene.root();
        let wrong = match dir {
            true => Errno::EISDIR,
            false => Errno::EPERM,
        };
        assert_eq!(root.unlink(&scene.cx(), name("gone"), !dir), Err(wrong));
        assert_eq!(root.unlink(&scene.cx(), name("gone"), dir), Ok(()));
        assert_eq!(scene.look_up("gone"), Err(Errno::ENOENT));
    }
}

#[test]
fn a_creation_returns_what_is_there() {
    let scene = Scene::new();
    let (root, cx) = (scene.root(), scene.cx());
    let file = scene.make("file", NewNode::File);
    let created = root.make(&cx, name("file"), NewNode::File, MODE);
    assert_eq!(created.map(drop), Err(Errno::EPERM), "not announced");
    let announce = |stand_in| {
        scene.agent.announce(Poke::Create {
            dir: scene.dir(),
            name: b"file".to_vec(),
            stand_in,
        });
    };
    announce(None);
    assert_eq!(scene.look_up("file"), Err(Errno::ENOENT));
    let created = root.make(&cx, name("file"), NewNode::Directory, MODE);
    assert_eq!(created.map(drop), Err(Errno::EEXIST), "another kind");
    let created = root
        .make(&cx, name("file"), NewNode::File, MODE)
        .expect("made");
    assert_eq!(created.node.id(), file.node.id());
    assert!(scene.call.take_existing() && scene.look_up("file").is_ok());
    assert!(scene.call.is_uncacheable(), "it may be replaced at once");
    // As NFS does.
    announce(None);
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCL;
    let (created, opened) = root
        .create(&cx, name("file"), flags, MODE)
        .expect("created");
    assert_eq!(created.node.id(), file.node.id());
    let wrote = opened.write(&cx, 0, &mut TestPayload::new(b"text"));
    assert_eq!(wrote, Err(Errno::EACCES));
    // Gone at the same moment.
    scene.host(|root, cx| root.unlink(cx, name("file"), false));
    announce(None);
    let created = root.make(&cx, name("file"), NewNode::File, MODE);
    assert_eq!(created.map(drop), Err(Errno::ENOENT));
    announce(Some(scene.pokes.removed(&*scene.below, None, Kind::Socket)));
    let created = root.make(&cx, name("file"), NewNode::Socket, MODE);
    assert!(created.is_ok() && !scene.has("file"));
}

#[test]
fn a_rename_shows_the_old_name_until_it_is_answered() {
    let scene = Scene::new();
    let (root, cx) = (scene.root(), scene.cx());
    let entry = scene.make("new", NewNode::File);
    scene.agent.announce(Poke::Rename {
        from: (scene.dir(), b"old".to_vec()),
        to: (scene.dir(), b"new".to_vec()),
        entry: entry.clone(),
        replaced: scene.unknown(),
    });
    assert_eq!(
        scene.look_up("old").map(|attr| attr.id),
        Ok(entry.node.id())
    );
    let new = scene.look_up("new").expect("as it was before");
    assert_ne!(new.id, entry.node.id());
    let rename = |from, to| root.rename(&cx, name(from), &*root, name(to), RenameFlags::empty());
    assert_eq!(rename("new", "old"), Err(Errno::EPERM));
    // Both exist at the same moment.
    scene.make("old", NewNode::File);
    assert_eq!(rename("old", "new"), Ok(()));
    assert!(scene.has("old") && scene.has("new"));
    assert_eq!(rename("old", "new"), Err(Errno::EPERM));
    assert_eq!(
        scene.look_up("new").map(|attr| attr.id),
        Ok(entry.node.id())
    );
}

#[test]
fn agents_change_nothing_at_all() {
    let scene = Scene::new();
    let (root, cx) = (scene.root(), scene.cx());
    let file = scene.make("file", NewNode::File);
    let node = root.lookup(&cx, name("file")).expect("found").node;
    let set = SetAttr {
        mode: Some(0),
        size: Some(100),
        mtime: Some(SetTime::At(Time { sec: 5, nsec: 0 })),
        ..SetAttr::default()
    };
    let node_id = node.id();
    scene.agent.announce(Poke::Change { node: node_id });
    for _ in 0..2 {
        let attr = node.setattr(&cx, &set).expect("answered");
        assert_eq!(
            (attr.mode, attr.size, attr.mtime),
            (0o644, 0, file.attr.mtime)
        );
    }
    assert!(scene.agent.withdraw(), "its request has arrived");
    let refused = [
        node.open(&cx, OpenFlags::READ).map(drop),
        node.open(&cx, OpenFlags::WRITE | OpenFlags::TRUNC)
            .map(drop),
        root.open(&cx, OpenFlags::READ).map(drop),
        root.link(&cx, name("link"), &*node).map(drop),
        root.tmpfile(&cx, OpenFlags::WRITE, MODE).map(drop),
        node.set_xattr(&cx, b"user.x", b"x", vfs::XattrFlags::empty()),
        node.remove_xattr(&cx, b"user.x"),
    ];
    assert_eq!(refused, [Err(Errno::EACCES); 7]);
    assert_eq!(node.access(&cx, vfs::Access::all()), Ok(vfs::Access::all()));
    assert!(!scene.has("link"));
}

#[test]
fn another_client_and_an_unknown_agent_get_nothing() {
    let scene = Scene::new();
    let file = scene.make("file", NewNode::File);
    scene.announce_delete("file", &file);
    let root = scene.root();
    let other = call_from(2);
    let stranger = Caller::new(UID + 1, 0);
    for cx in [
        Cx::new(&scene.caller, &other),
        Cx::new(&stranger, &scene.call),
    ] {
        assert_eq!(root.lookup(&cx, name("file")).map(drop), Err(Errno::EACCES));
        assert_eq!(root.unlink(&cx, name("file"), false), Err(Errno::EACCES));
        let made = root.make(&cx, name("more"), NewNode::File, MODE);
        assert_eq!(made.map(drop), Err(Errno::EACCES));
        assert!(root.setattr(&cx, &SetAttr::default()).is_err());
    }
    assert!(!scene.agent.withdraw() && scene.has("file") && !scene.has("more"));
    assert_eq!(
        root.unlink(&scene.cx(), name("file"), false),
        Err(Errno::EISDIR)
    );
}

#[test]
fn directories_that_are_gone_are_shown_on_the_way() {
    let scene = Scene::new();
    let dir = scene.make("dir", NewNode::Directory);
    let file = scene.host(|root, cx| {
        let dir = root.lookup(cx, name("dir"))?.node;
        dir.make(cx, name("file"), NewNode::File, MODE)
    });
    let call = Call::detached();
    let program = Cx::new(&Caller::ROOT, &call);
    let root = scene.root();
    let guest_dir = root.lookup(&program, name("dir")).expect("found").node;
    guest_dir.lookup(&program, name("file")).expect("found");
    scene.host(|root, cx| {
        let dir = root.lookup(cx, name("dir"))?.node;
        dir.unlink(cx, name("file"), false)?;
        root.unlink(cx, name("dir"), true)
    });
    let shown = scene
        .pokes
        .remembered(&*scene.below, scene.dir(), b"dir")
        .expect("remembered");
    scene.agent.announce(Poke::Delete {
        dir: dir.node.id(),
        name: b"file".to_vec(),
        entry: scene
            .pokes
            .removed(&*scene.below, Some(file.node.id()), Kind::File),
        above: vec![((scene.dir(), b"dir".to_vec()), shown)],
    });
    let cx = scene.cx();
    let up = root.lookup(&cx, name("dir")).expect("shown").node;
    assert!(up.attr(&cx, AttrMask::STAT).expect("attributes").nlink > 0);
    assert!(up.lookup(&cx, name("file")).is_ok());
    assert_eq!(up.unlink(&cx, name("file"), false), Ok(()));
}

#[test]
fn changes_belong_to_the_client_that_made_them_last() {
    let scene = Scene::new();
    let root = scene.root();
    let (one, two) = (call_from(1), call_from(2));
    let keys = [&one, &two].map(|call| call.account().client());
    let make = |call: &Call, text| {
        let cx = Cx::new(&Caller::ROOT, call);
        root.make(&cx, name(text), NewNode::File, MODE)
            .expect("made")
    };
    let owners =
        |text: &str| keys.map(|key| scene.pokes.is_own(key, scene.dir(), Some(text.as_bytes())));
    make(&one, "a");
    let file = make(&two, "b").node;
    assert_eq!(
        [owners("a"), owners("b"), owners("c")],
        [[true, false], [false, true], [false; 2]]
    );
    let of_node = |file: &dyn Node| keys.map(|key| scene.pokes.is_own(key, file.id(), None));
    assert_eq!(of_node(&*file), [false, true]);
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    file.setattr(&Cx::new(&Caller::ROOT, &one), &set)
        .expect("set");
    assert_eq!(of_node(&*file), [true, false]);
}

#[test]
fn the_number_of_agents_is_limited() {
    let pokes = Pokes::new([7; 16]);
    let add = |uid| pokes.add(uid, b"challenge".to_vec());
    assert_eq!(add(0).map(drop), Err(Errno::EINVAL));
    let mut all: Vec<_> = (0..MAX_AGENTS as u32)
        .map(|number| add(AGENT_UIDS.start + number).expect("room"))
        .collect();
    assert_eq!(add(AGENT_UIDS.start).map(drop), Err(Errno::EEXIST));
    assert_eq!(add(AGENT_UIDS.end - 1).map(drop), Err(Errno::ENFILE));
    all.pop();
    assert!(add(AGENT_UIDS.end - 1).is_ok());
}
