//! `--record-trace`: writes the first accesses of clients to a source to a file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use layers::{ReadTrace, stack};
use parking_lot::Mutex;
use vfs::FileSystem;

use crate::record_file::RecordFile;
use crate::{Failure, private_file};

/// A trace that is being written.
pub(crate) struct TraceFile {
    path: PathBuf,
    file: Mutex<RecordFile>,
}

/// Size of the buffer in bytes: that of the longest path of Linux, whose bytes may be escaped, with
/// two numbers. A process that is killed leaves so many bytes of the trace unwritten.
const BUFFER: usize = 2 * 4096 + 64;

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
            file: Mutex::new(RecordFile::new("accesses", file, BUFFER)),
        }))
    }

    /// Returns `fs` with first accesses recorded ([`ReadTrace`]).
    pub(crate) fn wrap(self: &Arc<TraceFile>, fs: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        let file = self.clone();
        let access = move |path: &[u8], range: Range<u64>| {
            let line = pack::trace::format_line(path, range);
            file.file.lock().write(&line, Instant::now());
        };
        stack(fs, ReadTrace::new(Box::new(access)))
    }

    /// Flushes the trace. Returns the error if its end is lost.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let flushed = self.file.lock().flush();
        flushed.map_err(|error| Failure::new(format!("{}: {error}", self.path.display())))
    }
}
