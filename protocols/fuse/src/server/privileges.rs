//! Set-id bits and file capabilities: when a write, a truncation or a change of owner removes them.
//!
//! With `FUSE_HANDLE_KILLPRIV_V2` (`include/uapi/linux/fuse.h`) the server removes them, as Linux's
//! own file systems do (`file_remove_privs()` in `fs/inode.c`, `notify_change()` in `fs/attr.c`):
//!
//! - WRITE, OPEN and CREATE with `O_TRUNC`, and SETATTR of a size have a flag for a caller without
//!   `CAP_FSETID`. FALLOCATE and COPY_FILE_RANGE have none: there the caller's user id decides.
//! - Linux sends a SETATTR without changes before a write to a file on which it knows set-id bits,
//!   and for a chown(2) that changes no id. The bits are removed before the reply, so that the
//!   client's cached mode has none either. The kernel relies on the WRITE alone and keeps a stale
//!   mode until it expires.
//! - SETATTR of a size without a file handle is truncate(2), or comes from an overlayfs whose
//!   mounter has `CAP_FSETID` though the caller may not have it: the bits are removed with or
//!   without the flag.
//! - SETATTR of an owner always has the flag, even when overlayfs restores attributes after copying
//!   up (`ovl_copy_up_metadata()` in `fs/overlayfs/copy_up.c`: capabilities, size, mode, owner),
//!   where bits and capabilities have to stay. [`Restored`] distinguishes the two cases.
//!
//! Without it the client removes privileges itself, with SETATTR of a mode and REMOVEXATTR.

use std::collections::VecDeque;

use parking_lot::Mutex;
use vfs::{Attr, AttrMask, Errno, Kind, Result, SetAttr, XattrFlags};

use super::RequestContext;
use super::handles::Open;
use super::table::Incarnation;
use crate::layout::SetattrIn;
use crate::numbers::{Fattr, InitFlags};

/// The attribute that holds file capabilities (capabilities(7)).
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The set-user-id and set-group-id bits.
pub(super) const SET_ID: u32 = 0o6000;

/// Removes privileges and changes nothing else.
///
/// A remote source sends its server a new mode, which an ordinary caller may not set on another
/// user's file (`EPERM`). That is not a failure: such a server removes the bits itself when the
/// caller's write arrives.
pub(super) const KILL: SetAttr = SetAttr {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: None,
    mtime: None,
    ctime: false,
    kill_priv: true,
};

/// Nodes to which the client has given set-id bits or file capabilities, and whose capabilities it
/// has not read since.
///
/// Every chown(2) reads `security.capability` before its SETATTR (`ATTR_KILL_PRIV` in
/// `notify_change()`), and no chmod(2) intervenes, because the inode is locked. overlayfs sets an
/// owner without `ATTR_KILL_PRIV`, directly after the mode. So a SETATTR of an owner while the node
/// is listed here comes from a copy-up.
#[derive(Default)]
pub(super) struct Restored(Mutex<VecDeque<(Incarnation, u64)>>);

impl Restored {
    /// More than a guest copies up at a time. The oldest entry is dropped, and its file loses its
    /// privileges.
    const MAX_NODES: usize = 256;

    pub(super) fn insert(&self, incarnation: Incarnation, nodeid: u64) {
        let mut listed = self.0.lock();
        if listed.contains(&(incarnation, nodeid)) {
            return;
        }
        if listed.len() == Restored::MAX_NODES {
            listed.pop_front();
        }
        listed.push_back((incarnation, nodeid));
    }

    pub(super) fn contains(&self, incarnation: Incarnation, nodeid: u64) -> bool {
        self.0.lock().contains(&(incarnation, nodeid))
    }

    pub(super) fn remove(&self, incarnation: Incarnation, nodeid: u64) {
        self.0.lock().retain(|&one| one != (incarnation, nodeid));
    }
}

