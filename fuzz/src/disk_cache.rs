//! The disk cache after arbitrary damage: the input changes, truncates, replaces and renames its
//! files, and corrects checksums.
//!
//! Invariants: a file has its source's contents, and damage of a copy is not reported to readers.

use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use layers::disk_cache::{DiskCache, Options};
use layers::stack;
use memory::Memory;
use vfs::{File, FileSystem, Mode, Name, OpenFlags, RenameFlags};
use vfs_testkit::{ReplyBuffer, clock};

use crate::files::{cut, names, with, write};

/// The position of the checksum in a file of checksums; it covers all bytes after it.
const SEAL: std::ops::Range<usize> = 8..24;

/// The size of a read in bytes.
const STEP: usize = 1 << 19;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Plays the script `data`.
pub fn directory(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // The end of the input is the end of the script.
    let _ = play(&mut input);
}

fn play(input: &mut Unstructured<'_>) -> Result<()> {
    let (source, dir) = (Memory::new(clock()), Memory::new(clock()));
    let mut contents = vec![7; input.arbitrary::<u16>()?.into()];
    if contents.len() % 16 == 15 {
        contents.resize(contents.len() + (1 << 20), 9);
    }
    put(&*source, b"f", &contents);
    reads(&source, &dir, &contents);
    while !input.is_empty() {
        let names = with(|cx| dir.root(cx)).map_or(Vec::new(), |root| names(&*root));
        let Some(name) = names.get(usize::from(input.arbitrary::<u8>()?) % names.len().max(1))
        else {
            reads(&source, &dir, &contents);
            continue;
        };
        match input.arbitrary::<u8>()? % 8 {
            0 => reads(&source, &dir, &contents),
            1 => {
                let at = u64::from(input.arbitrary::<u16>()?);
                write(&*open(&*dir, name), at, some(input)?);
            }
            2 => {
                let size = u64::from(input.arbitrary::<u16>()?) << (input.arbitrary::<u8>()? % 40);
                cut(&*open(&*dir, name), size);
            }
            3 => {
                let file = open(&*dir, name);
                // A large file is not one of checksums.
                let mut room = ReplyBuffer::new(STEP);
                with(|cx| file.read(cx, 0, STEP, &mut room));
                if let Some(said) = room.into_data().get(SEAL.end..) {
                    let sum = blake3::hash(said);
                    write(&*file, SEAL.start as u64, &sum.as_bytes()[..SEAL.len()]);
                }
            }
            4 => put(&*dir, name, some(input)?),
            5 => put(&*dir, some(input)?, &contents),
            6 => {
                let to = names[usize::from(input.arbitrary::<u8>()?) % names.len()].clone();
                with(|cx| {
                    let root = dir.root(cx)?;
                    let (from, to) = (Name::new(name)?, Name::new(&to)?);
                    root.rename(cx, from, &*root, to, RenameFlags::EXCHANGE)
                });
            }
            _ => {
                contents = some(input)?.to_vec();
                put(&*source, b"f", &contents);
            }
        }
    }
    // The first reader detects the damage, and the second one reads a new copy.
    reads(&source, &dir, &contents);
    reads(&source, &dir, &contents);
    Ok(())
}

/// Mounts, reads the file and unmounts.
fn reads(source: &Arc<Memory>, dir: &Arc<Memory>, contents: &[u8]) {
    let kept = DiskCache::new(Options {
        dir: dir.clone(),
        size: 1 << 30,
        source: [7; 32],
        process: 1,
        // Long after all changes.
        now: Arc::new(|| Duration::from_secs(1 << 40)),
    });
    let fs = stack(source.clone(), Arc::new(kept.expect("threads")));
    assert!(read(&*open(&*fs, b"f")) == contents);
}

fn some<'a>(input: &mut Unstructured<'a>) -> Result<&'a [u8]> {
    let len = input.arbitrary::<u8>()?.into();
    input.bytes(input.len().min(len))
}

/// Creates a file, or overwrites one; does nothing if the name is invalid.
fn put(fs: &dyn FileSystem, name: &[u8], contents: &[u8]) {
    let made = with(|cx| {
        let mode = Mode::without_umask(0o600);
        fs.root(cx)?.create(cx, Name::new(name)?, RW, mode)
    });
    if let Some((_, file)) = made {
        cut(&*file, 0);
        write(&*file, 0, contents);
    }
}

fn open(fs: &dyn FileSystem, name: &[u8]) -> Arc<dyn File> {
    let flags = if name == b"f" { OpenFlags::READ } else { RW };
    let file = with(|cx| {
        let entry = fs.root(cx)?.lookup(cx, Name::new(name)?)?;
        entry.node.open(cx, flags)
    });
    file.expect("it is there")
}

/// Reads a whole file.
fn read(file: &dyn File) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut room = ReplyBuffer::new(STEP);
        let read = with(|cx| file.read(cx, all.len() as u64, STEP, &mut room));
        if read.expect("no error of who reads") == 0 {
            return all;
        }
        all.extend(room.into_data());
    }
}
