//! OCI images (image-spec 1.1): digests, indexes and manifests, which are untrusted input, and
//! image layouts as written.
//!
//! Deliberately absent: Docker's manifests of schema 1.

mod config;
pub mod cosign;
mod digest;
mod document;
mod layout;

pub use self::config::Config;
pub use self::digest::{Algorithm, Digest, Hasher};
pub use self::document::{
    Descriptor, Document, LayerFormat, MAX_DOCUMENT, MAX_LAYERS, MAX_NESTING, Manifest, Platform,
};
pub use self::layout::Layout;

/// Media type of a layer that is an EROFS image, as of containerd 2.3.
pub const EROFS_LAYER: &str = "application/vnd.erofs.layer.v1";

/// Annotation of a layer's descriptor: the root of the hashes of its EROFS image, 64 hexadecimal
/// digits. The digest of the manifest vouches for it, and it for each chunk of the image.
pub const ROOT_ANNOTATION: &str = "vnd.barge.erofs.root";
