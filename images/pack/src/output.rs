//! The output image: written to a temporary file that is renamed when complete.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use sidecar::{Builder, Hash, ReadaheadRange, SecretKey};
use sys::file_io::{copy_range, pread_into};
use sys::positioned::FileExt;
use tempfile::NamedTempFile;
use vfs::fd::BorrowedFd;
use vfs::{Errno, Fill, Patience, Sink};

use crate::Contents;
use crate::contents::unexpected_end;
use crate::permissions;

/// Size in bytes of the write buffer: small enough that data read into it stay in the processor's
/// cache.
const BUFFER_SIZE: usize = 128 << 10;

/// The size in bytes from which file data are copied by the kernel: for less, flushing the buffer
/// first costs more.
const MIN_KERNEL_COPY: usize = 64 << 10;

/// An image under construction. If it is dropped before it is finished, no file remains.
pub struct Output {
    file: NamedTempFile,
    /// Bytes to write after those in `file`: the first [`Output::filled`] are valid.
    buffer: Vec<u8>,
    filled: usize,
    written: u64,
    /// Maximum size of the image in bytes.
    limit: u64,
    path: Option<PathBuf>,
    /// Hashes appended bytes, if requested.
    hashes: Option<Builder>,
    /// Whether the kernel copies between these files, as far as is known.
    can_kernel_copy: bool,
}

