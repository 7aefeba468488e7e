//! Verification of an image's bytes against their hashes before they are used.
//!
//! A mismatch is an error of kind `InvalidData` for that chunk alone, and is logged once. The image
//! file is never exposed ([`RangeSource::file`]): the kernel could send bytes changed after
//! verification, unnoticed.

use std::collections::BTreeSet;
use std::io;
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

impl Verified {
    /// Reads the hashes of the image in `inner`, if it has any. Returns an error if the image does
    /// not satisfy `trust`.
    pub(crate) fn open(
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
        Ok(Some(Verified {
            manifest: Manifest::parse(&header, &bytes)?,
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

    /// Verifies a chunk of a level against its hash.
    fn verify(&self, level: usize, number: u64, bytes: &[u8]) -> io::Result<()> {
        let expected = self.hash(level, number)?;
        if hash(bytes, (level, number) == (0, 0)) == expected {
            return Ok(());
        }
        let mut logged = self.logged.lock();
        if logged.len() < MAX_LOGGED && logged.insert((level, number)) {
            let range = self.header.layout().chunk(level, number);
            tracing::error!(
                "bytes {} to {} of the image do not match their hashes: reads of them fail",
                range.start,
                range.end - 1
            );
        }
        Err(io::ErrorKind::InvalidData.into())
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
        let loaded = read(&*self.inner, range.start, &mut bytes)
            .and_then(|()| self.verify(level, number, &bytes));
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

    /// Verifies whole chunks of the image against their hashes.
    fn verify_all(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let numbers = at / CHUNK_SIZE..;
        let mut chunks = numbers.zip(bytes.chunks(CHUNK_SIZE as usize));
        chunks.try_for_each(|(number, chunk)| self.verify(0, number, chunk))
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

    /// Returns nothing for the first chunk, which has a header that is hashed as zeros.
    fn chunk_hash(&self, number: u64) -> Option<Hash> {
        self.hash(0, number).ok().filter(|_| number > 0)
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let around = pieces.iter().map(|piece| self.enclosing_chunks(piece));
        let around = around.collect::<io::Result<Vec<_>>>()?;
        let are_chunks = (pieces.iter().zip(&around))
            .all(|(piece, (at, len))| (piece.offset, piece.buffer.len()) == (*at, *len));
        if are_chunks {
            self.inner.read(pieces)?;
            (pieces.iter()).try_for_each(|piece| self.verify_all(piece.offset, piece.buffer))?;
        } else {
            for (piece, (at, len)) in pieces.iter_mut().zip(around) {
                let mut chunks = vec![0; len];
                read(&*self.inner, at, &mut chunks)?;
                self.verify_all(at, &chunks)?;
                let skip = (piece.offset - at) as usize;
                piece
                    .buffer
                    .copy_from_slice(&chunks[skip..][..piece.buffer.len()]);
            }
        }
        // The header is not part of the image: its chunk is hashed with zeros in its place.
        for piece in pieces {
            let header = (HEADER_SIZE as u64).saturating_sub(piece.offset) as usize;
            let len = piece.buffer.len();
            piece.buffer[..header.min(len)].fill(0);
        }
        Ok(())
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
