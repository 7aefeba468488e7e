//! Contents from one file to another, through memory: the two are of different trees.

use vfs::{Cx, File, Result, SetAttr};

use crate::buffer::{Buffer, write_all};

/// Bytes at a time.
const PART: usize = 1 << 20;

/// Copies the first `len` bytes of `from` to the empty file `to`; holes stay holes.
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

/// Copies `len` bytes, and says how many there were.
pub(super) fn range(
    cx: &Cx<'_>,
    from: &dyn File,
    offset: u64,
    to: &dyn File,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    let mut buffer = Buffer::new(PART);
    let mut done = 0;
    while done < len {
        cx.call.check()?;
        buffer.bytes.clear();
        let part = (len - done).min(PART as u64) as usize;
        if from.read(cx, offset + done, part, &mut buffer)? == 0 {
            break;
        }
        write_all(cx, to, to_offset + done, &buffer.bytes)?;
        done += buffer.bytes.len() as u64;
    }
    Ok(done)
}
