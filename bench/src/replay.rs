//! `barge bench replay`: replays the calls of a call log on any source, one after the other.
//!
//! Nodes and files are identified by the calls that led to them, so their numbers here do not
//! matter. A call on a node or file that no earlier call returned is skipped, and so is a call that
//! changes the tree unless that is allowed. A call log holds no contents, so writes write zeros.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use command::Failure;
use layers::call_log::Line;
use serde_json::json;
use sources::Source;
use vfs::cx::block_on;
use vfs::{
    Access, AttrMask, Caller, Cx, DirEntry, DirSink, Errno, FileSystem, Mode, Name, Node,
    OpenFlags, ReaddirMode, Result,
};
use wire::payload::{SlicePayload, VecSink};

/// The longest read or write in bytes; a longer one is replayed with length 0.
const MAX_LEN: u64 = 64 << 20;

/// The number of differences that are listed individually.
const MAX_REPORTED: usize = 20;

/// The results of a replay.
#[derive(Default)]
pub(super) struct ReplayReport {
    operations: BTreeMap<String, Times>,
    /// Skipped calls, by operation.
    skipped: BTreeMap<String, u64>,
    differences: u64,
    reported: Vec<String>,
    seconds: f64,
}

/// Durations of the calls of one kind in nanoseconds.
#[derive(Default)]
struct Times {
    recorded: Vec<u64>,
    replayed: Vec<u64>,
    differences: u64,
}

/// Replays the call log `file` on `source`: as fast as possible, or, if `paced`, at the recorded
/// times.
pub(super) fn run(
    file: &Path,
    source: &str,
    paced: bool,
    changes: bool,
) -> std::result::Result<ReplayReport, Failure> {
    let source: Source = source.parse().map_err(Failure::usage)?;
    let fs = source.open(hostdir::Options::default());
    let fs = fs.map_err(|error| Failure::new(format!("{source}: {error}")))?;
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", file.display()));
    let from = File::open(file).map_err(|error| failed(&error))?;
    let mut replay = Replay {
        fs,
        allow_changes: changes,
        exports: HashMap::new(),
    };
    let mut replayed = ReplayReport::default();
    let started = Instant::now();
    for (at, line) in BufReader::new(from).lines().enumerate() {
        let line = line.map_err(|error| failed(&error))?;
        let bad = |error| failed(&format!("line {}: expected a call: {error}", at + 1));
        let line: Line = Line::parse(&line).map_err(bad)?;
        if paced {
            let due = Duration::from_micros(line.at);
            std::thread::sleep(due.saturating_sub(started.elapsed()));
        }
        let start = Instant::now();
        match replay.call(&line) {
            None => *replayed.skipped.entry(line.op).or_default() += 1,
            Some(result) => replayed.record(at + 1, &line, result, start.elapsed()),
        }
    }
    replayed.seconds = started.elapsed().as_secs_f64();
    Ok(replayed)
}

struct Replay {
    fs: Arc<dyn FileSystem>,
    allow_changes: bool,
    exports: HashMap<String, ExportState>,
}

/// The nodes and files of an export found so far, by their numbers in the call log.
#[derive(Default)]
struct ExportState {
    nodes: HashMap<u64, Arc<dyn Node>>,
    files: HashMap<u64, OpenFile>,
}

struct OpenFile {
    file: Arc<dyn vfs::File>,
    /// Directory cookies of this source, by the recorded ones.
    cookies: HashMap<u64, u64>,
}

/// The result of a call: on success, a count if the call has one.
type CallResult = Result<Option<u64>>;

impl Replay {
    /// Makes the call unless it must be skipped. Returns the number of bytes or entries, for calls
    /// that have one.
    fn call(&mut self, line: &Line) -> Option<CallResult> {
        let known = self.exports.entry(line.export.clone()).or_default();
        let caller = Caller::new(line.uid, line.gid);
        if line.op == "root" {
            let root = block_on(&caller, |cx| self.fs.root(cx));
            return Some(known.record_node(line, root));
        }
        match line.file {
            Some(file) => {
                let may = self.allow_changes || line.op != "write";
                let file = known.files.get_mut(&file).filter(|_| may)?;
                let len = line.len.filter(|len| *len <= MAX_LEN).unwrap_or(0);
                file.call(line, &caller, len)
            }
            None => {
                let may = self.allow_changes || !is_modifying(line);
                let node = known.nodes.get(&line.node).filter(|_| may)?.clone();
                known.call(line, &caller, &*node)
            }
        }
    }
}

