//! An image as a file system, independent of its format.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use ::erofs::layout::{MAGIC, SUPERBLOCK_OFFSET};
use ::erofs::read::Error;
use sidecar::ReadaheadRange;
use vfs::source_stats::{CacheStats, Evicted};
use vfs::{Capabilities, Cx, Errno, FileSystem, Handle, Node, Patience, Result, SourceStats};

use crate::cache::Cache;
use crate::erofs::Erofs;
use crate::format::Tree;
use crate::range::{FileRanges, RangeSource};
use crate::readahead::read_ahead;
use crate::rofs::Rofs;
use crate::storage::{Access, Devices, Read};
use crate::trust::{Trust, Untrusted};
use crate::verified::Verified;

/// The default cache size in bytes: the working set of metadata and decoded clusters of a language
/// runtime.
pub const DEFAULT_CACHE: u64 = 256 << 20;

/// An image, open as long as this or one of its nodes exists.
pub struct ImageFs {
    tree: Box<dyn FileSystem>,
    devices: Arc<Devices>,
    /// The segments to read ahead.
    readahead_list: Vec<ReadaheadRange>,
}

/// The reason why an image cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// A file could not be opened.
    Io(io::Error),
    /// The file is not an image, or has an unknown format.
    Image(Error<Errno>),
    /// The image failed verification.
    Untrusted(Untrusted),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Io(error) => error.fmt(f),
            OpenError::Image(Error::Storage(Errno::EIO)) => {
                f.write_str("expected an image, got a truncated file")
            }
            OpenError::Image(error) => write!(f, "expected an EROFS or ROFS image: {error}"),
            OpenError::Untrusted(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl ImageFs {
    /// Opens an image file and its extra devices with a cache of [`DEFAULT_CACHE`] bytes.
    pub fn open(
        path: &Path,
        devices: &[PathBuf],
        trust: &Trust,
    ) -> core::result::Result<ImageFs, OpenError> {
        let each = std::iter::once(path).chain(devices.iter().map(PathBuf::as_path));
        let each = each.map(|path| -> io::Result<Arc<dyn RangeSource>> {
            Ok(Arc::new(FileRanges::open(path)?))
        });
        let each = each.collect::<io::Result<_>>().map_err(OpenError::Io)?;
        ImageFs::from_devices(each, DEFAULT_CACHE, trust)
    }

    /// Opens an image from its devices, the first of which holds the superblock, with a cache of up
    /// to `cache` bytes.
    pub fn from_devices(
        mut devices: Vec<Arc<dyn RangeSource>>,
        cache: u64,
        trust: &Trust,
    ) -> core::result::Result<ImageFs, OpenError> {
        let verified = match devices.first() {
            Some(first) => Verified::open(first.clone(), trust).map_err(OpenError::Untrusted)?,
            None => None,
        };
        if trust.requires_hashes() && devices.len() > 1 {
            return Err(OpenError::Untrusted(Untrusted::Devices));
        }
        let verified = verified.map(Arc::new);
        if let Some(verified) = &verified {
            devices[0] = verified.clone();
        }
        let devices = Arc::new(Devices {
            sources: devices,
            cache: Cache::new(cache),
            root: verified.as_ref().map(|verified| *verified.root()),
        });
        let readahead = verified.map_or(Vec::new(), |verified| verified.readahead_list().to_vec());
        let opened = match ImageFs::read(devices.clone(), readahead.clone()) {
            Err(Error::Corrupt(_) | Error::Unsupported(_)) if devices.drop_copies() => {
                ImageFs::read(devices, readahead)
            }
            opened => opened,
        };
        opened.map_err(OpenError::Image)
    }

    /// Returns whether a file that begins with `head` ([`ImageFs::HEAD`] bytes, or the whole file
    /// if it is shorter) is an image.
    pub fn is_image(head: &[u8]) -> bool {
        let rofs = head.starts_with(&rofs::MAGIC.to_le_bytes());
        let erofs = head
            .get(SUPERBLOCK_OFFSET..)
            .is_some_and(|superblock| superblock.starts_with(&MAGIC.to_le_bytes()));
        rofs || erofs
    }

    /// The number of bytes needed to recognise an image.
    pub const HEAD: usize = SUPERBLOCK_OFFSET + 4;

    fn read(devices: Arc<Devices>, readahead_list: Vec<ReadaheadRange>) -> Read<ImageFs> {
        let access = Access {
            devices: &devices,
            patience: Patience::Full,
        };
        let mut head = [0; 8];
        ::erofs::read::Storage::read_at(&access, 0, 0, &mut head).map_err(Error::Storage)?;
        let tree: Box<dyn FileSystem> = match u64::from_le_bytes(head) {
            rofs::MAGIC => Box::new(Tree(Arc::new(Rofs::open(devices.clone())?))),
            _ => Box::new(Tree(Arc::new(Erofs::open(devices.clone())?))),
        };
        Ok(ImageFs {
            tree,
            devices,
            readahead_list,
        })
    }

    /// Starts a thread that reads the segments that the image lists as used first, so that they are
    /// cached before a program in it runs. Returns the thread's handle, or nothing if there is
    /// nothing to read.
    pub fn read_ahead(&self) -> Option<JoinHandle<()>> {
        read_ahead(&self.devices, self.readahead_list.clone())
    }

    /// Returns the cache's statistics.
    pub fn cache_stats(&self) -> CacheStats {
        self.devices.cache.stats()
    }
}

impl FileSystem for ImageFs {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        self.tree.root(cx)
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        self.tree.resolve(cx, handle)
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.tree.sync(cx)
    }

    fn capabilities(&self) -> Capabilities {
        self.tree.capabilities()
    }

    fn source_stats(&self) -> SourceStats {
        let mut stats = SourceStats {
            cache: Some(self.cache_stats()),
            ..SourceStats::default()
        };
        for source in &self.devices.sources {
            stats.add(&source.stats());
        }
        stats
    }

    fn evict(&self) -> Evicted {
        let sources = self.devices.sources.iter();
        Evicted {
            memory: self.devices.cache.clear(),
            disk: sources.map(|source| source.evict()).sum(),
            descriptors: 0,
        }
    }

    fn ping(&self) -> Result<()> {
        for source in &self.devices.sources {
            source.ping()?;
        }
        Ok(())
    }
}
