//! Disk caches: that of images in object stores and registries, which most commands have, and that
//! of files of another server ([`files`]).

pub(crate) mod files;

use std::path::PathBuf;

use clap::Args;
use sources::DiskCacheOptions;

use crate::source::Source;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Caching")]
pub(crate) struct DiskCacheArgs {
    /// Directory to cache data of images in object stores and registries in
    ///
    /// It is reused by the next start, and shared by processes.
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Maximum size of --cache-dir; least recently used data is removed [default: 10G]
    #[arg(long, value_name = "SIZE", requires = "cache_dir", value_parser = DiskCacheOptions::size)]
    cache_dir_size: Option<u64>,
}

impl DiskCacheArgs {
    /// Returns the source with these options. Options in its URL take precedence.
    pub(crate) fn apply(&self, source: &sources::Source) -> sources::Source {
        let mut source = source.clone();
        if let Some(dir) = &self.cache_dir {
            source.set_disk_cache(&DiskCacheOptions::new(dir.clone(), self.cache_dir_size));
        }
        source
    }

    /// Returns the source with these options; a referral is returned as it is.
    pub(crate) fn apply_to(&self, source: &Source) -> Source {
        match source {
            Source::Tree(tree) => Source::Tree(self.apply(tree)),
            referral @ Source::Referral(_) => referral.clone(),
        }
    }
}
