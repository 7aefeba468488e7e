//! The arguments of `ls`, `stat`, `cat`, `cp` and `tree`: the one definition of help, man pages and
//! completions.

use clap::Args;

use super::operand::Operand;
use crate::disk_cache::DiskCacheArgs;

#[derive(Args)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "what help has in brackets is no link"
)]
pub(crate) struct LsArgs {
    /// Directories and files to list
    ///
    /// PATH, dir:PATH, IMAGE[/PATH] (dir:IMAGE is the file itself), image:IMAGE[/PATH],
    /// 9p://HOST[:PORT]/ANAME[/PATH], 9p+unix:SOCKET?aname=NAME,
    /// nfs://HOST[:PORT]/PATH[?vers=3|4.0|4.1|4.2], nfs+unix:SOCKET?path=PATH, or an image in an
    /// object store (s3://BUCKET/KEY[/PATH], gs://, az://, https://) or in an OCI registry
    /// (oci://HOST/REPOSITORY[:TAG|@DIGEST][/PATH]).
    #[arg(value_name = "SOURCE[/PATH]", default_value = ".")]
    pub(super) operands: Vec<Operand>,
    /// Show type, permissions, links, owner, group, size and modification time
    #[arg(short, long)]
    pub(super) long: bool,
    /// Include names that begin with a dot
    #[arg(short, long)]
    pub(super) all: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    pub(super) recursive: bool,
    /// Show numeric user and group ids; implies --long
    #[arg(short, long)]
    pub(super) numeric: bool,
    /// Print one JSON object per line
    #[arg(long, conflicts_with_all = ["long", "numeric"])]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) disk_cache: DiskCacheArgs,
}

#[derive(Args)]
pub(crate) struct StatArgs {
    /// Files to show
    ///
    /// An image is shown as a file; image:IMAGE or IMAGE/ is the root of its tree.
    #[arg(value_name = "SOURCE[/PATH]", required = true)]
    pub(super) operands: Vec<Operand>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    pub(super) dereference: bool,
    /// Show the file system of the file instead of the file
    #[arg(short, long)]
    pub(super) file_system: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) disk_cache: DiskCacheArgs,
}

#[derive(Args)]
pub(crate) struct CatArgs {
    /// Files to write to standard output, in this order
    #[arg(value_name = "SOURCE/PATH", required = true)]
    pub(super) operands: Vec<Operand>,
    #[command(flatten)]
    pub(super) disk_cache: DiskCacheArgs,
}

#[derive(Args)]
pub(crate) struct CpArgs {
    /// Files and directories to copy, then the destination
    ///
    /// The destination of several sources must be a directory. An image is copied as a file;
    /// image:IMAGE or IMAGE/ is the root of its tree.
    #[arg(value_name = "SOURCE[/PATH]", num_args = 2.., required = true)]
    pub(super) operands: Vec<Operand>,
    /// Copy directories recursively, and symbolic links, pipes and devices as such
    #[arg(short, long)]
    pub(super) recursive: bool,
    /// Preserve permissions, owners and times
    #[arg(short, long)]
    pub(super) preserve: bool,
    /// Preserve everything: --recursive, --preserve, extended attributes and hard links
    #[arg(short, long)]
    pub(super) archive: bool,
    /// Number of files to copy at the same time
    #[arg(short, long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) jobs: u8,
    /// Do not show progress
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Print an object as JSON at the end
    ///
    /// It has destination, the numbers of files, directories and others (links, pipes, devices)
    /// that were copied, bytes of the files, and errors, the number of those that were not.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) disk_cache: DiskCacheArgs,
}

#[derive(Args)]
pub(crate) struct TreeArgs {
    /// Directories to show
    ///
    /// An image is shown as its tree; dir:IMAGE is the file itself.
    #[arg(value_name = "SOURCE[/PATH]", default_value = ".")]
    pub(super) operands: Vec<Operand>,
    /// Include names that begin with a dot
    #[arg(short, long)]
    pub(super) all: bool,
    /// Show directories only
    #[arg(short, long)]
    pub(super) dirs_only: bool,
    /// Maximum number of levels to show
    #[arg(short = 'L', long, value_name = "LEVELS",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) level: Option<u32>,
    #[command(flatten)]
    pub(super) disk_cache: DiskCacheArgs,
}
