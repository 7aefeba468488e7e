//! Logs of the calls of a file system, one JSON object per line, as `barge serve --record-calls`
//! writes them and `barge bench replay` reads them. `docs/design/status.md` describes the fields.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use layers::record::{Event, Given, Outcome};
use serde::{Deserialize, Serialize};

use crate::private;

/// A call. Fields that do not apply to the call are omitted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Line {
    /// Start of the call, microseconds since the start of the log.
    pub(crate) at: u64,
    /// Duration, nanoseconds.
    pub(crate) took: u64,
    pub(crate) export: String,
    pub(crate) op: String,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flags: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) len: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) errno: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opened: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) done: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<u64>,
}

/// A name: text if it is UTF-8, its bytes otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Text {
    Text(String),
    Bytes(Vec<u8>),
}

impl Text {
    fn new(bytes: &[u8]) -> Text {
        match str::from_utf8(bytes) {
            Ok(text) => Text::Text(text.into()),
            Err(_) => Text::Bytes(bytes.into()),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Text::Text(text) => text.as_bytes(),
            Text::Bytes(bytes) => bytes,
        }
    }
}

impl Line {
    fn new(export: &str, event: &Event<'_>) -> Line {
        let micros = event.at.as_micros() as u64;
        let mut line = Line {
            at: micros,
            took: event.took.as_nanos() as u64,
            export: export.into(),
            op: event.op.name().into(),
            node: event.node,
            uid: event.caller.0,
            gid: event.caller.1,
            ..Line::default()
        };
        match event.given {
            Given::Nothing => {}
            Given::Name(name) => line.name = Some(Text::new(name)),
            Given::Flags(flags) => line.flags = Some(flags.bits()),
            Given::Want(want) => line.flags = Some(want),
            Given::Opened(file) => line.file = Some(file),
            Given::Create(name, flags, mode) => {
                line.name = Some(Text::new(name));
                line.flags = Some(flags.bits());
                line.len = Some(mode.into());
            }
            Given::Unlink(name, dir) => {
                line.name = Some(Text::new(name));
                line.flags = Some(dir.into());
            }
            Given::Range(file, offset, len) => {
                line.file = Some(file);
                line.offset = Some(offset);
                line.len = Some(len);
            }
        }
        match event.outcome {
            Ok(Outcome {
                found,
                opened,
                done,
                next,
            }) => {
                (line.found, line.opened) = (found, opened);
                (line.done, line.next) = (done, next);
            }
            Err(errno) => line.errno = Some(errno.raw()),
        }
        line
    }
}

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
        let mut bytes = match serde_json::to_vec(&Line::new(export, event)) {
            Ok(bytes) => bytes,
            Err(error) => return self.writing().fail(&error.into()),
        };
        bytes.push(b'\n');
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
            tracing::error!("the record of calls ends here: {error}");
        }
    }
}
