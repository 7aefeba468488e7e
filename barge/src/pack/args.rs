//! The arguments of `pack` and `check`: the one definition of help, man pages and completions.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pack::erofs::{Compression, Options};
use sources::Source;

use crate::Failure;
use crate::disk_cache::DiskCacheArgs;

#[derive(Args)]
pub(crate) struct PackArgs {
    /// Tree to build the image from
    ///
    /// A SOURCE (PATH, dir:PATH, 9p://..., nfs://..., oci://...), a tar archive (plain, gzip or
    /// zstd; - is standard input), or the directory of an OCI image layout, whose layers are
    /// merged.
    #[arg(value_name = "TREE")]
    pub(super) tree: String,
    /// Image to write, replacing an existing one; - is standard output
    #[arg(value_name = "IMAGE")]
    pub(super) image: PathBuf,
    /// Write the directory of an OCI image layout, for registries
    ///
    /// The EROFS image is its only layer. The configuration (entry point, environment, platform) is
    /// that of TREE, if it is an OCI image. An annotation has the root of the image's hashes, so
    /// that the digest of the manifest vouches for all data. skopeo copy oci:IMAGE
    /// docker://HOST/NAME uploads it, and oci://HOST/NAME is the SOURCE to read it from. With
    /// --sign, IMAGE/cosign is the layout of a signature of the manifest in the format of cosign,
    /// to be uploaded with the tag sha256-DIGEST.sig that its index.json has.
    #[arg(long)]
    pub(super) oci: bool,
    /// Format of the image
    #[arg(short, long, value_enum, default_value = "erofs")]
    pub(super) format: Format,
    /// Compression of file contents
    #[arg(short, long, value_enum, value_name = "CODEC", default_value = "none")]
    compress: Codec,
    /// Compression level
    ///
    /// lz4: 0 (fast) or 3 to 12 [default: 9]. zstd: 1 to 22 [default: 3].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    level: Option<i32>,
    /// Maximum size of compressed clusters, a power of two from 4K to 1M
    ///
    /// Larger clusters make the image smaller, and random reads slower.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = size)]
    cluster_size: u64,
    /// Store files as chunks of this size, a power of two from 4K to 4M
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunksize: Option<u64>,
    /// Store equal data once: chunks (64K by default), or segments of compressed files
    #[arg(long)]
    dedupe: bool,
    /// Compress each file separately, without packing small files together
    ///
    /// Linux before 6.1 needs it.
    #[arg(long)]
    no_fragments: bool,
    /// Append no hashes to the image
    ///
    /// barge verifies data with them when it reads the image; Linux ignores them.
    #[arg(long, conflicts_with_all = ["sign", "trace"])]
    pub(super) no_hashes: bool,
    /// Trace of a program's reads (barge serve --record-trace FILE)
    ///
    /// The data is stored first in the image and marked for read-ahead.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Private key to sign the image with (PEM, Ed25519)
    ///
    /// Made by openssl genpkey -algorithm ed25519. openssl pkey -in FILE -pubout writes the public
    /// key, also for cosign verify --key.
    #[arg(long, value_name = "FILE")]
    pub(super) sign: Option<PathBuf>,
    /// User id of all files
    #[arg(long, value_name = "UID")]
    pub(super) owner: Option<u32>,
    /// Group id of all files
    #[arg(long, value_name = "GID")]
    pub(super) group: Option<u32>,
    /// Number of threads that read and compress [default: number of processors]
    ///
    /// The image does not depend on it.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Show neither progress nor what the format cannot store
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Print an object about the image as JSON
    ///
    /// It has image, format, size (bytes), digest (SHA-256 of the image, which is read for that),
    /// root (of its hashes) or null, signed, tree (numbers of files, directories and others, and
    /// bytes of files), and oci: null, or an object with manifest (its digest) and reference (for
    /// skopeo). Of an OCI layout, size and digest are those of its layer.
    #[arg(long)]
    pub(super) json: bool,
}

