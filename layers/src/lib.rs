//! Layers: each turns one file system into another, and any number of them can be stacked.
//!
//! Each layer implements [`Layer`]: one method per operation, none with a default body, each called
//! with the object below. A layer names the operations that it leaves unchanged with [`forward!`],
//! so a new operation does not compile until each layer has decided about it, or says that it
//! treats all of them alike. [`stack()`] does the wrapping for all layers: it wraps results and
//! unwraps arguments. [`bundle`] joins several file systems into one, with a layer over each.
//!
//! Deliberately absent: sources, clocks (they are injected), state per node or file except in
//! [`disk_cache`], [`disk_quota`], [`hide`], [`limit`], [`pagecache`], [`poke`] and [`read_trace`].
//!
//! Lock order: no locks except in [`fault`], whose lock is held for a decision only, in
//! [`read_trace`], and in [`disk_cache`], [`disk_quota`], [`hide`], [`limit`], [`pagecache`] and
//! [`poke`], which document theirs; [`bundle`] queries the lock tables of its members.

#![forbid(unsafe_code)]

// The macros name their types by this crate, whether they are used in it or elsewhere.
extern crate self as layers;

mod bad_map;
pub mod bundle;
pub mod call_log;
pub mod clients;
pub mod disk_cache;
pub mod disk_quota;
pub mod fault;
mod full_io;
pub mod gate;
pub mod hide;
pub mod idmap;
pub mod latency;
mod layer;
pub mod limit;
mod noop;
pub mod overlay;
mod owner_override;
pub mod pagecache;
pub mod poke;
pub mod read_trace;
pub mod readonly;
mod refuse_create;
pub mod sealed_handles;
pub mod squash;
mod stack;
mod sync;
pub mod trace;
mod with_attr;
pub mod xattrmap;

pub use bad_map::BadMap;
pub use bundle::Bundle;
pub use call_log::CallLog;
pub use clients::{Admission, Clients};
pub use disk_cache::DiskCache;
pub use disk_quota::DiskQuota;
pub use fault::Fault;
pub use gate::Gate;
pub use hide::Hide;
pub use idmap::{IdMap, IdRange, MapIds, Translation};
pub use latency::Latency;
pub use layer::{Below, Layer, Opened};
pub use limit::Limiter;
pub use noop::Noop;
pub use overlay::Overlay;
pub use owner_override::OwnerOverride;
pub use pagecache::PageCache;
pub use poke::Pokes;
pub use read_trace::ReadTrace;
pub use readonly::ReadOnly;
pub use sealed_handles::SealedHandles;
pub use squash::Squash;
pub use stack::stack;
pub use trace::Trace;
pub use with_attr::WithAttr;
pub use xattrmap::XattrMap;

use std::sync::Arc;
use std::time::Duration;

/// A clock: returns the time since a fixed moment.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;