impl RequestContext<'_> {
    /// Returns whether the server removes privileges.
    fn grants_killpriv(&self) -> bool {
        self.negotiated.has(InitFlags::HANDLE_KILLPRIV_V2)
    }

    /// Returns whether SETATTR removes privileges in addition to its changes.
    pub(super) fn setattr_kills(&self, args: &SetattrIn) -> bool {
        let valid = Fattr::from_bits_retain(args.valid);
        let nothing = (valid - Fattr::FH - Fattr::LOCKOWNER).is_empty();
        let by_path = valid.contains(Fattr::SIZE) && !valid.contains(Fattr::FH);
        valid.contains(Fattr::KILL_SUIDGID) || (self.grants_killpriv() && (nothing || by_path))
    }

    /// Returns whether SETATTR changes an owner or a size and leaves privileges unchanged.
    pub(super) fn restores(&self, args: &SetattrIn) -> bool {
        let valid = Fattr::from_bits_retain(args.valid);
        let both = Fattr::UID | Fattr::GID;
        let copied = |change| {
            valid - Fattr::LOCKOWNER == change
                && self.session.options.xattr
                && self
                    .session
                    .restored
                    .contains(self.incarnation, self.header.nodeid)
        };
        match self.grants_killpriv() {
            true => copied(both | Fattr::KILL_SUIDGID) || copied(Fattr::SIZE),
            false => {
                let owner = valid.intersects(both) && !valid.contains(Fattr::MODE);
                owner || copied(Fattr::SIZE)
            }
        }
    }

    /// Records that the client has given the node privileges.
    pub(super) fn note_restored(&self) {
        self.session
            .restored
            .insert(self.incarnation, self.header.nodeid);
    }

    /// Records that the client has read the node's file capabilities, or has changed its owner.
    pub(super) fn forget_restored(&self) {
        self.session
            .restored
            .remove(self.incarnation, self.header.nodeid);
    }

    /// Changes the owner, which removes set-id bits and file capabilities, and then restores these.
    pub(super) fn restore(&self, fh: Option<u64>, mut set: SetAttr) -> Result<Attr> {
        set.kill_priv = false;
        let before = self.attr(fh, AttrMask::BASIC)?;
        if before.kind != Kind::Directory && before.mode & SET_ID != 0 {
            set.mode = Some(before.mode);
        }
        let (open, known);
        let node = match fh {
            Some(fh) => {
                open = self.opened(fh)?;
                open.node()
            }
            None => {
                known = self.node()?;
                &*known.node
            }
        };
        let capability = match before.kind == Kind::File && self.session.options.xattr {
            true => node.xattr(&self.cx, CAPABILITY),
            false => Err(Errno::ENODATA),
        };
        let capability = match capability {
            Ok(value) => value,
            Err(errno) if errno.is_signal() => return Err(errno),
            Err(_) => return self.change(fh, &set),
        };
        // Two changes: an operation that would block must leave neither as a trace.
        self.cx.check_may_block()?;
        self.change(fh, &set)?;
        node.set_xattr(&self.cx, CAPABILITY, &capability, XattrFlags::empty())?;
        self.attr(fh, AttrMask::STAT)
    }

    /// Removes set-id bits, if there are any, before a caller without privileges changes the file
    /// with a request that has no flag for them.
    pub(super) fn kill_for_callers(&self, open: &Open) -> Result<()> {
        match self.grants_killpriv() && self.cx.caller.uid != 0 {
            true => self.kill_privileges(open),
            false => Ok(()),
        }
    }

    /// Removes set-id bits, if there are any. Idempotent.
    pub(super) fn kill_privileges(&self, open: &Open) -> Result<()> {
        if open.file.attr(&self.cx, AttrMask::BASIC)?.mode & SET_ID == 0 {
            return Ok(());
        }
        // The operation that follows may block, and this change would be its trace.
        self.cx.check_may_block()?;
        match open.file.setattr(&self.cx, &KILL) {
            Err(Errno::EPERM) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Removes set-id bits for a SETATTR that changes nothing else, and returns the attributes.
    pub(super) fn kill_only(&self, fh: Option<u64>) -> Result<Attr> {
        match self.change(fh, &KILL) {
            Err(Errno::EPERM) => self.attr(fh, AttrMask::STAT),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_the_oldest_goes() {
        let restored = Restored::default();
        for nodeid in 0..=Restored::MAX_NODES as u64 {
            restored.insert(1, nodeid);
            restored.insert(1, nodeid);
        }
        assert!(!restored.contains(1, 0), "the oldest went");
        assert!(!restored.contains(2, 1), "another incarnation");
        assert!(restored.contains(1, 1));
        restored.remove(1, 1);
        assert!(!restored.contains(1, 1));
    }
}
