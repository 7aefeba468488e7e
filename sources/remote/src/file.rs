//! What open files are alike in, whatever the protocol.

use vfs::copies::copied;
use vfs::{Errno, Kind, OpenFlags, Payload, Result, Seek};

/// How many messages of one read or write are in flight at a time: enough to keep both ends and what is
/// between them busy.
pub(crate) const AT_A_TIME: usize = 8;

/// Whether a node of this kind can be opened so at all.
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

/// Writes `data` by `write`, which is given a piece and how many bytes are before it, and says how many
/// bytes of the piece's beginning were taken, and why not more. Pieces that together are no more than
/// `most` bytes are one.
pub(crate) fn in_pieces(
    data: &mut dyn Payload,
    most: usize,
    mut write: impl FnMut(usize, &[u8]) -> (usize, Result<()>),
) -> Result<usize> {
    let whole = data.len();
    let (mut written, mut done) = (0, Ok(()));
    let mut together = Vec::new();
    // What stops it is in `done`, too.
    let _ = data.bytes(&mut |piece| {
        if whole <= most && piece.len() < whole {
            together.reserve_exact(whole - together.len());
            copied(piece.len());
            together.extend_from_slice(piece);
            return Ok(());
        }
        let (count, result) = write(written, piece);
        written += count;
        done = result;
        match done {
            // The rest would leave a gap.
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

/// Data or a hole in a file of `size` bytes that has no holes.
pub(crate) fn seek_solid(size: u64, offset: u64, what: Seek) -> Result<u64> {
    match what {
        _ if offset >= size => Err(Errno::ENXIO),
        Seek::Data => Ok(offset),
        Seek::Hole => Ok(size),
    }
}
