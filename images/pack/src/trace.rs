//! Read traces: the accesses of a program to a tree, recorded while it ran, and their mapping to an
//! image.
//!
//! A trace is a text file with lines of offset, length, and path from the root, separated by
//! spaces. It refers to files rather than to an image, so it stays valid for later images of that
//! tree. The length is 0 if a node was only looked up; the bytes of a directory are its listing. In
//! paths a backslash is `\\` and a newline `\n`.
//!
//! Deliberately absent: times and counts. Paths no longer in the tree are ignored.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;

use ::erofs::layout::FileType;
use ::erofs::read::{Cluster, Contents, Error as ReadError, Image, Inode, Location, Storage};
use sidecar::{CHUNK_SIZE, ReadaheadRange};
use sys::positioned::FileExt;

use crate::Kind;
use crate::error::{Error, Result};
use crate::plan::{NodeId, Plan};

/// Maximum gap in chunks between two ranges that are merged, since reading 64 KiB more is cheaper
/// than another request.
const MAX_GAP: u32 = 4;

/// Maximum number of lines of a trace, which also limits recording.
const MAX_LINES: usize = 1 << 20;

/// A read trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    accesses: Vec<(Vec<u8>, Range<u64>)>,
}

/// Returns a line of a trace: a range of the file at `path`.
pub fn format_line(path: &[u8], range: Range<u64>) -> Vec<u8> {
    let mut line = format!("{} {} ", range.start, range.end - range.start).into_bytes();
    for byte in path {
        match byte {
            b'\\' => line.extend(b"\\\\"),
            b'\n' => line.extend(b"\\n"),
            byte => line.push(*byte),
        }
    }
    line.push(b'\n');
    line
}

impl Trace {
    /// Parses a trace. An incomplete last line is ignored: the recording was interrupted.
    pub fn parse(bytes: &[u8]) -> Result<Trace> {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n').take(MAX_LINES);
        let whole = lines.filter_map(|line| line.strip_suffix(b"\n"));
        let touched = whole.enumerate().map(|(at, line)| {
            parse_line(line).ok_or_else(|| {
                let got = line.escape_ascii();
                Error::new(format!(
                    "line {}: expected OFFSET LENGTH PATH, got '{got}'",
                    at + 1
                ))
            })
        });
        Ok(Trace {
            accesses: touched.collect::<Result<_>>()?,
        })
    }

    /// Returns the files of `plan` in the order of their first read.
    pub fn files(&self, plan: &Plan) -> Vec<NodeId> {
        let read = self.accesses.iter().filter(|(_, range)| !range.is_empty());
        let nodes = read.filter_map(|(path, _)| {
            let names = path
                .split(|byte| *byte == b'/')
                .filter(|name| !name.is_empty());
            let found = |at, name| plan.lookup(at, name);
            names.into_iter().try_fold(NodeId::ROOT, found)
        });
        let mut files: Vec<_> = nodes
            .filter(|node| matches!(plan.kind(*node), Kind::File(_)))
            .collect();
        let mut known = BTreeSet::new();
        files.retain(|node| known.insert(*node));
        files
    }

    /// Returns the ranges of the EROFS image in `file` that a repetition of the trace would read,
    /// in the order of first use.
    pub fn readahead_ranges(&self, file: &File) -> Result<Vec<ReadaheadRange>> {
        let failed = |error: ReadError<io::Error>| Error::new(error);
        let storage = LoggingStorage {
            file,
            log: RefCell::default(),
        };
        let image = Image::open(&storage).map_err(failed)?;
        let mut walk = Replay {
            root: image.inode(&storage, image.root).map_err(failed)?,
            image,
            storage,
            inode_cache: HashMap::new(),
        };
        for (path, range) in &self.accesses {
            walk.replay(path, range).map_err(failed)?;
        }
        Ok(merge_chunks(&walk.storage.log.into_inner()))
    }
}

fn parse_line(line: &[u8]) -> Option<(Vec<u8>, Range<u64>)> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (offset, len) = (number()?, number()?);
    let mut path = Vec::new();
    let mut bytes = parts.next()?.iter();
    while let Some(byte) = bytes.next() {
        path.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'\\' => b'\\',
                _ => return None,
            },
            byte => *byte,
        });
    }
    Some((path, offset..offset.checked_add(len)?))
}

/// Merges chunks, given with the time of their first use, into ranges.
fn merge_chunks(log: &BTreeMap<u32, usize>) -> Vec<ReadaheadRange> {
    let mut ranges: Vec<(usize, ReadaheadRange)> = Vec::new();
    for (&chunk, &when) in log {
        match ranges.last_mut() {
            Some((first, range)) if chunk - (range.first + range.count) <= MAX_GAP => {
                *first = when.min(*first);
                range.count = chunk + 1 - range.first;
            }
            _ => ranges.push((
                when,
                ReadaheadRange {
                    first: chunk,
                    count: 1,
                },
            )),
        }
    }
    ranges.sort_by_key(|(when, _)| *when);
    ranges.into_iter().map(|(_, range)| range).collect()
}

/// Replays a trace on an image.
struct Replay<'a> {
    image: Image,
    storage: LoggingStorage<'a>,
    root: Inode,
    /// The inodes of paths looked up.
    inode_cache: HashMap<Vec<u8>, Option<Inode>>,
}

