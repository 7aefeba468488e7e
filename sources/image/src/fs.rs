//! An image as a file system.

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use erofs::layout::SUPERBLOCK_OFFSET;
use erofs::read::{Error, Image, Inode};
use vfs::{Capabilities, Cx, Errno, FileSystem, Handle, Level, Node, NodeId, Patience, Result};

use crate::cache::{Cache, Figures};
use crate::node::ImageNode;
use crate::range::{FileRanges, RangeSource};
use crate::storage::{Access, Devices, Read, errno};

/// Bytes that are kept of an image unless told otherwise: what a run-time's working set of metadata and decoded clusters takes.
pub const DEFAULT_CACHE: u64 = 256 << 20;

/// Directories on the way to the root that a handle's claim is followed through: more than paths can name.
const MAX_DEPTH: usize = 4096;

/// Nodes that are remembered to be in the tree: 8 bytes each.
const MAX_KNOWN: usize = 1 << 20;

/// An image. It lasts as long as this or one of its nodes.
pub struct ImageFs {
    pub(crate) shared: Arc<Shared>,
}

/// What the nodes of an image have in common.
pub(crate) struct Shared {
    pub(crate) image: Image,
    pub(crate) devices: Devices,
    /// What tells this image from others: of its superblock.
    pub(crate) identity: u64,
    /// Nodes that are in the tree, because a look-up led to them.
    known: Mutex<HashSet<u64>>,
}

/// Why an image cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// A file could not be opened.
    Io(io::Error),
    /// It is no image, or none that is known here.
    Image(Error<Errno>),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Io(error) => error.fmt(f),
            OpenError::Image(Error::Storage(Errno::EIO)) => {
                f.write_str("expected an image, got a file that ends too soon")
            }
            OpenError::Image(error) => write!(f, "expected an image of EROFS: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl ImageFs {
    /// Opens an image in a file, and its further devices in files, with [`DEFAULT_CACHE`].
    pub fn open(path: &Path, devices: &[PathBuf]) -> core::result::Result<ImageFs, OpenError> {
        let each = std::iter::once(path).chain(devices.iter().map(PathBuf::as_path));
        let each = each.map(|path| -> io::Result<Arc<dyn RangeSource>> {
            Ok(Arc::new(FileRanges::open(path)?))
        });
        let each = each.collect::<io::Result<_>>().map_err(OpenError::Io)?;
        ImageFs::with(each, DEFAULT_CACHE).map_err(OpenError::Image)
    }

    /// Opens an image: its devices, the first of which has the superblock, with a cache of up to `cache` bytes.
    pub fn with(devices: Vec<Arc<dyn RangeSource>>, cache: u64) -> Read<ImageFs> {
        let devices = Devices {
            each: devices,
            cache: Cache::new(cache),
        };
        let access = Access {
            devices: &devices,
            patience: Patience::Full,
        };
        let image = Image::open(&access)?;
        let mut superblock = [0; 128];
        let read =
            erofs::read::Storage::read_at(&access, 0, SUPERBLOCK_OFFSET as u64, &mut superblock);
        read.map_err(Error::Storage)?;
        let shared = Arc::new(Shared {
            image,
            devices,
            identity: fold(&superblock),
            known: Mutex::default(),
        });
        // What has no root is no image.
        shared.root(Patience::Full).map_err(Error::Storage)?;
        Ok(ImageFs { shared })
    }

    /// What its cache has done.
    pub fn figures(&self) -> Figures {
        self.shared.devices.cache.figures()
    }
}

/// FNV-1a, of 64 bits: for telling images apart, not against forgery.
fn fold(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

impl Shared {
    pub(crate) fn access(&self, patience: Patience) -> Access<'_> {
        Access {
            devices: &self.devices,
            patience,
        }
    }

    /// What a caller is told of `error`, and the log.
    pub(crate) fn told(&self, error: Error<Errno>) -> Errno {
        if !matches!(error, Error::Storage(_)) {
            tracing::debug!("{error}");
        }
        errno(&error)
    }

    fn root(self: &Arc<Self>, patience: Patience) -> Result<Arc<ImageNode>> {
        let inode = self.inode(self.image.root, patience)?;
        let node = ImageNode::new(self, inode, self.image.root);
        match node.is_directory() {
            true => Ok(node),
            false => Err(Errno::ENOTDIR),
        }
    }

    pub(crate) fn inode(&self, nid: u64, patience: Patience) -> Result<Inode> {
        let inode = self.image.inode(&self.access(patience), nid);
        inode.map_err(|error| self.told(error))
    }

    /// The node's number: the inode's, as Linux shows it, but never 0.
    pub(crate) fn id_of(&self, nid: u64) -> NodeId {
        /// No inode has it: it would lie beyond 64 bits.
        const OF_ZERO: u64 = 1 << 62;
        match self.image.metabox() {
            None if nid == 0 => OF_ZERO,
            None => nid,
            // Bit 31 tells inodes in the metabox from others, so that 32 bits do for small images.
            Some(_) => match nid << 1 >> 32 << 32 | nid & 0x7fff_ffff | nid >> 63 << 31 {
                0 => OF_ZERO,
                id => id,
            },
        }
    }

    /// Notes that a node is in the tree.
    pub(crate) fn note(&self, nid: u64) {
        let mut known = self.known();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(nid);
    }

    /// Whether a handle's node is in the tree: whoever forged it could take any bytes for an inode.
    fn verify(self: &Arc<Self>, nid: u64, parent: u64, patience: Patience) -> Result<()> {
        let (mut child, mut parent) = (nid, parent);
        for _ in 0..MAX_DEPTH {
            if child == self.image.root || self.known().contains(&child) {
                self.note(nid);
                return Ok(());
            }
            let inode = self.inode(parent, patience).map_err(stale)?;
            let dir = ImageNode::new(self, inode, parent);
            if !dir.is_directory() || !dir.has(child, patience).map_err(stale)? {
                return Err(Errno::ESTALE);
            }
            child = parent;
            parent = dir.parent_number(patience).map_err(stale)?;
        }
        Err(Errno::ESTALE)
    }

    fn known(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.known.lock().expect("no panic holds it")
    }
}

/// What cannot be read is not there; what could be read later might be.
fn stale(errno: Errno) -> Errno {
    match errno {
        Errno::WOULD_BLOCK => errno,
        _ => Errno::ESTALE,
    }
}

pub(crate) fn handle_of(identity: u64, nid: u64, parent: u64) -> Result<Handle> {
    let words = [identity, nid, parent].map(u64::to_le_bytes);
    Handle::new(words.as_flattened())
}

fn parse_handle(handle: &Handle) -> Option<[u64; 3]> {
    let (words, rest) = handle.bytes().as_chunks::<8>();
    let words: &[[u8; 8]; 3] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_le_bytes))
}

impl FileSystem for ImageFs {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        Ok(self.shared.root(cx.patience)?)
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        let [identity, nid, parent] = parse_handle(handle).ok_or(Errno::ESTALE)?;
        if identity != self.shared.identity {
            return Err(Errno::ESTALE);
        }
        self.shared.verify(nid, parent, cx.patience)?;
        let inode = self.shared.inode(nid, cx.patience)?;
        Ok(ImageNode::new(&self.shared, inode, parent))
    }

    fn sync(&self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: true,
            xattr: Level::Native,
            acl: Level::Native,
            host_locks: Level::None,
            handles: Level::Native,
            change: Level::Native,
            holes: Level::Native,
            copy: Level::None,
            clone: Level::None,
            tmpfile: Level::None,
            devices: Level::Native,
            owners: Level::Native,
            stable_cookies: true,
        }
    }
}
