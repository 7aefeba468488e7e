//! A source: a read-only image of a file system, EROFS or ROFS.
//!
//! An image's bytes come from a [`RangeSource`]: a file, memory. What is read of them in small pieces (metadata, ends of files) and what is decoded is kept
//! in a cache, which is bounded; stored contents of an image in a file go from that file to the transport, past the cache, since the kernel
//! keeps them already. Where an image has hashes (`sidecar`), nothing goes past the cache, and nothing comes into it unverified. What an image says is never trusted: it may show wrong contents, but ends no call, and takes no more memory than that
//! bound and a few clusters for each call under way.
//!
//! Nodes are made when they are looked up: the number of an inode is all that there is to one. An image must not change while it is open.
//!
//! A format says what it knows of nodes (`format`); what they are to a file system is the same for all.
//!
//! What it lacks on purpose: writing (`EROFS`), and any idea of where images come from.
//!
//! Lock order: a cache's table is held to look and to note, never while bytes are read or decoded; who waits for another's load holds that load's lock alone. The table of
//! known nodes is held for a look-up.

#![forbid(unsafe_code)]

mod ahead;
mod cache;
mod erofs;
mod file;
mod format;
mod fs;
mod kept;
mod node;
mod range;
mod rofs;
mod storage;
mod tier;
mod trust;
mod verified;
mod xattr;

pub use cache::Figures;
pub use fs::{DEFAULT_CACHE, ImageFs, OpenError};
pub use range::{FileRanges, Held, MemoryRanges, Piece, RangeSource};
pub use sidecar::PublicKey;
pub use tier::{Known, Tier, TierOptions, Tiered};
pub use trust::{Trust, Untrusted};
