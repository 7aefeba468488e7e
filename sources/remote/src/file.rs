//! Operations on open files that all protocols share.

use vfs::copies::count_copied;
use vfs::{Errno, Kind, OpenFlags, Payload, Result, Whence};

/// The most messages of one read or write in flight: enough to keep client, server and network
/// busy.
pub(crate) const MAX_IN_FLIGHT: usize = 8;

/// Returns an error if a node of this kind cannot be opened with these flags.
pub(crate) fn may_open(kind: Kind, flags: OpenFlags) -> Result<()> {
    let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
    match kind {
        Kind::File => Ok(()),
        Kind::Directory if writes => Err(Errno::EISDIR),
        Kind::Directory if flags.contains(OpenFlags::EXEC) => Err(Errno::EACCES),
        Kind::Directory => Ok(()),
        Kind::Symlink => Err(Errno::ELOOP),
        _ => Err(Errno::ENXIO),
    }
}

/// Writes `data` with `write`, which takes the offset of a piece within `data` and the piece, and
/// returns the number of bytes written and the reason for a short write. Pieces of at most `most`
/// bytes in all are joined into one.
pub(crate) fn in_pieces(
    data: &mut dyn Payload,
    most: usize,
    mut write: impl FnMut(usize, &[u8]) -> (usize, Result<()>),
) -> Result<usize> {
    let whole = data.len();
    let (mut written, mut done) = (0, Ok(()));
    let mut together = Vec::new();
    // `done` holds the error that ends the iteration, too.
    let _ = data.bytes(&mut |piece| {
        if whole <= most && piece.len() < whole {
            together.reserve_exact(whole - together.len());
            count_copied(piece.len());
            together.extend_from_slice(piece);
            return Ok(());
        }
        let (count, result) = write(written, piece);
        written += count;
        done = result;
        match done {
            // Continuing would leave a gap.
            Ok(()) if count < piece.len() => Err(Errno::EIO),
            done => done,
        }
    });
    if !together.is_empty() {
        (written, done) = write(0, &together);
    }
    match done {
        Err(errno) if written == 0 => Err(errno),
        _ => Ok(written),
    }
}

/// Finds data or a hole in a file of `size` bytes without holes.
pub(crate) fn seek_without_holes(size: u64, offset: u64, what: Whence) -> Result<u64> {
    match what {
        _ if offset >= size => Err(Errno::ENXIO),
        Whence::Data => Ok(offset),
        Whence::Hole => Ok(size),
    }
}
