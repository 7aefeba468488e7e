//! Image storage: devices read in segments, and decoded clusters, both cached.

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use erofs::layout::Algorithm;
use erofs::read::{Cluster, Error, Image, Storage};
use sidecar::Hash;
use vfs::{Errno, Patience, Result, Sink};

use crate::cache::{Cache, Claim, Load, PendingLoad};
use crate::range::{Piece, RangeSource};

/// The size in bytes of a cached read: related metadata is stored close together, and neither a
/// disk nor a network benefits from smaller requests. In an image with hashes, each segment has its
/// own hash.
pub(crate) const SEGMENT: u64 = sidecar::CHUNK_SIZE;

/// The decoded size in bytes up to which LZ4 decoding is cheaper than a hand-over to another
/// thread.
const MAX_INLINE_DECODE: u32 = 64 << 10;

/// The length in bytes below which a piece comes from the cache, even if a file holds it: tails of
/// files lie among metadata, and the system call that `sink.file` makes costs more than so small a
/// copy.
pub(crate) const MIN_DIRECT_READ: usize = 4096;

/// The result of reading an image.
pub(crate) type Read<T> = core::result::Result<T, Error<Errno>>;

/// The key of a cache entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A segment: its device and number.
    Segment(u16, u64),
    /// A decoded cluster.
    Cluster(Cluster),
}

/// The devices of an image, with their cache.
pub(crate) struct Devices {
    pub(crate) sources: Vec<Arc<dyn RangeSource>>,
    pub(crate) cache: Arc<Cache<Key>>,
    /// The root hash that the first device is verified against.
    pub(crate) root: Option<Hash>,
}

impl Devices {
    /// Drops all copies of the image's bytes, in memory and on disk: they are not an image. Returns
    /// whether another read may return other bytes.
    pub(crate) fn drop_copies(&self) -> bool {
        self.cache.clear();
        let mut were_any = false;
        for source in &self.sources {
            were_any |= source.drop_copies(0..source.len());
        }
        were_any
    }
}

/// An image's storage for the duration of one call.
pub(crate) struct Access<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) patience: Patience,
}

impl Storage for Access<'_> {
    type Error = Errno;
    type Decoded = Arc<[u8]>;

    fn devices(&self) -> u16 {
        self.devices.sources.len() as u16
    }

    fn read_at(&self, device: u16, at: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        self.segments(device, at, into.len(), &mut |segment, range| {
            into[done..done + range.len()].copy_from_slice(&segment[range.clone()]);
            done += range.len();
        })
    }

    fn decoded(&self, image: &Image, cluster: &Cluster) -> Read<Arc<[u8]>> {
        let brief = cluster.algorithm == Algorithm::Lz4 && cluster.decoded <= MAX_INLINE_DECODE;
        let needed = match brief {
            true => self.patience_for(cluster).max(Patience::Brief),
            false => Patience::Full,
        };
        let key = Key::Cluster(*cluster);
        let cache = &self.devices.cache;
        if self.patience < needed {
            return cache.get(key).ok_or(Error::Storage(Errno::WOULD_BLOCK));
        }
        match cache.claim(key) {
            Claim::Ready(bytes) => Ok(bytes),
            Claim::Wait(theirs) => self.wait_for_load(theirs).map_err(Error::Storage),
            Claim::Load(load) => {
                let decode = || cluster.decode(image, &UncachedAccess(self)).map(Arc::from);
                let mut decoded = decode();
                // Without hashes, this is the only check that a wrong reply of a server fails.
                if matches!(decoded, Err(Error::Corrupt(_))) && self.drop_copies(cluster) {
                    decoded = decode();
                }
                load.settle(decoded.as_ref().map(Arc::clone).map_err(errno));
                decoded
            }
        }
    }
}

/// Storage of encoded bytes. They are not cached, since the decoded bytes are, unless the image has
/// hashes (several clusters share a verified chunk) or is remote.
struct UncachedAccess<'a, 'b>(&'a Access<'b>);

