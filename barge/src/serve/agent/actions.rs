//! The operations by which an agent repeats a change: those that the present state of the tree
//! shows to be needed.

use std::sync::Arc;

use agent::protocol::{Action, ObjectKind};
use layers::Pokes;
use layers::poke::{Poke, ShownName};
use vfs::peer::PeerKey;
use vfs::{
    Call, Caller, ChangeKinds, ChangedBy, Cx, Entry, Errno, FileSystem, Kind, Name, Node, NodeId,
    Result,
};

use super::queue::{ChangedPath, QueuedChange};

/// An operation, and the poke to announce before it.
pub(super) struct Step {
    pub(super) action: Action,
    pub(super) poke: Option<Poke>,
    /// The operations after a failure with this error.
    pub(super) fallback: Option<(Errno, Vec<Step>)>,
}

impl Step {
    fn new(action: Action, poke: Option<Poke>) -> Step {
        Step {
            action,
            poke,
            fallback: None,
        }
    }

    /// An operation without effects.
    pub(super) fn none() -> Step {
        Step::new(Action::None, None)
    }
}

/// A directory of the tree, or one that is gone.
struct Found {
    dir: Arc<dyn Node>,
    /// The directories on the way that are gone.
    gone: Vec<ShownName>,
}

/// Returns the operations that repeat `change`. Those whose names have changed again are left out,
/// as further changes follow.
///
/// An object of the agent's `client` that has the old name of a rename, or the name of a removal,
/// again is not renamed or removed in the guest: it is the guest's own new object.
pub(super) fn steps(
    tree: &dyn FileSystem,
    pokes: &Pokes,
    client: Option<PeerKey>,
    change: &QueuedChange,
) -> Vec<Step> {
    let has = |kind| change.kinds.contains(kind);
    if has(ChangeKinds::OVERFLOW) {
        return vec![Step::new(Action::Overflow, None)];
    }
    let call = Call::detached().internal();
    let cx = Cx::new(&Caller::ROOT, &call);
    let Ok(found) = find(tree, pokes, &cx, &change.name) else {
        return Vec::new();
    };
    if change.name.name.is_empty() {
        return modifications(change, &found.dir, found.dir.kind());
    }
    let Ok(name) = Name::new(&change.name.name) else {
        return Vec::new();
    };
    let at = (found.dir.id(), change.name.name.clone());
    let present = match found.gone.is_empty() {
        true => found.dir.lookup(&cx, name).ok(),
        false => None,
    };
    let is_own = |(dir, name): &(NodeId, Vec<u8>), object: &Entry| {
        pokes.is_own_object(client, *dir, name, object)
    };
    let is_own_again = present.as_ref().is_some_and(|object| is_own(&at, object));
    let mut steps = Vec::new();
    if has(ChangeKinds::DELETED)
        && !is_own_again
        && let Some(entry) = change.removed.clone()
    {
        let delete = |entry| {
            let poke = Poke::Delete {
                dir: at.0,
                name: at.1.clone(),
                entry,
                above: found.gone.clone(),
            };
            let action = Action::Delete {
                path: change.name.full().into(),
                is_dir: change.is_dir,
            };
            Step::new(action, Some(poke))
        };
        let mut step = delete(entry);
        if found.gone.is_empty() && present.is_none() {
            // The guest's kernel has noticed the removal, without an event, and does not ask: the
            // name is created first. A socket cannot be opened meanwhile.
            let (kind, object) = match change.is_dir {
                true => (Kind::Directory, ObjectKind::Directory),
                false => (Kind::Socket, ObjectKind::Socket),
            };
            let entry = pokes.removed(tree, None, kind);
            let create = Action::Create {
                path: change.name.full().into(),
                kind: object,
                target: None,
            };
            let poke = Poke::Create {
                dir: at.0,
                name: at.1.clone(),
                stand_in: Some(entry.clone()),
            };
            let create = Step::new(create, Some(poke));
            step.fallback = Some((Errno::ENOENT, vec![create, delete(entry)]));
        }
        steps.push(step);
    }
    let Some(present) = present else {
        // It was created and is gone: with the removal merged, or to be reported.
        return steps;
    };
    // The source has found the name, which may be of the agent's client itself.
    let found_own = change.by == ChangedBy::Unknown && is_own_again;
    let mut created = has(ChangeKinds::CREATED) && !found_own;
    if has(ChangeKinds::RENAMED)
        && let Some(old) = &change.old_name
        && let Ok(from) = find(tree, pokes, &cx, old)
        && from.gone.is_empty()
    {
        let old_at = (from.dir.id(), old.name.clone());
        let again = Name::new(&old.name).and_then(|name| from.dir.lookup(&cx, name));
        if again.is_ok_and(|object| is_own(&old_at, &object)) {
            created = true;
        } else {
            steps.push(renaming(
                tree,
                pokes,
                &cx,
                change,
                (old, old_at),
                &at,
                &present,
            ));
        }
    }
    if created {
        steps.extend(creation(&cx, change, at, &present));
    }
    steps.extend(modifications(change, &present.node, present.attr.kind));
    steps
}

