//! The layer that is none: everything below as it is. What a stack has where one of its layers is left out, and what stacking itself
//! is measured and tested by.

use crate::{Layer, forward};

/// Passes everything on.
#[derive(Clone, Copy, Debug)]
pub struct Through;

impl Layer for Through {
    fn leaves_contents(&self) -> bool {
        true
    }

    forward! {
        capabilities id above
        root resolve sync
        handle attr setattr access statfs open readlink lookup parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr file_setattr read write readdir fsync flush allocate seek extents copy lease
    }
}
