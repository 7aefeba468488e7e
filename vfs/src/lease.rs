//! Leases: the holder may cache reads of a file, or delay writes to it, until a conflicting access
//! breaks the lease.

use std::sync::Arc;

/// The kind of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// Read caching: others do not write, truncate, rename, remove or link the file, or change its
    /// attributes.
    Read,
    /// Write caching, too: others do not have the file open.
    Write,
}

/// The callback of a lease break, called at most once: the lease must be returned soon. Called from
/// any thread, perhaps while the lease is still being granted; must not block.
pub type BreakCallback = Arc<dyn Fn() + Send + Sync>;

/// A lease. Dropping it returns it and resumes those that wait for it.
pub trait Lease: Send + Sync {
    /// Returns whether a conflicting access broke the lease, so that it must be returned.
    fn is_broken(&self) -> bool;
}
