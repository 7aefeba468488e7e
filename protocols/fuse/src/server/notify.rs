//! Notifications: changes of the tree by others, as messages that make the client drop its caches.
//!
//! While a source reports every change, the client may cache names and attributes for long. The
//! driver passes each change to [`Session::notify`] and sends the messages, from a thread of its
//! own: the client's kernel waits for directory operations in flight before it accepts a message
//! about a name.
//!
//! A reply that was computed before a change must not put old values back into the cache after the
//! message. A request counts the changes when it begins, and a node that has changed since is valid
//! for no time in the reply. For a change between the computation and the sending of a reply the
//! kernel ignores attributes that are older than a message (`attr_version` of `fs/fuse/inode.c`),
//! and a message about a name waits for look-ups in flight that hold the directory's lock. Two
//! kinds of messages are sent [again](Notification::repeat): those about a node that the kernel
//! does not know, because such a reply contains it for the first time, and those about a name,
//! because the kernel looks an expired name up without that lock.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vfs::{Attr, Change, ChangeKinds, ChangedBy, Kind, NodeId};

use super::nodes::Nodes;
use super::table::Incarnation;
use super::{Cache, RequestContext, Session};
use crate::layout::{NotifyDelete, NotifyInvalEntry, NotifyInvalInode, OutHeader};
use crate::message::REPLY_HEADER;
use crate::numbers::{EPOCH_MINOR, EXPIRE_ONLY, Notify};

/// Enough that a change of another node rarely shares a slot with one that is being looked up.
const SLOTS: usize = 1024;

/// The changes of which [`Session::notify`] is called, and the validity of caches meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Coverage {
    /// The device of which all changes are reported.
    pub device: u64,
    /// The validity of names, absent names and the attributes of directories and symbolic links.
    pub validity: Duration,
    /// Whether each write is reported. Attributes of files then have this validity too; otherwise
    /// they have that of [`super::Options`], as without notification.
    pub each_write: bool,
}

/// The validity of the client's caches while changes are reported.
pub(super) struct Coherence {
    coverage: Coverage,
    ended: AtomicBool,
    /// The number of changes so far.
    changes: AtomicU64,
    /// The number of the last change of the nodes of each slot.
    last: Box<[AtomicU64]>,
}

impl Coherence {
    /// Returns the number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    fn slot(&self, nodeid: u64) -> &AtomicU64 {
        &self.last[(nodeid.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % SLOTS]
    }

    /// Records a change of these nodes, or of all.
    fn record(&self, nodes: Option<&[u64]>) {
        let number = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        let store = |slot: &AtomicU64| slot.store(number, Ordering::SeqCst);
        match nodes {
            Some(nodes) => nodes.iter().for_each(|&node| store(self.slot(node))),
            None => self.last.iter().for_each(store),
        }
    }
}

/// A message for the client, and its treatment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The bytes to send. The client returns `ENOENT` if it has not cached the name or node.
    pub message: Vec<u8>,
    /// Whether to send it again.
    pub repeat: Repeat,
}

/// The condition for sending a message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Not at all.
    Never,
    /// After `ENOENT`: a reply with the node may be in flight.
    IfUnknown,
    /// Once, whatever the client returns: a reply that makes the name valid may be in flight. Linux
    /// looks an expired name up without the directory's lock (`fuse_dentry_revalidate()` in
    /// `fs/fuse/dir.c`).
    Once,
}

impl Session {
    /// Lets the client cache names and attributes for longer, from now on until
    /// [`Session::end_notification`]: the driver passes all changes that `coverage` describes to
    /// [`Session::notify`]. Without effect unless [`super::Options::cache`] is `Auto`. Names are
    /// cached longer only by clients that can drop all of them at once (Linux 6.16).
    pub fn with_notification(mut self, coverage: Coverage) -> Session {
        if self.options.cache == Cache::Auto {
            self.coherence = Some(Coherence {
                coverage,
                ended: AtomicBool::new(false),
                changes: AtomicU64::new(0),
                last: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            });
        }
        self
    }

    /// Ends the longer validity, because the stream of changes is over, and passes the messages
    /// that drop all caches to `send`.
    pub fn end_notification(&self, send: &mut dyn FnMut(Notification)) {
        if let Some(coherence) = &self.coherence {
            coherence.ended.store(true, Ordering::SeqCst);
        }
        self.notify(&Change::OVERFLOW, send);
    }

    /// Passes the messages that make the client drop its caches of the nodes and names that a
    /// change concerns to `send`, in order. `send` may wait for requests in flight.
    pub fn notify(&self, change: &Change<'_>, send: &mut dyn FnMut(Notification)) {
        let (Some(coherence), Some(negotiated)) = (&self.coherence, self.negotiated()) else {
            return;
        };
        // The client itself knows its own changes.
        if change.by == ChangedBy::ThisProcess {
            return;
        }
        let incarnation = self.incarnation.load(Ordering::Acquire);
        let mut messages = Messages {
            nodes: &self.nodes,
            incarnation,
            send,
        };
        if change.kinds.contains(ChangeKinds::OVERFLOW) {
            coherence.record(None);
            if negotiated.minor() >= EPOCH_MINOR {
                messages.push(Notify::IncEpoch, &[], Repeat::Never);
            }
            let all = |nodeid| messages.inode(nodeid, true);
            return self.nodes.for_each_id(incarnation, all);
        }
        let id = |id: NodeId| self.nodes.nodeid_of(id);
        let node = change.node.map(id);
        // The client's kernel writes to such a file itself, with the id of the program's process,
        // and has neither its contents in a cache nor its attributes for long.
        if change.kinds == ChangeKinds::CONTENTS
            && node.is_some_and(|node| self.is_passed_through(incarnation, node))
        {
            return;
        }
        let names = [change.old_name, change.name].into_iter().flatten();
        let dirs = names.clone().map(|name| id(name.dir));
        let concerned: Vec<u64> = node.into_iter().chain(dirs).collect();
        coherence.record(Some(&concerned));
        let renamed = ChangeKinds::CREATED | ChangeKinds::DELETED | ChangeKinds::RENAMED;
        if change.kinds.intersects(renamed) {
            let mut last_dir = None;
            for name in names.filter(|name| !name.name.is_empty()) {
                let dir = id(name.dir);
                let last = node.filter(|_| change.last_link);
                match last.filter(|&node| messages.knows(node)) {
                    Some(node) => messages.delete(dir, node, name.name),
                    None => messages.entry(dir, name.name),
                }
                // Its times and listing.
                if last_dir.replace(dir) != Some(dir) {
                    messages.inode(dir, true);
                }
            }
        }
        if let Some(node) = node {
            messages.inode(node, change.kinds.contains(ChangeKinds::CONTENTS));
        }
    }

