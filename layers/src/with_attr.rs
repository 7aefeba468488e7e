//! Values that contain attributes, for layers that change the attributes shown.

use std::sync::Arc;

use vfs::{Attr, Entry, File};

/// The value of an operation, with a node's attributes in it.
pub trait WithAttr {
    /// Returns the same value with `map` applied to its attributes.
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