impl Replay<'_> {
    fn replay(&mut self, path: &[u8], range: &Range<u64>) -> ReadResult<()> {
        let Some(inode) = self.find(path)? else {
            return Ok(());
        };
        if !matches!(
            inode.kind,
            FileType::File | FileType::Directory | FileType::Symlink
        ) {
            return Ok(());
        }
        let contents = self.image.contents(&self.storage, &inode)?;
        // A lookup of a symbolic link also reads it.
        let range = match inode.kind {
            FileType::Symlink => &(0..inode.size),
            _ => range,
        };
        self.log_contents(&contents, range)
    }

    /// Records the location of a range of contents.
    fn log_contents(&self, contents: &Contents, range: &Range<u64>) -> ReadResult<()> {
        let (mut at, end) = (range.start, range.end.min(contents.size()));
        while at < end {
            let run = self.image.map(&self.storage, contents, at)?;
            let next = run.start.saturating_add(run.len).min(end);
            match run.location {
                Location::Plain {
                    offset: position, ..
                } => {
                    let start = position + (at - run.start);
                    self.storage.log_range(start..start + (next - at));
                }
                Location::Encoded(Cluster {
                    offset: position,
                    encoded,
                    ..
                }) => {
                    self.storage
                        .log_range(position..position + u64::from(encoded));
                }
                // The packed inode itself has no packed parts.
                Location::Fragment(position) => {
                    let start = position + (at - run.start);
                    if let Some(packed) = self.image.packed() {
                        self.log_contents(packed, &(start..start + (next - at)))?;
                    }
                }
                // The writer makes no metabox.
                Location::Hole | Location::Metabox(_) => {}
            }
            if next <= at {
                break;
            }
            at = next;
        }
        Ok(())
    }

    fn find(&mut self, path: &[u8]) -> ReadResult<Option<Inode>> {
        let (mut at, mut end) = (self.root, 0);
        for name in path.split(|byte| *byte == b'/') {
            end += name.len();
            if !name.is_empty() {
                let whole = &path[..end];
                let found = match self.inode_cache.get(whole) {
                    Some(found) => *found,
                    None => self.child(&at, name)?,
                };
                self.inode_cache.insert(whole.to_vec(), found);
                match found {
                    Some(inode) => at = inode,
                    None => return Ok(None),
                }
            }
            end += 1;
        }
        Ok(Some(at))
    }

    fn child(&self, dir: &Inode, name: &[u8]) -> ReadResult<Option<Inode>> {
        if dir.kind != FileType::Directory {
            return Ok(None);
        }
        let contents = self.image.contents(&self.storage, dir)?;
        let found = self.image.lookup(&self.storage, &contents, name)?;
        let inode = found.map(|(nid, _)| self.image.inode(&self.storage, nid));
        inode.transpose()
    }
}

type ReadResult<T> = std::result::Result<T, ReadError<io::Error>>;

/// An image in a file that records which chunks are read, in order of first use.
struct LoggingStorage<'a> {
    file: &'a File,
    log: RefCell<BTreeMap<u32, usize>>,
}

impl LoggingStorage<'_> {
    fn log_range(&self, bytes: Range<u64>) {
        let mut log = self.log.borrow_mut();
        for chunk in bytes.start / CHUNK_SIZE..bytes.end.div_ceil(CHUNK_SIZE) {
            // Chunks beyond 64 TiB cannot be in a read-ahead list.
            if let Ok(chunk) = u32::try_from(chunk) {
                let when = log.len();
                log.entry(chunk).or_insert(when);
            }
        }
    }
}

impl Storage for LoggingStorage<'_> {
    type Error = io::Error;
    type Decoded = Vec<u8>;

    fn devices(&self) -> u16 {
        1
    }

    fn read_at(&self, _device: u16, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.log_range(at..at.saturating_add(into.len() as u64));
        self.file.read_exact_at(into, at)
    }

    fn decoded(&self, image: &Image, cluster: &Cluster) -> ReadResult<Vec<u8>> {
        cluster.decode(image, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let touched = [
            (&b"usr/bin/node"[..], 0..4096),
            (b"a name\\n with\n all", 7..7),
            (b"", 0..10),
            (b"\xff", 5..u64::MAX),
        ];
        let mut bytes: Vec<u8> = Vec::new();
        for (path, range) in touched.clone() {
            bytes.extend(format_line(path, range));
        }
        bytes.extend(b"12 cut off");
        let want = touched.map(|(path, range)| (path.to_vec(), range)).to_vec();
        assert_eq!(Trace::parse(&bytes).expect("a trace").accesses, want);
        for bad in [
            "x",
            "1 2",
            "1 x path",
            "1 -2 path",
            "1 2 \\x",
            "18446744073709551615 1 a",
        ] {
            let error = Trace::parse(format!("{bad}\n").as_bytes()).expect_err(bad);
            assert!(error.to_string().starts_with("line 1: expected"), "{error}");
        }
    }

    #[test]
    fn what_is_close_is_one_range_and_what_is_first_comes_first() {
        let log = BTreeMap::from([(0, 0), (2, 7), (7, 9), (20, 1), (21, 2), (100, 3)]);
        let want = [(0, 8), (20, 2), (100, 1)];
        let got: Vec<_> = merge_chunks(&log)
            .iter()
            .map(|range| (range.first, range.count))
            .collect();
        assert_eq!(got, want);
    }
}
