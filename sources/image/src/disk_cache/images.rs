//! The images in a disk cache's directory, for administrators.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;

use super::cache_dir::{CacheDir, CacheFiles, DiskCacheOptions};
use super::map::{self, HEAD, ImageIdentity, MISSING};
use crate::storage::SEGMENT;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Segments that match their checksums.
    pub sound: u64,
    /// Segments that do not, and are fetched again when they are needed.
    pub damaged: u64,
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
    /// the disk. Damaged segments are forgotten, unless another process uses the image.
    pub fn verify(&self, name: &str) -> io::Result<Verification> {
        let files = CacheFiles::open(self.dir(), name)?;
        let alone = files.lock_alone().is_ok();
        if !alone {
            files.share()?;
        }
        let mut head = [0; HEAD as usize];
        files.map.read_exact_at(&mut head, 0)?;
        let identity = ImageIdentity::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
        let mut verification = Verification::default();
        let mut damaged = Vec::new();
        let mut segment = vec![0; SEGMENT as usize];
        let mut verify = |number: u64| {
            let len = SEGMENT.min(identity.len() - number * SEGMENT) as usize;
            let segment = &mut segment[..len];
            let read = files.data.read_exact_at(segment, number * SEGMENT);
            let tag = map::read(&files.map, number);
            let is_sound =
                read.is_ok() && tag.is_ok_and(|tag| tag == identity.tag(number, segment));
            match is_sound {
                true => verification.sound += 1,
                false => damaged.push(number),
            }
        };
        map::for_each_present(&files.map, identity.len().div_ceil(SEGMENT), &mut verify)?;
        verification.damaged = damaged.len() as u64;
        if alone {
            for number in damaged {
                map::write(&files.map, number, &[MISSING])?;
            }
        }
        Ok(verification)
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
