//! The format of a call log: one JSON object per line for each call, as `barge serve
//! --record-calls` writes it and `barge bench replay` reads it. `docs/design/seeing.md` describes
//! the fields.

use std::io;

use serde::{Deserialize, Serialize};

use super::{Arguments, Event, Outcome};

/// A call. Fields that do not apply to the call are omitted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    /// Start of the call, microseconds since the start of the log.
    pub at: u64,
    /// Duration, nanoseconds.
    pub took: u64,
    /// The name of the export.
    pub export: String,
    /// The operation.
    pub op: String,
    /// The number of the node; 0 for the file system.
    pub node: u64,
    /// The caller's user id.
    pub uid: u32,
    /// The caller's group id.
    pub gid: u32,
    /// The name that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Text>,
    /// The flags, or the attributes that were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flags: Option<u32>,
    /// The number of the open file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<u64>,
    /// The offset or cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The length, or the mode of a new file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub len: Option<u64>,
    /// The error, of Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<u16>,
    /// The node that was found or created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<u64>,
    /// The file that was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened: Option<u64>,
    /// The number of bytes or entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// The cookie at which a listing continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A name: text if it is UTF-8, its bytes otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// UTF-8.
    Text(String),
    /// Any other bytes.
    Bytes(Vec<u8>),
}

impl Text {
    fn new(bytes: &[u8]) -> Text {
        match str::from_utf8(bytes) {
            Ok(text) => Text::Text(text.into()),
            Err(_) => Text::Bytes(bytes.into()),
        }
    }

    /// Returns the bytes of the name.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Text::Text(text) => text.as_bytes(),
            Text::Bytes(bytes) => bytes,
        }
    }
}

impl Line {
    /// Returns the line for a call of `export`.
    pub fn new(export: &str, event: &Event<'_>) -> Line {
        let micros = event.start.as_micros() as u64;
        let mut line = Line {
            at: micros,
            took: event.duration.as_nanos() as u64,
            export: export.into(),
            op: event.op.name().into(),
            node: event.node,
            uid: event.caller.0,
            gid: event.caller.1,
            ..Line::default()
        };
        match event.arguments {
            Arguments::None => {}
            Arguments::Name(name) => line.name = Some(Text::new(name)),
            Arguments::Flags(flags) => line.flags = Some(flags.bits()),
            Arguments::Want(want) => line.flags = Some(want),
            Arguments::Opened(file) => line.file = Some(file),
            Arguments::Create(name, flags, mode) => {
                line.name = Some(Text::new(name));
                line.flags = Some(flags.bits());
                line.len = Some(mode.into());
            }
            Arguments::Unlink(name, dir) => {
                line.name = Some(Text::new(name));
                line.flags = Some(dir.into());
            }
            Arguments::Range(file, offset, len) => {
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

    /// Returns the line as JSON, with its end of line.
    pub fn to_json(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Parses a line. Returns an error with the expected and the actual value if it is not a call.
    pub fn parse(text: &str) -> io::Result<Line> {
        Ok(serde_json::from_str(text)?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vfs::Op;

    use super::*;

    #[test]
    fn a_line_is_json_and_is_parsed_again() {
        let event = Event {
            start: Duration::from_micros(5),
            duration: Duration::from_nanos(7),
            op: Op::Lookup,
            node: 1,
            caller: (2, 3),
            arguments: Arguments::Name(b"\xff"),
            outcome: Err(vfs::Errno::ENOENT),
        };
        let json = Line::new("data", &event).to_json().expect("JSON");
        let text = String::from_utf8(json).expect("text");
        let expected = r#"{"at":5,"took":7,"export":"data","op":"lookup","node":1,"uid":2,"gid":3,"name":[255],"errno":2}"#;
        assert_eq!(text, format!("{expected}\n"));
        let line = Line::parse(text.trim_end()).expect("a line");
        assert_eq!(line.name.expect("a name").bytes(), b"\xff");
        assert_eq!((line.errno, line.found), (Some(2), None));
        assert!(Line::parse("{\"op\":7}").is_err());
    }
}
