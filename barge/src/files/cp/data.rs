//! Copying the contents of a file: within the file system if it can, otherwise with reads and
//! writes that skip holes.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use vfs::{
    CopyMode, Entry, Errno, Extent, File, Mode, Name, Node, OpenFlags, Result, SetAttr, Support,
};
use wire::payload::{SlicePayload, SliceSink};

use super::Copier;
use sources::Tree;

/// Bytes per read or write: several messages, which a remote file sends at once.
const CHUNK_SIZE: usize = 4 << 20;

/// Copies the contents of `from` to `name` in `to`, replacing an existing file, and returns the
/// copy.
pub(super) fn copy_file(
    copier: &Copier,
    tree: &Tree,
    from: &Entry,
    to: &dyn Node,
    name: Name<'_>,
) -> Result<Arc<dyn Node>> {
    let original = tree.with(|cx| from.node.open(cx, OpenFlags::READ))?;
    let (entry, copy) = create(copier, from, to, name)?;
    if entry.node.id() == from.node.id() && entry.attr.size == 0 && from.attr.size > 0 {
        // Both seem to be one file, which has just been truncated: nothing is left to copy.
        tracing::warn!("source and destination are the same file: nothing is copied");
    }
    let extents = extents(tree, &*original, from.attr.size)?;
    let mut end = 0;
    for extent in extents {
        if !extent.hole {
            copy_extent(copier, tree, &original, &copy, extent)?;
        }
        end = extent.offset + extent.len;
        if extent.hole {
            copier.progress.inc(extent.len);
        }
    }
    // Data beyond the known extents: appended since, or of a file that reports no size.
    let rest = Extent {
        offset: end,
        len: u64::MAX - end,
        hole: false,
    };
    let more = copy_extent(copier, tree, &original, &copy, rest)?;
    if more == 0 {
        truncate(copier, &*copy, end)?;
    }
    Ok(entry.node)
}

fn create(
    copier: &Copier,
    from: &Entry,
    to: &dyn Node,
    name: Name<'_>,
) -> Result<(Entry, Arc<dyn File>)> {
    let flags = OpenFlags::WRITE | OpenFlags::TRUNC;
    // Set-id and sticky bits are set last, if at all.
    let mode = Mode::without_umask(from.attr.mode & 0o777);
    copier.target.with(|cx| {
        if let Ok(there) = to.lookup(cx, name)
            && same_file(&there, from)
        {
            return Err(Errno::EINVAL);
        }
        match to.create(cx, name, flags, mode) {
            // Replace what cannot be written; do not follow links.
            Err(Errno::ELOOP | Errno::ENXIO | Errno::ETXTBSY) => {
                to.unlink(cx, name, false)?;
                to.create(cx, name, flags, mode)
            }
            done => done,
        }
    })
}

/// Returns whether both are one file, according to their attributes: creating the copy would
/// truncate the original.
fn same_file(there: &Entry, from: &Entry) -> bool {
    let (one, other) = (&there.attr, &from.attr);
    (one.id, one.generation, one.size, one.ctime, one.mtime)
        == (
            other.id,
            other.generation,
            other.size,
            other.ctime,
            other.mtime,
        )
        && one.size > 0
}

/// Returns the extents of data and holes, or a single extent if they are not known.
fn extents(tree: &Tree, file: &dyn File, size: u64) -> Result<Vec<Extent>> {
    let whole = || Extent {
        offset: 0,
        len: size,
        hole: false,
    };
    if size == 0 {
        return Ok(Vec::new());
    }
    if tree.fs.capabilities().holes == Support::None {
        return Ok(vec![whole()]);
    }
    let mut extents = Vec::new();
    let done = tree.with(|cx| {
        file.extents(cx, 0, size, &mut |extent| {
            extents.push(extent);
            true
        })
    });
    match done {
        Err(Errno::EOPNOTSUPP | Errno::EINVAL) => Ok(vec![whole()]),
        done => done.map(|()| extents),
    }
}

/// Copies an extent, or the part up to the end of the file, and returns the number of bytes.
fn copy_extent(
    copier: &Copier,
    tree: &Tree,
    from: &Arc<dyn File>,
    to: &Arc<dyn File>,
    extent: Extent,
) -> Result<u64> {
    let done = copy_within(copier, from, to, extent)?;
    if done == extent.len {
        return Ok(done);
    }
    let rest = Extent {
        offset: extent.offset + done,
        len: extent.len - done,
        hole: false,
    };
    // Two threads pay off only if one would wait for the other.
    let more = if rest.len > CHUNK_SIZE as u64 && rest.len < u64::MAX / 2 {
        copy_overlapped(copier, tree, &**from, &**to, rest)?
    } else {
        copy_alternating(copier, tree, &**from, &**to, rest)?
    };
    Ok(done + more)
}

