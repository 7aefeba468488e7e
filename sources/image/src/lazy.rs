//! An image in a local file that is filled when it is read: for the kernel's own EROFS, which reads
//! the file and asks for each range ([`sys::fanotify`]).
//!
//! The file is that of the [disk cache](crate::disk_cache). The kernel asks for ranges of contents,
//! but not for metadata: all of it is in the file before the image is mounted. Images of `barge
//! pack` have it in one range, from the first inode to the end. Images with metadata between the
//! contents, or in front of them, are lazy only if they are small.
//!
//! Deliberately absent: the events, mounting, and images of several devices.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use erofs::layout::{MAGIC, SUPERBLOCK_OFFSET, Superblock};
use sidecar::ReadaheadRange;

use crate::disk_cache::{
    AllowedReads, CachedSource, DerivedImage, DiskCacheEntry, DiskCacheOptions, ImageUser,
};
use crate::fs::OpenError;
use crate::priority::lower_priority;
use crate::range::{LOCAL_READAHEAD, Piece, RangeSource};
use crate::readahead::{ReadAhead, read_ahead};
use crate::storage::SEGMENT;
use crate::trust::Trust;
use crate::verified::Verified;

/// The maximum size in bytes of metadata that is fetched before an image is mounted: that of some
/// millions of files, or a tenth of a larger image.
const MAX_METADATA: u64 = 256 << 20;

/// Bytes at the start that have the superblock, and what follows it: device slots and the
/// parameters of algorithms.
const HEAD: u64 = 16 << 10;

/// Bytes fetched at a time.
const STRETCH: u64 = 16 << 20;

/// The size in bytes of the aligned blocks that are fetched from a remote source when a byte of one
/// is missing: in the time of a round trip more could be transferred.
const BLOCK: u64 = 1 << 20;

/// An image, filled into a local file. Methods may be called concurrently from any number of
/// threads.
pub struct LazyImage {
    file: LocalFile,
    metadata: Vec<Range<u64>>,
    readahead_list: Vec<ReadaheadRange>,
    /// The maximum size in bytes of the cache.
    limit: u64,
}

/// The local file of an image.
enum LocalFile {
    Filled(Box<CachedSource>),
    /// It has the whole image.
    Whole(DerivedImage),
}

/// A name for the local file of an image without hashes.
#[derive(Clone, Debug)]
pub struct LazyName {
    /// The image's location and version.
    pub location: String,
    /// The value that tells the image from others at the same location.
    pub identity: Vec<u8>,
}

impl LazyImage {
    /// Opens the image in `source`, and its file in the directory of `cache`. An image with hashes
    /// is verified; its file is shared by all processes and locations. Another one needs a `name`.
    /// People know the image as `label`. Returns nothing if the image cannot be mounted lazily.
    pub fn open(
        source: Arc<dyn RangeSource>,
        label: &str,
        name: Option<LazyName>,
        trust: &Trust,
        cache: &DiskCacheOptions,
    ) -> Result<Option<LazyImage>, OpenError> {
        let verified = Verified::open(source.clone(), trust).map_err(OpenError::Untrusted)?;
        let (source, name, readahead_list): (Arc<dyn RangeSource>, _, _) = match verified {
            Some(verified) => {
                let name = LazyName {
                    location: format!("root {}", blake3::Hash::from(*verified.root())),
                    identity: verified.root().to_vec(),
                };
                let readahead_list = verified.readahead_list().to_vec();
                (Arc::new(verified), name, readahead_list)
            }
            None => match name {
                Some(name) => (source, name, Vec::new()),
                None => return Ok(None),
            },
        };
        let Some(metadata) = metadata(&*source).map_err(OpenError::Io)? else {
            return Ok(None);
        };
        let entry = DiskCacheEntry::open(cache, &name.location).map_err(OpenError::Io)?;
        let copy = entry
            .over(source, &name.identity, label)
            .map_err(OpenError::Io)?;
        Ok(Some(LazyImage {
            file: LocalFile::Filled(Box::new(copy)),
            metadata,
            readahead_list,
            limit: cache.limit(),
        }))
    }

    /// Returns an image whose file is complete.
    pub fn whole(image: DerivedImage) -> LazyImage {
        LazyImage {
            file: LocalFile::Whole(image),
            metadata: Vec::new(),
            readahead_list: Vec::new(),
            limit: u64::MAX,
        }
    }

    /// Returns the name of the file in the cache's directory.
    pub fn file_name(&self) -> String {
        match &self.file {
            LocalFile::Filled(copy) => copy.file_name(),
            LocalFile::Whole(image) => image.file_name().to_owned(),
        }
    }

    /// Returns the file, unless it was complete from the start.
    fn filled(&self) -> Option<&CachedSource> {
        match &self.file {
            LocalFile::Filled(copy) => Some(copy),
            LocalFile::Whole(_) => None,
        }
    }

    /// Sets the descriptor of the file whose reads and writes raise no events.
    fn share_with_kernel(&mut self, file: File, user: Option<ImageUser>, reads: Arc<AllowedReads>) {
        if let LocalFile::Filled(copy) = &mut self.file {
            copy.share_with_kernel(file, user, reads);
        }
    }

