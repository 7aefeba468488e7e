//! Writes the calls of a file system to a log, as `barge serve --record-calls` does, in the format
//! of [`layers::call_log::Line`].

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::time::Instant;

use layers::call_log::{Event, Line};
use parking_lot::{Mutex, MutexGuard};
use vfs::Outage;

/// A call log that the layers of all exports write to.
#[derive(Clone)]
pub(crate) struct CallLogFile(Arc<Mutex<LogWriter>>);

struct LogWriter {
    file: BufWriter<File>,
    /// The failure of writes, such as on a full disk.
    outage: Outage,
    /// The number of calls that were not written since it began.
    lost: u64,
}

impl CallLogFile {
    /// Writes a log to `file`.
    pub(crate) fn new(file: File) -> CallLogFile {
        CallLogFile(Arc::new(Mutex::new(LogWriter {
            file: BufWriter::with_capacity(256 << 10, file),
            outage: Outage::default(),
            lost: 0,
        })))
    }

    /// Writes a call of `export`.
    pub(crate) fn write(&self, export: &str, event: &Event<'_>) {
        match Line::new(export, event).to_json() {
            Ok(line) => self.lock().write(&line, Instant::now()),
            Err(error) => tracing::error!("a call is not in the log: {error}"),
        }
    }

    /// Writes buffered calls. Later calls may be lost.
    pub(crate) fn finish(&self) {
        let mut writing = self.lock();
        if let Err(error) = writing.file.flush() {
            tracing::error!("the end of the call log is lost: {error}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, LogWriter> {
        self.0.lock()
    }
}

impl LogWriter {
    /// Writes a line, or counts it as lost. The buffer has whole lines, and keeps what the file has
    /// not got when a write fails: so the log continues with a whole line.
    fn write(&mut self, line: &[u8], now: Instant) {
        if !self.outage.may_try(now) {
            self.lost += 1;
            return;
        }
        let flushed = if self.outage.is_on() {
            self.file.flush()
        } else {
            Ok(())
        };
        match flushed.and_then(|()| self.file.write_all(line)) {
            Ok(()) if self.outage.succeeded() => {
                let lost = std::mem::take(&mut self.lost);
                tracing::info!(lost, "calls are recorded again");
            }
            Ok(()) => {}
            Err(error) => {
                self.lost += 1;
                if self.outage.failed(now) {
                    tracing::error!("calls are not recorded for now: {error}");
                }
            }
        }
    }
}
