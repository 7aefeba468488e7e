//! Verification of an image's bytes against their hashes before they are used.
//!
//! A chunk that does not match is read once more, past the disk cache. If it does not match then,
//! it is an error of kind `InvalidData` for that chunk alone, and is logged once. The image file is
//! never exposed ([`RangeSource::file`]): the kernel could send bytes changed after verification,
//! unnoticed.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use sidecar::{
    CHUNK_SIZE, HEADER_SIZE, Hash, HashLayout, Header, Manifest, ReadaheadRange, VerifyError, hash,
};
use vfs::{Errno, Patience};

use crate::cache::{Cache, Claim};
use crate::preload::Preloaded;
use crate::range::{FileGuard, Piece, RangeSource};
use crate::trust::{Trust, Untrusted};

/// The size in bytes of the cache of hashes, without the top level: the hashes of 2 GiB of image.
const HASHES: u64 = 4 << 20;

/// The maximum number of broken chunks remembered as logged.
const MAX_LOGGED: usize = 1024;

/// An image with hashes.
pub(crate) struct Verified {
    inner: Arc<dyn RangeSource>,
    header: Header,
    manifest: Manifest,
    /// Verified chunks of hashes, by level and number.
    hashes: Arc<Cache<(usize, u64)>>,
    /// Broken chunks that were logged.
    logged: Mutex<BTreeSet<(usize, u64)>>,
}

/// A chunk of a level of hashes, or of the image (level 0).
struct Chunk<'a> {
    number: u64,
    bytes: &'a mut [u8],
}

impl Verified {
    /// Reads the hashes of the image in `inner`, if it has any. If they are not valid or not
    /// trusted, they are read once more, past all stored copies. Returns an error if the image does
    /// not satisfy `trust`.
    pub(crate) fn open(
        inner: Arc<dyn RangeSource>,
        trust: &Trust,
    ) -> Result<Option<Verified>, Untrusted> {
        match Verified::read_hashes(inner.clone(), trust) {
            Err(error) if !matches!(error, Untrusted::Io(_)) => {
                inner.drop_copies(0..CHUNK_SIZE);
                Verified::read_hashes(inner, trust)
            }
            opened => opened,
        }
    }

    fn read_hashes(
        inner: Arc<dyn RangeSource>,
        trust: &Trust,
    ) -> Result<Option<Verified>, Untrusted> {
        let mut head = vec![0; inner.len().min(CHUNK_SIZE) as usize];
        read(&*inner, 0, &mut head)?;
        let header = match head.first_chunk() {
            None => None,
            Some(header) => Header::parse(header, inner.len())?,
        };
        let Some(header) = header else {
            return match trust {
                Trust::Hashes => Ok(None),
                Trust::Keys(_) => Err(VerifyError::NotSigned.into()),
                Trust::Root(..) => Err(Untrusted::NoHashes),
            };
        };
        if let Trust::Root(root, _) = trust
            && header.root() != root
        {
            return Err(Untrusted::OtherRoot);
        }
        if !trust.keys().is_empty() {
            header.verify(trust.keys())?;
        }
        let inner: Arc<dyn RangeSource> = Arc::new(Preloaded::read(inner, &header, head)?);
        let range = header.manifest_range();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        read(&*inner, range.start, &mut bytes)?;
        let manifest = Manifest::parse(&header, &bytes).inspect_err(|_| {
            inner.drop_copies(range);
        })?;
        Ok(Some(Verified {
            manifest,
            inner,
            header,
            hashes: Cache::new(HASHES),
            logged: Mutex::default(),
        }))
    }

    /// Returns the root hash, which identifies the image.
    pub(crate) fn root(&self) -> &Hash {
        self.header.root()
    }

    /// Returns the segments to read ahead.
    pub(crate) fn readahead_list(&self) -> &[ReadaheadRange] {
        &self.manifest.readahead_list
    }

