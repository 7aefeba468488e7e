//! Locks on the server. v4 locks only files, with a single kind of lock that covers both
//! independent kinds of Linux: flock(2) becomes a lock of the whole file, as in Linux's client. v3
//! has no locks without NLM.

use std::sync::Arc;

use vfs::lock::{ForeignLock, HostLock, LockFamily, LockKind, LockRange};
use vfs::{Cx, Kind, OpenFlags, Result};

use super::node::NfsNode;
use super::version::{Open, ProtocolVersion, Target};
use crate::locks::Lockable;

impl<V: ProtocolVersion> Lockable for NfsNode<V> {
    type Open = Arc<V::Open>;

    fn has_locks(&self, _: LockFamily) -> bool {
        self.kind == Kind::File && self.shared.version.has_locks()
    }

    fn open_mirror(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<V::Open>> {
        let target = Target {
            exclusive: true,
            ..self.target()
        };
        self.shared.version.open(cx, target, flags)
    }

    fn set_lock(
        &self,
        cx: &Cx<'_>,
        open: &Arc<V::Open>,
        lock: &LockRange,
        state: HostLock,
    ) -> Result<()> {
        let handle = self.handle();
        let open = Open {
            handle,
            state: open.as_ref(),
        };
        self.shared.version.set_lock(cx, open, lock, state)
    }

    fn find_lock(
        &self,
        cx: &Cx<'_>,
        open: &Arc<V::Open>,
        lock: &LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        let handle = self.handle();
        let open = Open {
            handle,
            state: open.as_ref(),
        };
        self.shared.version.find_lock(cx, open, lock, kind)
    }
}
