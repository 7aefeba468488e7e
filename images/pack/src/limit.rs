//! A limit of the memory that the tree of a stranger may take.

use std::cell::Cell;

use crate::error::{Error, Result};
use crate::plan::{Attributes, Kind};

/// Memory in bytes of a node without its names, attributes and contents, or a little more.
const NODE: usize = 512;

/// Memory in bytes of a range in the map of a sparse file.
const RANGE: usize = 24;

/// The memory that is left for the nodes of a plan, as an input estimates it.
#[derive(Debug)]
pub struct TreeLimit {
    left: Cell<u64>,
    bytes: u64,
}

impl TreeLimit {
    /// Returns a limit in bytes.
    pub fn new(bytes: u64) -> TreeLimit {
        TreeLimit {
            left: Cell::new(bytes),
            bytes,
        }
    }

    /// Returns a limit that no tree exceeds, for the caller's own trees.
    pub fn none() -> TreeLimit {
        TreeLimit::new(u64::MAX)
    }

    /// Takes the memory of a node with names of `names` bytes in all. Returns an error if it is
    /// beyond the limit.
    pub(crate) fn take(
        &self,
        names: usize,
        attributes: &Attributes,
        kind: Option<&Kind>,
    ) -> Result<()> {
        if self.bytes == u64::MAX {
            return Ok(());
        }
        let xattrs = attributes.xattrs.iter();
        let xattrs: usize = xattrs.map(|(name, value)| name.len() + value.len()).sum();
        let contents = match kind {
            Some(Kind::Symlink(target)) => target.len(),
            Some(Kind::File(contents)) => contents.ranges_in_memory() * RANGE,
            _ => 0,
        };
        let bytes = (NODE + names + xattrs + contents) as u64;
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            let limit = self.bytes;
            Error::new(format!(
                "expected a tree of at most {limit} bytes in memory, got more"
            ))
        })?;
        self.left.set(left);
        Ok(())
    }
}
