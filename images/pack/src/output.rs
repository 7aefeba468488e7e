//! Where an image goes: a file beside its place, which it takes when it is whole.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sidecar::{Builder, Hot, SecretKey};
use tempfile::NamedTempFile;

/// What is written at a time.
const BUFFER: usize = 1 << 20;

/// An image under construction. Dropped before it is finished, it leaves nothing behind.
pub struct Output {
    file: BufWriter<NamedTempFile>,
    written: u64,
    to: Option<PathBuf>,
    /// Hashes what is appended, if that is wanted.
    hashes: Option<Builder>,
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
            file: BufWriter::with_capacity(BUFFER, file),
            written: 0,
            to,
            hashes: None,
        }
    }

    /// The image gets hashes ([`Output::seal`]): they are made as it is written.
    pub fn with_hashes(self) -> Output {
        Output {
            hashes: Some(Builder::default()),
            ..self
        }
    }

    /// Where the next bytes go.
    pub(crate) fn position(&self) -> u64 {
        self.written
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        if let Some(hashes) = &mut self.hashes {
            hashes.append(bytes);
        }
        self.file.write_all(bytes)
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
        let dir = self.file.get_ref().path().parent();
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
        self.file.flush()?;
        Ok(self.file.get_ref().as_file())
    }

    /// The image is whole: it takes its place, durably. Says how many bytes it has.
    pub fn finish(self) -> io::Result<u64> {
        let bytes = self.written;
        let mut file = self.file.into_inner().map_err(|error| error.into_error())?;
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
