//! Where an image goes: a file beside its place, which it takes when it is whole.

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

/// What is written at a time: what is read into it is in the processor's own cache still.
const BUFFER: usize = 128 << 10;

/// From this size on, what is in a file is left to the kernel to copy: for less, writing out what is in the buffer first costs more.
const LARGE: usize = 64 << 10;

/// An image under construction. Dropped before it is finished, it leaves nothing behind.
pub struct Output {
    file: NamedTempFile,
    /// What comes behind what is in `file`, in the first [`Output::filled`] bytes.
    buffer: Vec<u8>,
    filled: usize,
    written: u64,
    to: Option<PathBuf>,
    /// Hashes what is appended, if that is wanted.
    hashes: Option<Builder>,
    /// The kernel copies from file to file, as far as is known.
    kernel_copies: bool,
}

impl Output {
    /// An image to become `path`, in the place of what is there.
    pub fn to_file(path: &Path) -> io::Result<Output> {
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .prefix(".barge-pack-")
            // As any file is made: the umask takes away what it does.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(dir)?;
        Ok(Output::of(file, Some(path.to_owned())))
    }

    /// An image to be copied to standard output.
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

    /// The image gets hashes ([`Output::seal`]): they are made as it is written.
    pub fn with_hashes(self) -> Output {
        Output {
            hashes: Some(Builder::default()),
            ..self
        }
    }

    /// Whether all that is appended has to be seen.
    pub(crate) fn has_hashes(&self) -> bool {
        self.hashes.is_some()
    }

    /// Where the next bytes go.
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

    /// Appends a part of a file, and says where that was; [`Output::hashes`] are the only reason for it to come through memory if it lies in a file.
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

    /// Appends up to `len` bytes of `fd` from `at`, and says how many there were.
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

    /// As much of it as the kernel copies: why not more, reading tells.
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

    /// Overwrites what has been appended before.
    pub(crate) fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.written()?.write_all_at(bytes, at)
    }

    /// Where there is room for files that are needed meanwhile.
    pub(crate) fn directory(&self) -> &Path {
        let dir = self.file.path().parent();
        dir.unwrap_or(Path::new("."))
    }

    /// A file without a name, on the same file system as the image.
    pub fn scratch(&self) -> io::Result<File> {
        tempfile::tempfile_in(self.directory())
    }

    /// The image is written: its hashes come behind it if it is to have some, with what is to be read ahead (`hot`) and signed with
    /// `key`. Only its first chunk may have been overwritten.
    pub fn seal(&mut self, hot: &[Hot], key: Option<&SecretKey>) -> io::Result<()> {
        let Some(hashes) = self.hashes.take() else {
            return Ok(());
        };
        let mut first = vec![0; hashes.first_chunk()];
        self.written()?.read_exact_at(&mut first, 0)?;
        let (behind, mut header) = hashes
            .finish(&first, hot)
            .ok_or_else(|| io::Error::other("an image too large for hashes"))?;
        if let Some(key) = key {
            header.sign(key);
        }
        self.append(&behind)?;
        self.overwrite(0, &header.encode())
    }

    /// The file, with all that has been written until now.
    pub fn written(&mut self) -> io::Result<&File> {
        self.flush()?;
        Ok(self.file.as_file())
    }

    /// The image is whole: it takes its place, durably. Says how many bytes it has.
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

/// From where bytes were that were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// There were none, or zeros alone.
    Nowhere,
    /// A file of this host.
    File,
    /// Memory, in part at least: whoever put them there had to fetch or decode them.
    Memory,
}

/// A part of a file on its way into an image.
struct Part<'a> {
    output: &'a mut Output,
    /// How many bytes are missing.
    room: u64,
    from: Origin,
    /// Whether they could be written.
    failed: io::Result<()>,
}

impl Part<'_> {
    /// Counts bytes that were appended, or keeps the error.
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

    /// Whoever packs has time.
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
