//! Writes the calls of a file system to a log, as `barge serve --record-calls` does, in the format
//! of [`layers::record::Line`].

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use layers::record::{Event, Line};

use crate::private;

/// A call log that the layers of all exports write to.
#[derive(Clone)]
pub(crate) struct CallLogFile(Arc<Mutex<Writing>>);

struct Writing {
    to: BufWriter<File>,
    /// Whether a write has failed and been logged.
    failed: bool,
}

impl CallLogFile {
    /// Creates a log in the file `path`.
    pub(crate) fn new(path: &Path) -> io::Result<CallLogFile> {
        let to = BufWriter::with_capacity(256 << 10, private::create(path)?);
        let failed = false;
        Ok(CallLogFile(Arc::new(Mutex::new(Writing { to, failed }))))
    }

    /// Writes a call of `export`.
    pub(crate) fn write(&self, export: &str, event: &Event<'_>) {
        let bytes = match Line::new(export, event).to_json() {
            Ok(bytes) => bytes,
            Err(error) => return self.writing().fail(&error),
        };
        let mut writing = self.writing();
        if !writing.failed
            && let Err(error) = writing.to.write_all(&bytes)
        {
            writing.fail(&error);
        }
    }

    /// Writes buffered calls. Later calls may be lost.
    pub(crate) fn finish(&self) {
        let mut writing = self.writing();
        if let Err(error) = writing.to.flush() {
            writing.fail(&error);
        }
    }

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writing {
    fn fail(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.failed, true) {
            tracing::error!("the call log ends here: {error}");
        }
    }
}