/// Returns whether a call on a node changes the tree.
fn is_modifying(line: &Line) -> bool {
    let changing = OpenFlags::TRUNC.bits();
    match line.op.as_str() {
        "create" | "unlink" => true,
        "open" => line.flags.is_some_and(|flags| flags & changing != 0),
        _ => false,
    }
}

impl ExportState {
    fn record_node(&mut self, line: &Line, found: Result<Arc<dyn Node>>) -> CallResult {
        let found = found?;
        if let Some(number) = line.found {
            self.nodes.insert(number, found);
        }
        Ok(None)
    }

    fn record_file(&mut self, line: &Line, file: Result<Arc<dyn vfs::File>>) -> CallResult {
        let file = file?;
        if let Some(number) = line.opened {
            let cookies = HashMap::new();
            self.files.insert(number, OpenFile { file, cookies });
        }
        Ok(None)
    }

    fn call(&mut self, line: &Line, caller: &Caller, node: &dyn Node) -> Option<CallResult> {
        let name = || line.name.as_ref().map(|name| name.bytes());
        let flags = line.flags.unwrap_or(0);
        let open = OpenFlags::from_bits_truncate(flags);
        Some(match line.op.as_str() {
            "lookup" => {
                let name = Name::new(name()?).ok()?;
                let found = block_on(caller, |cx| node.lookup(cx, name));
                self.record_node(line, found.map(|entry| entry.node))
            }
            "attr" => {
                let want = AttrMask::from_bits_truncate(flags);
                block_on(caller, |cx| node.attr(cx, want)).map(|_| None)
            }
            "access" => {
                let want = Access::from_bits_truncate(flags);
                let may = block_on(caller, |cx| node.access(cx, want));
                may.map(|may| Some(may.bits().into()))
            }
            "readlink" => {
                let target = block_on(caller, |cx| node.readlink(cx));
                target.map(|target| Some(target.len() as u64))
            }
            "xattr" => {
                let name = name()?;
                let value = block_on(caller, |cx| node.xattr(cx, name));
                value.map(|value| Some(value.len() as u64))
            }
            "statfs" => block_on(caller, |cx| node.statfs(cx)).map(|_| None),
            "open" => {
                let file = block_on(caller, |cx| node.open(cx, open));
                self.record_file(line, file)
            }
            "create" => {
                let name = Name::new(name()?).ok()?;
                let mode = Mode::without_umask(line.len.unwrap_or(0) as u32 & 0o7777);
                let made = block_on(caller, |cx| node.create(cx, name, open, mode));
                match made {
                    Ok((entry, file)) => self
                        .record_node(line, Ok(entry.node))
                        .and_then(|_| self.record_file(line, Ok(file))),
                    Err(errno) => Err(errno),
                }
            }
            "unlink" => {
                let name = Name::new(name()?).ok()?;
                block_on(caller, |cx| node.unlink(cx, name, flags != 0)).map(|()| None)
            }
            _ => return None,
        })
    }
}

impl OpenFile {
    fn call(&mut self, line: &Line, caller: &Caller, len: u64) -> Option<CallResult> {
        let file = &*self.file;
        let offset = line.offset.unwrap_or(0);
        Some(match line.op.as_str() {
            "read" => {
                let read = |cx: &Cx<'_>| {
                    let mut to = VecSink::new(len as usize);
                    file.read(cx, offset, len as usize, &mut to)
                };
                block_on(caller, read).map(|read| Some(read as u64))
            }
            "write" => {
                let zeros = vec![0; len as usize];
                let write = |cx: &Cx<'_>| file.write(cx, offset, &mut SlicePayload::new(&zeros));
                block_on(caller, write).map(|wrote| Some(wrote as u64))
            }
            "readdir" => {
                let plus = if len == 0 {
                    ReaddirMode::Names
                } else {
                    ReaddirMode::Entries
                };
                let cookie = match offset {
                    0 => 0,
                    then => *self.cookies.get(&then)?,
                };
                let list = |cx: &Cx<'_>| {
                    let mut entries = LimitedEntries {
                        limit: line.done.unwrap_or(u64::MAX),
                        ..LimitedEntries::default()
                    };
                    file.readdir(cx, cookie, plus, &mut entries)?;
                    Ok(entries)
                };
                let listed = block_on(caller, list);
                if let (Ok(LimitedEntries { last, .. }), Some(then)) = (&listed, line.next) {
                    self.cookies.insert(then, *last);
                }
                listed.map(|listed| Some(listed.count))
            }
            "file_attr" => {
                let want = AttrMask::from_bits_truncate(len as u32);
                block_on(caller, |cx| file.attr(cx, want)).map(|_| None)
            }
            "fsync" => block_on(caller, |cx| file.fsync(cx, len != 0)).map(|()| None),
            "flush" => block_on(caller, |cx| file.flush(cx)).map(|()| None),
            _ => return None,
        })
    }
}

