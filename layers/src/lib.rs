//! Layers: each turns one file system into another, and any number of them can be stacked.
//!
//! Each layer implements [`Layer`]: one method per operation, none with a default body, each called
//! with the object below. A layer names the operations that it leaves unchanged with [`forward!`],
//! so a new operation does not compile until each layer has decided about it. [`stack()`] does the
//! wrapping for all layers: it wraps results and unwraps arguments. [`bundle`] joins several file
//! systems into one, with a layer over each.
//!
//! Deliberately absent: sources, clocks (they are injected), state per node or file except in
//! [`kept`], [`pagecache`] and [`touched`].
//!
//! Lock order: no locks except in [`fault`], whose lock is held for a decision only, in
//! [`touched`], and in [`kept`] and [`pagecache`], which document theirs; [`bundle`] queries the
//! lock tables of its members.

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

/// A clock: returns the time since a fixed moment.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;
