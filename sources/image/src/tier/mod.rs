//! Segments of images that are far away, on disk, where they outlast a restart.
//!
//! A directory has two files for each image: `NAME.data`, which is as long as the image and has its segments where the image has them, with holes for those that
//! are missing; and `NAME.map`, which says of each whether it is there, and what it has to be. A segment counts when its bytes are what
//! the map says: that is looked at when it is used for the first time. So whatever a crash, a full disk or another program leaves behind, it is fetched again
//! rather than believed, and nothing ever has to be synced. What has been looked at, or was written by this process, is given away as a file.
//!
//! All files together are no larger than [`TierOptions`] says, but for what others write at the same moment: images that nobody has open go first, the one that was used
//! least lately before all others; then chunks of this one (a second chance, CLOCK).
//!
//! Locks: an image's map is locked (flock(2)) by the process that has it open. `gate` is shared by whoever uses the data file, and exclusive to
//! take parts of it away; it is never waited for, since who holds it may come again. `room` is held by whoever looks for room, through all that takes. `state` comes
//! behind both, and is never held during I/O.

mod map;
mod room;
mod tiered;

pub use map::Known;
pub use room::TierOptions;
pub use tiered::{Tier, Tiered};
