//! A layer that changes nothing. It replaces a layer that is left out of a stack, and serves to
//! measure and test stacking itself.

use crate::{Layer, forward};

/// A layer that passes everything on.
#[derive(Clone, Copy, Debug)]
pub struct Noop;

impl Layer for Noop {
    fn allows_passthrough(&self) -> bool {
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
