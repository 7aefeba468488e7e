//! `barge watch`: prints the changes of a source.
//!
//! The output is read by programs: `docs/design/notification.md` describes the lines.

use std::io::{self, BufWriter, Write};
use std::process::{ExitCode, exit};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use command::text::{printable, printable_json};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sources::now;
use vfs::{Call, Caller, Change, ChangeKinds, ChangedName, Cx, Errno, Time};

use crate::source::Source;
use crate::{CommandResult, Failure, confinement, signals};

#[derive(Args)]
pub(crate) struct WatchArgs {
    /// Directory whose changes to print, with those of all directories below it
    source: Source,
    /// Format of the lines
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
    /// Response to lost changes, which a line of the type overflow reports
    ///
    /// Changes are lost if they are made faster than they are read for long (`max_queued_events` in
    /// /proc/sys/fs/fanotify). The tree has to be read again then. exit ends the command with
    /// status 1, so that a script need not parse for it.
    #[arg(long, value_enum, default_value_t = Overflow::Continue)]
    overflow: Overflow,
}

/// The format of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A JSON object a line
    Json,
    /// The type and the path, and the new path of a rename, separated by tabs
    Text,
}

/// The response to lost changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Overflow {
    /// Print the line and go on
    Continue,
    /// Print the line and end with status 1
    Exit,
}

/// The version of the JSON objects. It is greater if a line with the same meaning looks different;
/// further keys and types do not count.
const VERSION: u32 = 1;

/// Prints changes until interrupted, or until a change finds standard output closed.
pub(crate) fn run(args: &WatchArgs) -> CommandResult {
    confinement::enter_reader(args.source.tree());
    let fs = args.source.open(hostdir::Options::default())?;
    let call = Call::detached();
    let changes = fs.watch(&Cx::new(&Caller::ROOT, &call));
    let mut changes = changes.map_err(|errno| {
        let why = match errno {
            Errno::EOPNOTSUPP => "this source does not report changes".into(),
            Errno::ENOSPC => "too many directories to watch: expected a larger \
                              /proc/sys/fs/fanotify/max_user_marks"
                .into(),
            errno => errno.to_string(),
        };
        Failure::new(format!("{}: {why}", args.source.shown()))
    })?;
    let out = Arc::new(Mutex::new(BufWriter::new(io::stdout())));
    let printed = out.clone();
    // Between two batches: the last line is whole.
    let stop = move || {
        let _printed = printed.lock();
        exit(0)
    };
    let _signals = signals::on_signal(stop, None)?;
    let mut written = {
        let mut out = out.lock();
        print(&mut *out, args.format, &[Line::of_type("ready")]).and_then(|()| out.flush())
    };
    let mut lost = false;
    while written.is_ok() && !lost {
        let mut batch = None;
        let read = changes.next(Duration::MAX, &mut |change| {
            let out = batch.get_or_insert_with(|| out.lock());
            if written.is_ok() {
                written = print(&mut **out, args.format, &lines(change));
            }
            let overflow = change.kinds.contains(ChangeKinds::OVERFLOW);
            lost |= overflow && args.overflow == Overflow::Exit;
        });
        if let Some(out) = &mut batch {
            written = written.and_then(|()| out.flush());
        }
        read.map_err(|errno| Failure::new(format!("{}: {errno}", args.source.shown())))?;
    }
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("standard output: {error}")))
        }
        _ if lost => Ok(ExitCode::FAILURE),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A line of output.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    kind: &'static str,
    path: Option<Vec<u8>>,
    old_path: Option<Vec<u8>>,
    is_dir: Option<bool>,
    /// The modified parts of an object.
    parts: Vec<&'static str>,
}

impl Line {
    fn of_type(kind: &'static str) -> Line {
        Line {
            kind,
            ..Line::default()
        }
    }

    fn json(&self, time: Time) -> Value {
        let seconds = time.sec as f64 + f64::from(time.nsec / 1000) / 1e6;
        let mut object = Map::new();
        object.insert("v".into(), VERSION.into());
        object.insert("time".into(), json!(seconds));
        object.insert("type".into(), self.kind.into());
        for (key, path) in [("path", &self.path), ("old_path", &self.old_path)] {
            if let Some(path) = path {
                object.insert(key.into(), String::from_utf8_lossy(path).into());
                if std::str::from_utf8(path).is_err() {
                    object.insert(format!("{key}_bytes"), json!(path));
                }
            }
        }
        if let Some(is_dir) = self.is_dir {
            object.insert("is_dir".into(), is_dir.into());
        }
        if !self.parts.is_empty() {
            object.insert("parts".into(), json!(self.parts));
        }
        object.into()
    }

