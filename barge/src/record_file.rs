//! Files that a server appends lines to while it runs, as `--record-calls` and `--record-trace` do.
//! A disk that is full costs the lines of that time.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::time::Instant;

use vfs::Outage;

/// A file of lines that is being written.
pub(crate) struct RecordFile {
    /// The subject of a line, in messages.
    subject: &'static str,
    file: BufWriter<File>,
    /// The failure of writes, such as on a full disk.
    outage: Outage,
    /// The number of lines that were not written since it began.
    lost: u64,
}

impl RecordFile {
    /// Appends lines to `file`, of `subject` in messages ("calls"). The lines are shorter than the
    /// buffer of `capacity` bytes.
    pub(crate) fn new(subject: &'static str, file: File, capacity: usize) -> RecordFile {
        RecordFile {
            subject,
            file: BufWriter::with_capacity(capacity, file),
            outage: Outage::default(),
            lost: 0,
        }
    }

    /// Writes a line, or counts it as lost. The buffer has whole lines, and keeps what the file has
    /// not got when a write fails: so the file continues with a whole line.
    pub(crate) fn write(&mut self, line: &[u8], now: Instant) {
        if !self.outage.may_try(now) {
            self.lost += 1;
            return;
        }
        let subject = self.subject;
        let flushed = if self.outage.is_on() {
            self.file.flush()
        } else {
            Ok(())
        };
        match flushed.and_then(|()| self.file.write_all(line)) {
            Ok(()) if self.outage.succeeded() => {
                let lost = std::mem::take(&mut self.lost);
                tracing::info!(lost, "{subject} are recorded again");
            }
            Ok(()) => {}
            Err(error) => {
                self.lost += 1;
                if self.outage.failed(now) {
                    tracing::error!("{subject} are not recorded for now: {error}");
                }
            }
        }
    }

    /// Writes buffered lines. Returns the error if they are lost.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
