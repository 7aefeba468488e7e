//! `--record-trace`: writes the first accesses of clients to a source to a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use layers::{ReadTrace, stack};
use parking_lot::Mutex;
use vfs::FileSystem;

use crate::{Failure, private_file};

/// A trace that is being written.
pub(crate) struct TraceFile {
    path: PathBuf,
    /// The file, or the first error, which ends the recording.
    file: Mutex<io::Result<BufWriter<File>>>,
}

impl TraceFile {
    /// Creates a trace in a file, or replaces an existing one.
    pub(crate) fn create(path: &Path) -> Result<Arc<TraceFile>, Failure> {
        TraceFile::new(path, private_file::create(path))
    }

    /// Writes a trace to `file`, the result of creating the file at `path`.
    pub(crate) fn new(path: &Path, file: io::Result<File>) -> Result<Arc<TraceFile>, Failure> {
        let file = file.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        Ok(Arc::new(TraceFile {
            path: path.to_owned(),
            file: Mutex::new(Ok(BufWriter::new(file))),
        }))
    }

    /// Returns `fs` with first accesses recorded ([`ReadTrace`]).
    pub(crate) fn wrap(self: &Arc<TraceFile>, fs: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        let file = self.clone();
        let access = move |path: &[u8], range: Range<u64>| {
            file.write(|to| to.write_all(&pack::trace::format_line(path, range)));
        };
        stack(fs, ReadTrace::new(Box::new(access)))
    }

    /// Flushes the trace. Returns the first error of the recording.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        self.write(BufWriter::flush);
        match &*self.file.lock() {
            Ok(_) => Ok(()),
            Err(error) => Err(Failure::new(format!("{}: {error}", self.path.display()))),
        }
    }

    fn write(&self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        let mut file = self.file.lock();
        if let Ok(open) = &mut *file
            && let Err(error) = write(open)
        {
            *file = Err(error);
        }
    }
}