/// Image formats.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// For Linux and barge
    Erofs,
    /// For OSv: no permissions, owners, times, attributes or devices
    Rofs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Codec {
    None,
    Lz4,
    /// Supported by Linux from 6.10 on
    Zstd,
}

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Image to check
    ///
    /// A file, an object in a store (s3://BUCKET/KEY, gs://, az://, https://), or an image in a
    /// registry (oci://HOST/REPOSITORY), which is downloaded entirely.
    #[arg(value_name = "IMAGE")]
    pub(super) image: Source,
    #[command(flatten)]
    pub(super) disk_cache: DiskCacheArgs,
    /// Public key that must have signed the image (PEM, Ed25519); may be repeated
    ///
    /// With several keys, the image must be signed with one of them.
    #[arg(long, value_name = "FILE")]
    pub(super) verify_key: Vec<PathBuf>,
    /// Public key that must have signed the image with cosign (PEM, ECDSA P-256 or Ed25519); may be
    /// repeated
    ///
    /// For images in registries. With several keys, one of them must have signed.
    #[arg(long, value_name = "FILE")]
    pub(super) cosign_key: Vec<PathBuf>,
    /// Print an object about the image as JSON
    ///
    /// It has image, format (erofs or rofs), size (bytes), digest (SHA-256), valid, and errors, the
    /// number of errors that were found.
    #[arg(long)]
    pub(super) json: bool,
}

impl PackArgs {
    /// Returns the options of an EROFS image, or an error of usage if they conflict.
    pub(super) fn erofs_options(&self) -> Result<Options, Failure> {
        let compression = match (self.compress, self.level) {
            (Codec::None, None) => Compression::None,
            (Codec::None, Some(_)) => {
                return Err(Failure::usage("--level requires --compress lz4 or zstd"));
            }
            (Codec::Lz4, level) => Compression::Lz4(level.unwrap_or(9)),
            (Codec::Zstd, level) => Compression::Zstd(level.unwrap_or(3)),
        };
        let (levels, good) = match compression {
            Compression::None => ("", true),
            Compression::Lz4(level) => ("0 or 3 to 12", level == 0 || (3..=12).contains(&level)),
            Compression::Zstd(level) => ("1 to 22", (1..=22).contains(&level)),
        };
        if !good {
            let level = self.level.unwrap_or_default();
            return Err(Failure::usage(format!(
                "expected a --level of {levels}, got {level}"
            )));
        }
        let cluster = u32::try_from(self.cluster_size).ok();
        let cluster =
            cluster.filter(|size| Options::CLUSTER_SIZES.contains(size) && size.is_power_of_two());
        let Some(cluster) = cluster else {
            return Err(wrong_size("--cluster-size", "4K to 1M", self.cluster_size));
        };
        if let Some(chunk) = self.chunksize {
            if !Options::CHUNK_SIZES.contains(&chunk) || !chunk.is_power_of_two() {
                return Err(wrong_size("--chunksize", "4K to 4M", chunk));
            }
            if compression != Compression::None {
                return Err(Failure::usage(
                    "--chunksize conflicts with --compress: chunks are not compressed",
                ));
            }
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Options {
            compression,
            cluster,
            chunk: self.chunksize,
            dedupe: self.dedupe,
            pack_small: !self.no_fragments,
            first: Vec::new(),
            threads: self.jobs.map_or(processors, usize::from),
        })
    }

    /// Returns whether any option was given that only EROFS supports.
    pub(super) fn has_erofs_options(&self) -> bool {
        self.compress != Codec::None
            || self.level.is_some()
            || self.chunksize.is_some()
            || self.dedupe
            || self.no_fragments
            || self.no_hashes
            || self.oci
            || self.sign.is_some()
            || self.trace.is_some()
    }
}

fn wrong_size(option: &str, expected: &str, got: u64) -> Failure {
    let line = format!("expected a power of two from {expected} for {option}, got {got}");
    Failure::usage(line)
}

/// Parses a size in bytes, or in KiB or MiB with the suffix K or M.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.strip_suffix(['K', 'k']) {
        Some(number) => (number, 1 << 10),
        None => match text.strip_suffix(['M', 'm']) {
            Some(number) => (number, 1 << 20),
            None => (text, 1),
        },
    };
    let number: Option<u64> = number.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| format!("expected a size such as 65536, 64K or 1M, got '{text}'"))
}
