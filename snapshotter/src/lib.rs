//! A remote snapshotter of containerd: snapshots for the kernel's overlayfs, and layers of images
//! that `barge mount` mounts lazily instead of a download.
//!
//! [`Snapshotter`] has the operations, [`service`] routes requests of gRPC to them. The
//! program and its options are in `main.rs`; `docs/design/snapshotter.md` has the design.

pub mod api;
mod digest;
pub mod error;
mod filter;
mod layers;
mod metadata;
mod overlay;
pub mod service;
mod snapshotter;
pub mod source;
mod tree;

pub use layers::MountConfig;
pub use snapshotter::{Snapshotter, SnapshotterConfig};
