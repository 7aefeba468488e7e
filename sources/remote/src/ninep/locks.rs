//! Locks as the server and its other clients see them.
//!
//! What barge's clients hold together of a node is held on the server through one open file of the node's
//! own, its mirror, under a name that no other client has. 9P2000.L has one kind of lock where Linux
//! has two that do not see each other, so flock(2) is a lock of the whole file, as v9fs has it. A
//! file that cannot be opened is not mirrored, and nothing is in the other dialects: clients of this
//! barge exclude one another nevertheless.
//!
//! Lock order: the map of mirrors, to find one; then that mirror, held across requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use p9::numbers::{lock_kind, lock_status};
use p9::{Rmessage, Tmessage};
use vfs::lock::{HostLock, LockKind, Outsider, Space};
use vfs::{Cx, Errno, Kind, Node, NodeId, OpenFlags, Ranges, Result};

use super::file::{Opened, open_fid};
use super::node::RemoteNode;

/// The mirrors of the nodes that have locks.
pub(super) struct Mirrors {
    by_node: Mutex<HashMap<(NodeId, Space), Shared>>,
    /// Who we are to the server.
    client: String,
}

type Shared = Arc<Mutex<Mirror>>;

#[derive(Default)]
struct Mirror {
    open: Option<Opened>,
    /// Ranges held.
    held: Ranges,
}

impl Mirrors {
    pub(super) fn new() -> Mirrors {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Mirrors {
            by_node: Mutex::default(),
            client: format!("{host}/barge/{pid}/{number}"),
        }
    }

    fn of(&self, node: NodeId, space: Space) -> Shared {
        let mut mirrors = self.by_node.lock().expect("no panic holds it");
        mirrors.entry((node, space)).or_default().clone()
    }

    /// Drops what nobody else is about to use, if it holds nothing.
    fn forget_if_free(&self, node: NodeId, space: Space, mirror: Shared) {
        let mut mirrors = self.by_node.lock().expect("no panic holds it");
        // Two: the map's and ours.
        if Arc::strong_count(&mirror) == 2
            && mirror.lock().expect("no panic holds it").held.is_empty()
        {
            mirrors.remove(&(node, space));
        }
    }
}

impl RemoteNode {
    pub(super) fn lock_remotely(
        &self,
        cx: &Cx<'_>,
        space: Space,
        start: u64,
        end: u64,
        state: HostLock,
    ) -> Result<()> {
        if !self.wire().is_linux() || !matches!(self.kind(), Kind::File | Kind::Directory) {
            return Ok(());
        }
        cx.may_wait()?;
        let mirror = self.shared.mirrors.of(self.id(), space);
        let done = mirror
            .lock()
            .expect("no panic holds it")
            .set(self, cx, space, start, end, state);
        self.shared.mirrors.forget_if_free(self.id(), space, mirror);
        done
    }

    pub(super) fn remote_holder(
        &self,
        cx: &Cx<'_>,
        space: Space,
        start: u64,
        end: u64,
        kind: LockKind,
    ) -> Result<Option<Outsider>> {
        if !self.wire().is_linux() || !matches!(self.kind(), Kind::File | Kind::Directory) {
            return Ok(None);
        }
        cx.may_wait()?;
        let mirror = self.shared.mirrors.of(self.id(), space);
        let found = mirror
            .lock()
            .expect("no panic holds it")
            .holder(self, cx, space, start, end, kind);
        self.shared.mirrors.forget_if_free(self.id(), space, mirror);
        found
    }
}

