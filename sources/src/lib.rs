//! All sources as one type: the syntax of SOURCE on command lines ([`Source`]), how each is opened,
//! and paths in the trees of programs ([`Tree`]).
//!
//! On systems other than Linux, directories of this host are opened with the standard library, and
//! images in object stores and registries are absent.

#![forbid(unsafe_code)]

mod images;
#[cfg(target_os = "linux")]
mod object;
#[cfg(target_os = "linux")]
mod registry_image;
mod source;
#[cfg_attr(not(target_os = "linux"), path = "stores/elsewhere.rs")]
mod stores;
mod suggest;
#[cfg_attr(windows, path = "system/windows.rs")]
mod system;
mod tree;

#[cfg(target_os = "linux")]
pub use image::{AllowedReads, CachedImage, DiskCacheOptions, ImageUser, LazyImage};
pub use images::{Image, public_keys};
pub use source::{BadSource, LocalOptions, Source, local_options, now};
pub use suggest::suggest;
pub use tree::Tree;
