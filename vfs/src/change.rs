//! Changes of a tree, as a source that can do so reports them: by clients of this process, and by
//! others.
//!
//! A stream belongs to one consumer, which calls it from a thread of its own, keeps caches of
//! clients up to date, or passes the changes on. There is no thread here and no queue: the source
//! has a bounded one, in which it merges changes of one object.

use core::time::Duration;

use bitflags::bitflags;

use crate::{NodeId, Result};

bitflags! {
    /// The kinds of a change. Changes of one object may be merged, so that several are set; their
    /// order is unknown then, and the tree shows the result.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ChangeKinds: u32 {
        /// A name was created, of a new object or as a hard link, or was moved into the tree.
        const CREATED = 1;
        /// Contents were written or truncated, or a file that was open for writing was closed.
        const CONTENTS = 2;
        /// Attributes, extended ones and the number of links included.
        const ATTRIBUTES = 4;
        /// A name was changed: [`Change::old_name`] to [`Change::name`].
        const RENAMED = 8;
        /// A name was removed, or was moved out of the tree.
        const DELETED = 16;
        /// Changes were lost, because the queue was full: anything may have changed.
        const OVERFLOW = 32;
    }
}

/// The maker of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangedBy {
    /// Another process, or another server.
    #[default]
    Others,
    /// This process, on behalf of a client.
    ThisProcess,
    /// Either: the source has found the result only.
    Unknown,
}

/// A change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change<'a> {
    /// Its kinds.
    pub kinds: ChangeKinds,
    /// The object, if known. It may be gone, and its number in use by another one, unless
    /// [`Change::last_link`] is set.
    pub node: Option<NodeId>,
    /// Whether the object is a directory.
    pub is_dir: bool,
    /// Whether the object has lost its last name. It exists until the call that passes the change
    /// returns, so that its number is not in use by another one meanwhile.
    pub last_link: bool,
    /// Its maker.
    pub by: ChangedBy,
    /// The name that was created, removed or used. Without it, the object was changed by a name
    /// outside the tree or by none.
    pub name: Option<ChangedName<'a>>,
    /// The old name, of [`ChangeKinds::RENAMED`] only.
    pub old_name: Option<ChangedName<'a>>,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedName<'a> {
    /// The directory.
    pub dir: NodeId,
    /// The directory's path below the root, without a slash at either end: that of the moment when
    /// the change is passed, if the directory was moved.
    pub path: &'a [u8],
    /// The name; empty if the change concerns the directory itself.
    pub name: &'a [u8],
}

impl<'a> Change<'a> {
    /// The change after which anything may have changed.
    pub const OVERFLOW: Change<'static> = Change {
        kinds: ChangeKinds::OVERFLOW,
        node: None,
        is_dir: false,
        last_link: false,
        by: ChangedBy::Others,
        name: None,
        old_name: None,
    };

    /// Returns the change with its numbers mapped by `id`.
    pub fn map_ids(self, id: impl Fn(NodeId) -> NodeId) -> Change<'a> {
        let name = |name: ChangedName<'a>| ChangedName {
            dir: id(name.dir),
            ..name
        };
        Change {
            node: self.node.map(&id),
            name: self.name.map(name),
            old_name: self.old_name.map(name),
            ..self
        }
    }
}

/// A stream of changes, from [`crate::FileSystem::watch`]. It does not keep the source open.
pub trait ChangeStream: Send {
    /// Waits until there are changes, for `time` at most ([`Duration::MAX`] for no limit), and
    /// passes each to `each`. Returns at once with those that are there, and early after a signal.
    /// Pauses between busy calls, so that changes are merged: for about a millisecond, longer if
    /// the source reads changes outside of the tree. Returns `ESTALE` if the source is closed, at
    /// the next change.
    fn next(&mut self, time: Duration, each: &mut dyn FnMut(&Change<'_>)) -> Result<()>;

    /// Returns whether it reports every change of objects on this device ([`crate::Attr::device`]):
    /// a tree may have other file systems mounted in it. Writes through a memory map are reported
    /// when the file is unmapped only.
    fn covers(&self, device: u64) -> bool;
}
