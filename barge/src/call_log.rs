//! Writes the calls of a file system to a log, as `barge serve --record-calls` does, in the format
//! of [`layers::call_log::Line`].

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use layers::call_log::{Event, Line};
use parking_lot::Mutex;

use crate::record_file::RecordFile;

/// A call log that the layers of all exports write to.
#[derive(Clone)]
pub(crate) struct CallLogFile(Arc<Mutex<RecordFile>>);

impl CallLogFile {
    /// Writes a log to `file`.
    pub(crate) fn new(file: File) -> CallLogFile {
        let file = RecordFile::new("calls", file, 256 << 10);
        CallLogFile(Arc::new(Mutex::new(file)))
    }

    /// Writes a call of `export`.
    pub(crate) fn write(&self, export: &str, event: &Event<'_>) {
        match Line::new(export, event).to_json() {
            Ok(line) => self.0.lock().write(&line, Instant::now()),
            Err(error) => tracing::error!("a call is not in the log: {error}"),
        }
    }

    /// Writes buffered calls. Later calls may be lost.
    pub(crate) fn finish(&self) {
        if let Err(error) = self.0.lock().flush() {
            tracing::error!("the end of the call log is lost: {error}");
        }
    }
}
