//! An image's bytes, held against their hashes before anybody has them.
//!
//! What is wrong is an error of kind `InvalidData`, for that chunk alone, and a line in the log once. Where the image is in a file, that file is not shown
//! ([`RangeSource::file`]): what the kernel sends from there might be changed after it was verified, and nobody would know.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use sidecar::{Broken, CHUNK, HEADER, Hash, Header, Hot, Manifest, PublicKey, Shape, hash};
use vfs::{Errno, Patience};

use crate::cache::{Cache, Claim};
use crate::range::{Held, Piece, RangeSource};

/// Bytes of hashes that are kept, besides the uppermost: those of 2 GiB of the image.
const HASHES: u64 = 4 << 20;

/// Broken chunks that are remembered to have been told of.
const MOST_TOLD: usize = 1024;

/// What an image has to show before it is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The hashes that it has. One without any is shown as it is.
    #[default]
    Hashes,
    /// A signature by one of these, over the hashes of all of it.
    Keys(Vec<PublicKey>),
}

/// Why an image is not opened.
#[derive(Debug)]
pub enum Untrusted {
    /// Its hashes could not be read.
    Io(io::Error),
    /// They say that it is broken, or nobody who is trusted has signed it.
    Broken(Broken),
    /// It has further devices, of which the signature says nothing.
    Devices,
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::Io(error) => error.fmt(f),
            Untrusted::Broken(broken) => broken.fmt(f),
            Untrusted::Devices => {
                f.write_str("expected an image that is signed as a whole, got further devices")
            }
        }
    }
}

impl From<io::Error> for Untrusted {
    fn from(error: io::Error) -> Untrusted {
        Untrusted::Io(error)
    }
}

impl From<Broken> for Untrusted {
    fn from(broken: Broken) -> Untrusted {
        Untrusted::Broken(broken)
    }
}

/// An image that has hashes.
pub(crate) struct Verified {
    inner: Arc<dyn RangeSource>,
    header: Header,
    manifest: Manifest,
    /// Verified chunks of hashes, by level and number.
    hashes: Arc<Cache<(usize, u64)>>,
    /// Broken chunks that were told of.
    told: Mutex<BTreeSet<(usize, u64)>>,
}

impl Verified {
    /// Reads the hashes of the image in `inner`, if it has any; an error if it does not show what it has to.
    pub(crate) fn open(
        inner: Arc<dyn RangeSource>,
        trust: &Trust,
    ) -> Result<Option<Verified>, Untrusted> {
        let mut bytes = [0; HEADER];
        let header = match inner.len() < HEADER as u64 {
            true => None,
            false => {
                read(&*inner, 0, &mut bytes)?;
                Header::parse(&bytes, inner.len())?
            }
        };
        if let Trust::Keys(keys) = trust {
            header.as_ref().ok_or(Broken::NotSigned)?.verify(keys)?;
        }
        let Some(header) = header else {
            return Ok(None);
        };
        let inner: Arc<dyn RangeSource> = Arc::new(Tail::read(inner)?);
        let range = header.manifest();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        read(&*inner, range.start, &mut bytes)?;
        Ok(Some(Verified {
            manifest: Manifest::parse(&header, &bytes)?,
            inner,
            header,
            hashes: Cache::new(HASHES),
            told: Mutex::default(),
        }))
    }

    /// What tells this image from all others.
    pub(crate) fn root(&self) -> &Hash {
        self.header.root()
    }

    /// What is to be read ahead.
    pub(crate) fn hot(&self) -> &[Hot] {
        &self.manifest.hot
    }

