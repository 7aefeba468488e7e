//! Images in object stores and registries, which need Linux.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use pack::Hash;
use pack::oci::Config;
use sources::Source;

use crate::Failure;

/// Returns the source.
pub(super) fn resolve(source: Source) -> io::Result<Source> {
    Ok(source)
}

/// Returns nothing.
pub(super) fn config(_: &Source) -> io::Result<Option<Config>> {
    Ok(None)
}

/// Returns the source, or an error if there are `keys`.
pub(super) fn require_cosign_signature(
    source: &Source,
    keys: &[PathBuf],
) -> Result<Source, Failure> {
    match keys {
        [] => Ok(source.clone()),
        _ => Err(Failure::usage("--cosign-key: this needs Linux")),
    }
}

/// Returns an error.
pub(super) fn download(_: &Source) -> io::Result<(File, Option<Hash>)> {
    Err(io::Error::new(ErrorKind::InvalidInput, "expected a file"))
}
