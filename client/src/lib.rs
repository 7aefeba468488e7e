//! Access to the files of any source as a library: of a 9P, NFS or virtiofs server, a directory of
//! this host, or a tree in memory.
//!
//! [`Client::open`] takes a SOURCE as on the command line of `barge`. The rest is as in
//! [`std::fs`]: paths, a [`File`] with the traits of [`std::io`], errors as [`std::io::Error`] with
//! the errno of the source. Paths are relative to the root of the opened tree; absolute symbolic
//! links begin at that root, and none leads out of it.
//!
//! ```
//! use std::io::{Read, Write};
//! use barge_client::Client;
//!
//! # fn main() -> std::io::Result<()> {
//! // "9p://host:5640/srv", "nfs://host/srv?vers=4.2" and "/srv" work, too.
//! let client = Client::open("mem:")?;
//! client.create_dir("notes")?;
//! let mut file = client.create("notes/today")?;
//! file.write_all(b"carry the tree")?;
//! file.sync_all()?;
//!
//! let mut text = String::new();
//! client.open_file("notes/today")?.read_to_string(&mut text)?;
//! assert_eq!(text, "carry the tree");
//! assert_eq!(client.metadata("notes/today")?.len(), 14);
//! # Ok(())
//! # }
//! ```
//!
//! # Several calls at a time
//!
//! There is no async runtime, and none is needed: every call blocks its thread, clients and files
//! may be shared by threads, and requests of several threads are sent together. A thread that wants
//! several calls in flight takes a [`Ticket`] for each, and waits for them in any order.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let client = barge_client::Client::open("mem:")?;
//! let file = client.create("blocks")?;
//! let writes: Vec<_> = (0..8)
//!     .map(|at| file.submit_write(at * 4096, vec![at as u8; 4096]))
//!     .collect();
//! for write in writes {
//!     assert_eq!(write.wait()?, 4096);
//! }
//! let (last, first) = (file.submit_read(7 * 4096, 4096), file.submit_read(0, 4096));
//! assert_eq!(first.wait()?, [0; 4096]);
//! assert_eq!(last.wait()?, [7; 4096]);
//! # Ok(())
//! # }
//! ```
//!
//! On systems other than Linux, directories of this host are opened with the standard library, and
//! images in object stores and registries are absent. On Windows there are [`Source`] and
//! [`tree::Tree`] only.
//!
//! Deliberately absent: a cache (which a mount has), globs, the current directory.
//!
//! Lock order: a file's position, held across the call that moves it, and the queue of tickets;
//! never both.

#![forbid(unsafe_code)]

/// Compiles the example of the crate's page.
#[cfg(all(doctest, unix))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(unix)]
mod client;
#[cfg(unix)]
mod errno;
#[cfg(unix)]
mod file;
mod images;
#[cfg(unix)]
mod metadata;
#[cfg(target_os = "linux")]
mod object;
#[cfg(target_os = "linux")]
mod registry_image;
pub mod source;
#[cfg_attr(not(target_os = "linux"), path = "stores/elsewhere.rs")]
mod stores;
mod suggest;
#[cfg_attr(windows, path = "system/windows.rs")]
mod system;
#[cfg(unix)]
mod ticket;
pub mod tree;
#[cfg(unix)]
mod walk;

#[cfg(unix)]
mod unix {
    pub use crate::client::Client;
    pub use crate::errno::errno;
    pub use crate::file::{File, OpenOptions};
    pub use crate::metadata::{DirEntry, Metadata};
    pub use crate::ticket::Ticket;
    pub use crate::walk::Walk;
}

#[cfg(target_os = "linux")]
pub use image::{AllowedReads, CachedImage, DiskCacheOptions, ImageUser, LazyImage};
pub use images::{Image, public_keys};
pub use source::{BadSource, Source};
pub use suggest::suggest;
#[cfg(unix)]
pub use unix::*;
