//! Paths of Windows, where a backslash separates names as well.

use std::borrow::Cow;
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// Returns a path as bytes with slashes between names.
pub(crate) fn tree_path(path: &Path) -> Cow<'_, [u8]> {
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    let slash = |byte: &u8| if *byte == b'\\' { b'/' } else { *byte };
    bytes.map(slash).collect::<Vec<u8>>().into()
}

/// Returns the first `len` bytes of a path, which must be text.
pub(crate) fn prefix(path: &Path, len: usize) -> io::Result<&Path> {
    let text = path.to_str().and_then(|text| text.get(..len));
    let text = text.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    Ok(Path::new(text))
}

/// Returns whether a path leads into a file, be it only with a trailing separator.
pub(crate) fn leads_into_file(path: &Path) -> bool {
    let is_file = |path: &Path| fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let text = path.to_string_lossy();
    let plain = text.trim_end_matches(['/', '\\']);
    (plain.len() < text.len() && is_file(Path::new(plain))) || path.ancestors().skip(1).any(is_file)
}

/// Returns false: block devices have no such type here.
pub(crate) fn is_block_device(_: &Metadata) -> bool {
    false
}
