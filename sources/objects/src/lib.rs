//! Images stored as objects: in S3, Google Cloud Storage, Azure, or any HTTP server that supports
//! range requests.
//!
//! [`Object`] is an [`image::RangeSource`]. The ranges of one call are coalesced into as few
//! requests as worthwhile, several in flight at a time; transient failures are retried a few times,
//! for no longer than [`Tuning::call_timeout`]. An object's identity is fixed when it is opened:
//! responses from a replaced object (detected by its ETag, or else its length and modification
//! time) return `ESTALE`, and none of their bytes are used.
//!
//! Other servers of immutable bytes share all of this through [`Fetch`] (`sources/registry`).
//!
//! This is a separate crate because its dependencies (an HTTP client, an asynchronous runtime) are
//! far larger than those of the rest of image support. The runtime lives as long as the object and
//! is not exposed: calls block their threads.
//!
//! Deliberately absent: writing, listing, and any interpretation of the bytes. The server is
//! trusted for their integrity; wrong bytes under correct headers have to be detected by checksums.
//!
//! Settings in a URL and in the environment are checked before the client library sees them
//! (`settings`), a panic of a library becomes an error (`containment`), and redirects follow one
//! policy (`redirect`), also in registries.
//!
//! Locks: the last failure's errno, held to update it; an attempt's response, likewise.

#![forbid(unsafe_code)]

mod bounded_file;
mod coalesce;
mod connector;
mod containment;
mod credentials;
mod environment;
mod image_options;
mod ranges;
mod redirect;
mod request;
mod rules;
mod settings;
mod store;
mod url;

pub use bounded_file::read_bounded;
pub use connector::{TransferCounters, TransferStats, retry_after};
pub use environment::Environment;
pub use image_options::{CacheQuery, ImageOptions};
pub use ranges::{Fetch, Object, Receive};
pub use redirect::{Destination, Redirects, Refused, Resolver, is_internal};
pub use request::{RequestError, Requests, Tuning, is_transient};
pub use rules::parse_url;
pub use settings::BadSetting;
pub use store::rehearse;
pub use url::{BadUrl, Url, is_path_variable};
