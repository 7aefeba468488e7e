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
//! kernel ignores attributes that are older than a message (`attr_version` of `fs/fuse/inode.c`)
//! and keeps messages about names from directories with look-ups in flight (the directory's lock).
//! It does not know a node that is in such a reply for the first time: the message returns `ENOENT`
//! and is [repeated](Notification::repeats).

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vfs::{Attr, Change, ChangeKinds, NodeId};

use super::nodes::Nodes;
use super::table::Incarnation;
use super::{Cache, RequestContext, Session};
use crate::layout::{NotifyDelete, NotifyInvalEntry, NotifyInvalInode, OutHeader};
use crate::message::REPLY_HEADER;
use crate::numbers::{EPOCH_MINOR, EXPIRE_ONLY, Notify};

/// Enough that a change of another node rarely shares a slot with one that is being looked up.
const SLOTS: usize = 1024;

/// The validity of the client's caches while changes are reported.
pub(super) struct Coherence {
    /// The device of which all changes are reported.
    device: u64,
    validity: Duration,
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
    /// Whether to send it again after `ENOENT`: a reply with the node may be in flight.
    pub repeats: bool,
}

impl Session {
    /// Lets the client cache names and attributes of `device` for `validity`, from now on until
    /// [`Session::end_notification`]: the driver passes all changes of it to [`Session::notify`].
    /// Without effect unless [`super::Options::cache`] is `Auto`. Names are cached longer only by
    /// clients that can drop all of them at once (Linux 6.16).
    pub fn with_notification(mut self, device: u64, validity: Duration) -> Session {
        if self.options.cache == Cache::Auto {
            self.coherence = Some(Coherence {
                device,
                validity,
                ended: AtomicBool::new(false),
                changes: AtomicU64::new(0),
                last: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            });
        }
        self
    }

    /// Ends it: the stream of changes is over. Returns the messages that drop all caches.
    pub fn end_notification(&self) -> Vec<Notification> {
        if let Some(coherence) = &self.coherence {
            coherence.ended.store(true, Ordering::SeqCst);
        }
        self.notify(&Change::OVERFLOW)
    }

    /// Returns the messages that make the client drop its caches of the nodes and names that a
    /// change concerns, in order.
    pub fn notify(&self, change: &Change<'_>) -> Vec<Notification> {
        let (Some(coherence), Some(negotiated)) = (&self.coherence, self.negotiated()) else {
            return Vec::new();
        };
        // The client itself knows its own changes.
        if change.by_this_process {
            return Vec::new();
        }
        let incarnation = self.incarnation.load(Ordering::Acquire);
        let mut messages = Messages {
            nodes: &self.nodes,
            incarnation,
            sent: Vec::new(),
        };
        if change.kinds.contains(ChangeKinds::OVERFLOW) {
            coherence.record(None);
            if negotiated.minor() >= EPOCH_MINOR {
                messages.push(Notify::IncEpoch, &[], false);
            }
            for nodeid in self.nodes.ids(incarnation) {
                messages.inode(nodeid, true);
            }
            return messages.sent;
        }
        let id = |id: NodeId| self.nodes.nodeid_of(id);
        let node = change.node.map(id);
        let names = [change.old_name, change.name].into_iter().flatten();
        let dirs = names.clone().map(|name| id(name.dir));
        let concerned: Vec<u64> = node.into_iter().chain(dirs).collect();
        coherence.record(Some(&concerned));
        let renamed = ChangeKinds::CREATED | ChangeKinds::DELETED | ChangeKinds::RENAMED;
        if change.kinds.intersects(renamed) {
            for name in names.filter(|name| !name.name.is_empty()) {
                let dir = id(name.dir);
                let last = node.filter(|_| change.last_link);
                match last.filter(|&node| messages.knows(node)) {
                    Some(node) => messages.delete(dir, node, name.name),
                    None => messages.entry(dir, name.name),
                }
                // Its times and listing.
                messages.inode(dir, true);
            }
        }
        if let Some(node) = node {
            messages.inode(node, change.kinds.contains(ChangeKinds::CONTENTS));
        }
        messages.sent
    }
}

/// Messages under construction, about nodes that the client knows.
struct Messages<'a> {
    nodes: &'a Nodes,
    incarnation: Incarnation,
    sent: Vec<Notification>,
}

impl Messages<'_> {
    fn knows(&self, nodeid: u64) -> bool {
        self.nodes.get(self.incarnation, nodeid).is_ok()
    }

    /// Drops the attributes of a node, and its contents or listing if `contents` is set.
    fn inode(&mut self, ino: u64, contents: bool) {
        let off = if contents { 0 } else { -1 };
        if self.knows(ino) {
            let body = NotifyInvalInode { ino, off, len: 0 }.encode();
            self.push(Notify::InvalInode, &[&body], true);
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
            self.push(Notify::InvalEntry, &[&head.encode(), name, b"\0"], false);
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
            self.push(Notify::Delete, &[&head.encode(), name, b"\0"], false);
        }
    }

    fn push(&mut self, code: Notify, pieces: &[&[u8]], repeats: bool) {
        let body = pieces.concat();
        let header = OutHeader {
            len: (REPLY_HEADER + body.len()) as u32,
            error: code as i32,
            unique: 0,
        };
        let message = [&header.encode()[..], &body].concat();
        self.sent.push(Notification { message, repeats });
    }
}

impl RequestContext<'_> {
    /// Returns the validity of attributes. Writes by the client's kernel through a memory map
    /// change a file without a notice.
    pub(super) fn attr_validity(&self, attr: &Attr) -> Duration {
        let (session, nodeid) = (self.session, self.session.nodes.nodeid_of(attr.id));
        let passed_through = || {
            let modes = session.io_modes.as_ref();
            let modes = modes.filter(|modes| modes.has_passthrough());
            modes.is_some_and(|modes| modes.is_passed_through(self.incarnation, nodeid))
        };
        match self.coherent(nodeid, attr.device) {
            Some(validity) if validity.is_zero() || !passed_through() => validity,
            _ => session.options.validity(),
        }
    }

    /// Returns the validity of a name in the directory `nodeid`, which is on `device`.
    pub(super) fn name_validity(&self, nodeid: u64, device: u64) -> Duration {
        let validity = self.notified_validity(nodeid, device);
        validity.unwrap_or_else(|| self.session.options.validity())
    }

    /// Returns it if the client is notified of changes of names.
    pub(super) fn notified_validity(&self, nodeid: u64, device: u64) -> Option<Duration> {
        match self.negotiated.minor() >= EPOCH_MINOR {
            true => self.coherent(nodeid, device),
            false => None,
        }
    }

    /// Returns the validity of a node of which all changes are reported: none if it has changed
    /// since the request began.
    fn coherent(&self, nodeid: u64, device: u64) -> Option<Duration> {
        let coherence = self.session.coherence.as_ref()?;
        if device != coherence.device || coherence.ended.load(Ordering::SeqCst) {
            return None;
        }
        match coherence.slot(nodeid).load(Ordering::SeqCst) > self.changes {
            true => Some(Duration::ZERO),
            false => Some(coherence.validity),
        }
    }
}
