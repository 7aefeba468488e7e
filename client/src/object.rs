//! Images that are objects in stores, and paths that lead into them.

use std::io;
use std::sync::Arc;

use image::{DEFAULT_CACHE, ImageFs, OpenError};
use objects::{Object, Tuning, Url};
use vfs::FileSystem;

/// Opens the image that `url` names.
pub(crate) fn open(url: &Url) -> io::Result<Arc<dyn FileSystem>> {
    let object = Object::open(url, Tuning::default())?;
    let tree = ImageFs::with(vec![object], DEFAULT_CACHE);
    let tree =
        tree.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, OpenError::Image(error)))?;
    Ok(Arc::new(tree))
}

/// Opens the image that `url` names or leads into, and says which path in it is named: the image is the object with the longest name that is there.
pub(crate) fn find(url: &Url) -> io::Result<(Arc<dyn FileSystem>, Vec<u8>)> {
    let mut within = String::new();
    let mut image = url.clone();
    let mut first = None;
    loop {
        let error = match open(&image) {
            Ok(tree) => return Ok((tree, within.into_bytes())),
            Err(error) => error,
        };
        // Whoever may not list a bucket is not told what is missing.
        let missing = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
        );
        match image.parent().filter(|_| missing) {
            Some((parent, name)) => {
                first.get_or_insert(error);
                within = match within.as_str() {
                    "" => name.to_owned(),
                    within => format!("{name}/{within}"),
                };
                image = parent;
            }
            // What is wrong with the object that was named, if there is none at all.
            None => return Err(first.filter(|_| missing).unwrap_or(error)),
        }
    }
}
