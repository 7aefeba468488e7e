//! Transfer of file contents from an EROFS image to a sink.

use std::sync::Arc;

use erofs::read::{Contents, Location};
use vfs::{Errno, Patience, Result, Sink};

use super::Erofs;
use crate::range::FileGuard;
use crate::storage::{Access, MIN_DIRECT_READ};

/// A part of a read, in a form that a sink accepts.
enum Part<'a> {
    Hole(u64),
    /// Bytes in a local file.
    File {
        device: u16,
        guard: FileGuard<'a>,
        offset: u64,
        len: u64,
    },
    /// Bytes already in memory.
    Bytes {
        bytes: Arc<[u8]>,
        skip: usize,
        len: usize,
    },
}

/// The maximum number of parts of a read: a large message over a file of the smallest chunks has
/// that many.
const MAX_PARTS: usize = 4096;

impl Erofs {
    /// Puts up to `len` bytes of `contents` from `offset` into `sink` and returns how many; the
    /// caller ensures that the range ends before the end of the file.
    pub(super) fn put_contents(
        &self,
        contents: &Contents,
        offset: u64,
        len: u64,
        patience: Patience,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let access = self.access(patience);
        let mut parts = Vec::new();
        // All reads that may block happen before the sink is touched, since bytes put into a sink
        // cannot be taken back.
        let gathered = self.gather(&access, contents, offset, len, &mut parts);
        if parts.is_empty() || patience < Patience::Full {
            gathered?;
        }
        let of_files = parts
            .iter()
            .filter(|part| matches!(part, Part::File { .. }))
            .count();
        let first = matches!(parts.first(), Some(Part::File { .. }));
        if patience < Patience::Full && (of_files > 1 || of_files == 1 && !first) {
            return Err(Errno::WOULD_BLOCK);
        }
        let mut done = 0;
        for part in parts {
            match self.put_part(&access, &part, sink) {
                Ok(put) => {
                    done += put;
                    if put < part.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        match done {
            // The image file has been truncated.
            0 => Err(Errno::EIO),
            done => Ok(done),
        }
    }

    /// Collects the parts of a read.
    fn gather<'a>(
        &self,
        access: &Access<'a>,
        contents: &Contents,
        offset: u64,
        len: u64,
        parts: &mut Vec<Part<'a>>,
    ) -> Result<()> {
        let end = offset + len;
        let mut at = offset;
        while at < end && parts.len() < MAX_PARTS {
            let run = self.image.map(access, contents, at);
            let run = run.map_err(|error| self.log_error(error))?;
            let skip = at - run.start;
            let len = (run.len - skip).min(end - at);
            match run.location {
                Location::Hole => parts.push(Part::Hole(len)),
                Location::Plain { device, offset } => {
                    let offset = offset.saturating_add(skip);
                    self.gather_stored(access, device, offset, len, parts)?;
                }
                Location::Fragment(offset) => {
                    let packed = self.image.packed().ok_or(Errno::EIO)?;
                    let offset = offset.checked_add(skip).ok_or(Errno::EIO)?;
                    if offset
                        .checked_add(len)
                        .is_none_or(|end| end > packed.size())
                    {
                        return Err(Errno::EIO);
                    }
                    self.gather(access, packed, offset, len, parts)?;
                }
                Location::Metabox(offset) => {
                    let metabox = self.image.metabox().ok_or(Errno::EIO)?;
                    let mut bytes = vec![0; len as usize];
                    let read = self.image.read(access, metabox, offset + skip, &mut bytes);
                    read.map_err(|error| self.log_error(error))?;
                    parts.push(Part::Bytes {
                        bytes: bytes.into(),
                        skip: 0,
                        len: len as usize,
                    });
                }
                Location::Encoded(cluster) => {
                    use erofs::read::Storage;
                    let decoded = access.decoded(&self.image, &cluster);
                    let bytes = decoded.map_err(|error| self.log_error(error))?;
                    parts.push(Part::Bytes {
                        bytes,
                        skip: skip as usize,
                        len: len as usize,
                    });
                }
            }
            at += len;
        }
        Ok(())
    }

    /// Adds uncompressed bytes of a device to `parts`.
    fn gather_stored<'a>(
        &self,
        access: &Access<'a>,
        device: u16,
        offset: u64,
        len: u64,
        parts: &mut Vec<Part<'a>>,
    ) -> Result<()> {
        let source = access.source(device, offset, len as usize)?;
        let large = len >= MIN_DIRECT_READ as u64;
        if let Some(held) = large.then(|| source.file(offset, len as usize)).flatten() {
            match parts.last_mut() {
                Some(Part::File {
                    device: of,
                    offset: before,
                    len: there,
                    ..
                }) if *of == device && *before + *there == offset => {
                    *there += len;
                }
                _ => parts.push(Part::File {
                    device,
                    guard: held,
                    offset,
                    len,
                }),
            }
            return Ok(());
        }
        access.segments(device, offset, len as usize, &mut |bytes, range| {
            parts.push(Part::Bytes {
                bytes,
                skip: range.start,
                len: range.len(),
            });
        })
    }

    /// Puts a part into the sink and returns how many bytes.
    fn put_part(&self, access: &Access<'_>, part: &Part<'_>, sink: &mut dyn Sink) -> Result<usize> {
        match part {
            Part::Hole(len) => sink.zeros(*len as usize),
            Part::Bytes { bytes, skip, len } => sink.bytes(&bytes[*skip..*skip + *len]),
            Part::File {
                guard: held,
                offset,
                len,
                ..
            } => return sink.file(held.file, *offset, *len as usize, access.patience),
        }
        Ok(part.len())
    }
}

impl Part<'_> {
    fn len(&self) -> usize {
        match self {
            Part::Hole(len) | Part::File { len, .. } => *len as usize,
            Part::Bytes { len, .. } => *len,
        }
    }
}
