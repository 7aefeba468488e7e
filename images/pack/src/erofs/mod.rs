//! EROFS writer.
//!
//! Files are divided into segments, which worker threads read, compress and hash; the calling
//! thread puts the results into the image in tree order, so that the bytes do not depend on the
//! threads. Contents come first, then metadata ([`::erofs::write`]); the first block is written
//! last.

mod codec;
mod files;
mod fragments;
mod jobs;
mod split;
mod writer;

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

use ::erofs::layout::{Algorithm, encode_device};
use ::erofs::write::{BLOCK, Body, ImageParams, Inode, LimitExceeded, Metadata, is_supported_name};

use self::files::Files;
use crate::error::{Error, Result};
use crate::plan::{NodeId, Plan, Visit, visit_path};
use crate::{Attributes, Kind, Output, Progress};

/// Options of an EROFS image.
#[derive(Clone, Debug)]
pub struct Options {
    /// Compression of contents.
    pub compression: Compression,
    /// Maximum size in bytes of a physical cluster: a power of two in [`Options::CLUSTER_SIZES`]. A
    /// larger one compresses better; reading a byte means reading and decoding a whole cluster.
    pub cluster: u32,
    /// Chunk size in bytes of uncompressed files, a power of two in [`Options::CHUNK_SIZES`]; not
    /// chunked by default.
    pub chunk: Option<u64>,
    /// Store equal data once: equal chunks, or equal segments of 1 MiB of compressed files.
    pub dedupe: bool,
    /// Compress small files and tails of larger ones together, equal ones once, in the packed
    /// inode, which Linux supports since 6.1.
    pub pack_small: bool,
    /// Files whose contents come first, in this order; the others follow in tree order. Packed
    /// files come after all others, in the same order.
    pub first: Vec<NodeId>,
    /// Number of threads that read, compress and hash.
    pub threads: usize,
}

impl Options {
    /// The valid values of [`Options::cluster`].
    pub const CLUSTER_SIZES: std::ops::RangeInclusive<u32> = 4096..=1 << 20;
    /// The valid values of [`Options::chunk`].
    pub const CHUNK_SIZES: std::ops::RangeInclusive<u64> = BLOCK..=split::MAX_CHUNK;
}

impl Default for Options {
    fn default() -> Options {
        Options {
            compression: Compression::None,
            cluster: 64 << 10,
            chunk: None,
            dedupe: false,
            pack_small: true,
            first: Vec::new(),
            threads: 1,
        }
    }
}

/// The compression algorithm of contents, and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// LZ4, with the fast compressor (0) or the thorough one (3 to 12).
    Lz4(i32),
    /// Zstandard at a level of 1 to 22. Linux supports it since 6.10.
    Zstd(i32),
}

impl Compression {
    fn algorithm(self) -> Option<Algorithm> {
        match self {
            Compression::None => None,
            Compression::Lz4(_) => Some(Algorithm::Lz4),
            Compression::Zstd(_) => Some(Algorithm::Zstd),
        }
    }
}

/// Properties of the tree that EROFS cannot store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Names of extended attributes, with the number of nodes that had them.
    pub xattrs: BTreeMap<Vec<u8>, u64>,
}

/// Writes `plan` as an EROFS image.
pub fn write(
    plan: &Plan,
    options: &Options,
    output: &mut Output,
    progress: &dyn Progress,
) -> Result<Dropped> {
    let visits = plan.walk()?;
    progress.set_total(plan.contents_size(&visits));
    let mut dropped = Dropped::default();
    let mut inodes: Vec<Inode> = visits
        .iter()
        .map(|visit| {
            inode(
                plan.attributes(visit.node),
                plan.kind(visit.node),
                visit,
                &mut dropped,
            )
        })
        .collect();
    output.append(&[0; BLOCK as usize])?;
    let files = Files::new(plan, &visits, &inodes, options, output);
    let (bodies, packed, mut tails) = files.write(output, progress)?;
    for (inode, body) in inodes.iter_mut().zip(bodies) {
        if let Some(body) = body {
            inode.body = body;
        }
    }
    set_other_bodies(plan, &visits, &mut inodes)?;
    let named = inodes.len();
    inodes.extend(packed.map(packed_inode));
    let common = ImageParams {
        compression: (options.compression.algorithm())
            .map(|algorithm| (algorithm, (u64::from(options.cluster) / BLOCK) as u16)),
        next_block: output.position() / BLOCK,
        packed: (inodes.len() > named).then_some(named),
    };
    let impossible = |impossible| match impossible {
        LimitExceeded::TooManyXattrs(at) => Error::with_path(&visit_path(&visits, at), impossible),
        LimitExceeded::TooLarge => Error::new(impossible),
    };
    let metadata = Metadata::plan(&inodes, common).map_err(impossible)?;
    metadata.write(
        |at, bytes| {
            if let Kind::Symlink(target) = plan.kind(visits[at].node) {
                bytes.extend(target);
                return Ok(());
            }
            let (offset, len) = tails.locations[&at];
            tails.file.seek(SeekFrom::Start(offset))?;
            let begins = bytes.len();
            bytes.resize(begins + len, 0);
            tails.file.read_exact(&mut bytes[begins..])
        },
        |bytes| output.append(bytes),
    )?;
    output.overwrite(0, &metadata.first_block())?;
    Ok(dropped)
}

/// Returns an inode without a body.
fn inode(attributes: &Attributes, kind: &Kind, visit: &Visit, dropped: &mut Dropped) -> Inode {
    let mut xattrs = Vec::new();
    for (name, value) in &attributes.xattrs {
        if is_supported_name(name) {
            xattrs.push((name.clone(), value.clone()));
        } else {
            *dropped.xattrs.entry(name.clone()).or_default() += 1;
        }
    }
    Inode {
        mode: (kind.vfs_kind().mode_bits() | attributes.mode) as u16,
        uid: attributes.uid,
        gid: attributes.gid,
        mtime: (attributes.mtime.sec, attributes.mtime.nsec),
        links: visit.links,
        xattrs,
        body: Body::Empty,
    }
}

/// Returns the packed inode.
fn packed_inode(body: Body) -> Inode {
    Inode {
        mode: (vfs::Kind::File.mode_bits() | 0o600) as u16,
        uid: 0,
        gid: 0,
        mtime: (0, 0),
        links: 1,
        xattrs: Vec::new(),
        body,
    }
}

/// Sets the bodies of directories and devices.
fn set_other_bodies(plan: &Plan, visits: &[Visit], inodes: &mut [Inode]) -> Result<()> {
    let numbers: BTreeMap<_, _> = (visits.iter().enumerate())
        .map(|(at, visit)| (visit.node, at))
        .collect();
    for (at, visit) in visits.iter().enumerate() {
        inodes[at].body = match plan.kind(visit.node) {
            Kind::Directory(children) => Body::Directory {
                parent: visit.parent,
                children: (children.iter())
                    .map(|(name, node)| (name.clone(), numbers[node]))
                    .collect(),
            },
            Kind::CharDevice(device) | Kind::BlockDevice(device) => {
                let number = encode_device(device.major, device.minor);
                let what = "a device number beyond the range of Linux";
                Body::Device(number.ok_or_else(|| Error::with_path(&visit_path(visits, at), what))?)
            }
            _ => continue,
        };
    }
    Ok(())
}
