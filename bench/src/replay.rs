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

use barge_client::Source;
use command::Failure;
use layers::record::Line;
use serde_json::json;
use vfs::cx::block_on;
use vfs::{
    Access, Caller, Cx, DirEntry, DirSink, Errno, FileSystem, Mode, Name, Node, OpenFlags, Plus,
    Result, Want,
};
use wire::payload::{SlicePayload, VecSink};

/// The longest read or write in bytes; a longer one is replayed with length 0.
const LONGEST: u64 = 64 << 20;

/// The number of differences that are listed individually.
const TOLD: usize = 20;

/// The results of a replay.
#[derive(Default)]
pub(super) struct Replayed {
    operations: BTreeMap<String, Times>,
    /// Skipped calls, by operation.
    passed_over: BTreeMap<String, u64>,
    differences: u64,
    told: Vec<String>,
    seconds: f64,
}

/// Durations of the calls of one kind in nanoseconds.
#[derive(Default)]
struct Times {
    then: Vec<u64>,
    now: Vec<u64>,
    differences: u64,
}

/// Replays the call log `file` on `source`: as fast as possible, or, if `paced`, at the recorded
/// times.
pub(super) fn run(
    file: &Path,
    source: &str,
    paced: bool,
    changes: bool,
) -> std::result::Result<Replayed, Failure> {
    let source: Source = source.parse().map_err(Failure::usage)?;
    let fs = source.open(hostdir::Options::default());
    let fs = fs.map_err(|error| Failure::new(format!("{source}: {error}")))?;
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", file.display()));
    let from = File::open(file).map_err(|error| failed(&error))?;
    let mut replay = Replay {
        fs,
        changes,
        exports: HashMap::new(),
    };
    let mut replayed = Replayed::default();
    let begun = Instant::now();
    for (at, line) in BufReader::new(from).lines().enumerate() {
        let line = line.map_err(|error| failed(&error))?;
        let bad = |error| failed(&format!("line {}: expected a call: {error}", at + 1));
        let line: Line = Line::parse(&line).map_err(bad)?;
        if paced {
            let due = Duration::from_micros(line.at);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        let start = Instant::now();
        match replay.call(&line) {
            None => *replayed.passed_over.entry(line.op).or_default() += 1,
            Some(result) => replayed.take(at + 1, &line, result, start.elapsed()),
        }
    }
    replayed.seconds = begun.elapsed().as_secs_f64();
    Ok(replayed)
}

struct Replay {
    fs: Arc<dyn FileSystem>,
    changes: bool,
    exports: HashMap<String, Known>,
}

/// The nodes and files of an export found so far, by their numbers in the call log.
#[derive(Default)]
struct Known {
    nodes: HashMap<u64, Arc<dyn Node>>,
    files: HashMap<u64, Opened>,
}

struct Opened {
    file: Arc<dyn vfs::File>,
    /// Directory cookies of this source, by the recorded ones.
    cookies: HashMap<u64, u64>,
}

/// The result of a call: on success, a count if the call has one.
type Outcome = Result<Option<u64>>;

impl Replay {
    /// Makes the call unless it must be skipped. Returns the number of bytes or entries, for calls
    /// that have one.
    fn call(&mut self, line: &Line) -> Option<Outcome> {
        let known = self.exports.entry(line.export.clone()).or_default();
        let caller = Caller::new(line.uid, line.gid);
        if line.op == "root" {
            let root = block_on(&caller, |cx| self.fs.root(cx));
            return Some(known.met(line, root));
        }
        match line.file {
            Some(file) => {
                let may = self.changes || line.op != "write";
                let file = known.files.get_mut(&file).filter(|_| may)?;
                let len = line.len.filter(|len| *len <= LONGEST).unwrap_or(0);
                file.call(line, &caller, len)
            }
            None => {
                let may = self.changes || !changes(line);
                let node = known.nodes.get(&line.node).filter(|_| may)?.clone();
                known.call(line, &caller, &*node)
            }
        }
    }
}

/// Returns whether a call on a node changes the tree.
fn changes(line: &Line) -> bool {
    let changing = OpenFlags::TRUNC.bits();
    match line.op.as_str() {
        "create" | "unlink" => true,
        "open" => line.flags.is_some_and(|flags| flags & changing != 0),
        _ => false,
    }
}

impl Known {
    fn met(&mut self, line: &Line, found: Result<Arc<dyn Node>>) -> Outcome {
        let found = found?;
        if let Some(number) = line.found {
            self.nodes.insert(number, found);
        }
        Ok(None)
    }

    fn opened(&mut self, line: &Line, file: Result<Arc<dyn vfs::File>>) -> Outcome {
        let file = file?;
        if let Some(number) = line.opened {
            let cookies = HashMap::new();
            self.files.insert(number, Opened { file, cookies });
        }
        Ok(None)
    }

    fn call(&mut self, line: &Line, caller: &Caller, node: &dyn Node) -> Option<Outcome> {
        let name = || line.name.as_ref().map(|name| name.bytes());
        let flags = line.flags.unwrap_or(0);
        let open = OpenFlags::from_bits_truncate(flags);
        Some(match line.op.as_str() {
            "lookup" => {
                let name = Name::new(name()?).ok()?;
                let found = block_on(caller, |cx| node.lookup(cx, name));
                self.met(line, found.map(|entry| entry.node))
            }
            "attr" => {
                let want = Want::from_bits_truncate(flags);
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
                self.opened(line, file)
            }
            "create" => {
                let name = Name::new(name()?).ok()?;
                let mode = Mode::exactly(line.len.unwrap_or(0) as u32 & 0o7777);
                let made = block_on(caller, |cx| node.create(cx, name, open, mode));
                match made {
                    Ok((entry, file)) => self
                        .met(line, Ok(entry.node))
                        .and_then(|_| self.opened(line, Ok(file))),
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

impl Opened {
    fn call(&mut self, line: &Line, caller: &Caller, len: u64) -> Option<Outcome> {
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
                let plus = if len == 0 { Plus::Names } else { Plus::Entries };
                let cookie = match offset {
                    0 => 0,
                    then => *self.cookies.get(&then)?,
                };
                let list = |cx: &Cx<'_>| {
                    let mut entries = Entries {
                        most: line.done.unwrap_or(u64::MAX),
                        ..Entries::default()
                    };
                    file.readdir(cx, cookie, plus, &mut entries)?;
                    Ok(entries)
                };
                let listed = block_on(caller, list);
                if let (Ok(Entries { last, .. }), Some(then)) = (&listed, line.next) {
                    self.cookies.insert(then, *last);
                }
                listed.map(|listed| Some(listed.count))
            }
            "file_attr" => {
                let want = Want::from_bits_truncate(len as u32);
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
struct Entries {
    most: u64,
    count: u64,
    last: u64,
}

impl DirSink for Entries {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        if self.count == self.most {
            return false;
        }
        (self.count, self.last) = (self.count + 1, entry.cookie);
        true
    }
}

impl Replayed {
    fn take(&mut self, number: usize, line: &Line, result: Outcome, took: Duration) {
        let times = self.operations.entry(line.op.clone()).or_default();
        times.then.push(line.took);
        times.now.push(took.as_nanos() as u64);
        let then = match line.errno {
            Some(errno) => Err(Errno::from_raw(errno.into())),
            None => Ok(line.done),
        };
        if result != then {
            times.differences += 1;
            self.differences += 1;
            if self.told.len() < TOLD {
                let node = line.node;
                let (then, now) = (in_words(then), in_words(result));
                let what = format!("line {number}: {} of node {node}", line.op);
                self.told.push(format!("{what}: {then} then, {now} now"));
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
            let [then, now] = [&mut times.then, &mut times.now].map(|times| {
                times.sort_unstable();
                [0.5, 0.99].map(|part| micros(quantile(times, part)))
            });
            let _ = writeln!(
                text,
                "{op:12} {:>9} {:>12} {:>12} {:>12} {:>12} {:>9}",
                times.now.len(),
                then[0],
                now[0],
                then[1],
                now[1],
                times.differences
            );
        }
        for (op, count) in &self.passed_over {
            let _ = writeln!(text, "not made again: {count} of {op}");
        }
        let calls: usize = self.operations.values().map(|times| times.now.len()).sum();
        let rate = calls as f64 / self.seconds.max(1e-9);
        let _ = writeln!(
            text,
            "{calls} calls in {:.3} s, {rate:.0} per second, {} came to something else",
            self.seconds, self.differences
        );
        for told in &self.told {
            let _ = writeln!(text, "{told}");
        }
        text
    }

    /// Formats the results as JSON, with times in nanoseconds.
    pub(super) fn json(&mut self) -> String {
        let mut operations = serde_json::Map::new();
        for (op, times) in &mut self.operations {
            times.then.sort_unstable();
            times.now.sort_unstable();
            let both = |part| [quantile(&times.then, part), quantile(&times.now, part)];
            let of = json!({
                "calls": times.now.len(),
                "differences": times.differences,
                "median": both(0.5),
                "p99": both(0.99),
            });
            operations.insert(op.clone(), of);
        }
        json!({
            "seconds": self.seconds,
            "differences": self.differences,
            "not_made": self.passed_over,
            "operations": operations,
        })
        .to_string()
    }
}

fn in_words(outcome: Outcome) -> String {
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
