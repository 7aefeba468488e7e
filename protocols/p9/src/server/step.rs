//! Paths: the access that a Tattach granted, and the steps walked from its root.

use std::sync::Arc;

use vfs::{Allotment, Call, Caller, Errno, Export, Name, Node, Portion, QuotaExceeded, Result};

use crate::CompactName;

/// The estimated size in bytes of a [`Step`] and its node.
pub(super) const STEP_BYTES: usize = 176;

/// The result of a Tattach: a user's access to an export, shared by all fids walked from there.
pub(super) struct Attach {
    pub(super) export: Arc<Export>,
    /// The root of the attach; nodes above it cannot be reached.
    pub(super) root: Arc<dyn Node>,
    /// Whether the root is below the export's own root.
    pub(super) below: bool,
    pub(super) caller: Caller,
    /// The allotment of the connection's memory.
    pub(super) memory: Arc<Allotment>,
}

/// A node and the path walked to it, used for removal, renaming and 9P2000's stat. Accounted as a
/// [`STEP_BYTES`].
pub(super) struct Step {
    pub(super) attach: Arc<Attach>,
    pub(super) node: Arc<dyn Node>,
    /// Its name and directory when it was walked to; `None` for an attach's root and for a parent
    /// reached with `..` from elsewhere.
    pub(super) name_in_parent: Option<NameInParent>,
}

pub(super) struct NameInParent {
    pub(super) parent: Arc<Step>,
    name: CompactName,
}

impl Attach {
    /// Reserves memory for `bytes` bytes. Returns `EMFILE` if the client has used its share,
    /// `ENFILE` if all clients together have used the quota.
    pub(super) fn reserve_memory(&self, bytes: usize) -> Result<Portion> {
        self.memory.take(bytes).map_err(errno)
    }

    /// Returns the caller with the group that a message names for a new file, if the peer may act
    /// as it.
    pub(super) fn caller_in(&self, call: &Call, gid: u32) -> Caller {
        if gid == u32::MAX {
            return self.caller.clone();
        }
        call.acts_as(Caller {
            gid,
            ..self.caller.clone()
        })
    }
}

impl Step {
    /// Returns a step for a node without a known name.
    pub(super) fn unnamed(attach: &Arc<Attach>, node: Arc<dyn Node>) -> Result<Arc<Step>> {
        attach.reserve_memory(STEP_BYTES)?.leave();
        Ok(Arc::new(Step {
            attach: attach.clone(),
            node,
            name_in_parent: None,
        }))
    }

    pub(super) fn new(
        up: &Arc<Step>,
        name: Name<'_>,
        node: Arc<dyn Node>,
        charge: Portion,
    ) -> Arc<Step> {
        charge.leave();
        Arc::new(Step {
            attach: up.attach.clone(),
            node,
            name_in_parent: Some(NameInParent {
                parent: up.clone(),
                name: CompactName::new(name),
            }),
        })
    }
}

impl NameInParent {
    pub(super) fn name(&self) -> Result<Name<'_>> {
        Name::new(self.name.bytes())
    }
}

/// A tree may be arbitrarily deep, so steps are dropped iteratively, not recursively.
impl Drop for Step {
    fn drop(&mut self) {
        let mut location = self.name_in_parent.take();
        while let Some(NameInParent { parent: up, .. }) = location {
            location = Arc::into_inner(up).and_then(|mut step| step.name_in_parent.take());
        }
        self.attach.memory.remove(STEP_BYTES);
    }
}

/// Returns the error for a client that has reached a limit, as for open(2).
pub(super) fn errno(full: QuotaExceeded) -> Errno {
    match full.is_per_client() {
        true => Errno::EMFILE,
        false => Errno::ENFILE,
    }
}
