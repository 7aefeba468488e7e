//! Access to the files of any source as a library: of a 9P, NFS or virtiofs server, a directory of
//! this host, an image of a file system here or in a store, or a tree in memory.
//!
//! [`Client::open`] takes a source as the command line of `barge` does. The rest is as in
//! [`std::fs`]: paths, a [`File`] with the traits of [`std::io`], errors as [`std::io::Error`].
//! Paths are relative to the root of the opened tree; absolute symbolic links begin at that root,
//! and none leads out of it.
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
//! # Sources
//! | source | example |
//! |---|---|
//! | a directory of this host | `/srv/data` |
//! | an image of a file system (EROFS, ROFS) in a file | `/srv/data.erofs` |
//! | an image in an object store, read in parts | `https://host/data.erofs`, `s3://…`, `gs://…` |
//! | an image in an OCI registry | `oci://registry.example.com/data:latest` |
//! | a 9P server | `9p://host:5640/srv`, `9p+unix:/run/9p.sock`, `9p+vsock:2:5640` |
//! | an NFS server | `nfs://host/srv?vers=4.2` |
//! | a virtiofs server | `virtiofs:/run/virtiofs.sock` |
//! | memory, empty at first | `mem:` |
//!
//! # Errors
//! An error has the number that the source returned ([`std::io::Error::raw_os_error`]), and with
//! that a [`std::io::ErrorKind`]. A source that cannot be opened has a message of one line instead;
//! [`errno()`] returns a number in either case.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let client = barge_client::Client::open("mem:")?;
//! match client.read("settings") {
//!     Err(error) if error.kind() == std::io::ErrorKind::NotFound => println!("defaults"),
//!     read => println!("{} bytes", read?.len()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Several calls at a time
//! Every call blocks its thread. Clients and files may be shared by threads, whose requests are
//! sent together. A thread that wants several calls in flight takes a [`Ticket`] for each, and
//! waits for them in any order. In an async task of any runtime, a ticket is awaited:
//! `client.submit(|client| client.read("notes")).await`.
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
//! Deliberately absent: a cache (which a mount has), globs, the current directory.
//!
//! Lock order: a file's position, held across the call that moves it, and the queue of tickets;
//! never both.

#![forbid(unsafe_code)]

/// Compiles the example of the crate's page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod client;
mod errno;
mod file;
mod metadata;
mod ticket;
mod walk;

pub use client::Client;
pub use errno::{errno, message};
pub use file::{File, OpenOptions};
pub use metadata::{DirEntry, FileType, Metadata, Space};
pub use ticket::Ticket;
pub use walk::Walk;
