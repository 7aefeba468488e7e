//! Layers: each makes of one file system another, and any number of them can be stacked.
//!
//! A layer is a file here and implements [`Layer`]: a method per operation, none with a default
//! body, each given the object below. What it leaves as it is it says so with [`forward!`], so a new
//! operation breaks every layer until somebody has decided about it there. [`stack()`] does once for
//! all layers what wrapping takes: results are wrapped, arguments unwrapped. [`bundle`] makes one file system
//! of several, by a layer over each.
//!
//! What it lacks on purpose: sources, clocks (they are injected), state per node or file but in [`kept`], [`pagecache`] and [`touched`].
//!
//! Lock order: none here but in [`fault`], whose lock is held for a decision only, in [`touched`], and in [`kept`] and [`pagecache`], which say theirs; [`bundle`] asks other lock
//! tables.

#![forbid(unsafe_code)]

// The macros name their types by this crate, whether they are used in it or elsewhere.
extern crate self as layers;

mod bad_map;
pub mod bundle;
pub mod clients;
mod existing;
pub mod fault;
pub mod gate;
pub mod idmap;
pub mod kept;
mod layer;
pub mod overlay;
mod owned;
pub mod pagecache;
pub mod readonly;
pub mod record;
pub mod sealed;
pub mod squash;
mod stack;
mod sync;
mod through;
pub mod touched;
pub mod trace;
mod whole;
mod with_attr;
pub mod xattrmap;

pub use bad_map::BadMap;
pub use bundle::Bundle;
pub use clients::Clients;
pub use fault::Fault;
pub use gate::Gate;
pub use idmap::{IdMap, IdRange, MapIds, Translation};
pub use kept::Kept;
pub use layer::{Below, Layer, Opened};
pub use overlay::Overlay;
pub use owned::Owned;
pub use pagecache::PageCache;
pub use readonly::ReadOnly;
pub use record::Record;
pub use sealed::Sealed;
pub use squash::Squash;
pub use stack::stack;
pub use through::Through;
pub use touched::Touched;
pub use trace::Trace;
pub use with_attr::WithAttr;
pub use xattrmap::XattrMap;

use std::sync::Arc;
use std::time::Duration;

/// What measures time: how long it is since some moment that stays the same.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;
