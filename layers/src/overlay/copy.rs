//! Copies of contents between files of different trees, through memory.

use vfs::{Cx, File, Result, SetAttr};
use wire::payload::SliceSink;

use crate::full_io;

/// Bytes per read.
const BUFFER_SIZE: usize = 1 << 20;

/// Copies the first `len` bytes of `from` to the empty file `to`, preserving holes.
pub(super) fn contents(cx: &Cx<'_>, from: &dyn File, to: &dyn File, len: u64) -> Result<()> {
    let mut stretches = Vec::new();
    from.extents(cx, 0, len, &mut |extent| {
        if !extent.hole {
            stretches.push(extent.offset..(extent.offset + extent.len).min(len));
        }
        true
    })?;
    for stretch in stretches {
        range(
            cx,
            from,
            stretch.start,
            to,
            stretch.start,
            stretch.end - stretch.start,
        )?;
    }
    let whole = SetAttr {
        size: Some(len),
        ..SetAttr::default()
    };
    to.setattr(cx, &whole).map(drop)
}

/// Copies up to `len` bytes, and returns the number copied.
pub(super) fn range(
    cx: &Cx<'_>,
    from: &dyn File,
    offset: u64,
    to: &dyn File,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    let mut buffer = vec![0; len.min(BUFFER_SIZE as u64) as usize];
    let mut done = 0;
    while done < len {
        cx.call.check()?;
        let part = (len - done).min(BUFFER_SIZE as u64) as usize;
        let mut sink = SliceSink::new(&mut buffer[..part]);
        if from.read(cx, offset + done, part, &mut sink)? == 0 {
            break;
        }
        full_io::write_full(cx, to, to_offset + done, sink.filled())?;
        done += sink.filled().len() as u64;
    }
    Ok(done)
}