    /// Holds a chunk of a level against its hash.
    fn verify(&self, level: usize, number: u64, bytes: &[u8]) -> io::Result<()> {
        let expected = self.hash(level, number)?;
        if hash(bytes, (level, number) == (0, 0)) == expected {
            return Ok(());
        }
        let mut told = self.told.lock().expect("no panic holds it");
        if told.len() < MOST_TOLD && told.insert((level, number)) {
            let range = self.header.shape().chunk(level, number);
            tracing::error!(
                "bytes {} to {} of the image are not what was packed: reading them fails",
                range.start,
                range.end - 1
            );
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// The hash that a chunk of a level has to have.
    fn hash(&self, level: usize, number: u64) -> io::Result<Hash> {
        let shape = self.header.shape();
        let missing = || io::Error::from(io::ErrorKind::InvalidData);
        if level + 1 == shape.levels().len() {
            return self.manifest.hash(number).ok_or_else(missing);
        }
        let (chunk, place) = Shape::above(number);
        let hashes = self.hashes(level + 1, chunk)?;
        let hash = hashes.get(place).and_then(|hash| hash.try_into().ok());
        hash.ok_or_else(missing)
    }

    /// A chunk of hashes, verified.
    fn hashes(&self, level: usize, number: u64) -> io::Result<Arc<[u8]>> {
        let load = match self.hashes.claim((level, number)) {
            Claim::Ready(bytes) => return Ok(bytes),
            Claim::Theirs(theirs) => return Ok(theirs.wait()?),
            Claim::Ours(load) => load,
        };
        let range = self.header.shape().chunk(level, number);
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

    /// Holds whole chunks of the image against their hashes.
    fn verify_all(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let numbers = at / CHUNK..;
        let mut chunks = numbers.zip(bytes.chunks(CHUNK as usize));
        chunks.try_for_each(|(number, chunk)| self.verify(0, number, chunk))
    }

    /// The whole chunks around a piece.
    fn around(&self, piece: &Piece<'_>) -> io::Result<(u64, usize)> {
        let end = piece.at.checked_add(piece.into.len() as u64);
        let end = end.filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let start = piece.at - piece.at % CHUNK;
        let end = end.next_multiple_of(CHUNK).min(self.len());
        Ok((start, (end - start) as usize))
    }
}

impl RangeSource for Verified {
    /// What is behind the image is no part of it.
    fn len(&self) -> u64 {
        self.header.image()
    }

    /// Hashing takes about as long as decoding does, and several chunks are read at once.
    fn patience(&self, _at: u64, _len: usize) -> Patience {
        Patience::Full
    }

    fn run(&self) -> u64 {
        self.inner.run()
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let around = pieces.iter().map(|piece| self.around(piece));
        let around = around.collect::<io::Result<Vec<_>>>()?;
        let are_chunks = (pieces.iter().zip(&around))
            .all(|(piece, (at, len))| (piece.at, piece.into.len()) == (*at, *len));
        if are_chunks {
            self.inner.read(pieces)?;
            (pieces.iter()).try_for_each(|piece| self.verify_all(piece.at, piece.into))?;
        } else {
            for (piece, (at, len)) in pieces.iter_mut().zip(around) {
                let mut chunks = vec![0; len];
                read(&*self.inner, at, &mut chunks)?;
                self.verify_all(at, &chunks)?;
                let skip = (piece.at - at) as usize;
                piece
                    .into
                    .copy_from_slice(&chunks[skip..][..piece.into.len()]);
            }
        }
        // The header is no part of the image: the hash of its chunk has zeros there.
        for piece in pieces {
            let header = (HEADER as u64).saturating_sub(piece.at) as usize;
            let len = piece.into.len();
            piece.into[..header.min(len)].fill(0);
        }
        Ok(())
    }

    fn file(&self, _at: u64, _len: usize) -> Option<Held<'_>> {
        None
    }
}

/// The end of an image is kept: hashes lie there and, of an image that is not large, the root's inode. So what it takes to mount one that is far
/// away comes by one request, besides the one for its beginning.
struct Tail {
    inner: Arc<dyn RangeSource>,
    start: u64,
    bytes: Vec<u8>,
}

impl Tail {
    /// The hashes of 32 MiB, and as much again.
    const LEN: u64 = 128 << 10;

    fn read(inner: Arc<dyn RangeSource>) -> io::Result<Tail> {
        let len = inner.len().min(Tail::LEN);
        let start = inner.len() - len;
        let mut bytes = vec![0; len as usize];
        read(&*inner, start, &mut bytes)?;
        Ok(Tail {
            inner,
            start,
            bytes,
        })
    }

    fn get(&self, piece: &Piece<'_>) -> Option<&[u8]> {
        let from = usize::try_from(piece.at.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..)?.get(..piece.into.len())
    }
}

impl RangeSource for Tail {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn patience(&self, at: u64, len: usize) -> Patience {
        self.inner.patience(at, len)
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        // They are in order.
        let far = pieces.partition_point(|piece| self.get(piece).is_none());
        let (far, kept) = pieces.split_at_mut(far);
        for piece in kept {
            let bytes = self.get(piece).ok_or(io::ErrorKind::UnexpectedEof)?;
            piece.into.copy_from_slice(bytes);
        }
        match far {
            [] => Ok(()),
            far => self.inner.read(far),
        }
    }

    fn run(&self) -> u64 {
        self.inner.run()
    }

    fn file(&self, at: u64, len: usize) -> Option<Held<'_>> {
        self.inner.file(at, len)
    }
}

fn read(source: &dyn RangeSource, at: u64, into: &mut [u8]) -> io::Result<()> {
    source.read(&mut [Piece { at, into }])
}
