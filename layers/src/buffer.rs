//! Ends of reads and writes in memory, for layers that move contents themselves.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use vfs::{Errno, Fill, Patience, Payload, Result, Sink};

/// Takes up to so many bytes.
pub(crate) struct Buffer {
    pub(crate) bytes: Vec<u8>,
    most: usize,
}

impl Buffer {
    /// Room for `most` bytes, which are not allocated before they come.
    pub(crate) fn new(most: usize) -> Buffer {
        Buffer {
            bytes: Vec::new(),
            most,
        }
    }
}

impl Sink for Buffer {
    fn room(&self) -> usize {
        self.most - self.bytes.len()
    }

    fn bytes(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        self.bytes.resize(self.bytes.len() + len, 0);
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64, len: usize, _: Patience) -> Result<usize> {
        let file = fs::File::from(fd.try_clone_to_owned()?);
        let begin = self.bytes.len();
        self.zeros(len);
        let mut done = 0;
        while done < len {
            match file.read_at(&mut self.bytes[begin + done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.bytes.truncate(begin);
                    return Err(error.into());
                }
            }
        }
        self.bytes.truncate(begin + done);
        Ok(done)
    }

    fn lend(&mut self, _: usize, _: Fill<'_>) -> Option<Result<usize>> {
        None
    }
}

/// Gives bytes.
pub(crate) struct Rest<'a>(pub(crate) &'a [u8]);

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

/// Writes all of `bytes`; `EIO` if the file takes none.
pub(crate) fn write_all(
    cx: &vfs::Cx<'_>,
    to: &dyn vfs::File,
    mut offset: u64,
    mut bytes: &[u8],
) -> Result<()> {
    while !bytes.is_empty() {
        let written = to.write(cx, offset, &mut Rest(bytes))?;
        if written == 0 {
            return Err(Errno::EIO);
        }
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}
