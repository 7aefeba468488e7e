//! Writes the calls of a file system to a log, as `barge serve --record-calls` does, in the format
//! of [`layers::call_log::Line`].

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use layers::call_log::{Event, Line};
use parking_lot::{Mutex, MutexGuard};

/// A call log that the layers of all exports write to.
#[derive(Clone)]
pub(crate) struct CallLogFile(Arc<Mutex<LogWriter>>);

struct LogWriter {
    file: BufWriter<File>,
    /// Whether a write has failed and been logged.
    failed: bool,
}

impl CallLogFile {
    /// Writes a log to `file`.
    pub(crate) fn new(file: File) -> CallLogFile {
        CallLogFile(Arc::new(Mutex::new(LogWriter {
            file: BufWriter::with_capacity(256 << 10, file),
            failed: false,
        })))
    }

    /// Writes a call of `export`.
    pub(crate) fn write(&self, export: &str, event: &Event<'_>) {
        let bytes = match Line::new(export, event).to_json() {
            Ok(bytes) => bytes,
            Err(error) => return self.lock().fail(&error),
        };
        let mut writing = self.lock();
        if !writing.failed
            && let Err(error) = writing.file.write_all(&bytes)
        {
            writing.fail(&error);
        }
    }

    /// Writes buffered calls. Later calls may be lost.
    pub(crate) fn finish(&self) {
        let mut writing = self.lock();
        if let Err(error) = writing.file.flush() {
            writing.fail(&error);
        }
    }

    fn lock(&self) -> MutexGuard<'_, LogWriter> {
        self.0.lock()
    }
}

impl LogWriter {
    fn fail(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.failed, true) {
            tracing::error!("the call log ends here: {error}");
        }
    }
}