impl Storage for UncachedAccess<'_, '_> {
    type Error = Errno;
    type Decoded = Arc<[u8]>;

    fn devices(&self) -> u16 {
        self.0.devices()
    }

    fn read_at(&self, device: u16, at: u64, into: &mut [u8]) -> Result<()> {
        if device == 0 && self.0.devices.root.is_some() {
            return self.0.read_at(device, at, into);
        }
        let source = self.0.source(device, at, into.len())?;
        // A remote read costs a request, which fetches the following bytes as well.
        if source.patience(at, into.len()) == Patience::Full {
            return self.0.read_at(device, at, into);
        }
        self.0.require_patience(source.patience(at, into.len()))?;
        Ok(source.read(&mut [Piece {
            offset: at,
            buffer: into,
        }])?)
    }

    fn decoded(&self, image: &Image, cluster: &Cluster) -> Read<Arc<[u8]>> {
        self.0.decoded(image, cluster)
    }
}

impl<'a> Access<'a> {
    /// Returns the device's source, checking that it has `len` bytes from `at`.
    pub(crate) fn source(&self, device: u16, at: u64, len: usize) -> Result<&'a dyn RangeSource> {
        let source = self.devices.sources.get(usize::from(device));
        let source = source.ok_or(Errno::ENODEV)?;
        match at.checked_add(len as u64) {
            Some(end) if end <= source.len() => Ok(&**source),
            _ => Err(Errno::EIO),
        }
    }

    /// Gives `take` the `len` bytes from `at` on a device, as segments and the range to use of
    /// each.
    pub(crate) fn segments(
        &self,
        device: u16,
        at: u64,
        len: usize,
        take: &mut dyn FnMut(Arc<[u8]>, Range<usize>),
    ) -> Result<()> {
        let source = self.source(device, at, len)?;
        let end = at + len as u64;
        let mut at = at;
        while at < end {
            let number = at / SEGMENT;
            let last = (end - 1) / SEGMENT;
            let segment = self.segment(source, device, number, last)?;
            let first = (at % SEGMENT) as usize;
            let last = segment.len().min(first + (end - at) as usize);
            take(segment, first..last);
            at += (last - first) as u64;
        }
        Ok(())
    }

    /// Returns the `len` bytes from `at` on a device.
    pub(crate) fn bytes(&self, device: u16, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        self.segments(device, at, len, &mut |segment, range| {
            bytes.extend_from_slice(&segment[range]);
        })?;
        Ok(bytes)
    }

    /// Puts `len` bytes from `at` on a device into `sink`, directly from the backing file if there
    /// is one and `len` is large.
    pub(crate) fn put(
        &self,
        device: u16,
        at: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let source = self.source(device, at, len)?;
        match (len >= MIN_DIRECT_READ)
            .then(|| source.file(at, len))
            .flatten()
        {
            Some(held) => sink.file(held.file, at, len, self.patience),
            None => {
                sink.bytes(&self.bytes(device, at, len)?);
                Ok(len)
            }
        }
    }

    /// Returns the segment `number`; the caller will also request those up to `last`.
    fn segment(
        &self,
        source: &dyn RangeSource,
        device: u16,
        number: u64,
        last: u64,
    ) -> Result<Arc<[u8]>> {
        let cache = &self.devices.cache;
        let key = Key::Segment(device, number);
        let at = number * SEGMENT;
        let len = SEGMENT.min(source.len() - at) as usize;
        if self.patience < source.patience(at, len) {
            return cache.get(key).ok_or(Errno::WOULD_BLOCK);
        }
        match cache.claim(key) {
            Claim::Ready(segment) => Ok(segment),
            Claim::Wait(theirs) => self.wait_for_load(theirs),
            Claim::Load(load) => {
                // The read-ahead window doubles: it is as long as the run of cached segments before
                // this one.
                let is_there = |number: u64| cache.has(Key::Segment(device, number));
                let window = source.readahead_len() / SEGMENT;
                let back = (1..=window.min(number)).take_while(|back| is_there(number - back));
                let last = last.max(number + back.count() as u64);
                self.load(source, load, last)?.swap_remove(0)
            }
        }
    }

    /// Loads the claimed segment, and the missing ones after it up to `last`. Returns the result
    /// for each.
    pub(crate) fn load(
        &self,
        source: &dyn RangeSource,
        first: Load<Key>,
        last: u64,
    ) -> Result<Vec<Result<Arc<[u8]>>>> {
        let cache = &self.devices.cache;
        let Key::Segment(device, number) = first.key() else {
            unreachable!("it was claimed as a segment");
        };
        let len = |number: u64| SEGMENT.min(source.len() - number * SEGMENT) as usize;
        let window = source.readahead_len() / SEGMENT;
        let highest = (source.len() - 1) / SEGMENT;
        let mut loads = vec![(number, first)];
        for next in number + 1..=last.min(number + window - 1).min(highest) {
            if self.patience < source.patience(next * SEGMENT, len(next)) {
                break;
            }
            match cache.claim(Key::Segment(device, next)) {
                Claim::Load(load) => loads.push((next, load)),
                Claim::Ready(_) | Claim::Wait(_) => break,
            }
        }
        let mut segments: Vec<Arc<[u8]>> = loads
            .iter()
            .map(|(at, _)| repeat_n(0, len(*at)).collect())
            .collect();
        let mut pieces: Vec<_> = loads
            .iter()
            .zip(&mut segments)
            .map(|((number, _), into)| Piece {
                offset: number * SEGMENT,
                buffer: Arc::get_mut(into).expect("nobody else has it yet"),
            })
            .collect();
        let matches = source.read_each(&mut pieces)?;
        let segments: Vec<Result<Arc<[u8]>>> = (segments.into_iter().zip(matches))
            .map(|(segment, matches)| matches.then_some(segment).ok_or(Errno::EIO))
            .collect();
        for ((_, load), segment) in loads.into_iter().zip(&segments) {
            load.settle(segment.clone());
        }
        Ok(segments)
    }

    /// Returns the patience needed to read a cluster's encoded bytes.
    fn patience_for(&self, cluster: &Cluster) -> Patience {
        let (device, at, len) = match cluster.device {
            Some(device) => (device, cluster.offset, cluster.encoded as usize),
            // The location is unknown.
            None => (0, 0, usize::MAX),
        };
        let source = self.devices.sources.get(usize::from(device));
        source.map_or(Patience::Full, |source| source.patience(at, len))
    }

    /// Drops copies of a cluster's encoded bytes, in memory and on disk. Returns whether another
    /// read may return other bytes.
    fn drop_copies(&self, cluster: &Cluster) -> bool {
        let source = cluster.device.and_then(|device| {
            let source = self.devices.sources.get(usize::from(device));
            source.filter(|_| device > 0 || self.devices.root.is_none())
        });
        let range = cluster.offset..cluster.offset.saturating_add(cluster.encoded.into());
        let were_any = source.is_some_and(|source| source.drop_copies(range.clone()));
        if let Some(device) = cluster.device.filter(|_| were_any) {
            let segments = range.start / SEGMENT..range.end.div_ceil(SEGMENT);
            let segments = segments.map(|number| Key::Segment(device, number));
            self.devices.cache.remove(segments);
        }
        were_any
    }

    fn wait_for_load(&self, theirs: PendingLoad) -> Result<Arc<[u8]>> {
        self.require_patience(Patience::Full)?;
        theirs.wait()
    }

    fn require_patience(&self, needed: Patience) -> Result<()> {
        match self.patience >= needed {
            true => Ok(()),
            false => Err(Errno::WOULD_BLOCK),
        }
    }
}

/// Converts a read error to an errno.
pub(crate) fn errno(error: &Error<Errno>) -> Errno {
    match error {
        Error::Storage(errno) => *errno,
        Error::Corrupt(_) => Errno::EIO,
        Error::Unsupported(_) => Errno::EOPNOTSUPP,
    }
}
