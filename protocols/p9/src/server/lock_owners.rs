//! The owners of the locks that are requested through an open fid.

use std::sync::Arc;

use parking_lot::Mutex;
use vfs::lock::{Lock, LockRange, Owner};
use vfs::{Call, Cx, Errno, Result};

use super::step::Step;

/// The owners that hold or wait for locks through one open fid. Dropping it releases their locks of
/// the file.
pub(super) struct LockOwners {
    step: Arc<Step>,
    owners: Mutex<Vec<Owner>>,
}

impl LockOwners {
    /// The most owners: processes of a client that share one open file.
    pub(super) const MAX_OWNERS: usize = 1024;

    pub(super) fn new(step: &Arc<Step>) -> LockOwners {
        LockOwners {
            step: step.clone(),
            owners: Mutex::default(),
        }
    }

    pub(super) fn lock(&self, cx: &Cx<'_>, new: Lock, wait: bool) -> Result<()> {
        let owner = new.owner.clone();
        if self.with_owners(|owners| {
            owners.len() >= LockOwners::MAX_OWNERS && !owners.contains(&owner)
        }) {
            return Err(Errno::ENOLCK);
        }
        let locks = &self.step.attach.export.locks;
        let done = locks.lock(cx, &*self.step.node, new, wait);
        // A waiting owner belongs to this fid too: if it is clunked meanwhile, the wait ends.
        if matches!(done, Ok(()) | Err(Errno::PARKED)) {
            self.with_owners(|owners| {
                if !owners.contains(&owner) {
                    owners.push(owner);
                }
            });
        }
        done
    }

    /// Releases an owner's locks in a range. If the owner then has none of the file, it does not
    /// belong to this fid any more: new locks that it gets through another fid outlive this one.
    pub(super) fn unlock(&self, cx: &Cx<'_>, range: LockRange, owner: &Owner) -> Result<()> {
        let (locks, node) = (&self.step.attach.export.locks, &*self.step.node);
        let LockRange { family, start, end } = range;
        locks.unlock(cx, node, family, start, end, owner)?;
        self.with_owners(|owners| {
            if !locks.is_locking(node.id(), family, owner) {
                owners.retain(|one| one != owner);
            }
        });
        Ok(())
    }

    /// Returns the owners.
    pub(super) fn snapshot(&self) -> Vec<Owner> {
        self.with_owners(|owners| owners.clone())
    }

    /// Adds an owner without locks. Returns `ENOLCK` if there are too many.
    pub(super) fn add(&self, owner: Owner) -> Result<()> {
        self.with_owners(|owners| {
            let known = owners.contains(&owner);
            if !known && owners.len() >= LockOwners::MAX_OWNERS {
                return Err(Errno::ENOLCK);
            }
            if !known {
                owners.push(owner);
            }
            Ok(())
        })
    }

    fn with_owners<T>(&self, with: impl FnOnce(&mut Vec<Owner>) -> T) -> T {
        with(&mut self.owners.lock())
    }
}

impl Drop for LockOwners {
    fn drop(&mut self) {
        let owners = std::mem::take(&mut *self.owners.lock());
        if owners.is_empty() {
            return;
        }
        let call = Call::detached();
        let cx = Cx::new(&self.step.attach.caller, &call);
        let locks = &self.step.attach.export.locks;
        locks.release(&cx, &*self.step.node, |owner| owners.contains(owner));
    }
}