    /// Fetches the whole image, through the descriptor `file` as [`LazyImage::prepare`] does.
    /// `progress` is called with the bytes that are there.
    pub fn fill_all(&mut self, file: File, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        self.share_with_kernel(file, None, Arc::default());
        let mut at = 0;
        while at < self.size() {
            self.fill_exactly(at..at + STRETCH)?;
            at += STRETCH;
            progress(at.min(self.size()));
        }
        Ok(())
    }

    /// Returns whether eviction of segments may become necessary.
    pub fn may_exceed_cache(&self) -> bool {
        self.filled().is_some_and(CachedSource::may_exceed)
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        match &self.file {
            LocalFile::Filled(copy) => copy.len(),
            LocalFile::Whole(image) => image.len(),
        }
    }

    /// Sets the descriptor of the file whose reads and writes raise no events, and fetches the
    /// metadata. The file must be watched from now on. If the cache is too large, segments are
    /// evicted that nobody reads, according to `reads`: a read is to be in there before
    /// [`LazyImage::fill`] is called for it, until it is over. Metadata stay. `user` keeps
    /// the image in use as long as another process has its descriptor, too.
    pub fn prepare(
        &mut self,
        file: File,
        user: ImageUser,
        reads: Arc<AllowedReads>,
    ) -> io::Result<()> {
        for range in &self.metadata {
            reads.exclude(range.clone());
        }
        self.share_with_kernel(file, Some(user), reads);
        for range in &self.metadata {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + STRETCH);
                self.fill_exactly(at..end)?;
                at = end;
            }
        }
        Ok(())
    }

    /// Makes sure that the file has the bytes of `range`, which may extend beyond the end. Unless
    /// it has them, fetches those that follow as well, as many as are there before, and from a
    /// remote source whole blocks. Returns an error if the bytes cannot be fetched, do not match
    /// their hashes, or cannot be stored.
    pub fn fill(&self, range: Range<u64>) -> io::Result<()> {
        let Some(copy) = self.filled() else {
            return Ok(());
        };
        let len = copy.len();
        let (start, end) = (range.start.min(len), range.end.min(len));
        let most = copy.readahead_len();
        let ahead = end + copy.filled_before(start, most);
        let around = match most > LOCAL_READAHEAD {
            true => start - start % BLOCK..ahead.next_multiple_of(BLOCK),
            false => start..ahead,
        };
        let filled = copy.fill(start..end, around);
        // One of the others may have failed.
        filled.or_else(|_| self.fill_exactly(start..end))
    }

    fn fill_exactly(&self, range: Range<u64>) -> io::Result<()> {
        let copy = self.filled();
        copy.map_or(Ok(()), |copy| copy.fill(range.clone(), range))
    }

    /// Returns whether the file has the whole image, so that nobody has to be asked any more: it
    /// stays there from then on. If the cache is too large, evicts segments instead.
    pub fn keep_complete(&self) -> bool {
        self.filled().is_none_or(CachedSource::keep_complete)
    }

    /// Verifies the segments that the file has from earlier processes, if it has the whole image.
    /// The calling thread keeps the lowest priority from then on.
    pub fn verify_present(&self) {
        lower_priority();
        if self
            .filled()
            .is_some_and(|copy| copy.stored() >= copy.len() && copy.fits())
        {
            let mut at = 0;
            while at < self.size() && self.fill_exactly(at..at + STRETCH).is_ok() {
                at += STRETCH;
            }
        }
    }

    /// Starts to fetch the ranges that the image lists as used first.
    pub fn read_ahead(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        read_ahead(self, self.readahead_list.clone())
    }
}

impl ReadAhead for LazyImage {
    fn limit(&self) -> u64 {
        // More would evict ranges before their use.
        self.limit / 2
    }

    fn stretch_len(&self) -> u64 {
        self.filled()
            .map_or(LOCAL_READAHEAD, CachedSource::readahead_len)
    }

    fn read_ahead(&self, segments: Range<u64>) {
        // An error is reported when the range is read.
        let _ = self.fill_exactly(segments.start * SEGMENT..segments.end * SEGMENT);
    }
}

/// Returns the ranges of all that the kernel reads without an event, or nothing if the image is in
/// no format that it mounts, or they are too large.
fn metadata(source: &dyn RangeSource) -> io::Result<Option<Vec<Range<u64>>>> {
    let len = source.len();
    let mut head = vec![0; len.min(HEAD) as usize];
    source.read(&mut [Piece {
        offset: 0,
        buffer: &mut head,
    }])?;
    let superblock = head.get(SUPERBLOCK_OFFSET..).and_then(Superblock::parse);
    let Some(superblock) = superblock.filter(|found| found.magic == MAGIC && found.devices == 0)
    else {
        return Ok(None);
    };
    let at = |block: u32| u64::from(block).checked_shl(superblock.block_bits.into());
    let (Some(inodes), Some(xattrs)) = (at(superblock.meta_block), at(superblock.xattr_block))
    else {
        return Ok(None);
    };
    let start = match xattrs {
        // In front of everything, or nowhere.
        0 => inodes,
        xattrs => inodes.min(xattrs),
    };
    let rest = start.min(len)..len;
    let small = rest.end - rest.start <= MAX_METADATA.min((len / 10).max(MAX_METADATA / 16));
    Ok(small.then(|| vec![0..HEAD.min(len), rest]))
}
