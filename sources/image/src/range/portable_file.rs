//! Local files, with the standard library: they lend no descriptor.

use std::fs::File;
use std::io;
use std::path::Path;

use sys::positioned::FileExt;
use vfs::Patience;

use super::{FileGuard, LOCAL_READAHEAD, Piece, RangeSource};

/// A local file.
#[derive(Debug)]
pub struct FileRanges {
    file: File,
    len: u64,
}

impl FileRanges {
    /// Opens a file or a block device.
    pub fn open(path: &Path) -> io::Result<FileRanges> {
        FileRanges::new(File::open(path)?)
    }

    /// Returns the bytes of an open file.
    pub fn new(mut file: File) -> io::Result<FileRanges> {
        use std::io::{Seek, SeekFrom};
        let len = file.seek(SeekFrom::End(0))?;
        Ok(FileRanges { file, len })
    }
}

impl RangeSource for FileRanges {
    fn len(&self) -> u64 {
        self.len
    }

    /// Returns the same patience as for any metadata of a local file system.
    fn patience(&self, _at: u64, _len: usize) -> Patience {
        Patience::Brief
    }

    fn readahead_len(&self) -> u64 {
        LOCAL_READAHEAD
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let mut pieces = pieces.iter_mut();
        pieces.try_for_each(|piece| self.file.read_exact_at(piece.buffer, piece.offset))
    }

    fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
        None
    }
}
