//! Images of file systems, and paths that lead into them.

#[cfg(target_os = "linux")]
mod lazy;

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::{Hash, ImageFs, OpenError, PublicKey, Trust};
use vfs::FileSystem;

use crate::system;

/// An image, optionally with a path in it: `IMAGE/PATH`, where IMAGE ends at the first component
/// that is not a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    path: PathBuf,
    devices: Vec<PathBuf>,
    /// Public keys, one of which must have signed the image, unless there are none.
    keys: Vec<PathBuf>,
}

impl Image {
    /// Parses `PATH`, or `PATH?device=PATH&device=PATH` with the files of the image's further
    /// devices, in order.
    pub(crate) fn parse(text: &str) -> Image {
        let (path, devices) = match text.split_once("?device=") {
            Some((path, devices)) => (path, devices.split("&device=").map(PathBuf::from).collect()),
            None => (text, Vec::new()),
        };
        Image {
            path: path.into(),
            devices,
            keys: Vec::new(),
        }
    }

    /// Requires a signature by one of these keys, which are PEM files.
    pub fn require_signature(self, keys: &[PathBuf]) -> Image {
        Image {
            keys: keys.to_vec(),
            ..self
        }
    }

    /// The image, if `path` is that of a file or leads into one.
    pub(crate) fn locate(path: &Path) -> Option<Image> {
        let is_image = fs::metadata(path).is_ok_and(|metadata| is_file(&metadata));
        match is_image {
            true => Some(Image::new(path)),
            false => Image::enclosing(path),
        }
    }

    /// The image, if `path` is that of a file with the magic number of an image.
    pub(crate) fn probe(path: &Path) -> Option<Image> {
        let metadata = fs::metadata(path).ok()?;
        let mut head = Vec::with_capacity(ImageFs::HEAD);
        if is_file(&metadata) {
            let file = fs::File::open(path).ok()?;
            file.take(ImageFs::HEAD as u64)
                .read_to_end(&mut head)
                .ok()?;
        }
        ImageFs::is_image(&head).then(|| Image::new(path))
    }

    /// The image, if `path` leads into a file, be it only with a trailing slash.
    pub(crate) fn enclosing(path: &Path) -> Option<Image> {
        system::leads_into_file(path).then(|| Image::new(path))
    }

    fn new(path: &Path) -> Image {
        Image {
            path: path.into(),
            devices: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// The path of the image and in it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file or block device of the image, and its further devices. Returns an error if the path
    /// leads into the image.
    pub fn file(&self) -> io::Result<(&Path, &[PathBuf])> {
        match split(self.path())? {
            (file, within) if within.is_empty() => Ok((file, &self.devices)),
            (_, within) => Err(path_within(&within)),
        }
    }

    /// The paths of the host that opening the image reads, whether or not they exist.
    pub(crate) fn host_paths(&self) -> Vec<PathBuf> {
        let file = match split(self.path()) {
            Ok((file, _)) => file.to_owned(),
            Err(_) => self.path.clone(),
        };
        let others = self.devices.iter().chain(&self.keys).cloned();
        std::iter::once(file).chain(others).collect()
    }

    /// The same image, whose paths of the host are those that `here` returns for them.
    pub(crate) fn moved(&self, here: impl Fn(&Path) -> PathBuf) -> Image {
        let all = |paths: &[PathBuf]| paths.iter().map(|path| here(path)).collect();
        Image {
            path: here(&self.path),
            devices: all(&self.devices),
            keys: all(&self.keys),
        }
    }

    /// Opens the image for a program to run from, and prefetches the data that the image's read
    /// trace lists. The path must not lead into the image.
    pub(crate) fn open(&self) -> io::Result<Arc<dyn FileSystem>> {
        self.file()?;
        let (tree, _) = self.open_with_path()?;
        tree.read_ahead();
        Ok(Arc::new(tree))
    }

    /// Opens the image, and returns the path within it.
    pub(crate) fn find(&self) -> io::Result<(Arc<dyn FileSystem>, Vec<u8>)> {
        let (tree, within) = self.open_with_path()?;
        Ok((Arc::new(tree), within))
    }

    fn open_with_path(&self) -> io::Result<(ImageFs, Vec<u8>)> {
        let (file, within) = split(self.path())?;
        let opened = ImageFs::open(file, &self.devices, &trust(&self.keys, None)?);
        let tree = opened.map_err(open_error)?;
        Ok((tree, within))
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image:{}", self.path.display())?;
        for (at, device) in self.devices.iter().enumerate() {
            let sign = if at == 0 { '?' } else { '&' };
            write!(f, "{sign}device={}", device.display())?;
        }
        Ok(())
    }
}

/// Converts the error of opening an image.
pub(crate) fn open_error(error: OpenError) -> io::Error {
    match error {
        OpenError::Io(error) => error,
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

/// The error for a path that leads into an image, where a whole one is needed.
pub(crate) fn path_within(path: &[u8]) -> io::Error {
    let path = path.escape_ascii();
    let text = format!("expected a whole image, got the path '{path}' in one");
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The required proof of integrity: hashes, with the root `root` if it is given, and a signature by
/// one of `keys`, if there are any.
pub(crate) fn trust(keys: &[PathBuf], root: Option<Hash>) -> io::Result<Trust> {
    let keys = public_keys(keys)?;
    Ok(match root {
        Some(root) => Trust::Root(root, keys),
        None if keys.is_empty() => Trust::Hashes,
        None => Trust::Keys(keys),
    })
}

/// Reads Ed25519 public keys from PEM files.
pub fn public_keys(files: &[PathBuf]) -> io::Result<Vec<PublicKey>> {
    let key = |file: &PathBuf| {
        let failed = |error: &dyn fmt::Display| {
            let text = format!("{}: {error}", file.display());
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
        PublicKey::from_pem(&text).map_err(|error| failed(&error))
    };
    files.iter().map(key).collect()
}

/// Splits a path after the first component that is not a directory.
fn split(path: &Path) -> io::Result<(&Path, Vec<u8>)> {
    let bytes = system::tree_path(path);
    let slashes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let ends = slashes.map(|(at, _)| at).filter(|at| *at > 0);
    for end in ends.chain([bytes.len()]) {
        let file = system::prefix(path, end)?;
        let metadata = fs::metadata(file)?;
        if metadata.is_dir() {
            continue;
        }
        if !is_file(&metadata) {
            break;
        }
        let behind = bytes.get(end + 1..).unwrap_or_default();
        let start = behind.iter().position(|byte| *byte != b'/');
        return Ok((file, behind[start.unwrap_or(behind.len())..].to_vec()));
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "expected an image in a regular file",
    ))
}

/// Returns whether the file may contain an image.
fn is_file(metadata: &fs::Metadata) -> bool {
    metadata.is_file() || system::is_block_device(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_into_the_first_file_on_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("image");
        fs::write(&file, b"").expect("written");
        for (behind, within) in [
            ("", ""),
            ("/", ""),
            ("/usr/bin", "usr/bin"),
            ("//usr/", "usr/"),
        ] {
            let path = format!("{}{behind}", file.display());
            let found = split(Path::new(&path)).expect("found");
            assert_eq!(found, (&*file, within.as_bytes().to_vec()));
            let leads_in = Image::enclosing(Path::new(&path)).is_some();
            assert_eq!(leads_in, !behind.is_empty(), "{path}");
            assert!(Image::locate(Path::new(&path)).is_some());
        }
        assert!(Image::locate(dir.path()).is_none());
        assert!(split(dir.path()).is_err());
        assert!(split(Path::new("/none/of/it")).is_err());
    }
}
