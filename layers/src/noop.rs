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

    forward! { capabilities id above }

    forward! { all }
}