impl Output {
    /// Creates an image that replaces `path` when finished.
    pub fn to_file(path: &Path) -> io::Result<Output> {
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".barge-pack-");
        permissions::of_new_files(&mut builder);
        let file = builder.tempfile_in(dir)?;
        Ok(Output::new(file, Some(path.to_owned())))
    }

    /// Creates an image that is copied to standard output when finished.
    pub fn to_stdout() -> io::Result<Output> {
        Ok(Output::new(NamedTempFile::new()?, None))
    }

    fn new(file: NamedTempFile, to: Option<PathBuf>) -> Output {
        Output {
            file,
            buffer: vec![0; BUFFER_SIZE],
            filled: 0,
            written: 0,
            limit: u64::MAX,
            path: to,
            hashes: None,
            can_kernel_copy: true,
        }
    }

    /// Enables hashes ([`Output::write_sidecar`]), which are computed as the image is written.
    pub fn with_hashes(self) -> Output {
        Output {
            hashes: Some(Builder::default()),
            ..self
        }
    }

    /// Limits the image to `bytes`: writing more is an error.
    pub fn with_limit(self, bytes: u64) -> Output {
        Output {
            limit: bytes,
            ..self
        }
    }

    /// Returns whether hashes are enabled, so that all appended bytes have to be read.
    pub(crate) fn has_hashes(&self) -> bool {
        self.hashes.is_some()
    }

    /// Returns the offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.written
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(hashes) = &mut self.hashes {
            hashes.append(bytes);
        }
        self.written += bytes.len() as u64;
        if self.filled + bytes.len() > BUFFER_SIZE {
            self.flush()?;
        }
        if bytes.len() >= BUFFER_SIZE {
            return self.file.write_all(bytes);
        }
        self.buffer[self.filled..][..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        Ok(())
    }

    /// Appends a range of a file, and returns its origin. Data in local files are copied by the
    /// kernel, unless hashes require them to be read ([`Output::hashes`]).
    pub(crate) fn copy(
        &mut self,
        contents: &dyn Contents,
        range: Range<u64>,
    ) -> io::Result<Origin> {
        let mut part = CopySink {
            remaining: range.end - range.start,
            output: self,
            origin: Origin::Zeros,
            result: Ok(()),
        };
        let copied = contents.copy(range, &mut part);
        part.result?;
        copied?;
        match part.remaining {
            0 => Ok(part.origin),
            _ => Err(unexpected_end()),
        }
    }

    /// Appends up to `len` bytes of `fd` from `at`, and returns how many there were.
    fn append_file(&mut self, fd: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<usize> {
        let by_kernel = len >= MIN_KERNEL_COPY && self.can_kernel_copy && !self.has_hashes();
        let mut taken = if by_kernel {
            self.flush()?;
            self.kernel_copy(fd, at, len)
        } else {
            0
        };
        while taken < len {
            if self.filled == BUFFER_SIZE {
                self.flush()?;
            }
            let spare = &mut self.buffer[self.filled..];
            let most = spare.len().min(len - taken);
            let read = pread_into(fd, at + taken as u64, &mut spare[..most], Patience::Full)?;
            if read == 0 {
                break;
            }
            if let Some(hashes) = &mut self.hashes {
                hashes.append(&spare[..read]);
            }
            self.filled += read;
            self.written += read as u64;
            taken += read;
        }
        Ok(taken)
    }

    /// Copies as many bytes as possible with copy_file_range(2); errors are reported by the reads
    /// that follow.
    fn kernel_copy(&mut self, fd: BorrowedFd<'_>, at: u64, len: usize) -> usize {
        let mut taken = 0;
        while taken < len {
            match copy_range(fd, at + taken as u64, self.file.as_file(), len - taken) {
                Ok(0) => break,
                Ok(copied) => taken += copied,
                Err(_) => {
                    self.can_kernel_copy = false;
                    break;
                }
            }
        }
        self.written += taken as u64;
        taken
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.written > self.limit {
            let line = format!(
                "expected an image of at most {} bytes, got more",
                self.limit
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, line));
        }
        let filled = std::mem::take(&mut self.filled);
        self.file.write_all(&self.buffer[..filled])
    }

    /// Appends zeros up to a multiple of `unit`.
    pub(crate) fn pad(&mut self, unit: u64) -> io::Result<()> {
        let zeros = self.written.next_multiple_of(unit) - self.written;
        self.append(&vec![0; zeros as usize])
    }

    /// Overwrites bytes appended before.
    pub(crate) fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.flushed_file()?.write_all_at(bytes, at)
    }

    /// Returns a directory for temporary files.
    pub(crate) fn temp_dir(&self) -> &Path {
        let dir = self.file.path().parent();
        dir.unwrap_or(Path::new("."))
    }

    /// Returns an unnamed file on the same file system as the image.
    pub fn temp_file(&self) -> io::Result<File> {
        tempfile::tempfile_in(self.temp_dir())
    }

    /// Completes the image: appends its hashes if enabled, with the list `readahead` and a
    /// signature by `key`. Only the first chunk may have been overwritten since it was appended.
    /// Returns the root of the hashes, if there are any.
    pub fn write_sidecar(
        &mut self,
        readahead: &[ReadaheadRange],
        key: Option<&SecretKey>,
    ) -> io::Result<Option<Hash>> {
        let Some(hashes) = self.hashes.take() else {
            return Ok(None);
        };
        let mut first = vec![0; hashes.first_chunk()];
        self.flushed_file()?.read_exact_at(&mut first, 0)?;
        let (behind, mut header) = hashes
            .finish(&first, readahead)
            .ok_or_else(|| io::Error::other("the image is too large for hashes"))?;
        if let Some(key) = key {
            header.sign(key);
        }
        self.append(&behind)?;
        self.overwrite(0, &header.encode())?;
        Ok(Some(*header.root()))
    }

    /// Returns the file, with all bytes appended so far.
    pub fn flushed_file(&mut self) -> io::Result<&File> {
        self.flush()?;
        Ok(self.file.as_file())
    }

    /// Finishes the image: syncs it and renames it to its path. Returns its size in bytes.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        let (bytes, mut file) = (self.written, self.file);
        match self.path {
            Some(path) => {
                file.as_file().sync_all()?;
                file.persist(path).map_err(|error| error.error)?;
            }
            None => {
                file.seek(SeekFrom::Start(0))?;
                let mut stdout = io::stdout().lock();
                io::copy(&mut file, &mut stdout)?;
                stdout.flush()?;
            }
        }
        Ok(bytes)
    }
}

