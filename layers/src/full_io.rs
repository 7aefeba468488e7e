//! Complete reads and writes of ranges, for layers that transfer contents themselves.

use vfs::{Cx, Errno, File, Result, Sink};
use wire::payload::{SlicePayload, VecSink};

/// Reads `len` bytes of `file` from `offset` on, fewer only at the end of the file.
pub(crate) fn read_full(cx: &Cx<'_>, file: &dyn File, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = VecSink::new(len);
    while bytes.room() > 0 {
        let (at, capacity) = (offset + bytes.filled().len() as u64, bytes.room());
        if file.read(cx, at, capacity, &mut bytes)? == 0 {
            break;
        }
    }
    Ok(bytes.into_bytes())
}

/// Writes all of `bytes`. Returns `EIO` if a write accepts no bytes.
pub(crate) fn write_full(cx: &Cx<'_>, file: &dyn File, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let mut rest = SlicePayload::new(&bytes[done..]);
        match file.write(cx, offset + done as u64, &mut rest)? {
            0 => return Err(Errno::EIO),
            written => done += written,
        }
    }
    Ok(())
}