    /// Returns whether the client's kernel reads and writes the node's open files itself.
    fn is_passed_through(&self, incarnation: Incarnation, nodeid: u64) -> bool {
        let modes = self.io_modes.as_ref();
        let modes = modes.filter(|modes| modes.has_passthrough());
        modes.is_some_and(|modes| modes.is_passed_through(incarnation, nodeid))
    }
}

/// Makes messages about nodes that the client knows.
struct Messages<'a> {
    nodes: &'a Nodes,
    incarnation: Incarnation,
    send: &'a mut dyn FnMut(Notification),
}

impl Messages<'_> {
    fn knows(&self, nodeid: u64) -> bool {
        self.nodes.contains(self.incarnation, nodeid)
    }

    /// Drops the attributes of a node, and its contents or listing if `contents` is set.
    fn inode(&mut self, ino: u64, contents: bool) {
        let off = if contents { 0 } else { -1 };
        if self.knows(ino) {
            let body = NotifyInvalInode { ino, off, len: 0 }.encode();
            self.push(Notify::InvalInode, &[&body], Repeat::IfUnknown);
        }
    }

    /// Lets a name be looked up when it is used next.
    fn entry(&mut self, parent: u64, name: &[u8]) {
        if self.knows(parent) {
            let head = NotifyInvalEntry {
                parent,
                namelen: name.len() as u32,
                flags: EXPIRE_ONLY,
            };
            let pieces = [&head.encode()[..], name, b"\0"];
            self.push(Notify::InvalEntry, &pieces, Repeat::Once);
        }
    }

    /// Removes a name and its node.
    fn delete(&mut self, parent: u64, child: u64, name: &[u8]) {
        if self.knows(parent) {
            let head = NotifyDelete {
                parent,
                child,
                namelen: name.len() as u32,
            };
            let pieces = [&head.encode()[..], name, b"\0"];
            self.push(Notify::Delete, &pieces, Repeat::Never);
        }
    }

    fn push(&mut self, code: Notify, pieces: &[&[u8]], repeat: Repeat) {
        let body = pieces.concat();
        let header = OutHeader {
            len: (REPLY_HEADER + body.len()) as u32,
            error: code as i32,
            unique: 0,
        };
        let message = [&header.encode()[..], &body].concat();
        (self.send)(Notification { message, repeat });
    }
}

impl RequestContext<'_> {
    /// Returns the validity of attributes. Without a report of each write, those of a file that is
    /// being written change without a notice, and so do those of a file that is passed through: the
    /// client's kernel writes to it, through memory maps too.
    pub(super) fn attr_validity(&self, attr: &Attr) -> Duration {
        let (session, nodeid) = (self.session, self.session.nodes.nodeid_of(attr.id));
        let covered = |coverage: &Coverage| {
            let written = !matches!(attr.kind, Kind::Directory | Kind::Symlink);
            !written || coverage.each_write && !session.is_passed_through(self.incarnation, nodeid)
        };
        match self.coherent(nodeid, attr.device) {
            Some((validity, coverage)) if validity.is_zero() || covered(coverage) => validity,
            _ => session.options.validity(),
        }
    }

    /// Returns the validity of a name in the directory `nodeid`, which is on `device`.
    pub(super) fn name_validity(&self, nodeid: u64, device: u64) -> Duration {
        let validity = self.notified_validity(nodeid, device);
        validity.unwrap_or_else(|| self.session.options.validity())
    }

    /// Returns the validity of a name if the client is notified of changes of names.
    pub(super) fn notified_validity(&self, nodeid: u64, device: u64) -> Option<Duration> {
        match self.negotiated.minor() >= EPOCH_MINOR {
            true => self.coherent(nodeid, device).map(|(validity, _)| validity),
            false => None,
        }
    }

    /// Returns the validity of a node of which changes are reported, and the coverage of the
    /// reports. The validity is zero if the node has changed since the request began.
    fn coherent(&self, nodeid: u64, device: u64) -> Option<(Duration, &Coverage)> {
        let coherence = self.session.coherence.as_ref()?;
        let coverage = &coherence.coverage;
        if device != coverage.device || coherence.ended.load(Ordering::SeqCst) {
            return None;
        }
        match coherence.slot(nodeid).load(Ordering::SeqCst) > self.changes {
            true => Some((Duration::ZERO, coverage)),
            false => Some((coverage.validity, coverage)),
        }
    }
}
