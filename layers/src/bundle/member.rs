//! The layer over a member: translates node numbers, and gives the root a parent directory.

use std::sync::{Arc, OnceLock, Weak};

use vfs::lock::{ForeignLock, HostLock, Lock, LockKind, LockRange, Owner};
use vfs::{
    Cx, DirEntry, DirSink, Entry, Errno, Export, Handle, Kind, Node, NodeId, Op, ReaddirMode,
    RelaySink, Result,
};

use super::CurrentTree;
use super::dir::Dir;
use super::numbers::{self, Numbers};
use crate::{Layer, Opened, WithAttr, forward};

pub(super) struct Member {
    current: Weak<CurrentTree>,
    /// The directory that contains it.
    dir: NodeId,
    numbers: Numbers,
    export: Arc<Export>,
    /// The lock owner that stands for all of the bundle's clients in the member's table.
    owner: Owner,
    /// The number of the member's root, once known.
    root: OnceLock<NodeId>,
}

impl Member {
    pub(super) fn new(
        places: &Arc<CurrentTree>,
        dir: NodeId,
        numbers: Numbers,
        export: Arc<Export>,
    ) -> Member {
        Member {
            current: Arc::downgrade(places),
            dir,
            numbers,
            export,
            owner: Owner {
                client: places.client,
                id: Arc::from([]),
                pid: 0,
            },
            root: OnceLock::new(),
        }
    }

    fn root_id(&self, cx: &Cx<'_>) -> Result<NodeId> {
        match self.root.get() {
            Some(id) => Ok(*id),
            None => {
                let id = self.export.fs.root(cx)?.id();
                Ok(*self.root.get_or_init(|| id))
            }
        }
    }

    /// Attributes a request to this member.
    fn attribute(&self, cx: &Cx<'_>) {
        cx.call.note_export(self.numbers.position);
    }

    fn attributed<T>(
        &self,
        _: Op,
        _: NodeId,
        cx: &Cx<'_>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.attribute(cx);
        run()
    }

    /// Runs an operation of this member, and translates the number in its value.
    fn translated<T: WithAttr>(
        &self,
        cx: &Cx<'_>,
        run: impl FnOnce(&Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        self.attribute(cx);
        Ok(run(cx)?.map_attr(|attr| self.numbers.attr(attr)))
    }
}

impl Layer for Member {
    fn id(&self, below: NodeId) -> NodeId {
        self.numbers.id(below)
    }

    /// Returns `ESTALE` once the bundle is gone.
    fn above(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Option<Entry>> {
        if inner.kind() != Kind::Directory || inner.id() != self.root_id(cx)? {
            return Ok(None);
        }
        let places = self.current.upgrade().ok_or(Errno::ESTALE)?;
        Dir::entry(&places, self.dir).map(Some)
    }

    /// Prefixes the member's handle with its place, which [`super::Bundle`] strips before it
    /// resolves the rest.
    fn handle(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Handle> {
        self.attribute(cx);
        numbers::handle(self.numbers.position, inner.handle(cx)?.bytes())
    }

    /// Sets the lock in the member's table, which is the host of the bundle's.
    fn host_lock(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        let locks = &self.export.locks;
        locks.mirror(cx, inner, &self.owner, range, state)
    }

    fn host_lock_holder(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        let lock = Lock {
            family: range.family,
            start: range.start,
            end: range.end,
            kind,
            owner: self.owner.clone(),
        };
        let held = self.export.locks.holder(cx, inner, &lock)?;
        Ok(held.map(|held| ForeignLock {
            start: held.start,
            end: held.end,
            kind: held.kind,
            pid: held.owner.pid,
        }))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        self.attribute(cx);
        let numbers = self.numbers;
        let numbered = |entry: Entry| entry.map_attr(|attr| numbers.attr(attr));
        let mut numbering = RelaySink::new(sink, |sink, entry| {
            sink.entry(DirEntry {
                id: numbers.id(entry.id),
                ..entry.map_entry(numbered)
            })
        });
        inner.readdir(cx, cookie, plus, &mut numbering)
    }

    forward! { capabilities }

    forward! { showing translated:
        attr setattr lookup parent create make tmpfile link
        file_attr file_setattr
    }

    forward! { with attributed:
        root resolve sync
        access statfs open readlink unlink rename xattr xattrs set_xattr remove_xattr
        read write fsync flush allocate seek extents copy lease
    }
}
