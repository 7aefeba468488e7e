//! Images in OCI registries (distribution-spec 1.1).
//!
//! [`open`] resolves a [`Url`] to one image of a file system. A layer that is an EROFS image is
//! read in ranges, as an object of a store is (`objects`). Layers that are tar archives, and
//! several EROFS images, are downloaded, verified against their digests, merged and converted into
//! an EROFS image on this host, once for each disk cache.
//!
//! Everything that a registry sends is untrusted. Documents are bounded, and verified against the
//! digest that names them. The bytes of an EROFS layer are not: a range cannot be verified against
//! the digest of the whole. Instead the root of the image's hashes is in an annotation of the
//! manifest ([`pack::oci::ROOT_ANNOTATION`]), so that the manifest's digest vouches for each chunk:
//! the opener of an [`Image`] must require [`Image::root`].
//!
//! The digest is that of the URL, or the one that a signature of cosign names: with
//! [`Url::require_cosign_signature`], no other document is used before the signature is verified.
//!
//! Hosts, mirrors and their certificates are those of containerd (`hosts.toml`), credentials those
//! of Docker (`config.json`).
//!
//! Deliberately absent: writing to registries, credential helpers, signatures of cosign without a
//! key, reading several EROFS layers in ranges, and default registries: a reference names its host.
//!
//! Locks: a host's authorization and a blob's redirect, held to read or replace them.

#![forbid(unsafe_code)]

mod blob;
mod challenge;
mod client;
mod convert;
mod cosign;
pub mod credentials;
pub mod hosts;
mod image;
mod url;

pub use self::challenge::Challenge;
pub use self::cosign::CosignKey;
pub use self::image::{Image, LazyImage, Options, config, open, open_lazy, resolve};
pub use self::url::{BadUrl, Reference, Url};
