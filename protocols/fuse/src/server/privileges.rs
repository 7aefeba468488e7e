//! Set-id bits and file capabilities: when a write, a truncation or a change of owner takes them
//! away.
//!
//! With `FUSE_HANDLE_KILLPRIV_V2` (`include/uapi/linux/fuse.h`) the server takes them away, as
//! Linux's own file systems do (`file_remove_privs()` in `fs/inode.c`, `notify_change()` in
//! `fs/attr.c`):
//!
//! - WRITE, OPEN and CREATE with `O_TRUNC`, and SETATTR of a size say by a flag that the caller
//!   lacks `CAP_FSETID`. FALLOCATE and COPY_FILE_RANGE have no such flag: there the caller's user
//!   id decides.
//! - A SETATTR that changes no attribute is what Linux sends before a write to a file of which it
//!   knows set-id bits, and for a chown(2) to nobody. The bits go before the answer, so that the
//!   client's cached mode has none either. The kernel relies on the WRITE alone and keeps a stale
//!   mode until it expires.
//! - SETATTR of a size without a file is truncate(2), or comes from an overlayfs whose mounter has
//!   `CAP_FSETID` though the caller may not have it: the bits go, flag or not.
//! - SETATTR of an owner always has the flag, also where overlayfs restores what it copies up
//!   (`ovl_copy_up_metadata()` in `fs/overlayfs/copy_up.c`: capabilities, size, mode, owner), whose
//!   bits and capabilities have to stay. [`Restored`] tells the two apart.
//!
//! Without it the client takes away what is to be taken away, and says so by a mode and by
//! REMOVEXATTR.

use std::collections::VecDeque;
use std::sync::Mutex;

use vfs::{Attr, Errno, Kind, Result, SetAttr, Want, XattrFlags};

use super::Turn;
use super::handles::Open;
use super::shards::{Life, lock};
use crate::layout::SetattrIn;
use crate::numbers::{Fattr, InitFlags};

/// File capabilities (capabilities(7)).
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The bits of a mode that run a program as its owner or group.
pub(super) const SET_ID: u32 = 0o6000;

/// Takes privileges away and changes nothing else.
///
/// A remote source asks its server for another mode, which an ordinary caller may not set on
/// another user's file (`EPERM`). That is no failure: such a server takes the bits away itself when
/// the caller's write arrives.
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

/// Nodes that the client has given set-id bits or file capabilities, without asking for
/// capabilities since.
///
/// Every chown(2) asks for `security.capability` before its SETATTR (`ATTR_KILL_PRIV` in
/// `notify_change()`), and no chmod(2) comes in between, because the inode is locked. overlayfs
/// sets an owner without `ATTR_KILL_PRIV`, directly after the mode. So an owner that comes while
/// the node is listed here is a copy's.
#[derive(Default)]
pub(super) struct Restored(Mutex<VecDeque<(Life, u64)>>);

impl Restored {
    /// More than a guest copies up at a time. The oldest goes first, and loses its privileges.
    const MOST: usize = 256;

    pub(super) fn insert(&self, life: Life, nodeid: u64) {
        let mut listed = lock(&self.0);
        if listed.contains(&(life, nodeid)) {
            return;
        }
        if listed.len() == Restored::MOST {
            listed.pop_front();
        }
        listed.push_back((life, nodeid));
    }

    pub(super) fn contains(&self, life: Life, nodeid: u64) -> bool {
        lock(&self.0).contains(&(life, nodeid))
    }

    pub(super) fn remove(&self, life: Life, nodeid: u64) {
        lock(&self.0).retain(|&one| one != (life, nodeid));
    }
}

