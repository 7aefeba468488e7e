//! Images that are objects in stores, and paths that lead into them.

use std::io;
use std::sync::Arc;

use image::{DEFAULT_CACHE, ImageFs};
use objects::{Object, Tuning, Url};
use vfs::FileSystem;

use crate::images::{told, trust};

/// Opens the image that `url` names, for a program to run from: what it says that this reads first is read ahead.
pub(crate) fn open(url: &Url) -> io::Result<Arc<dyn FileSystem>> {
    let tree = image(url)?;
    tree.read_ahead();
    Ok(Arc::new(tree))
}

fn image(url: &Url) -> io::Result<ImageFs> {
    let trust = trust(url.keys())?;
    let object = Object::open(url, Tuning::default())?;
    ImageFs::with(vec![object], DEFAULT_CACHE, &trust).map_err(told)
}

/// Opens the image that `url` names or leads into, and says which path in it is named: the image is the object with the longest name that is there.
pub(crate) fn find(url: &Url) -> io::Result<(Arc<dyn FileSystem>, Vec<u8>)> {
    let mut within = String::new();
    let mut url = url.clone();
    let mut first = None;
    loop {
        let error = match image(&url) {
            Ok(tree) => return Ok((Arc::new(tree), within.into_bytes())),
            Err(error) => error,
        };
        // Whoever may not list a bucket is not told what is missing.
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
            // What is wrong with the object that was named, if there is none at all.
            None => return Err(first.filter(|_| missing).unwrap_or(error)),
        }
    }
}
