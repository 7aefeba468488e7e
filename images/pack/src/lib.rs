//! Makes images.
//!
//! In the middle is a [`Plan`]: a tree in memory, with attributes, links, and for each file where its bytes are
//! ([`Contents`]). Inputs make one ([`input`]: any file system of barge, a tar stream, the layers of an OCI image); writers take it
//! ([`erofs`], [`rofs`]) and put an image into an [`Output`]. Bytes of files are read while the image is written, once.
//!
//! An image of EROFS gets hashes behind it, a signature, and what is to be read ahead ([`Output::seal`], [`Trace`]), if it is asked to.
//!
//! The same plan makes the same image, byte for byte, however many threads there are.
//!
//! What it lacks on purpose: filters (what is not to be in an image is not in the tree), labels by rule, images on devices.
//!
//! Lock order: a file's open handle, and the queue of jobs; each by itself.

#![forbid(unsafe_code)]

pub mod contents;
pub mod erofs;
mod error;
pub mod input;
mod output;
pub mod plan;
pub mod rofs;
pub mod trace;

pub use contents::Contents;
pub use error::{Error, Result};
pub use output::Output;
pub use plan::{Attributes, Kind, NodeId, Plan};
pub use sidecar::{Hot, SecretKey};
pub use trace::Trace;

/// Is told of progress, on the thread that packs.
pub trait Progress {
    /// So many bytes of contents are to be read in all.
    fn expect(&self, bytes: u64);

    /// So many more of them are done.
    fn done(&self, bytes: u64);
}

impl Progress for () {
    fn expect(&self, _bytes: u64) {}
    fn done(&self, _bytes: u64) {}
}

/// Bytes of all files together.
fn contents_size(plan: &Plan, visits: &[plan::Visit]) -> u64 {
    let size = |visit: &plan::Visit| match plan.kind(visit.node) {
        Kind::File(contents) => contents.len(),
        _ => 0,
    };
    visits.iter().map(size).sum()
}
