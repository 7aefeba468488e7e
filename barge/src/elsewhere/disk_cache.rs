//! Disk caches, which need Linux: there is no option for them.

use clap::Args;
use sources::Source;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DiskCacheArgs {}

impl DiskCacheArgs {
    /// Returns the source.
    pub(crate) fn apply(&self, source: &Source) -> Source {
        source.clone()
    }
}
