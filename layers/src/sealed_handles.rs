//! Sealed handles ([`vfs::seal`]) for a source that does not seal them itself: a client can use
//! only handles that this export has issued.
//!
//! Deliberately absent: a proof that a node is in the tree. The source below has its own.

use std::sync::Arc;

use vfs::{Cx, FileSystem, Handle, HandleKey, Node, Result};

use crate::{Layer, forward};

/// The layer, with the export's key. Returns `EOPNOTSUPP` for a handle of the source longer than
/// [`HandleKey::max_body`] of [`Handle::MAX_SOURCE`] bytes.
pub struct SealedHandles(pub HandleKey);

impl Layer for SealedHandles {
    fn allows_passthrough(&self) -> bool {
        true
    }

    fn handle(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Handle> {
        let handle = inner.handle(cx)?;
        self.0.seal(handle.bytes(), Handle::MAX_SOURCE)
    }

    fn resolve(
        &self,
        inner: &dyn FileSystem,
        cx: &Cx<'_>,
        handle: &Handle,
    ) -> Result<Arc<dyn Node>> {
        inner.resolve(cx, &Handle::new(self.0.open(handle)?)?)
    }

    forward! { capabilities id above }

    forward! { all but resolve handle }
}
