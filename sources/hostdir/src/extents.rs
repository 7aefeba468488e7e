//! The data and holes of a file.
//!
//! `FIEMAP` returns many extents per call, but does not show whether unwritten extents have data in
//! the page cache; for these, and on file systems without it, lseek(2) with `SEEK_DATA` and
//! `SEEK_HOLE` decides.

use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno as Raw;
use sys::errno;
use sys::fiemap::{self, BATCH};
use vfs::{Errno, Extent, Result, Whence};

use crate::stat::stat;

/// Returns the offset of the next data or hole at or after `offset`. Moves the file's position,
/// which is not used otherwise.
pub(crate) fn seek(fd: BorrowedFd<'_>, offset: u64, what: Whence) -> Result<u64> {
    let offset = i64::try_from(offset).map_err(|_| Errno::ENXIO)? as u64;
    let from = match what {
        Whence::Data => SeekFrom::Data(offset),
        Whence::Hole => SeekFrom::Hole(offset),
    };
    rustix::fs::seek(fd, from).map_err(errno)
}

/// Passes the extents in `offset..offset+len` to `each`, up to the end of the file.
pub(crate) fn walk(
    fd: BorrowedFd<'_>,
    offset: u64,
    len: u64,
    each: &mut dyn FnMut(Extent) -> bool,
) -> Result<()> {
    let end = offset.saturating_add(len).min(stat(fd)?.stx_size);
    let mut out = MergedExtents {
        at: offset,
        pending: None,
        each,
    };
    match walk_fiemap(fd, end, &mut out) {
        Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EINVAL) => {
            walk_by_seeking(fd, end, &mut out)?
        }
        done => done?,
    };
    out.finish();
    Ok(())
}

/// Whether to continue.
type Continue = bool;

fn walk_fiemap(fd: BorrowedFd<'_>, end: u64, out: &mut MergedExtents<'_>) -> Result<Continue> {
    let mut batch = [fiemap::Extent::default(); BATCH];
    while out.at < end {
        let before = out.at;
        let found = fiemap::extents(fd, out.at, end - out.at, &mut batch).map_err(errno)?;
        for extent in &batch[..found] {
            let start = extent.logical.clamp(out.at, end);
            let stop = extent.logical.saturating_add(extent.length).min(end);
            if !out.hole_until(start) {
                return Ok(false);
            }
            let continues = if extent.flags & fiemap::UNWRITTEN != 0 {
                walk_by_seeking(fd, stop, out)?
            } else {
                out.data_until(stop)
            };
            if !continues {
                return Ok(false);
            }
        }
        let last = found > 0 && batch[found - 1].flags & fiemap::LAST != 0;
        if found == 0 || last {
            return Ok(out.hole_until(end));
        }
        if out.at == before {
            // The map makes no progress.
            return walk_by_seeking(fd, end, out);
        }
    }
    Ok(true)
}

fn walk_by_seeking(fd: BorrowedFd<'_>, end: u64, out: &mut MergedExtents<'_>) -> Result<Continue> {
    while out.at < end {
        let data = match rustix::fs::seek(fd, SeekFrom::Data(out.at)) {
            // No more data: a hole up to the end.
            Err(Raw::NXIO) => end,
            data => data.map_err(errno)?,
        };
        if !out.hole_until(data.min(end)) {
            return Ok(false);
        }
        if out.at >= end {
            break;
        }
        let hole = match rustix::fs::seek(fd, SeekFrom::Hole(out.at)) {
            // Truncated meanwhile.
            Err(Raw::NXIO) => end,
            hole => hole.map_err(errno)?,
        };
        if !out.data_until(hole.min(end)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Collects extents without gaps, merging adjacent ones of the same kind.
struct MergedExtents<'a> {
    at: u64,
    pending: Option<Extent>,
    each: &'a mut dyn FnMut(Extent) -> bool,
}

impl MergedExtents<'_> {
    fn hole_until(&mut self, end: u64) -> Continue {
        self.until(end, true)
    }

    fn data_until(&mut self, end: u64) -> Continue {
        self.until(end, false)
    }

    fn until(&mut self, end: u64, hole: bool) -> Continue {
        if end <= self.at {
            return true;
        }
        let len = end - self.at;
        let mut continues = true;
        match &mut self.pending {
            Some(pending) if pending.hole == hole => pending.len += len,
            pending => {
                let next = Extent {
                    offset: self.at,
                    len,
                    hole,
                };
                if let Some(ready) = pending.replace(next) {
                    continues = (self.each)(ready);
                }
                if !continues {
                    self.pending = None;
                }
            }
        }
        self.at = end;
        continues
    }

    fn finish(mut self) {
        if let Some(ready) = self.pending.take() {
            (self.each)(ready);
        }
    }
}
