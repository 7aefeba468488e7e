//! The entries of a directory, by name and in the order of their cookies.
//!
//! Cookies are consecutive numbers and are never reused, so a listing can be continued after any
//! additions and removals. A name keeps its cookie when a rename replaces its node.
//! Lock order: none, the node's state guards it.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use vfs::Result;

use crate::budget::{Budget, Charge};
use crate::node::MemNode;

/// The entries of a directory.
pub(crate) struct Dir {
    names: HashMap<Arc<[u8]>, Slot>,
    order: BTreeMap<u64, Arc<[u8]>>,
    next: u64,
    charge: Charge,
}

struct Slot {
    cookie: u64,
    node: Arc<MemNode>,
}

/// An entry in a listing.
pub(crate) struct ListedEntry {
    pub(crate) name: Arc<[u8]>,
    pub(crate) cookie: u64,
    pub(crate) node: Arc<MemNode>,
}

/// The memory in bytes of an entry in addition to its name: in both maps, with the allocator's
/// overhead.
const ENTRY: u64 = 128;

fn cost(name: &[u8]) -> u64 {
    ENTRY + name.len() as u64
}

impl Dir {
    /// The first cookie: protocols reserve smaller ones (NFSv4 reserves 0 to 2: RFC 8881, section
    /// 18.23.3).
    const FIRST_COOKIE: u64 = 3;

    pub(crate) fn new(budget: &Arc<Budget>) -> Result<Dir> {
        Ok(Dir {
            names: HashMap::new(),
            order: BTreeMap::new(),
            next: Dir::FIRST_COOKIE,
            charge: Charge::new(budget, 0)?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Arc<MemNode>> {
        self.names.get(name).map(|slot| &slot.node)
    }

    /// Sets the node of `name`, and returns the previous one.
    pub(crate) fn put(&mut self, name: &[u8], node: Arc<MemNode>) -> Result<Option<Arc<MemNode>>> {
        if let Some(slot) = self.names.get_mut(name) {
            return Ok(Some(mem::replace(&mut slot.node, node)));
        }
        self.charge.grow(cost(name))?;
        let name: Arc<[u8]> = name.into();
        let cookie = self.next;
        self.next += 1;
        self.order.insert(cookie, name.clone());
        self.names.insert(name, Slot { cookie, node });
        Ok(None)
    }

    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<Arc<MemNode>> {
        let slot = self.names.remove(name)?;
        self.order.remove(&slot.cookie);
        self.charge.shrink(cost(name));
        Some(slot.node)
    }

    /// Returns up to `most` entries after `cookie`.
    pub(crate) fn entries_after(&self, cookie: u64, most: usize) -> Vec<ListedEntry> {
        self.order
            .range((Bound::Excluded(cookie), Bound::Unbounded))
            .take(most)
            .map(|(cookie, name)| ListedEntry {
                name: name.clone(),
                cookie: *cookie,
                node: self.names[name].node.clone(),
            })
            .collect()
    }

    /// Removes and returns all nodes.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Arc<MemNode>> {
        self.order.clear();
        self.names.drain().map(|(_, slot)| slot.node)
    }
}