/// Returns the rename of `present` from the old place and name to `at`.
fn renaming(
    tree: &dyn FileSystem,
    pokes: &Pokes,
    cx: &Cx<'_>,
    change: &QueuedChange,
    (old, from): (&ChangedPath, (NodeId, Vec<u8>)),
    at: &(NodeId, Vec<u8>),
    present: &Entry,
) -> Step {
    let poke = Poke::Rename {
        from: from.clone(),
        to: at.clone(),
        entry: present.clone(),
        replaced: replaced(tree, pokes, at, present),
    };
    let rename = || {
        let action = Action::Rename {
            path: old.full().into(),
            to: change.name.full().into(),
        };
        Step::new(action, Some(poke.clone()))
    };
    let mut step = rename();
    // The guest's kernel has noticed that the old name is gone, as for a removal.
    if let Some(action) = creation_action(cx, old.full(), present) {
        let poke = Poke::Create {
            dir: from.0,
            name: from.1,
            stand_in: Some(present.clone()),
        };
        let create = Step::new(action, Some(poke));
        step.fallback = Some((Errno::ENOENT, vec![create, rename()]));
    }
    step
}

/// Returns the object that `present` has replaced at `at`: the one that clients know by this name,
/// or a stand-in. Were the name absent, programs of the guest would not find `present` meanwhile; a
/// stand-in is stale, and they look the name up again.
fn replaced(
    tree: &dyn FileSystem,
    pokes: &Pokes,
    at: &(NodeId, Vec<u8>),
    present: &Entry,
) -> Entry {
    let kind = present.attr.kind;
    let is_directory = |kind| kind == Kind::Directory;
    let known = pokes.remembered(tree, at.0, &at.1).filter(|known| {
        let is_another = known.node.id() != present.node.id();
        is_another && is_directory(known.attr.kind) == is_directory(kind)
    });
    let (id, kind) = match known {
        Some(known) => (Some(known.node.id()), known.attr.kind),
        None => (None, kind),
    };
    pokes.removed(tree, id, kind)
}

fn creation(
    cx: &Cx<'_>,
    change: &QueuedChange,
    (dir, name): (NodeId, Vec<u8>),
    present: &Entry,
) -> Option<Step> {
    let path = change.name.full();
    let action = creation_action(cx, path.clone(), present)?;
    let node = present.node.id();
    let attributes = Action::Attributes { path: path.into() };
    let attributes = Step::new(attributes, Some(Poke::Change { node }));
    let poke = Poke::Create {
        dir,
        name,
        stand_in: None,
    };
    Some(Step {
        // The guest's kernel has the name already, and does not ask.
        fallback: Some((Errno::EEXIST, vec![attributes])),
        ..Step::new(action, Some(poke))
    })
}

/// Returns the creation of an object like `present` at `path`; `None` for a device.
fn creation_action(cx: &Cx<'_>, path: Vec<u8>, present: &Entry) -> Option<Action> {
    let target = match present.attr.kind {
        Kind::Symlink => Some(present.node.readlink(cx).ok()?.into()),
        _ => None,
    };
    Some(Action::Create {
        path: path.into(),
        kind: object_kind(present.attr.kind)?,
        target,
    })
}

fn modifications(change: &QueuedChange, node: &Arc<dyn Node>, kind: Kind) -> Vec<Step> {
    let poke = || Some(Poke::Change { node: node.id() });
    let path = change.name.full();
    let mut steps = Vec::new();
    if change.kinds.contains(ChangeKinds::CONTENTS) && kind != Kind::Directory {
        let path = path.clone().into();
        steps.push(Step::new(Action::Modify { path }, poke()));
    }
    if change.kinds.contains(ChangeKinds::ATTRIBUTES) {
        let path = path.into();
        steps.push(Step::new(Action::Attributes { path }, poke()));
    }
    steps
}

/// Finds the directory of `place`. Directories on the way that are gone are those by which clients
/// have found them. Returns `ESTALE` if another directory is there.
fn find(tree: &dyn FileSystem, pokes: &Pokes, cx: &Cx<'_>, place: &ChangedPath) -> Result<Found> {
    let mut found = Found {
        dir: tree.root(cx)?,
        gone: Vec::new(),
    };
    let parts = place.path.split(|&byte| byte == b'/');
    for part in parts.filter(|part| !part.is_empty()) {
        let present = match found.gone.is_empty() {
            true => found.dir.lookup(cx, Name::new(part)?),
            false => Err(Errno::ENOENT),
        };
        let entry = match present {
            Err(Errno::ENOENT) => {
                let up = found.dir.id();
                let entry = pokes.remembered(tree, up, part).ok_or(Errno::ENOENT)?;
                found.gone.push(((up, part.to_vec()), entry.clone()));
                entry
            }
            present => present?,
        };
        if entry.node.kind() != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        found.dir = entry.node;
    }
    match found.dir.id() == place.dir {
        true => Ok(found),
        false => Err(Errno::ESTALE),
    }
}

