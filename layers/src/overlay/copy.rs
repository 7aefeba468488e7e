//! Contents from one file to another, through memory: the two are of different trees.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use vfs::{Cx, Errno, File, Fill, Patience, Payload, Result, SetAttr, Sink};

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
    let mut buffer = Buffer(Vec::new());
    let mut done = 0;
    while done < len {
        cx.call.check()?;
        buffer.0.clear();
        let part = (len - done).min(PART as u64) as usize;
        if from.read(cx, offset + done, part, &mut buffer)? == 0 {
            break;
        }
        let mut rest = &buffer.0[..];
        while !rest.is_empty() {
            let written = to.write(cx, to_offset + done, &mut Rest(rest))?;
            if written == 0 {
                return Err(Errno::EIO);
            }
            rest = rest.get(written..).unwrap_or_default();
            done += written as u64;
        }
    }
    Ok(done)
}

struct Buffer(Vec<u8>);

impl Sink for Buffer {
    fn room(&self) -> usize {
        PART - self.0.len()
    }

    fn bytes(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        self.0.resize(self.0.len() + len, 0);
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64, len: usize, _: Patience) -> Result<usize> {
        let file = fs::File::from(fd.try_clone_to_owned()?);
        let begin = self.0.len();
        self.zeros(len);
        let mut done = 0;
        while done < len {
            match file.read_at(&mut self.0[begin + done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.0.truncate(begin + done);
        Ok(done)
    }

    fn lend(&mut self, _: usize, _: Fill<'_>) -> Option<Result<usize>> {
        None
    }
}

struct Rest<'a>(&'a [u8]);

impl Payload for Rest<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        take(self.0)?;
        self.0 = &[];
        Ok(())
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<usize> {
        let file = fs::File::from(fd.try_clone_to_owned()?);
        file.write_all_at(self.0, offset)?;
        Ok(std::mem::take(&mut self.0).len())
    }
}
