//! Leases: whoever has one of a file may keep what he has read of it, or what he is to write, until he is told
//! that somebody else wants the file.

use std::sync::Arc;

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// Keeping what was read: nobody writes, cuts, renames, removes or links the file, or changes its attributes.
    Read,
    /// Keeping what was written, too: nobody opens it at all besides.
    Write,
}

/// Told, once at most, that somebody wants what a lease keeps him from: the lease is to be given back soon. Called
/// from any thread, perhaps while the lease is being had; it must not wait.
pub type Broken = Arc<dyn Fn() + Send + Sync>;

/// A lease. Dropping it gives it back: whoever waits for that goes on.
pub trait Lease: Send + Sync {
    /// Whether it is to be given back.
    fn is_broken(&self) -> bool;
}
