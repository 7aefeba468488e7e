//! The images in a disk cache's directory, for administrators.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use vfs::Patience;

use super::cache_dir::{CacheDir, CacheFiles, DiskCacheOptions};
use super::map::{self, HEAD, ImageIdentity, MISSING};
use crate::range::{FileGuard, Piece, RangeSource};
use crate::storage::SEGMENT;
use crate::trust::Trust;
use crate::verified::Verified;

/// An image of which segments are on disk.
#[derive(Clone, Debug)]
pub struct CachedImage {
    /// The name of its files.
    pub name: String,
    /// Where it comes from, for people.
    pub label: String,
    /// The image's size in bytes.
    pub len: u64,
    /// Bytes on disk.
    pub stored: u64,
    /// The last time when a process stopped or began to use it.
    pub used: SystemTime,
    /// Whether a process uses it.
    pub in_use: bool,
}

/// The result of the verification of an image's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verification {
    /// Segments that match their checksums, and the hashes of an image that has any.
    pub sound: u64,
    /// Segments that do not, and are fetched again when they are needed.
    pub damaged: u64,
    /// Whether there are checksums: a derived image ([`DerivedImage`](super::DerivedImage)) has
    /// none.
    pub has_checksums: bool,
}

impl DiskCacheOptions {
    /// Lists the images in the directory, the one that was used last first. Files that are no
    /// images are ignored. Returns an error if the directory cannot be read.
    pub fn images(&self) -> io::Result<Vec<CachedImage>> {
        let mut images = Vec::new();
        for entry in fs::read_dir(self.dir())? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "map") {
                images.extend(CachedImage::read(&path));
            }
        }
        images.sort_by_key(|image| std::cmp::Reverse(image.used));
        Ok(images)
    }

    /// Removes images that no process uses, least recently used first, until the directory has at
    /// most the maximum size. Returns the numbers of bytes before and after.
    pub fn collect(&self) -> io::Result<(u64, u64)> {
        let stored = |images: Vec<CachedImage>| images.iter().map(|image| image.stored).sum();
        let before = stored(self.images()?);
        CacheDir::collect(self)?;
        Ok((before, stored(self.images()?)))
    }

    /// Verifies the segments of the image `name` against their checksums, which finds damage by
    /// the disk, and against the image's hashes, if it has any and they are on disk as well, which
    /// finds wrong replies of a server. Damaged segments are forgotten, unless another process uses
    /// the image. Other processes may begin to use it meanwhile.
    pub fn verify(&self, name: &str) -> io::Result<Verification> {
        self.verify_segments(name, &mut || {})
    }

    /// Verifies segments, and calls `progress` after each.
    fn verify_segments(&self, name: &str, progress: &mut dyn FnMut()) -> io::Result<Verification> {
        let files = CacheFiles::open(self.dir(), name)?;
        files.share()?;
        let mut head = [0; HEAD as usize];
        files.map.read_exact_at(&mut head, 0)?;
        let identity = ImageIdentity::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
        let mut sound = 0;
        let mut damaged = BTreeSet::new();
        let mut segment = vec![0; SEGMENT as usize];
        let mut verify = |number: u64| {
            let len = SEGMENT.min(identity.len() - number * SEGMENT) as usize;
            let segment = &mut segment[..len];
            let read = files.data.read_exact_at(segment, number * SEGMENT);
            let tag = map::read(&files.map, number);
            let is_sound =
                read.is_ok() && tag.is_ok_and(|tag| tag == identity.tag(number, segment));
            match is_sound {
                true => sound += 1,
                false => drop(damaged.insert(number)),
            }
            progress();
        };
        map::for_each_present(&files.map, identity.len().div_ceil(SEGMENT), &mut verify)?;
        for number in unlike_hashes(&files, &identity)? {
            sound -= u64::from(damaged.insert(number));
        }
        let verification = Verification {
            sound,
            damaged: damaged.len() as u64,
            // The map of a derived image ends with its head.
            has_checksums: files.map.metadata()?.len() > HEAD
                || files.data.metadata()?.blocks() == 0,
        };
        // The lock is never released in between, so that the image stays the same one.
        if !damaged.is_empty() && files.lock_alone().is_ok() {
            for number in damaged {
                map::write(&files.map, number, &[MISSING])?;
            }
        }
        Ok(verification)
    }
}

/// Returns the segments on disk that match their checksums and not the hashes of the image.
fn unlike_hashes(files: &CacheFiles, identity: &ImageIdentity) -> io::Result<BTreeSet<u64>> {
    let stored = StoredSegments {
        data: files.data.try_clone()?,
        map: files.map.try_clone()?,
        identity: identity.clone(),
    };
    // Without its hashes on disk, an image cannot be verified.
    let Ok(Some(verified)) = Verified::open(Arc::new(stored), &Trust::Hashes) else {
        return Ok(BTreeSet::new());
    };
    let ranges = verified.mismatches().into_iter();
    let segments = ranges.flat_map(|range| range.start / SEGMENT..range.end.div_ceil(SEGMENT));
    Ok(segments.collect())
}