/// Copies within the file system, if both files are of one that supports it. Returns the number of
/// bytes.
fn copy_within(
    copier: &Copier,
    from: &Arc<dyn File>,
    to: &Arc<dyn File>,
    extent: Extent,
) -> Result<u64> {
    let mut done = 0;
    while done < extent.len {
        let at = extent.offset + done;
        let len = (extent.len - done).min(1 << 30);
        let copied = copier
            .target
            .with(|cx| from.copy(cx, at, &**to, at, len, CopyMode::Any));
        match copied {
            Ok(0) => break,
            Ok(copied) => {
                copier.progress.inc(copied);
                done += copied;
            }
            // Reading and writing returns the error that matters.
            Err(_) => break,
        }
    }
    Ok(done)
}

fn copy_alternating(
    copier: &Copier,
    tree: &Tree,
    from: &dyn File,
    to: &dyn File,
    extent: Extent,
) -> Result<u64> {
    let size = usize::try_from(extent.len).unwrap_or(usize::MAX);
    let mut buffer = vec![0; size.min(256 << 10)];
    let mut done = 0;
    while done < extent.len {
        let at = extent.offset + done;
        let most = buffer.len().min((extent.len - done) as usize);
        let got = read(tree, from, at, &mut buffer[..most])?;
        if got == 0 {
            break;
        }
        write(copier, to, at, &buffer[..got])?;
        done += got as u64;
    }
    Ok(done)
}

/// Reads and writes concurrently, in pieces of [`CHUNK_SIZE`].
fn copy_overlapped(
    copier: &Copier,
    tree: &Tree,
    from: &dyn File,
    to: &dyn File,
    extent: Extent,
) -> Result<u64> {
    std::thread::scope(|scope| {
        let (full, pieces) = sync_channel::<(u64, Vec<u8>)>(1);
        let (empty, free) = sync_channel(2);
        for _ in 0..2 {
            // The channel has room for both.
            let _ = empty.send(vec![0; CHUNK_SIZE]);
        }
        let reader = scope.spawn(move || {
            let mut done = 0;
            while done < extent.len {
                // The writer has failed and returns its error.
                let Ok(mut piece) = free.recv() else { break };
                piece.resize(CHUNK_SIZE.min((extent.len - done) as usize), 0);
                let at = extent.offset + done;
                let got = read(tree, from, at, &mut piece)?;
                if got == 0 {
                    break;
                }
                piece.truncate(got);
                done += got as u64;
                if full.send((at, piece)).is_err() {
                    break;
                }
            }
            Ok(done)
        });
        let mut written = Ok(());
        for (at, piece) in pieces {
            written = write(copier, to, at, &piece);
            if written.is_err() {
                break;
            }
            // Fails if the reader has finished.
            let _ = empty.send(piece);
        }
        drop(empty);
        let read = reader.join().unwrap_or(Err(Errno::EIO));
        written.and(read)
    })
}

fn read(tree: &Tree, from: &dyn File, at: u64, buffer: &mut [u8]) -> Result<usize> {
    let len = buffer.len();
    let mut sink = SliceSink::new(buffer);
    tree.with(|cx| from.read(cx, at, len, &mut sink))
}

fn write(copier: &Copier, to: &dyn File, mut at: u64, mut data: &[u8]) -> Result<()> {
    while !data.is_empty() {
        let mut payload = SlicePayload::new(data);
        let written = copier.target.with(|cx| to.write(cx, at, &mut payload))?;
        if written == 0 {
            return Err(Errno::EIO);
        }
        copier.progress.inc(written as u64);
        at += written as u64;
        data = &data[written..];
    }
    Ok(())
}

/// Sets the size of the copy: a hole at the end is not written.
fn truncate(copier: &Copier, copy: &dyn File, size: u64) -> Result<()> {
    let want = vfs::AttrMask::SIZE | vfs::AttrMask::BASIC;
    copier.target.with(|cx| {
        if copy.attr(cx, want)?.size == size {
            return Ok(());
        }
        let size = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        copy.setattr(cx, &size).map(drop)
    })
}
