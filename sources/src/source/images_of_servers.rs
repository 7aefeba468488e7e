//! Options of images in object stores and registries: disk caches and signatures.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use image::{DiskCacheOptions, LazyImage};
use objects::ImageOptions;

use super::Source;
use crate::stores::{object, registry_image};

impl Source {
    /// Caches fetched data of an image in an object store or a registry on disk; has no effect on
    /// other sources.
    pub fn set_disk_cache(&mut self, tier: &DiskCacheOptions) {
        if let Some(image) = self.image_options_mut() {
            image.set_disk_cache(tier);
        }
    }

    /// Checks that the store of an image accepts these variables of the environment, without a
    /// request; has no effect on other sources.
    pub fn check_environment(
        &self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> io::Result<()> {
        match self {
            Source::Object(url) => {
                let environment = objects::Environment::new(variables);
                objects::rehearse(url, &environment).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Opens the image for the kernel's EROFS, with a local file in `cache` that is filled when it
    /// is read. Returns nothing if the source is not an image that can be mounted so.
    pub fn open_lazy(&self, cache: &DiskCacheOptions) -> io::Result<Option<LazyImage>> {
        match self {
            Source::Object(url) => object::open_lazy(url, cache),
            Source::Registry(url) => registry_image::open_lazy(url, cache),
            other => match other.image() {
                Some(image) => image.open_lazy(cache),
                None => Ok(None),
            },
        }
    }

    /// The disk cache for fetched data of an image in an object store or a registry, if it has one.
    pub fn disk_cache(&self) -> Option<&DiskCacheOptions> {
        self.image_options()?.disk_cache()
    }

    /// Returns the options of an image on another server.
    fn image_options(&self) -> Option<&ImageOptions> {
        match self {
            Source::Object(url) => Some(url.image()),
            Source::Registry(url) => Some(url.image()),
            _ => None,
        }
    }

    fn image_options_mut(&mut self) -> Option<&mut ImageOptions> {
        match self {
            Source::Object(url) => Some(url.image_mut()),
            Source::Registry(url) => Some(url.image_mut()),
            _ => None,
        }
    }

    /// Returns the source with the requirement of a signature by one of `keys`, which are PEM
    /// files, or `None` if it is not an image.
    pub fn require_signature(&self, keys: &[PathBuf]) -> Option<Source> {
        let mut source = self.clone();
        match source.image_options_mut() {
            Some(image) => image.require_signature(keys),
            None => source = Source::Image(self.image()?.require_signature(keys)),
        }
        Some(source)
    }

    /// Returns the source with the requirement of a signature of cosign by one of `keys`, which are
    /// PEM files, or `None` if it is not an image in a registry.
    pub fn require_cosign_signature(&self, keys: &[PathBuf]) -> Option<Source> {
        match self.clone() {
            Source::Registry(mut url) => {
                url.require_cosign_signature(keys);
                Some(Source::Registry(url))
            }
            _ => None,
        }
    }
}
