//! Images in OCI registries, and paths that lead into them.

use std::io;
use std::sync::Arc;

use image::{DEFAULT_CACHE, DiskCacheOptions, ImageFs, LazyImage};
use registry::{Options, Url};
use vfs::FileSystem;

use crate::images::{open_error, path_within, trust};

/// Opens the image at `url` for a program to run from, and prefetches the data that the image's
/// read trace lists. The path must not lead into the image.
pub(crate) fn open(url: &Url) -> io::Result<Arc<dyn FileSystem>> {
    expect_whole(url)?;
    let tree = image(url)?;
    tree.read_ahead();
    Ok(Arc::new(tree))
}

/// Opens the image at `url`, and returns the path within it.
pub(crate) fn find(url: &Url) -> io::Result<(Arc<dyn FileSystem>, Vec<u8>)> {
    Ok((Arc::new(image(url)?), url.path().as_bytes().to_vec()))
}

/// Opens the image at `url` for the kernel's EROFS, with its local file in `cache`, or returns
/// nothing if it cannot be mounted so. The path must not lead into the image.
pub(crate) fn open_lazy(url: &Url, cache: &DiskCacheOptions) -> io::Result<Option<LazyImage>> {
    expect_whole(url)?;
    match registry::open_lazy(url, &Options::default(), cache)? {
        registry::LazyImage::Whole(image) => Ok(Some(LazyImage::whole(image))),
        registry::LazyImage::Layer(source, name, root) => {
            let trust = trust(url.image().keys(), root)?;
            let opened = LazyImage::open(source, &url.to_string(), Some(name), &trust, cache);
            opened.map_err(open_error)
        }
    }
}

/// Returns an error if the path leads into the image.
pub(crate) fn expect_whole(url: &Url) -> io::Result<()> {
    match url.path() {
        "" => Ok(()),
        path => Err(path_within(path.as_bytes())),
    }
}

fn image(url: &Url) -> io::Result<ImageFs> {
    let image = registry::open(url, &Options::default())?;
    let trust = trust(url.image().keys(), image.root)?;
    ImageFs::from_devices(vec![image.source], DEFAULT_CACHE, &trust).map_err(open_error)
}
