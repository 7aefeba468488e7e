//! Images that are objects in a store: S3, Google Cloud Storage, Azure, any HTTP server that gives ranges.
//!
//! [`Object`] is a [`image::RangeSource`]. What it is asked for at once becomes as few requests as pay, several under way at a time; what fails in a way that
//! may pass is asked for again, a few times, and not for longer than [`Tuning::all`]. An object is what it was when it was opened: answers
//! that speak of another one (by its ETag, or else its length and time) are `ESTALE`, and none of their bytes are given.
//!
//! A crate of its own, because what it stands on (an HTTP client, an asynchronous runtime) is far more than the rest of what images need. The runtime lives as
//! long as the object and never shows: calls block their threads.
//!
//! What it lacks on purpose: writing, listing, and any idea of what the bytes mean. That bytes are the right ones is the server's word; a
//! server that gives wrong ones under right headers is for checksums to find.
//!
//! Locks: the reason of the last failure, held to be noted; an attempt's answer, likewise.

#![forbid(unsafe_code)]

mod plan;
mod ranges;
mod url;
mod wire;

pub use ranges::{Object, Tuning};
pub use url::{BadUrl, Url};
pub use wire::Fetched;