    /// The line as text. Control characters are shown as `?`: they would forge lines.
    fn text(&self) -> String {
        let paths = [&self.old_path, &self.path].into_iter().flatten();
        let mut text = self.kind.to_owned();
        for path in paths {
            text.push('\t');
            text.push_str(&printable(&String::from_utf8_lossy(path)));
        }
        text
    }
}

/// Returns the lines of a change: one for each of its kinds.
fn lines(change: &Change<'_>) -> Vec<Line> {
    let line = |kind| Line {
        kind,
        path: change.name.map(path),
        is_dir: Some(change.is_dir),
        ..Line::default()
    };
    let has = |kind| change.kinds.contains(kind);
    if has(ChangeKinds::OVERFLOW) {
        return vec![Line::of_type("overflow")];
    }
    if change.name.is_none() {
        // It has no path below the source.
        return Vec::new();
    }
    let mut lines = Vec::new();
    if has(ChangeKinds::RENAMED) {
        lines.push(Line {
            old_path: change.old_name.map(path),
            ..line("renamed")
        });
    }
    if has(ChangeKinds::CREATED) {
        lines.push(line("created"));
    }
    let modified = [
        (ChangeKinds::CONTENTS, "contents"),
        (ChangeKinds::ATTRIBUTES, "attributes"),
    ];
    let parts: Vec<_> = modified
        .into_iter()
        .filter(|(kind, _)| has(*kind))
        .collect();
    if !parts.is_empty() {
        lines.push(Line {
            parts: parts.into_iter().map(|(_, part)| part).collect(),
            ..line("modified")
        });
    }
    if has(ChangeKinds::DELETED) {
        lines.push(line("deleted"));
    }
    lines
}

/// Returns the path below the source, `.` for the source itself.
fn path(name: ChangedName<'_>) -> Vec<u8> {
    match (name.path, name.name) {
        (b"", b"") => b".".to_vec(),
        (b"", name) => name.to_vec(),
        (path, b"") => path.to_vec(),
        (path, name) => [path, b"/", name].concat(),
    }
}

fn print(out: &mut impl Write, format: Format, lines: &[Line]) -> io::Result<()> {
    let time = now();
    for line in lines {
        match format {
            Format::Json => writeln!(out, "{}", printable_json(&line.json(time).to_string()))?,
            Format::Text => writeln!(out, "{}", line.text())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<'a>(path: &'a [u8], name: &'a [u8]) -> Option<ChangedName<'a>> {
        Some(ChangedName { dir: 1, path, name })
    }

    #[test]
    fn a_change_is_a_line_for_each_kind() {
        let change = Change {
            kinds: ChangeKinds::CREATED | ChangeKinds::CONTENTS | ChangeKinds::DELETED,
            name: name(b"d", b"f\n\xff"),
            ..Change::default()
        };
        let time = Time {
            sec: 5,
            nsec: 250_000_000,
        };
        let lines = lines(&change);
        let kinds: Vec<_> = lines.iter().map(|line| line.kind).collect();
        assert_eq!(kinds, ["created", "modified", "deleted"]);
        assert_eq!(lines[1].text(), "modified\td/f?\u{fffd}");
        let expected = json!({
            "v": 1, "time": 5.25, "type": "modified", "path": "d/f\n\u{fffd}",
            "path_bytes": b"d/f\n\xff", "is_dir": false, "parts": ["contents"],
        });
        assert_eq!(lines[1].json(time), expected);
    }

    #[test]
    fn a_rename_has_both_paths_and_an_overflow_none() {
        let change = Change {
            kinds: ChangeKinds::RENAMED,
            is_dir: true,
            name: name(b"", b"new"),
            old_name: name(b"a/b", b"old"),
            ..Change::default()
        };
        assert_eq!(lines(&change)[0].text(), "renamed\ta/b/old\tnew");
        assert_eq!(lines(&Change::OVERFLOW)[0].text(), "overflow");
        let itself = Change {
            kinds: ChangeKinds::ATTRIBUTES,
            name: name(b"", b""),
            ..Change::default()
        };
        assert_eq!(lines(&itself)[0].text(), "modified\t.");
    }
}
