//! The directory `barge`, where changes are prepared and removed directories are deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vfs::{
    AttrMask, Cx, DirEntry, Entry, Errno, Kind, Mode, Name, NewNode, Node, OpenFlags, ReaddirMode,
    RenameFlags, Result, SetAttr,
};

use super::xattrs::WHITEOUT;

/// The maximum depth of what a crash leaves here: no change needs more.
const MAX_DEPTH: usize = 3;

pub(super) struct Staging {
    pub(super) dir: Arc<dyn Node>,
    next: AtomicU64,
}

/// A temporary name.
pub(super) struct TempName(String);

impl TempName {
    pub(super) fn name(&self) -> Name<'_> {
        Name::new(self.0.as_bytes()).expect("digits are a name")
    }
}

impl Staging {
    /// Opens the directory and empties it: it has no other users.
    pub(super) fn new(dir: Arc<dyn Node>, cx: &Cx<'_>) -> Result<Staging> {
        remove_contents(&*dir, cx, MAX_DEPTH)?;
        Ok(Staging {
            dir,
            next: AtomicU64::new(0),
        })
    }

    pub(super) fn temp_name(&self) -> TempName {
        TempName(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Creates a whiteout at `name` in `upper`, in place of an entry of the kind `there`, if any.
    pub(super) fn create_whiteout(
        &self,
        cx: &Cx<'_>,
        upper: &dyn Node,
        name: Name<'_>,
        there: Option<Kind>,
    ) -> Result<()> {
        let temporary = self.temp_name();
        let (whiteout, none) = (NewNode::CharDevice(WHITEOUT), Mode::without_umask(0));
        self.dir.make(cx, temporary.name(), whiteout, none)?;
        let flags = match there {
            Some(Kind::Directory) => RenameFlags::EXCHANGE,
            Some(_) => RenameFlags::empty(),
            None => RenameFlags::NOREPLACE,
        };
        let put = self.dir.rename(cx, temporary.name(), upper, name, flags);
        if put.is_err() || there == Some(Kind::Directory) {
            self.discard(cx, &temporary);
        }
        put
    }

    /// Removes the entry with this temporary name, if any, with its contents. The next start
    /// removes an entry that remains.
    pub(super) fn discard(&self, cx: &Cx<'_>, temporary: &TempName) {
        let removed = match self.dir.lookup(cx, temporary.name()) {
            Ok(entry) => remove(&*self.dir, cx, temporary.name(), &entry, MAX_DEPTH),
            Err(errno) => Err(errno),
        };
        if let Err(errno) = removed
            && errno != Errno::ENOENT
        {
            tracing::warn!("cannot remove leftovers of an overlay: {errno}");
        }
    }

    /// Creates an entry at `name` in `upper`, where a whiteout is. `make` creates it in a
    /// world-writable temporary directory with the group and default ACL of `upper`, so that it
    /// inherits the same attributes. Then `mark` marks it if it is a directory, and it replaces the
    /// whiteout.
    pub(super) fn replace_whiteout<T>(
        &self,
        cx: &Cx<'_>,
        upper: &dyn Node,
        name: Name<'_>,
        mut make: impl FnMut(&dyn Node, Name<'_>) -> Result<T>,
        mark: impl Fn(&dyn Node) -> Result<()>,
    ) -> Result<T> {
        const SET_GID: u32 = 0o2000;
        const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
        let temporary = self.temp_name();
        let inner = Name::new(b"made")?;
        let like = upper.attr(cx, AttrMask::BASIC)?;
        let nest = self.dir.make(
            cx,
            temporary.name(),
            NewNode::Directory,
            Mode::without_umask(0o700),
        )?;
        let done = (|| {
            let owner = SetAttr {
                gid: Some(like.gid),
                ..SetAttr::default()
            };
            nest.node.setattr(cx, &owner)?;
            let mode = SetAttr {
                mode: Some(0o777 | like.mode & SET_GID),
                ..SetAttr::default()
            };
            nest.node.setattr(cx, &mode)?;
            if let Ok(acl) = upper.xattr(cx, DEFAULT_ACL) {
                let flags = vfs::XattrFlags::empty();
                nest.node.set_xattr(cx, DEFAULT_ACL, &acl, flags)?;
            }
            let made = make(&*nest.node, inner)?;
            let entry = nest.node.lookup(cx, inner)?;
            let flags = match entry.node.kind() {
                Kind::Directory => {
                    mark(&*entry.node)?;
                    RenameFlags::EXCHANGE
                }
                _ => RenameFlags::empty(),
            };
            nest.node.rename(cx, inner, upper, name, flags)?;
            Ok(made)
        })();
        self.discard(cx, &temporary);
        done
    }
}

fn remove_contents(dir: &dyn Node, cx: &Cx<'_>, depth: usize) -> Result<()> {
    let mut names = Vec::new();
    let mut take = |entry: DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    let listing = dir.open(cx, OpenFlags::READ)?;
    listing.readdir(cx, 0, ReaddirMode::Names, &mut take)?;
    for name in names {
        let name = Name::new(&name)?;
        let entry = dir.lookup(cx, name)?;
        remove(dir, cx, name, &entry, depth)?;
    }
    Ok(())
}

fn remove(dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>, entry: &Entry, depth: usize) -> Result<()> {
    let is_dir = entry.node.kind() == Kind::Directory;
    if is_dir {
        if depth == 0 {
            return Err(Errno::ENOTEMPTY);
        }
        remove_contents(&*entry.node, cx, depth - 1)?;
    }
    dir.unlink(cx, name, is_dir)
}
