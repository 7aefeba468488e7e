//! Images that are objects in stores, and paths that lead into them.

use std::io;
use std::sync::Arc;

use image::{DEFAULT_CACHE, DiskCacheOptions, ImageFs, LazyImage};
use objects::{Object, Tuning, Url};
use vfs::FileSystem;

use crate::images::{open_error, trust};

/// Opens the image at `url` for a program to run from, and prefetches the data that the image's
/// read trace lists.
pub(crate) fn open(url: &Url) -> io::Result<Arc<dyn FileSystem>> {
    let tree = image(url)?;
    tree.read_ahead();
    Ok(Arc::new(tree))
}

/// Opens the image at `url` for the kernel's EROFS, with its local file in `cache`, or returns
/// nothing if it cannot be mounted so.
pub(crate) fn open_lazy(url: &Url, cache: &DiskCacheOptions) -> io::Result<Option<LazyImage>> {
    let trust = trust(url.image().keys(), None)?;
    let (object, name) = Object::connect_lazy(url, Tuning::default())?;
    LazyImage::open(
        Arc::new(object),
        &url.to_string(),
        Some(name),
        &trust,
        cache,
    )
    .map_err(open_error)
}

fn image(url: &Url) -> io::Result<ImageFs> {
    let trust = trust(url.image().keys(), None)?;
    let object = Object::open(url, Tuning::default())?;
    ImageFs::from_devices(vec![object], DEFAULT_CACHE, &trust).map_err(open_error)
}

/// Opens the image at `url` or at a prefix of it, and returns the path within the image. The
/// longest prefix that is an object is used.
pub(crate) fn find(url: &Url) -> io::Result<(Arc<dyn FileSystem>, Vec<u8>)> {
    let mut within = String::new();
    let mut url = url.clone();
    let mut first = None;
    loop {
        let error = match image(&url) {
            Ok(tree) => return Ok((Arc::new(tree), within.into_bytes())),
            Err(error) => error,
        };
        // Stores deny access to missing objects if the user may not list the bucket.
        let missing = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
        );
        match url.parent().filter(|_| missing) {
            Some((parent, name)) => {
                first.get_or_insert(error);
                within = match within.as_str() {
                    "" => name.to_owned(),
                    within => format!("{name}/{within}"),
                };
                url = parent;
            }
            // If there is no object at all, reports the error of the full URL.
            None => return Err(first.filter(|_| missing).unwrap_or(error)),
        }
    }
}
