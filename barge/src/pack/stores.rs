//! Images in object stores and registries.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use image::{Piece, RangeSource};
use objects::{Object, Tuning};
use pack::Hash;
use pack::oci::Config;
use registry::Options;
use sources::Source;

use crate::Failure;

/// Returns a source with the tag of an image in a registry replaced by its digest.
pub(super) fn resolve(source: Source) -> io::Result<Source> {
    match source {
        Source::Registry(url) => registry::resolve(&url, &Options::default()).map(Source::Registry),
        source => Ok(source),
    }
}

/// Returns the configuration of an image in a registry.
pub(super) fn config(source: &Source) -> io::Result<Option<Config>> {
    match source {
        Source::Registry(url) if url.path().is_empty() => {
            registry::config(url, &Options::default())
        }
        _ => Ok(None),
    }
}

/// Returns the source with a signature of cosign by one of `keys` required, if there are any.
pub(super) fn require_cosign_signature(
    source: &Source,
    keys: &[PathBuf],
) -> Result<Source, Failure> {
    let named = crate::source::Source::Tree(source.clone());
    let signed = named.require_cosign_signature(keys)?;
    Ok(signed.tree().unwrap_or(source).clone())
}

/// Downloads an image, as a check reads all of it. Returns it with the root of its hashes, if the
/// registry vouches for one.
pub(super) fn download(source: &Source) -> io::Result<(File, Option<Hash>)> {
    match source {
        Source::Object(url) => {
            let object = Object::open(url, Tuning::default())?;
            Ok((fetch(&*object)?, None))
        }
        Source::Registry(url) => {
            let image = registry::open(url, &Options::default())?;
            Ok((fetch(&*image.source)?, image.root))
        }
        _ => Err(io::Error::new(
            ErrorKind::InvalidInput,
            "expected a file, or an image in an object store or a registry",
        )),
    }
}

/// Bytes per read: a few concurrent requests.
const READ_SIZE: u64 = 16 << 20;

/// Returns an unnamed file with the contents of the object.
fn fetch(object: &dyn RangeSource) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let mut buffer = vec![0; READ_SIZE.min(object.len()) as usize];
    let mut at = 0;
    while at < object.len() {
        let len = READ_SIZE.min(object.len() - at);
        let into = &mut buffer[..len as usize];
        object.read(&mut [Piece {
            offset: at,
            buffer: into,
        }])?;
        file.write_all(&buffer[..len as usize])?;
        at += len;
    }
    Ok(file)
}
