//! Images in OCI registries, and paths that lead into them.

use std::io;
use std::sync::Arc;

use image::{DEFAULT_CACHE, DiskCacheOptions, Hash, ImageFs, LazyImage, Trust};
use registry::{Options, Url};
use vfs::FileSystem;

use crate::images::{open_error, public_keys};

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
            let trust = trust(url, root)?;
            let opened = LazyImage::open(source, &url.to_string(), Some(name), &trust, cache);
            opened.map_err(open_error)
        }
    }
}

fn expect_whole(url: &Url) -> io::Result<()> {
    if url.path().is_empty() {
        return Ok(());
    }
    let path = url.path().escape_debug();
    let line = format!("expected a whole image, got the path '{path}' in one");
    Err(io::Error::new(io::ErrorKind::InvalidInput, line))
}

/// Returns the required proof of integrity of the image at `url`, whose hashes must have the root
/// `root` if it is given.
fn trust(url: &Url, root: Option<Hash>) -> io::Result<Trust> {
    let keys = public_keys(url.keys())?;
    Ok(match root {
        Some(root) => Trust::Root(root, keys),
        None if keys.is_empty() => Trust::Hashes,
        None => Trust::Keys(keys),
    })
}

fn image(url: &Url) -> io::Result<ImageFs> {
    let image = registry::open(url, &Options::default())?;
    let trust = trust(url, image.root)?;
    ImageFs::from_devices(vec![image.source], DEFAULT_CACHE, &trust).map_err(open_error)
}
