//! The arguments of `ls`, `stat`, `cat`, `cp` and `tree`: the one definition that help, man pages and completions
//! come from.

use clap::Args;

use super::place::Place;
use crate::tier::TierArgs;

#[derive(Args)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "what help has in brackets is no link"
)]
pub(crate) struct LsArgs {
    /// Sources to list: PATH, dir:PATH, IMAGE[/PATH] (dir:IMAGE for the file itself),
    /// image:IMAGE[/PATH], 9p://HOST[:PORT]/ANAME[/PATH], 9p+unix:SOCKET?aname=NAME,
    /// nfs://HOST[:PORT]/PATH[?vers=3|4.0|4.1|4.2], nfs+unix:SOCKET?path=PATH, or an image in an
    /// object store: s3://BUCKET/KEY[/PATH], gs://, az://, https://
    #[arg(value_name = "SOURCE[/PATH]", default_value = ".")]
    pub(super) places: Vec<Place>,
    /// Show kind, permissions, links, owner, group, size and time of last change
    #[arg(short, long)]
    pub(super) long: bool,
    /// Show names that begin with a dot too
    #[arg(short, long)]
    pub(super) all: bool,
    /// List directories below as well
    #[arg(short = 'R', long)]
    pub(super) recursive: bool,
    /// Show owners and groups by number; implies --long
    #[arg(short, long)]
    pub(super) numeric: bool,
    /// Show a JSON object a line
    #[arg(long, conflicts_with_all = ["long", "numeric"])]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) tier: TierArgs,
}

#[derive(Args)]
pub(crate) struct StatArgs {
    /// Files to show; the file of an image stands for itself, image:IMAGE or IMAGE/ for the tree in
    /// it
    #[arg(value_name = "SOURCE[/PATH]", required = true)]
    pub(super) places: Vec<Place>,
    /// Follow a symbolic link to what it names
    #[arg(short = 'L', long)]
    pub(super) dereference: bool,
    /// Show the file system instead of the file
    #[arg(short, long)]
    pub(super) file_system: bool,
    /// Show a JSON object a line
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) tier: TierArgs,
}

#[derive(Args)]
pub(crate) struct CatArgs {
    /// What to write to standard output, one after the other
    #[arg(value_name = "SOURCE/PATH", required = true)]
    pub(super) places: Vec<Place>,
    #[command(flatten)]
    pub(super) tier: TierArgs,
}

#[derive(Args)]
pub(crate) struct CpArgs {
    /// Sources to copy, and last the destination: a directory if there are several sources. The
    /// file of an image stands for itself, image:IMAGE or IMAGE/ for the tree in it
    #[arg(value_name = "SOURCE[/PATH]", num_args = 2.., required = true)]
    pub(super) places: Vec<Place>,
    /// Copy directories with all below; symbolic links, pipes and devices as what they are
    #[arg(short, long)]
    pub(super) recursive: bool,
    /// Keep permissions, owners and times
    #[arg(short, long)]
    pub(super) preserve: bool,
    /// Keep everything: --recursive, --preserve, extended attributes and hard links
    #[arg(short, long)]
    pub(super) archive: bool,
    /// Files to copy at a time
    #[arg(short, long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(super) jobs: u8,
    /// Show no progress
    #[arg(short, long)]
    pub(super) quiet: bool,
    #[command(flatten)]
    pub(super) tier: TierArgs,
}

#[derive(Args)]
pub(crate) struct TreeArgs {
    /// Trees to show; the file of an image stands for the tree in it (dir:IMAGE for the file
    /// itself)
    #[arg(value_name = "SOURCE[/PATH]", default_value = ".")]
    pub(super) places: Vec<Place>,
    /// Show names that begin with a dot too
    #[arg(short, long)]
    pub(super) all: bool,
    /// Show directories only
    #[arg(short, long)]
    pub(super) dirs_only: bool,
    /// Go down at most so many levels
    #[arg(short = 'L', long, value_name = "LEVELS",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) level: Option<u32>,
    #[command(flatten)]
    pub(super) tier: TierArgs,
}