/// Returns the kind, `None` for a device, which an agent does not create.
fn object_kind(kind: Kind) -> Option<ObjectKind> {
    match kind {
        Kind::File => Some(ObjectKind::File),
        Kind::Directory => Some(ObjectKind::Directory),
        Kind::Symlink => Some(ObjectKind::Symlink),
        Kind::Fifo => Some(ObjectKind::Fifo),
        Kind::Socket => Some(ObjectKind::Socket),
        Kind::CharDevice | Kind::BlockDevice => None,
    }
}

#[cfg(test)]
mod tests {
    use memory::Memory;
    use vfs::{Mode, NewNode, Peer};

    use super::*;

    fn call_from(host: u8) -> Call {
        let peer = Peer::remote([10, 0, 0, host].into(), 700);
        Call::detached().with_peer(Arc::new(peer))
    }

    const MODE: Mode = Mode::without_umask(0o644);

    /// A tree, and the same with the layer.
    struct Scene {
        below: Arc<dyn FileSystem>,
        above: Arc<dyn FileSystem>,
        pokes: Arc<Pokes>,
        call: Call,
    }

    impl Scene {
        fn new() -> Scene {
            let below: Arc<dyn FileSystem> = Memory::new(Arc::new(sources::now));
            let pokes = Pokes::new([7; 16]);
            let above = layers::stack(below.clone(), pokes.clone());
            let call = call_from(1);
            Scene {
                below,
                above,
                pokes,
                call,
            }
        }

        fn cx(&self) -> Cx<'_> {
            Cx::new(&Caller::ROOT, &self.call)
        }

        /// The root as clients see it.
        fn root(&self) -> Arc<dyn Node> {
            self.above.root(&self.cx()).expect("a root")
        }

        /// The root as the host sees it.
        fn host(&self) -> Arc<dyn Node> {
            self.below.root(&self.cx()).expect("a root")
        }

        /// A change of the name `name`.
        fn change(&self, kinds: ChangeKinds, name: &str) -> QueuedChange {
            QueuedChange {
                kinds,
                name: self.at(name),
                ..QueuedChange::overflow()
            }
        }

        fn at(&self, name: &str) -> ChangedPath {
            ChangedPath {
                dir: self.root().id(),
                path: Vec::new(),
                name: name.into(),
            }
        }
    }

    fn file() -> Name<'static> {
        Name::new(b"file").expect("a name")
    }

    #[test]
    fn what_a_client_has_created_itself_is_not_created_again_if_it_is_found() {
        let scene = Scene::new();
        let cx = scene.cx();
        let made = scene.root().make(&cx, file(), NewNode::File, MODE);
        made.expect("made");
        let client = |host| call_from(host).peer().map(Peer::key);
        let count = |host, by| {
            let found = QueuedChange {
                by,
                ..scene.change(ChangeKinds::CREATED, "file")
            };
            steps(&*scene.below, &scene.pokes, client(host), &found).len()
        };
        assert_eq!(count(1, ChangedBy::Unknown), 0, "its own");
        assert_eq!(count(2, ChangedBy::Unknown), 1, "another client's");
        assert_eq!(count(1, ChangedBy::Others), 1, "known to be of others");
        // The host replaces it.
        let host = scene.host();
        host.unlink(&cx, file(), false).expect("removed");
        host.make(&cx, file(), NewNode::File, MODE).expect("made");
        assert_eq!(count(1, ChangedBy::Unknown), 1, "not its own any more");
    }

    #[test]
    fn a_name_that_a_rename_has_replaced_is_never_absent() {
        let scene = Scene::new();
        let cx = scene.cx();
        let made = scene.host().make(&cx, file(), NewNode::File, MODE);
        made.expect("made");
        let renamed = QueuedChange {
            old_name: Some(scene.at("new")),
            ..scene.change(ChangeKinds::RENAMED, "file")
        };
        // The client does not know the name, or knows it as it is now.
        for _ in 0..2 {
            let steps = steps(&*scene.below, &scene.pokes, None, &renamed);
            let poke = steps.first().and_then(|step| step.poke.clone());
            let Some(Poke::Rename {
                entry, replaced, ..
            }) = poke
            else {
                panic!("expected a rename");
            };
            assert_eq!(steps.len(), 1);
            assert_ne!(replaced.node.id(), entry.node.id());
            scene.root().lookup(&cx, file()).expect("found");
        }
    }
}
