//! The methods of Unix over those of Windows, which also move the position of the file: it is put
//! back afterwards. Other threads may use these methods at the same time, but not the position.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::windows::fs::FileExt as _;

/// The methods of the trait of this name of Unix.
pub trait FileExt {
    /// Reads at an offset, and returns the number of bytes: 0 at end of file only.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at an offset, and returns the number of bytes.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;

    /// Fills `buf` from an offset. Returns `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.read_at(buf, offset) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buf = &mut buf[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `buf` at an offset.
    fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.write_at(buf, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    buf = &buf[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl FileExt for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        at_kept_position(self, || self.seek_read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        at_kept_position(self, || self.seek_write(buf, offset))
    }
}

fn at_kept_position(
    mut file: &File,
    transfer: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let position = file.stream_position()?;
    let done = transfer();
    file.seek(SeekFrom::Start(position))?;
    done
}