    /// Verifies chunks of a level, which were read from the inner source. Those that do not match
    /// their hashes are read once more, past all stored copies: the server or the disk may have
    /// been wrong once. Copies of what does not match then are dropped, too, so that each later
    /// read asks the server again. Returns the chunks that still do not match, or whose hashes do
    /// not match theirs.
    fn verify_or_read_again(
        &self,
        level: usize,
        chunks: Vec<Chunk<'_>>,
    ) -> io::Result<BTreeSet<u64>> {
        let (mut wrong, mut failed) = (Vec::new(), BTreeSet::new());
        // Chunks of hashes that do not match theirs are read once for all the chunks below them.
        let mut failed_hashes = BTreeSet::new();
        for chunk in chunks {
            let (hashes, _) = HashLayout::hash_location(chunk.number);
            if failed_hashes.contains(&hashes) {
                failed.insert(chunk.number);
                continue;
            }
            match self.matches(level, chunk.number, chunk.bytes) {
                Ok(true) => {}
                Ok(false) => wrong.push(chunk),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    failed_hashes.insert(hashes);
                    failed.insert(chunk.number);
                }
                Err(error) => return Err(error),
            }
        }
        if !wrong.is_empty() {
            self.read_again(level, &mut wrong)?;
        }
        for Chunk { number, bytes } in wrong {
            let range = self.header.layout().chunk(level, number);
            if self.matches(level, number, bytes)? {
                tracing::warn!(
                    "bytes {} to {} of the image did not match their hashes, and do after they \
                     were read again",
                    range.start,
                    range.end - 1
                );
            } else {
                self.inner.drop_copies(range);
                self.log_mismatch(level, number);
                failed.insert(number);
            }
        }
        Ok(failed)
    }

    /// Reads chunks of a level past all stored copies, in one call: a server that is wrong about
    /// many is waited for once.
    fn read_again(&self, level: usize, chunks: &mut [Chunk<'_>]) -> io::Result<()> {
        let layout = self.header.layout();
        let mut pieces = Vec::with_capacity(chunks.len());
        for Chunk { number, bytes } in chunks {
            let range = layout.chunk(level, *number);
            pieces.push(Piece {
                offset: range.start,
                buffer: bytes,
            });
            self.inner.drop_copies(range);
        }
        self.inner.read(&mut pieces)
    }

    /// Returns the ranges of the chunks, of hashes and of the image, that can be read and do not
    /// match their hashes. Those that cannot be read are passed over.
    pub(crate) fn mismatches(&self) -> Vec<Range<u64>> {
        let layout = self.header.layout();
        let mut mismatches = Vec::new();
        let mut buffer = vec![0; CHUNK_SIZE as usize];
        for level in (0..layout.levels().len()).rev() {
            for number in 0..layout.chunks(level) {
                let range = layout.chunk(level, number);
                let bytes = &mut buffer[..(range.end - range.start) as usize];
                let is_readable = read(&*self.inner, range.start, bytes).is_ok();
                if is_readable
                    && self
                        .matches(level, number, bytes)
                        .is_ok_and(|matches| !matches)
                {
                    mismatches.push(range);
                }
            }
        }
        mismatches
    }

    /// Returns whether a chunk of a level matches its hash.
    fn matches(&self, level: usize, number: u64, bytes: &[u8]) -> io::Result<bool> {
        let expected = self.hash(level, number)?;
        Ok(hash(bytes, (level, number) == (0, 0)) == expected)
    }

    fn log_mismatch(&self, level: usize, number: u64) {
        let mut logged = self.logged.lock();
        if logged.len() < MAX_LOGGED && logged.insert((level, number)) {
            let range = self.header.layout().chunk(level, number);
            tracing::error!(
                "bytes {} to {} of the image do not match their hashes: reads of them fail",
                range.start,
                range.end - 1
            );
        }
    }

    /// Returns the expected hash of a chunk of a level.
    fn hash(&self, level: usize, number: u64) -> io::Result<Hash> {
        let shape = self.header.layout();
        let missing = || io::Error::from(io::ErrorKind::InvalidData);
        if level + 1 == shape.levels().len() {
            return self.manifest.hash(number).ok_or_else(missing);
        }
        let (chunk, index) = HashLayout::hash_location(number);
        let hashes = self.hashes(level + 1, chunk)?;
        let hash = hashes.get(index).and_then(|hash| hash.try_into().ok());
        hash.ok_or_else(missing)
    }

    /// Returns a verified chunk of hashes.
    fn hashes(&self, level: usize, number: u64) -> io::Result<Arc<[u8]>> {
        let load = match self.hashes.claim((level, number)) {
            Claim::Ready(bytes) => return Ok(bytes),
            Claim::Wait(theirs) => return Ok(theirs.wait()?),
            Claim::Load(load) => load,
        };
        let range = self.header.layout().chunk(level, number);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let loaded = read(&*self.inner, range.start, &mut bytes).and_then(|()| {
            let bytes = &mut bytes[..];
            let failed = self.verify_or_read_again(level, vec![Chunk { number, bytes }])?;
            match failed.is_empty() {
                true => Ok(()),
                false => Err(io::ErrorKind::InvalidData.into()),
            }
        });
        match loaded {
            Ok(()) => {
                let bytes: Arc<[u8]> = bytes.into();
                load.settle(Ok(bytes.clone()));
                Ok(bytes)
            }
            Err(error) => {
                load.settle(Err(Errno::EIO));
                Err(error)
            }
        }
    }

    /// Verifies whole chunks of the image, which were read from the inner source into `pieces`.
    /// Returns whether each piece matches its hashes.
    fn verify_pieces(&self, pieces: &mut [Piece<'_>]) -> io::Result<Vec<bool>> {
        let chunks = pieces.iter_mut().flat_map(|piece| {
            let numbers = piece.offset / CHUNK_SIZE..;
            let chunks = numbers.zip(piece.buffer.chunks_mut(CHUNK_SIZE as usize));
            chunks.map(|(number, bytes)| Chunk { number, bytes })
        });
        let failed = self.verify_or_read_again(0, chunks.collect())?;
        let matches = pieces.iter().map(|piece| {
            let end = piece.offset + piece.buffer.len() as u64;
            let numbers = piece.offset / CHUNK_SIZE..end.div_ceil(CHUNK_SIZE);
            failed.range(numbers).next().is_none()
        });
        Ok(matches.collect())
    }

    /// Returns the offset and length of the whole chunks around a piece.
    fn enclosing_chunks(&self, piece: &Piece<'_>) -> io::Result<(u64, usize)> {
        let end = piece.offset.checked_add(piece.buffer.len() as u64);
        let end = end.filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let start = piece.offset - piece.offset % CHUNK_SIZE;
        let end = end.next_multiple_of(CHUNK_SIZE).min(self.len());
        Ok((start, (end - start) as usize))
    }
}

impl RangeSource for Verified {
    /// Returns the image's length, without the appended sidecar.
    fn len(&self) -> u64 {
        self.header.image_size()
    }

    /// Returns `Full`: hashing takes about as long as decoding, and several chunks are read at
    /// once.
    fn patience(&self, _at: u64, _len: usize) -> Patience {
        Patience::Full
    }

    fn readahead_len(&self) -> u64 {
        self.inner.readahead_len()
    }

    fn stats(&self) -> vfs::SourceStats {
        self.inner.stats()
    }

    fn evict(&self) -> u64 {
        self.inner.evict()
    }

    fn ping(&self) -> io::Result<()> {
        self.inner.ping()
    }

    fn drop_copies(&self, range: Range<u64>) -> bool {
        self.inner.drop_copies(range)
    }

    /// Returns nothing for the first chunk, which has a header that is hashed as zeros.
    fn chunk_hash(&self, number: u64) -> Option<Hash> {
        self.hash(0, number).ok().filter(|_| number > 0)
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let matches = self.read_each(pieces)?;
        match matches.iter().all(|matches| *matches) {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn read_each(&self, pieces: &mut [Piece<'_>]) -> io::Result<Vec<bool>> {
        let around = pieces.iter().map(|piece| self.enclosing_chunks(piece));
        let around = around.collect::<io::Result<Vec<_>>>()?;
        let are_chunks = (pieces.iter().zip(&around))
            .all(|(piece, (at, len))| (piece.offset, piece.buffer.len()) == (*at, *len));
        let matches = if are_chunks {
            self.inner.read(pieces)?;
            self.verify_pieces(pieces)?
        } else {
            let mut matches = Vec::with_capacity(pieces.len());
            for (piece, (at, len)) in pieces.iter_mut().zip(around) {
                let mut chunks = vec![0; len];
                read(&*self.inner, at, &mut chunks)?;
                matches.extend(self.verify_pieces(&mut [Piece {
                    offset: at,
                    buffer: &mut chunks,
                }])?);
                let skip = (piece.offset - at) as usize;
                piece
                    .buffer
                    .copy_from_slice(&chunks[skip..][..piece.buffer.len()]);
            }
            matches
        };
        // The header is not part of the image: its chunk is hashed with zeros in its place.
        for piece in pieces {
            let header = (HEADER_SIZE as u64).saturating_sub(piece.offset) as usize;
            let len = piece.buffer.len();
            piece.buffer[..header.min(len)].fill(0);
        }
        Ok(matches)
    }

    fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
        None
    }
}

fn read(source: &dyn RangeSource, at: u64, into: &mut [u8]) -> io::Result<()> {
    source.read(&mut [Piece {
        offset: at,
        buffer: into,
    }])
}
