//! Options of images on a server that do not depend on the kind of server.

use std::path::PathBuf;

use image::DiskCacheOptions;

/// The disk cache of an image on a server, and the keys of its signers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    disk_cache: Option<DiskCacheOptions>,
    keys: Vec<PathBuf>,
}

impl ImageOptions {
    /// Returns the options of the disk cache.
    pub fn disk_cache(&self) -> Option<&DiskCacheOptions> {
        self.disk_cache.as_ref()
    }

    /// Sets the disk cache, unless the URL already names one.
    pub fn set_disk_cache(&mut self, tier: &DiskCacheOptions) {
        self.disk_cache.get_or_insert_with(|| tier.clone());
    }

    /// Requires a signature by one of these keys, which are PEM files.
    pub fn require_signature(&mut self, keys: &[PathBuf]) {
        self.keys = keys.to_vec();
    }

    /// Returns the keys of which one must have signed the image, if any.
    pub fn keys(&self) -> &[PathBuf] {
        &self.keys
    }
}

/// The options `cache_dir` and `cache_dir_size` of a URL's query.
#[derive(Default)]
pub struct CacheQuery {
    dir: Option<PathBuf>,
    size: Option<u64>,
}

impl CacheQuery {
    /// The name of the option whose value is a path of this host.
    pub const DIR: &str = "cache_dir";

    /// Takes an option, and returns whether it is one of these. The error says what was expected.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            CacheQuery::DIR => self.dir = Some(value.into()),
            "cache_dir_size" => self.size = Some(DiskCacheOptions::size(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the options. The error says what was expected.
    pub fn finish(self) -> Result<ImageOptions, &'static str> {
        let disk_cache = match (self.dir, self.size) {
            (Some(dir), size) => Some(DiskCacheOptions::new(dir, size)),
            (None, None) => None,
            (None, Some(_)) => return Err("cache_dir with cache_dir_size"),
        };
        Ok(ImageOptions {
            disk_cache,
            keys: Vec::new(),
        })
    }
}
