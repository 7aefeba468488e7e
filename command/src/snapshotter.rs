//! Options of `barge-snapshotter`: the one definition for its help and for the man page, which
//! `barge man` writes.

use std::path::PathBuf;

use clap::Parser;

use crate::log::LogArgs;
use crate::values::size;

/// Snapshotter of containerd that mounts layers of images lazily
///
/// containerd connects to it as a proxy plugin. Layers that are EROFS images in a registry or in an
/// object store are mounted with `barge mount` instead of a download; all others are downloaded and
/// unpacked as with overlayfs. Containers keep running while it restarts.
#[derive(Parser)]
#[command(name = "barge-snapshotter", version, max_term_width = 100)]
pub struct SnapshotterArgs {
    /// Directory of snapshots, layers and metadata
    #[arg(long, value_name = "DIR", default_value = "/var/lib/barge-snapshotter")]
    pub root: PathBuf,
    /// Unix socket for containerd, with mode 0600
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/run/barge-snapshotter/barge.sock"
    )]
    pub address: PathBuf,
    /// The program barge [default: beside this program, or on PATH]
    #[arg(long, value_name = "PATH")]
    pub barge: Option<PathBuf>,
    /// Where to look for layers as EROFS images; may be repeated [default: registry with
    /// --verify-key or --cosign-key, otherwise none]
    ///
    /// 'registry' is the image's own registry, for images with EROFS layers. Without --verify-key
    /// or --cosign-key, the author of an image who also controls its registry can then change the
    /// contents of other images on the node. Anything else is a SOURCE of barge mount with {hex} in
    /// place of the digest of the layer, without 'sha256:', for example s3://BUCKET/{hex}.erofs: a
    /// store with EROFS images of the layers of ordinary images. Such a store is trusted to have
    /// the right files. The places are tried in this order; a layer that none has is downloaded.
    /// 'none' alone downloads all.
    #[arg(long, value_name = "SOURCE")]
    pub layer_source: Vec<String>,
    /// Directory of the disk cache [default: ROOT/cache]
    #[arg(long, value_name = "DIR", value_parser = without_comma)]
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the disk cache, such as 500M or 20G [default: 10G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache_dir_size: Option<String>,
    /// Public key that must have signed each lazy layer (PEM, Ed25519); may be repeated
    ///
    /// All data is verified when it is read. A layer without a signature is downloaded.
    #[arg(long, value_name = "FILE")]
    pub verify_key: Vec<PathBuf>,
    /// Public key that must have signed the image of each lazy layer from a registry with cosign
    /// (PEM, ECDSA P-256 or Ed25519); may be repeated
    ///
    /// The signature is of the image's manifest, which vouches for its layers. Layers of other
    /// images are downloaded, and those of a SOURCE that is not a registry need no signature.
    #[arg(long, value_name = "FILE")]
    pub cosign_key: Vec<PathBuf>,
    /// Options of logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Parses a path without commas, which separate options of `barge mount`.
fn without_comma(text: &str) -> Result<PathBuf, String> {
    match text.contains(',') {
        true => Err("expected a path without a comma".into()),
        false => Ok(text.into()),
    }
}