/// The segments of an image that are on disk and match their checksums. Reads of others fail.
struct StoredSegments {
    data: File,
    map: File,
    identity: ImageIdentity,
}

impl StoredSegments {
    fn read_segment(&self, number: u64) -> io::Result<Vec<u8>> {
        let start = number * SEGMENT;
        let mut segment = vec![0; SEGMENT.min(self.identity.len() - start) as usize];
        self.data.read_exact_at(&mut segment, start)?;
        if map::read(&self.map, number)? == self.identity.tag(number, &segment) {
            Ok(segment)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

impl RangeSource for StoredSegments {
    fn len(&self) -> u64 {
        self.identity.len()
    }

    fn patience(&self, _at: u64, _len: usize) -> Patience {
        Patience::Full
    }

    fn readahead_len(&self) -> u64 {
        SEGMENT
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        for Piece { offset, buffer } in pieces {
            let end = *offset + buffer.len() as u64;
            for number in *offset / SEGMENT..end.div_ceil(SEGMENT) {
                let segment = self.read_segment(number)?;
                let start = number * SEGMENT;
                let from = start.max(*offset);
                let to = (start + segment.len() as u64).min(end);
                let into = &mut buffer[(from - *offset) as usize..(to - *offset) as usize];
                into.copy_from_slice(&segment[(from - start) as usize..(to - start) as usize]);
            }
        }
        Ok(())
    }

    fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
        None
    }
}

impl CachedImage {
    /// Reads what the map at `path` tells; returns nothing if it is none.
    fn read(path: &Path) -> Option<CachedImage> {
        let map = File::open(path).ok()?;
        let mut head = [0; HEAD as usize];
        map.read_exact_at(&mut head, 0).ok()?;
        let identity = ImageIdentity::parse(&head)?;
        let metadata = map.metadata().ok()?;
        let data = fs::metadata(path.with_extension("data")).ok()?;
        Some(CachedImage {
            name: path.file_stem()?.to_str()?.to_owned(),
            label: identity.label(&head),
            len: identity.len(),
            // Blocks are units of 512 bytes on every file system (stat(2)).
            stored: (metadata.blocks() + data.blocks()) * 512,
            used: metadata.modified().ok()?,
            in_use: CacheFiles::is_in_use(&map),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DerivedImage, DiskCacheEntry};
    use super::*;
    use crate::range::FileRanges;

    #[test]
    fn an_image_may_be_used_while_it_is_verified() {
        let dir = tempfile::tempdir().expect("a directory");
        let bytes = dir.path().join("bytes");
        fs::write(&bytes, vec![7; 4 * SEGMENT as usize]).expect("written");
        let options = DiskCacheOptions::new(dir.path().join("cache"), None);
        let open = || {
            let entry = DiskCacheEntry::open(&options, "image").expect("it is not busy");
            let remote = Arc::new(FileRanges::open(&bytes).expect("opened"));
            entry.over(remote, b"identity", "image").expect("ready")
        };
        let mut buffer = vec![0; 4 * SEGMENT as usize];
        let piece = Piece {
            offset: 0,
            buffer: &mut buffer,
        };
        open().read(&mut [piece]).expect("read");
        let name = options.images().expect("listed").remove(0).name;
        let data = options.dir().join(format!("{name}.data"));
        let data = File::options().write(true).open(data).expect("opened");
        data.write_all_at(b"damage", SEGMENT).expect("written");
        let expect = |sound, damaged, used: bool| {
            let mut users = Vec::new();
            let verified = options.verify_segments(&name, &mut || {
                let user = open();
                users.extend(used.then_some(user));
            });
            let expected = Verification {
                sound,
                damaged,
                has_checksums: true,
            };
            assert_eq!(verified.expect("verified"), expected);
        };
        // A user that stays keeps the checksum of the damaged segment.
        expect(3, 1, true);
        expect(3, 1, false);
        expect(3, 0, false);
    }

    #[test]
    fn a_derived_image_has_no_checksums() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = DiskCacheOptions::new(dir.path().into(), None);
        let derive = |path: &Path| fs::write(path, b"bytes");
        let _user = DerivedImage::open(&options, "image", b"", derive).expect("derived");
        let name = options.images().expect("listed").remove(0).name;
        let expected = Verification {
            sound: 0,
            damaged: 0,
            has_checksums: false,
        };
        assert_eq!(options.verify(&name).expect("verified"), expected);
    }
}