impl Turn<'_> {
    /// Whether the server takes privileges away.
    fn kills(&self) -> bool {
        self.agreed.has(InitFlags::HANDLE_KILLPRIV_V2)
    }

    /// Whether SETATTR takes privileges away besides its changes.
    pub(super) fn kills_by(&self, args: &SetattrIn) -> bool {
        let valid = Fattr::from_bits_retain(args.valid);
        let nothing = (valid - Fattr::FH - Fattr::LOCKOWNER).is_empty();
        let by_path = valid.contains(Fattr::SIZE) && !valid.contains(Fattr::FH);
        valid.contains(Fattr::KILL_SUIDGID) || (self.kills() && (nothing || by_path))
    }

    /// Whether SETATTR changes an owner or a size and leaves privileges as they are.
    pub(super) fn restores(&self, args: &SetattrIn) -> bool {
        let valid = Fattr::from_bits_retain(args.valid);
        let both = Fattr::UID | Fattr::GID;
        let copied = |change| {
            valid - Fattr::LOCKOWNER == change
                && self.peer.options.xattr
                && self.peer.restored.contains(self.life, self.header.nodeid)
        };
        match self.kills() {
            true => copied(both | Fattr::KILL_SUIDGID) || copied(Fattr::SIZE),
            false => {
                let owner = valid.intersects(both) && !valid.contains(Fattr::MODE);
                owner || copied(Fattr::SIZE)
            }
        }
    }

    /// The client has given the node privileges.
    pub(super) fn note_restored(&self) {
        self.peer.restored.insert(self.life, self.header.nodeid);
    }

    /// The client has asked whether the node has file capabilities, or has changed its owner.
    pub(super) fn note_settled(&self) {
        self.peer.restored.remove(self.life, self.header.nodeid);
    }

    /// Changes the owner, which takes set-id bits and file capabilities away, and gives the file
    /// these back.
    pub(super) fn restore(&self, fh: Option<u64>, mut set: SetAttr) -> Result<Attr> {
        set.kill_priv = false;
        let before = self.attr(fh, Want::BASIC)?;
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
        let capability = match before.kind == Kind::File && self.peer.options.xattr {
            true => node.xattr(&self.cx, CAPABILITY),
            false => Err(Errno::ENODATA),
        };
        let capability = match capability {
            Ok(value) => value,
            Err(errno) if errno.is_signal() => return Err(errno),
            Err(_) => return self.change(fh, &set),
        };
        // Two changes: neither may be the other's trace.
        self.cx.may_wait()?;
        self.change(fh, &set)?;
        node.set_xattr(&self.cx, CAPABILITY, &capability, XattrFlags::empty())?;
        self.attr(fh, Want::STAT)
    }

    /// Takes set-id bits away, if there are any, before a caller without privileges changes the
    /// file by a request that says nothing of them.
    pub(super) fn kill_for_callers(&self, open: &Open) -> Result<()> {
        match self.kills() && self.cx.caller.uid != 0 {
            true => self.kill_privileges(open),
            false => Ok(()),
        }
    }

    /// Takes set-id bits away, if there are any. Asking again finds none.
    pub(super) fn kill_privileges(&self, open: &Open) -> Result<()> {
        if open.file.attr(&self.cx, Want::BASIC)?.mode & SET_ID == 0 {
            return Ok(());
        }
        // What follows may need more patience, and this would be its trace.
        self.cx.may_wait()?;
        match open.file.setattr(&self.cx, &KILL) {
            Err(Errno::EPERM) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Takes set-id bits away for a SETATTR that changes nothing else, and returns the attributes.
    pub(super) fn kill_alone(&self, fh: Option<u64>) -> Result<Attr> {
        match self.change(fh, &KILL) {
            Err(Errno::EPERM) => self.attr(fh, Want::STAT),
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
        for nodeid in 0..=Restored::MOST as u64 {
            restored.insert(1, nodeid);
            restored.insert(1, nodeid);
        }
        assert!(!restored.contains(1, 0), "the oldest went");
        assert!(!restored.contains(2, 1), "another life");
        assert!(restored.contains(1, 1));
        restored.remove(1, 1);
        assert!(!restored.contains(1, 1));
    }
}
