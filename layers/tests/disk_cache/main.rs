//! The disk cache: it returns the current version's contents, across restarts and within its size
//! limit, whatever happens to its directory.

#[path = "../common/mod.rs"]
mod common;
mod contents;
mod directory;
mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Data, Passing, Read, create, open, with, write};
use layers::disk_cache::{DiskCache, Options};
use layers::stack;
use memory::Memory;
use vfs::{DirEntry, File, FileSystem, Name, OpenFlags, ReaddirMode, Result, SetAttr, Sink};
use vfs_testkit::{ReplyBuffer, clock};

pub(crate) const READ: OpenFlags = OpenFlags::READ;

/// Counts bytes that are read from the source.
#[derive(Default)]
struct Counting(AtomicU64);

impl Passing for Counting {
    fn read(&self, _: u64, _: usize, sink: &mut dyn Sink, below: Read<'_>) -> Result<usize> {
        let read = below(sink)?;
        self.0.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A source and a cache directory.
pub(crate) struct Bed {
    pub(crate) source: Arc<dyn FileSystem>,
    pub(crate) reads: Arc<Counting>,
    pub(crate) dir: Arc<dyn FileSystem>,
    pub(crate) size: u64,
    pub(crate) now: Duration,
}

/// A mount. When dropped, it has written all queued data.
pub(crate) struct Mount {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) kept: Arc<DiskCache>,
}

impl Bed {
    pub(crate) fn new() -> Bed {
        Bed {
            source: Memory::new(clock()),
            reads: Arc::default(),
            dir: Memory::new(clock()),
            size: 1 << 30,
            // Long after all changes.
            now: Duration::from_secs(1 << 40),
        }
    }

    /// Creates the file `name` with `contents`, or replaces its contents.
    pub(crate) fn file(&self, name: &str, contents: &[u8]) {
        put(&*self.source, name, contents);
    }

    pub(crate) fn mount(&self) -> Mount {
        self.mount_with(self.dir.clone(), [7; 32])
    }

    pub(crate) fn mount_with(&self, dir: Arc<dyn FileSystem>, source: [u8; 32]) -> Mount {
        let now = self.now;
        let kept = DiskCache::new(Options {
            dir,
            size: self.size,
            source,
            process: 1,
            now: Arc::new(move || now),
        });
        let kept = Arc::new(kept.expect("threads"));
        let below = stack(self.source.clone(), Data(self.reads.clone()));
        Mount {
            fs: stack(below, kept.clone()),
            kept,
        }
    }

    /// Returns the bytes read from the source since the last call.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.0.swap(0, Ordering::Relaxed)
    }

    /// Returns the names in the cache directory.
    pub(crate) fn names(&self) -> Vec<String> {
        names(&*self.dir)
    }

    /// Returns the only file of the cache directory whose name ends with `end`.
    pub(crate) fn kept(&self, end: &str) -> String {
        let mut names = self.names().into_iter().filter(|name| name.ends_with(end));
        let name = names.next().expect("a copy");
        assert_eq!(names.next(), None);
        name
    }
}

pub(crate) fn put(fs: &dyn FileSystem, name: &str, contents: &[u8]) {
    let file = create(fs, name);
    cut(&*file, 0);
    write(&*file, 0, contents);
}

pub(crate) fn cut(file: &dyn File, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    with(|cx| file.setattr(cx, &set));
}

pub(crate) fn read(file: &dyn File, at: u64, len: usize) -> Vec<u8> {
    let mut room = ReplyBuffer::new(len);
    with(|cx| file.read(cx, at, len, &mut room));
    room.into_data()
}

/// Reads an open file to its end, `step` bytes at a time.
pub(crate) fn rest(file: &dyn File, step: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let part = read(file, all.len() as u64, step);
        if part.is_empty() {
            return all;
        }
        all.extend(part);
    }
}

impl Mount {
    pub(crate) fn open(&self, name: &str) -> Arc<dyn File> {
        open(&*self.fs, name, READ)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        rest(&*self.open(name), 300_000)
    }
}

pub(crate) fn listed(fs: &dyn FileSystem) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    let mut take = |entry: DirEntry<'_>| {
        let bytes = entry.entry.map_or(0, |entry| entry.attr.blocks * 512);
        names.push((String::from_utf8_lossy(entry.name).into_owned(), bytes));
        true
    };
    with(|cx| {
        let dir = fs.root(cx)?.open(cx, READ)?;
        dir.readdir(cx, 0, ReaddirMode::Entries, &mut take)
    });
    names
}

pub(crate) fn names(fs: &dyn FileSystem) -> Vec<String> {
    listed(fs).into_iter().map(|(name, _)| name).collect()
}

pub(crate) fn unlink(fs: &dyn FileSystem, name: &str) {
    with(|cx| {
        let name = Name::new(name.as_bytes())?;
        fs.root(cx)?.unlink(cx, name, false)
    });
}

pub(crate) const LEN: usize = 3 << 20 | 5;