/// A sink that accepts as many entries as the recorded call returned.
#[derive(Default)]
struct LimitedEntries {
    limit: u64,
    count: u64,
    last: u64,
}

impl DirSink for LimitedEntries {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        if self.count == self.limit {
            return false;
        }
        (self.count, self.last) = (self.count + 1, entry.cookie);
        true
    }
}

impl ReplayReport {
    fn record(&mut self, number: usize, line: &Line, result: CallResult, took: Duration) {
        let times = self.operations.entry(line.op.clone()).or_default();
        times.recorded.push(line.took);
        times.replayed.push(took.as_nanos() as u64);
        let then = match line.errno {
            Some(errno) => Err(Errno::from_raw(errno.into())),
            None => Ok(line.done),
        };
        if result != then {
            times.differences += 1;
            self.differences += 1;
            if self.reported.len() < MAX_REPORTED {
                let node = line.node;
                let (then, now) = (describe(then), describe(result));
                let what = format!("line {number}: {} of node {node}", line.op);
                self.reported
                    .push(format!("{what}: {then} then, {now} now"));
            }
        }
    }

    /// Formats the results as text.
    pub(super) fn text(&mut self) -> String {
        let mut text = format!(
            "{:12} {:>9} {:>12} {:>12} {:>12} {:>12} {:>9}\n",
            "operation", "calls", "median then", "median now", "99 % then", "99 % now", "differ"
        );
        for (op, times) in &mut self.operations {
            let [then, now] = [&mut times.recorded, &mut times.replayed].map(|times| {
                times.sort_unstable();
                [0.5, 0.99].map(|part| micros(quantile(times, part)))
            });
            let _ = writeln!(
                text,
                "{op:12} {:>9} {:>12} {:>12} {:>12} {:>12} {:>9}",
                times.replayed.len(),
                then[0],
                now[0],
                then[1],
                now[1],
                times.differences
            );
        }
        for (op, count) in &self.skipped {
            let _ = writeln!(text, "not made again: {count} of {op}");
        }
        let calls: usize = self
            .operations
            .values()
            .map(|times| times.replayed.len())
            .sum();
        let rate = calls as f64 / self.seconds.max(1e-9);
        let _ = writeln!(
            text,
            "{calls} calls in {:.3} s, {rate:.0} per second, {} came to something else",
            self.seconds, self.differences
        );
        for difference in &self.reported {
            let _ = writeln!(text, "{difference}");
        }
        text
    }

    /// Formats the results as JSON, with times in nanoseconds.
    pub(super) fn json(&mut self) -> String {
        let mut operations = serde_json::Map::new();
        for (op, times) in &mut self.operations {
            times.recorded.sort_unstable();
            times.replayed.sort_unstable();
            let both = |part| {
                [
                    quantile(&times.recorded, part),
                    quantile(&times.replayed, part),
                ]
            };
            let of = json!({
                "calls": times.replayed.len(),
                "differences": times.differences,
                "median": both(0.5),
                "p99": both(0.99),
            });
            operations.insert(op.clone(), of);
        }
        json!({
            "seconds": self.seconds,
            "differences": self.differences,
            "not_made": self.skipped,
            "operations": operations,
        })
        .to_string()
    }
}

fn describe(outcome: CallResult) -> String {
    match outcome {
        Ok(Some(done)) => done.to_string(),
        Ok(None) => "done".into(),
        Err(errno) => format!("{errno:?}"),
    }
}

fn quantile(sorted: &[u64], part: f64) -> u64 {
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at).or(sorted.last()).copied().unwrap_or(0)
}

fn micros(nanos: u64) -> String {
    format!("{:.1} µs", nanos as f64 / 1000.0)
}
