//! Image creation.
//!
//! The central structure is a [`Plan`]: a tree in memory, with attributes, links, and the source of
//! each file's contents ([`Contents`]). Inputs build one ([`input`]: any file system of barge, a
//! tar stream, the layers of an OCI image); writers turn it into an image ([`erofs`], [`rofs`]) in
//! an [`Output`]. File contents are read once, while the image is written.
//!
//! [`oci`] has the documents of OCI images, and writes an image layout.
//!
//! An EROFS image optionally gets hashes, a signature and a read-ahead list
//! ([`Output::write_sidecar`], [`Trace`]).
//!
//! The output is deterministic: the same plan gives the same bytes with any number of threads.
//!
//! Deliberately absent: filters (the tree holds exactly the wanted files), rule-based labels,
//! images on devices.
//!
//! Lock order: a file's open handle, and the job queue; never both at once.

#![forbid(unsafe_code)]

pub mod contents;
pub mod erofs;
mod error;
mod file_storage;
pub mod input;
mod limit;
pub mod oci;
mod output;
#[cfg_attr(not(unix), path = "permissions/windows.rs")]
mod permissions;
pub mod plan;
pub mod rofs;
pub mod trace;

pub use contents::Contents;
pub use error::{Error, Result};
pub use file_storage::FileStorage;
pub use limit::TreeLimit;
pub use output::Output;
pub use plan::{Attributes, Kind, NodeId, Plan};
pub use sidecar::{Hash, ReadaheadRange, SecretKey};
pub use trace::Trace;

/// A progress listener, called on the thread that packs.
pub trait Progress {
    /// Reports the total number of bytes of contents to read.
    fn set_total(&self, bytes: u64);

    /// Reports that many more bytes as done.
    fn advance(&self, bytes: u64);
}

impl Progress for () {
    fn set_total(&self, _bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
}