/// The origin of copied bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// None, or only zeros.
    Zeros,
    /// A local file.
    File,
    /// Memory, at least in part: the source had to fetch or decode them.
    Memory,
}

/// A range of a file being appended to an image.
struct CopySink<'a> {
    output: &'a mut Output,
    /// Number of missing bytes.
    remaining: u64,
    origin: Origin,
    /// The result of the writes so far.
    result: io::Result<()>,
}

impl CopySink<'_> {
    /// Counts appended bytes, and keeps the first error.
    fn record(&mut self, len: usize, done: io::Result<()>) {
        self.remaining -= len as u64;
        if self.result.is_ok() {
            self.result = done;
        }
    }
}

impl Sink for CopySink<'_> {
    fn room(&self) -> usize {
        usize::try_from(self.remaining).unwrap_or(usize::MAX)
    }

    fn bytes(&mut self, data: &[u8]) {
        self.origin = Origin::Memory;
        let done = self.output.append(data);
        self.record(data.len(), done);
    }

    fn zeros(&mut self, len: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (0..len).step_by(ZEROS.len()) {
            let zeros = &ZEROS[..ZEROS.len().min(len - at)];
            let done = self.output.append(zeros);
            self.record(zeros.len(), done);
        }
    }

    /// Ignores the patience: packing may block.
    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        _: Patience,
    ) -> vfs::Result<usize> {
        if self.origin == Origin::Zeros {
            self.origin = Origin::File;
        }
        let taken = self.output.append_file(fd, offset, len.min(self.room()));
        let taken = taken.map_err(Errno::from)?;
        self.remaining -= taken as u64;
        Ok(taken)
    }

    fn lend(&mut self, _len: usize, _fill: Fill<'_>) -> Option<vfs::Result<usize>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::contents::{Bytes, FileRanges};

    #[test]
    fn parts_of_a_file_arrive_whoever_copies() {
        let stored: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&stored, 0).expect("written");
        let parts = |parts: &[_]| FileRanges {
            file: Arc::new(file.try_clone().expect("the same")),
            len: 1_500_000,
            ranges: parts.to_vec(),
        };
        let mut want = b"in front".to_vec();
        want.resize(8 + 1_500_000, 0);
        want[8 + 5..][..1_200_000].copy_from_slice(&stored[7..][..1_200_000]);
        want[8 + 1_300_000..][..1000].copy_from_slice(&stored[..1000]);
        want.extend(b"behind");
        let dir = tempfile::tempdir().expect("a directory");
        for (hashes, kernel) in [(false, true), (false, false), (true, true)] {
            let path = dir.path().join("image");
            let mut output = Output::to_file(&path).expect("begun");
            output.can_kernel_copy = kernel;
            if hashes {
                output = output.with_hashes();
            }
            let memory = output.copy(&Bytes(b"in front".to_vec()), 0..8);
            assert_eq!(memory.expect("copied"), Origin::Memory);
            let sound = parts(&[(5, 7, 1_200_000), (1_300_000, 0, 1000)]);
            for range in [0..100, 100..1_250_000, 1_250_000..1_500_000] {
                let origin = output.copy(&sound, range).expect("copied");
                assert_eq!(origin, Origin::File);
            }
            output.append(b"behind").expect("appended");
            assert_eq!(output.position(), want.len() as u64);
            output.finish().expect("finished");
            assert!(
                std::fs::read(&path).expect("read") == want,
                "{hashes}, {kernel}"
            );
        }
        let output = Output::to_file(&dir.path().join("image")).expect("begun");
        let mut output = output.with_limit(1000);
        output.append(&[0; 1000]).expect("within");
        output.flush().expect("within");
        output.append(&[0]).expect("buffered");
        let error = output.finish().expect_err("beyond");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let mut output = Output::to_file(&dir.path().join("image")).expect("begun");
        let short = parts(&[(0, 1_000_000, 1_000_000)]);
        let error = output.copy(&short, 0..1_000_000).expect_err("too short");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
