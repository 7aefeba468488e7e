//! EROFS lookups and directory listings.
//!
//! Cycles are detected on lookup: a directory found by name must name the directory it was found in
//! as its parent. So no directory is its own descendant, and every walk of the tree terminates.

use vfs::{Errno, Patience, ReaddirMode, Result};

use super::{Erofs, Item, kind_of};
use crate::format::ListedEntry;

impl Erofs {
    /// Returns the inode number of a directory's `..` entry.
    pub(super) fn parent_number(&self, dir: &Item, patience: Patience) -> Result<u64> {
        if dir.inode.nid == self.image.root {
            return Ok(dir.inode.nid);
        }
        let number = self.number_of(dir, b"..", patience);
        number.map_err(|errno| match errno {
            Errno::ENOENT => Errno::EIO,
            errno => errno,
        })
    }

    /// Returns whether an inode is among a directory's children.
    pub(super) fn has(&self, dir: &Item, child: u64, patience: Patience) -> Result<bool> {
        let access = self.access(patience);
        let contents = self.contents(dir, patience)?;
        let mut entries = self.image.entries(&access, contents, 0);
        loop {
            match entries
                .next_entry()
                .map_err(|error| self.log_error(error))?
            {
                Some((entry, _)) if is_dots(entry.name) => {}
                Some((entry, _)) if entry.nid == child => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// Returns the inode number of the entry `name`.
    pub(super) fn number_of(&self, dir: &Item, name: &[u8], patience: Patience) -> Result<u64> {
        let contents = self.contents(dir, patience)?;
        let found = self.image.lookup(&self.access(patience), contents, name);
        match found.map_err(|error| self.log_error(error))? {
            Some((nid, _)) => Ok(nid),
            None => Err(Errno::ENOENT),
        }
    }

    /// Returns the node of a directory entry.
    pub(super) fn child(&self, dir: &Item, nid: u64, patience: Patience) -> Result<Item> {
        let here = dir.inode.nid;
        let item = Item::new(self.inode(nid, patience)?, here);
        if item.is_directory() {
            let foreign = nid == self.image.root || self.parent_number(&item, patience)? != here;
            if foreign {
                tracing::debug!(
                    "the image has an entry of directory {nid} in {here}, which is not its parent"
                );
                return Err(Errno::EIO);
            }
        }
        self.mark_reachable(nid);
        Ok(item)
    }

    /// Implements [`crate::format::Format::list`].
    pub(super) fn children(
        &self,
        dir: &Item,
        cookie: u64,
        plus: ReaddirMode,
        patience: Patience,
        each: &mut dyn FnMut(ListedEntry<'_, Item>) -> bool,
    ) -> Result<()> {
        let access = self.access(patience);
        let contents = self.contents(dir, patience)?;
        let mut entries = self.image.entries(&access, contents, cookie);
        while let Some((entry, cookie)) = entries
            .next_entry()
            .map_err(|error| self.log_error(error))?
        {
            if is_dots(entry.name) {
                continue;
            }
            let item = match plus {
                ReaddirMode::Names => None,
                ReaddirMode::Entries => self.child(dir, entry.nid, patience).ok(),
            };
            let goes_on = each(ListedEntry {
                name: entry.name,
                id: self.id_of(entry.nid),
                kind: kind_of(entry.kind),
                cookie,
                item,
            });
            if !goes_on {
                break;
            }
        }
        Ok(())
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
