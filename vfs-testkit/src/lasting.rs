//! A tree that outlives the process, as far as its servers know.

use core::any::Any;
use std::sync::Arc;

use vfs::{Capabilities, Cx, FileSystem, Handle, Node, Result};

/// A file system whose [`Capabilities::persistent`] is set: several servers in turn, which stand
/// for processes, serve the same tree.
pub struct Lasting(pub Arc<dyn FileSystem>);

impl FileSystem for Lasting {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        self.0.root(cx)
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        self.0.resolve(cx, handle)
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.0.sync(cx)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            persistent: true,
            ..self.0.capabilities()
        }
    }
}
