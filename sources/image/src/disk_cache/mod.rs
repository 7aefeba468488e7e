//! A persistent disk cache of remote images' segments.
//!
//! A directory holds two files for each image: `NAME.data`, a sparse file as long as the image with
//! the cached segments at their offsets; and `NAME.map`, with a tag (a checksum) for each cached
//! segment. A segment is verified against its tag on first use, so after a crash, a full disk or
//! interference by another program it is fetched again rather than trusted, and no sync is ever
//! needed. Segments verified or written by this process are served directly from the file.
//!
//! The total size of all files is limited by [`DiskCacheOptions`], except for concurrent writes by
//! other processes. Images that no process has open are evicted first, least recently used first;
//! then extents of this image (second chance, CLOCK), unless other processes use it. Those that the
//! kernel may be reading for a mount are passed over ([`AllowedReads`]).
//!
//! An image that this host derived from something else ([`DerivedImage`]) is one whole file with a
//! map that lists no segments. Any number of processes share it.
//!
//! Locks: processes share an image by locks on bytes of its map (`CacheFiles`). That of a lazy
//! mount is kept by its holder as well (`ImageUser`), so that the image stays in use between two
//! fillers. `eviction_lock` is taken shared to use the data file, and exclusive to punch holes in
//! it; it is only tried, never waited for, since a holder may re-enter, except for a file that the
//! kernel reads. `cache_dir` is held during a whole search for space. `state` is taken after both,
//! and never held during I/O; `claiming` only with that of `loads`. Segments that this process
//! fetches are locked in the map before those of other processes are waited for.

mod allowed_reads;
mod cache_dir;
mod cached_source;
mod derived;
mod images;
mod map;
mod shared_chunks;

pub use allowed_reads::AllowedReads;
pub use cache_dir::{DiskCacheOptions, ImageUser};
pub use cached_source::{CachedSource, DiskCacheEntry};
pub use derived::DerivedImage;
pub use images::{CachedImage, Verification};
pub use map::ImageIdentity;
