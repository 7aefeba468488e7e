//! The output image: written to a temporary file that is renamed when complete.

use std::fs::{File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::copy_file_range;
use rustix::io::{Errno as Raw, pread};
use sidecar::{Builder, Hot, SecretKey};
use tempfile::NamedTempFile;
use vfs::{Errno, Fill, Patience, Sink};

use crate::Contents;
use crate::contents::ended;

/// Size in bytes of the write buffer: small enough that data read into it stay in the processor's
/// cache.
const BUFFER: usize = 128 << 10;

/// The size in bytes from which file data are copied by the kernel: for less, flushing the buffer
/// first costs more.
const LARGE: usize = 64 << 10;

/// An image under construction. If it is dropped before it is finished, no file remains.
pub struct Output {
    file: NamedTempFile,
    /// Bytes to write after those in `file`: the first [`Output::filled`] are valid.
    buffer: Vec<u8>,
    filled: usize,
    written: u64,
    to: Option<PathBuf>,
    /// Hashes appended bytes, if requested.
    hashes: Option<Builder>,
    /// Whether the kernel copies between these files, as far as is known.
    kernel_copies: bool,
}

impl Output {
    /// Creates an image that replaces `path` when finished.
    pub fn to_file(path: &Path) -> io::Result<Output> {
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .prefix(".barge-pack-")
            // The usual mode of new files, before the umask.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(dir)?;
        Ok(Output::of(file, Some(path.to_owned())))
    }

    /// Creates an image that is copied to standard output when finished.
    pub fn to_stdout() -> io::Result<Output> {
        Ok(Output::of(NamedTempFile::new()?, None))
    }

    fn of(file: NamedTempFile, to: Option<PathBuf>) -> Output {
        Output {
            file,
            buffer: vec![0; BUFFER],
            filled: 0,
            written: 0,
            to,
            hashes: None,
            kernel_copies: true,
        }
    }

    /// Enables hashes ([`Output::seal`]), which are computed as the image is written.
    pub fn with_hashes(self) -> Output {
        Output {
            hashes: Some(Builder::default()),
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
        if self.filled + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() >= BUFFER {
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
        let mut part = Part {
            room: range.end - range.start,
            output: self,
            from: Origin::Nowhere,
            failed: Ok(()),
        };
        let copied = contents.copy(range, &mut part);
        part.failed?;
        copied?;
        match part.room {
            0 => Ok(part.from),
            _ => Err(ended()),
        }
    }

    /// Appends up to `len` bytes of `fd` from `at`, and returns how many there were.
    fn take(&mut self, fd: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<usize> {
        let by_kernel = len >= LARGE && self.kernel_copies && !self.has_hashes();
        let mut taken = if by_kernel {
            self.flush()?;
            self.take_by_kernel(fd, at, len)
        } else {
            0
        };
        while taken < len {
            if self.filled == BUFFER {
                self.flush()?;
            }
            let room = &mut self.buffer[self.filled..];
            let most = room.len().min(len - taken);
            let read = match pread(fd, &mut room[..most], at + taken as u64) {
                Ok(0) => break,
                Ok(read) => read,
                Err(Raw::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(hashes) = &mut self.hashes {
                hashes.append(&room[..read]);
            }
            self.filled += read;
            self.written += read as u64;
            taken += read;
        }
        Ok(taken)
    }

    /// Copies as many bytes as possible with copy_file_range(2); errors are reported by the reads
    /// that follow.
    fn take_by_kernel(&mut self, fd: BorrowedFd<'_>, at: u64, len: usize) -> usize {
        let mut taken = 0;
        while taken < len {
            let mut from = at + taken as u64;
            match copy_file_range(
                fd,
                Some(&mut from),
                self.file.as_file().as_fd(),
                None,
                len - taken,
            ) {
                Ok(0) => break,
                Ok(copied) => taken += copied,
                Err(Raw::INTR) => {}
                Err(_) => {
                    self.kernel_copies = false;
                    break;
                }
            }
        }
        self.written += taken as u64;
        taken
    }

    fn flush(&mut self) -> io::Result<()> {
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
        self.written()?.write_all_at(bytes, at)
    }

    /// Returns a directory for temporary files.
    pub(crate) fn directory(&self) -> &Path {
        let dir = self.file.path().parent();
        dir.unwrap_or(Path::new("."))
    }

    /// Returns an unnamed file on the same file system as the image.
    pub fn scratch(&self) -> io::Result<File> {
        tempfile::tempfile_in(self.directory())
    }

    /// Completes the image: appends its hashes if enabled, with the read-ahead list `hot` and a
    /// signature by `key`. Only the first chunk may have been overwritten since it was appended.
    pub fn seal(&mut self, hot: &[Hot], key: Option<&SecretKey>) -> io::Result<()> {
        let Some(hashes) = self.hashes.take() else {
            return Ok(());
        };
        let mut first = vec![0; hashes.first_chunk()];
        self.written()?.read_exact_at(&mut first, 0)?;
        let (behind, mut header) = hashes
            .finish(&first, hot)
            .ok_or_else(|| io::Error::other("the image is too large for hashes"))?;
        if let Some(key) = key {
            header.sign(key);
        }
        self.append(&behind)?;
        self.overwrite(0, &header.encode())
    }

    /// Returns the file, with all bytes appended so far.
    pub fn written(&mut self) -> io::Result<&File> {
        self.flush()?;
        Ok(self.file.as_file())
    }

    /// Finishes the image: syncs it and renames it to its path. Returns its size in bytes.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        let (bytes, mut file) = (self.written, self.file);
        match self.to {
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
    Nowhere,
    /// A local file.
    File,
    /// Memory, at least in part: the source had to fetch or decode them.
    Memory,
}

/// A range of a file being appended to an image.
struct Part<'a> {
    output: &'a mut Output,
    /// Number of missing bytes.
    room: u64,
    from: Origin,
    /// The result of the writes so far.
    failed: io::Result<()>,
}

impl Part<'_> {
    /// Counts appended bytes, and keeps the first error.
    fn appended(&mut self, len: usize, done: io::Result<()>) {
        self.room -= len as u64;
        if self.failed.is_ok() {
            self.failed = done;
        }
    }
}

impl Sink for Part<'_> {
    fn room(&self) -> usize {
        usize::try_from(self.room).unwrap_or(usize::MAX)
    }

    fn bytes(&mut self, data: &[u8]) {
        self.from = Origin::Memory;
        let done = self.output.append(data);
        self.appended(data.len(), done);
    }

    fn zeros(&mut self, len: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (0..len).step_by(ZEROS.len()) {
            let zeros = &ZEROS[..ZEROS.len().min(len - at)];
            let done = self.output.append(zeros);
            self.appended(zeros.len(), done);
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
        if self.from == Origin::Nowhere {
            self.from = Origin::File;
        }
        let taken = self.output.take(fd, offset, len.min(self.room()));
        let taken = taken.map_err(Errno::from)?;
        self.room -= taken as u64;
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
    use crate::contents::{Bytes, Parts};

    #[test]
    fn parts_of_a_file_arrive_whoever_copies() {
        let stored: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&stored, 0).expect("written");
        let parts = |parts: &[_]| Parts {
            file: Arc::new(file.try_clone().expect("the same")),
            len: 1_500_000,
            parts: parts.to_vec(),
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
            output.kernel_copies = kernel;
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
        let mut output = Output::to_file(&dir.path().join("image")).expect("begun");
        let short = parts(&[(0, 1_000_000, 1_000_000)]);
        let error = output.copy(&short, 0..1_000_000).expect_err("too short");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
