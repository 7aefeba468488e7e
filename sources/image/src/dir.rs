//! Look-ups and listings.
//!
//! That a tree is one is checked where it is walked: whatever directory is found by a name has to call the one it was found in its
//! parent. So no directory is within itself, and who walks a tree comes to an end.

use std::sync::Arc;

use erofs::read::Contents;
use vfs::{Access, Cx, DirEntry, DirSink, Errno, Patience, Plus, Result};

use crate::node::{ImageNode, kind_of};

impl ImageNode {
    /// The child `name`, for a caller who may search this directory.
    pub(crate) fn find(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Arc<ImageNode>> {
        let contents = self.searchable(cx)?;
        let nid = self.number_of(contents, name, cx.patience)?;
        self.child(nid, cx.patience)
    }

    /// This directory's directory.
    pub(crate) fn find_parent(&self, cx: &Cx<'_>) -> Result<Arc<ImageNode>> {
        self.searchable(cx)?;
        let nid = self.parent_number(cx.patience)?;
        let inode = self.shared.inode(nid, cx.patience)?;
        let node = ImageNode::new(&self.shared, inode, nid);
        if !node.is_directory() {
            return Err(Errno::EIO);
        }
        let above = node.parent_number(cx.patience)?;
        Ok(ImageNode::new(&self.shared, inode, above))
    }

    /// What this directory says that its directory is.
    pub(crate) fn parent_number(&self, patience: Patience) -> Result<u64> {
        if self.inode.nid == self.shared.image.root {
            return Ok(self.inode.nid);
        }
        let number = self.number_of(self.contents(patience)?, b"..", patience);
        number.map_err(|errno| match errno {
            Errno::ENOENT => Errno::EIO,
            errno => errno,
        })
    }

    /// Whether a node is among its children.
    pub(crate) fn has(&self, child: u64, patience: Patience) -> Result<bool> {
        let shared = &self.shared;
        let access = shared.access(patience);
        let mut entries = shared.image.entries(&access, self.contents(patience)?, 0);
        loop {
            match entries.next_entry().map_err(|error| shared.told(error))? {
                Some((entry, _)) if is_dots(entry.name) => {}
                Some((entry, _)) if entry.nid == child => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    fn searchable(&self, cx: &Cx<'_>) -> Result<&Contents> {
        if !self.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.check(cx, Access::EXEC)?;
        self.contents(cx.patience)
    }

    fn number_of(&self, contents: &Contents, name: &[u8], patience: Patience) -> Result<u64> {
        let shared = &self.shared;
        let found = shared
            .image
            .lookup(&shared.access(patience), contents, name);
        match found.map_err(|error| shared.told(error))? {
            Some((nid, _)) => Ok(nid),
            None => Err(Errno::ENOENT),
        }
    }

    /// The node that an entry of this directory is of.
    fn child(&self, nid: u64, patience: Patience) -> Result<Arc<ImageNode>> {
        let shared = &self.shared;
        let inode = shared.inode(nid, patience)?;
        let node = ImageNode::new(shared, inode, self.inode.nid);
        if node.is_directory() {
            let foreign =
                nid == shared.image.root || node.parent_number(patience)? != self.inode.nid;
            if foreign {
                tracing::debug!(
                    "directory {nid} is found in {}, which is not its parent",
                    self.inode.nid
                );
                return Err(Errno::EIO);
            }
        }
        shared.note(nid);
        Ok(node)
    }

    /// [`vfs::File::readdir`].
    pub(crate) fn list(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        // Half a listing would have left a trace.
        let patience = match cx.patience {
            Patience::None => return Err(Errno::WOULD_BLOCK),
            Patience::Brief | Patience::Full => Patience::Full,
        };
        let shared = &self.shared;
        let access = shared.access(patience);
        let mut entries = shared
            .image
            .entries(&access, self.contents(patience)?, cookie);
        while let Some((entry, cookie)) =
            entries.next_entry().map_err(|error| shared.told(error))?
        {
            if is_dots(entry.name) {
                continue;
            }
            let whole = match plus {
                Plus::Names => None,
                Plus::Entries => self.child(entry.nid, patience).ok().map(ImageNode::entry),
            };
            let entry = DirEntry {
                name: entry.name,
                id: shared.id_of(entry.nid),
                kind: kind_of(entry.kind),
                cookie,
                entry: whole,
            };
            if !sink.entry(entry) {
                break;
            }
        }
        Ok(())
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
