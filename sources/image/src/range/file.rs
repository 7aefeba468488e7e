//! Local files.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::preadv;
use vfs::Patience;

use super::{FileGuard, LOCAL_READAHEAD, Piece, RangeSource};

/// The maximum number of buffers in one system call (`IOV_MAX`, `limits.h`).
const IOV_MAX: usize = 1024;

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
        let mut rest = pieces;
        while let Some(first) = rest.first() {
            let at = first.offset;
            let mut end = at;
            let adjoining = rest
                .iter()
                .take(IOV_MAX)
                .take_while(|piece| {
                    let adjoins = piece.offset == end;
                    end += piece.buffer.len() as u64;
                    adjoins
                })
                .count();
            let (now, later) = rest.split_at_mut(adjoining);
            read_all(&self.file, at, now)?;
            rest = later;
        }
        Ok(())
    }

    fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
        Some(FileGuard {
            file: self.file.as_fd(),
            _eviction_guard: None,
        })
    }
}

/// Fills `pieces`, which are contiguous from `at`.
fn read_all(file: &File, mut at: u64, pieces: &mut [Piece<'_>]) -> io::Result<()> {
    let mut slices: Vec<_> = pieces
        .iter_mut()
        .map(|piece| IoSliceMut::new(piece.buffer))
        .collect();
    let mut slices = &mut slices[..];
    IoSliceMut::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match preadv(file, slices, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                at += read as u64;
                IoSliceMut::advance_slices(&mut slices, read);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