impl Mirror {
    fn set(
        &mut self,
        node: &RemoteNode,
        cx: &Cx<'_>,
        space: Space,
        start: u64,
        end: u64,
        state: HostLock,
    ) -> Result<()> {
        if self.open.is_none() {
            if state == HostLock::Unlocked {
                return Ok(());
            }
            self.open = open(node, cx)?;
        }
        let Some(open) = &self.open else {
            return Ok(());
        };
        let client = &node.shared.mirrors.client;
        let lock = Tmessage::Lock {
            fid: open.held.fid,
            kind: match state {
                HostLock::Unlocked => lock_kind::UNLCK,
                HostLock::Shared => lock_kind::RDLCK,
                HostLock::Exclusive => lock_kind::WRLCK,
            },
            flags: 0,
            start,
            length: length(start, end),
            proc_id: process(space),
            client_id: client.as_bytes(),
        };
        let reply = node.wire().call(cx, &lock);
        let done = match reply.and_then(|reply| Ok(status(&reply.message()?))) {
            Ok(lock_status::SUCCESS) => Ok(()),
            Ok(lock_status::BLOCKED | lock_status::GRACE) => Err(Errno::EAGAIN),
            Ok(_) => Err(Errno::ENOLCK),
            Err(errno) => Err(errno),
        };
        if done.is_ok() {
            match state {
                HostLock::Unlocked => self.held.remove(start, end),
                HostLock::Shared | HostLock::Exclusive => self.held.insert(start, end),
            }
        }
        if self.held.is_empty() {
            self.open = None;
        }
        done
    }

    fn holder(
        &self,
        node: &RemoteNode,
        cx: &Cx<'_>,
        space: Space,
        start: u64,
        end: u64,
        kind: LockKind,
    ) -> Result<Option<Outsider>> {
        let opened;
        let open = match &self.open {
            Some(open) => open,
            None => match open(node, cx)? {
                Some(open) => {
                    opened = open;
                    &opened
                }
                None => return Ok(None),
            },
        };
        let client = &node.shared.mirrors.client;
        let ask = Tmessage::Getlock {
            fid: open.held.fid,
            kind: match kind {
                LockKind::Shared => lock_kind::RDLCK,
                LockKind::Exclusive => lock_kind::WRLCK,
            },
            start,
            length: length(start, end),
            proc_id: process(space),
            client_id: client.as_bytes(),
        };
        let reply = node.wire().call(cx, &ask)?;
        let Rmessage::Getlock {
            kind,
            start,
            length,
            proc_id,
            client_id,
        } = reply.message()?
        else {
            return Err(Errno::EIO);
        };
        // Our own locks are the lock table's to tell of.
        if kind == lock_kind::UNLCK || client_id == client.as_bytes() {
            return Ok(None);
        }
        Ok(Some(Outsider {
            start,
            end: match length {
                0 => u64::MAX,
                length => start.saturating_add(length - 1),
            },
            kind: match kind {
                lock_kind::RDLCK => LockKind::Shared,
                _ => LockKind::Exclusive,
            },
            pid: proc_id,
        }))
    }
}

fn status(reply: &Rmessage<'_>) -> u8 {
    match reply {
        Rmessage::Lock { status } => *status,
        _ => lock_status::ERROR,
    }
}

/// Two owners, so that unlocking one kind leaves the other.
fn process(space: Space) -> u32 {
    match space {
        Space::Posix => 1,
        Space::Flock => 2,
    }
}

/// 0 is to the end.
fn length(start: u64, end: u64) -> u64 {
    match end {
        u64::MAX => 0,
        end => end - start + 1,
    }
}

/// Opens a mirror, if the caller may: to write, as exclusive locks need, or at least to read.
fn open(node: &RemoteNode, cx: &Cx<'_>) -> Result<Option<Opened>> {
    let read = OpenFlags::READ;
    let flags = match node.kind() {
        Kind::File => [read | OpenFlags::WRITE, read].as_slice().to_vec(),
        _ => vec![read],
    };
    let held = node.fid(cx)?;
    for flags in flags {
        match open_fid(node.wire(), cx, held.fid, flags) {
            Ok(open) => return Ok(Some(open)),
            Err(Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_the_end_is_no_length() {
        assert_eq!(length(5, 5), 1);
        assert_eq!(length(5, u64::MAX), 0);
        assert_eq!(length(0, u64::MAX - 1), u64::MAX);
    }
}
