//! Values that carry attributes, for layers that show other ones.

use std::sync::Arc;

use vfs::{Attr, Entry, File};

/// A value of an operation that carries the attributes of a node.
pub trait WithAttr {
    /// The same value with the attributes that `map` makes of its own.
    fn map_attr(self, map: impl FnOnce(Attr) -> Attr) -> Self;
}

impl WithAttr for Attr {
    fn map_attr(self, map: impl FnOnce(Attr) -> Attr) -> Attr {
        map(self)
    }
}

impl WithAttr for Entry {
    fn map_attr(self, map: impl FnOnce(Attr) -> Attr) -> Entry {
        Entry {
            attr: map(self.attr),
            ..self
        }
    }
}

impl WithAttr for (Entry, Arc<dyn File>) {
    fn map_attr(self, map: impl FnOnce(Attr) -> Attr) -> Self {
        (self.0.map_attr(map), self.1)
    }
}
