//! READ_PLUS concurrent with writes, hole punching and appends: each byte of a reply must be one
//! that the file had at some moment between call and reply. Tested with threads, and with a change
//! after each step of the server.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use layers::{Layer, forward};
use memory::Memory;
use parking_lot::Mutex;
use vfs::{Capabilities, Cx, Errno, File, FileSystem, NodeId, Op};
use vfs_testkit::SetOnDrop;
use vfs_testkit::context::Random;

use super::super::net::Served;
use super::asker::{ANONYMOUS, Asker, Segment};
use super::file::{create, cut, punch, write};
use super::servers::Subject;

const BLOCK: u64 = 4096;

/// The size of the file in blocks, each of which only one of the [`WRITERS`] writes.
const BLOCKS: u64 = 512;
const WRITERS: u64 = 2;

/// The number of reads.
const READS: usize = 200;

/// A block's history: the latest version whose write has begun, and the latest whose write has
/// ended.
#[derive(Default)]
struct Versions {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The fill byte of a version: zero for every third, which is a hole.
fn fill(version: u64) -> u8 {
    match version % 3 {
        0 => 0,
        _ => 1 + (version % 251) as u8,
    }
}

pub(super) fn no_byte_is_wrong_while_others_write_and_punch(subject: &Subject) {
    let (node, file) = create(subject.tree(), "raced");
    cut(&*node, BLOCKS * BLOCK);
    match punch(&*file, 0..BLOCK) {
        Err(Errno::EOPNOTSUPP) => return eprintln!("skipped: no hole can be made here"),
        done => done.expect("punched"),
    }
    let handle = subject.handle("raced");
    let blocks: Vec<Versions> = (0..BLOCKS).map(|_| Versions::default()).collect();
    let over = AtomicBool::new(false);
    let own = BLOCKS / WRITERS;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (file, blocks, over) = (Arc::clone(&file), &blocks, &over);
            scope.spawn(move || {
                let mut random = Random::new(writer);
                while !over.load(Ordering::Relaxed) {
                    change(
                        &*file,
                        blocks,
                        writer * own..(writer + 1) * own,
                        &mut random,
                    );
                }
            });
        }
        let _over = SetOnDrop(&over);
        let asker = subject.asker();
        let open = asker.open(&handle, 1);
        let mut random = Random::new(99);
        let mut holes = 0;
        for turn in 0..READS {
            // At block boundaries and elsewhere, with an open stateid and the anonymous one.
            let offset = random.below(BLOCKS) * BLOCK + random.below(2) * random.below(BLOCK);
            let state = if turn % 4 == 0 { ANONYMOUS } else { open };
            let since: Vec<u64> = ended(&blocks);
            let answer = asker.read_plus(&handle, &state, offset, 1 << 20);
            let until: Vec<u64> = begun(&blocks);
            let (_, segments) = answer.expect("read");
            holes += check(&segments, &since, &until);
        }
        assert!(holes > 0 || !subject.tells_holes, "some are told");
    });
}

/// Writes the next version of a range of blocks among those `within`.
fn change(file: &dyn File, blocks: &[Versions], within: Range<u64>, random: &mut Random) {
    let len = 1 + random.below(48);
    let first = within.start + random.below(within.end - within.start - len);
    let stretch = &blocks[first as usize..(first + len) as usize];
    // The whole range gets the same version.
    let latest = begun(stretch).into_iter().max();
    let version = latest.expect("not empty") + 1;
    for block in stretch {
        block.begun.store(version, Ordering::SeqCst);
    }
    match fill(version) {
        0 => punch(file, first * BLOCK..(first + len) * BLOCK).expect("punched"),
        byte => write(file, first * BLOCK, &vec![byte; (len * BLOCK) as usize]),
    }
    for block in stretch {
        block.ended.store(version, Ordering::SeqCst);
    }
}

fn ended(blocks: &[Versions]) -> Vec<u64> {
    let ended = blocks.iter().map(|block| &block.ended);
    ended
        .map(|version| version.load(Ordering::SeqCst))
        .collect()
}

fn begun(blocks: &[Versions]) -> Vec<u64> {
    let begun = blocks.iter().map(|block| &block.begun);
    begun
        .map(|version| version.load(Ordering::SeqCst))
        .collect()
}

/// Checks each byte against the versions its block had meanwhile, and returns the number of holes.
fn check(segments: &[Segment], since: &[u64], until: &[u64]) -> usize {
    for segment in segments {
        let (start, len, data) = match segment {
            Segment::Data(start, data) => (*start, data.len() as u64, Some(data)),
            Segment::Hole(start, len) => (*start, *len, None),
        };
        let mut at = start;
        while at < start + len {
            let block = (at / BLOCK) as usize;
            let mut may = [false; 256];
            let versions = since[block]..=until[block];
            for version in versions.clone() {
                may[usize::from(fill(version))] = true;
            }
            let end = ((at / BLOCK + 1) * BLOCK).min(start + len);
            let told = data.map_or(&[0][..], |data| {
                &data[(at - start) as usize..(end - start) as usize]
            });
            let wrong = told.iter().find(|byte| !may[usize::from(**byte)]);
            let is_hole = data.is_none();
            assert_eq!(
                wrong, None,
                "block {block} of versions {versions:?}, hole {is_hole}"
            );
            at = end;
        }
    }
    let holes = segments.iter();
    holes
        .filter(|segment| matches!(segment, Segment::Hole(..)))
        .count()
}

pub(super) fn no_hole_is_told_where_others_append(subject: &Subject) {
    const MOST: u64 = 24 << 20;
    let (_, file) = create(subject.tree(), "grown");
    let handle = subject.handle("grown");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(1);
            let mut at = 0;
            while !over.load(Ordering::Relaxed) && at < MOST {
                let len = 1 + random.below(100_000);
                write(&*file, at, &vec![7; len as usize]);
                at += len;
            }
        });
        let _over = SetOnDrop(&over);
        let asker = subject.asker();
        let open = asker.open(&handle, 1);
        let mut at = 0;
        for turn in 0..READS {
            let state = if turn % 2 == 0 { ANONYMOUS } else { open };
            let (_, segments) = asker.read_plus(&handle, &state, at, 1 << 20).expect("read");
            let mut told = at;
            for segment in segments {
                let Segment::Data(start, bytes) = segment else {
                    panic!("{segment:?} was never there");
                };
                assert_eq!(start, told);
                assert!(bytes.iter().all(|byte| *byte == 7), "from {start}");
                told += bytes.len() as u64;
            }
            // Stays near the end of the file.
            at = told.saturating_sub(64 << 10);
        }
    });
}

/// A tree in memory that changes after each step of a reader.
struct Meddled {
    served: Arc<Served>,
    tree: Arc<dyn FileSystem>,
    meddle: Arc<Meddle>,
}

type Change = Box<dyn FnMut() + Send>;

#[derive(Default)]
struct Meddle(Mutex<Option<Change>>);

impl Meddle {
    fn after<T>(
        &self,
        _: Op,
        _: NodeId,
        _: &Cx<'_>,
        run: impl FnOnce() -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        let done = run();
        if let Some(change) = &mut *self.0.lock() {
            change();
        }
        done
    }
}

impl Layer for Meddle {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    forward! { with after: file_attr read seek extents }
    forward! {
        id above root resolve sync handle attr setattr access statfs open readlink lookup parent create make tmpfile
        link unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder file_setattr write readdir
        fsync flush allocate copy lease
    }
}

impl Meddled {
    fn new() -> Meddled {
        let tree: Arc<dyn FileSystem> = Memory::new(vfs_testkit::clock());
        let meddle = Arc::new(Meddle::default());
        Meddled {
            served: Served::over(layers::stack(tree.clone(), meddle.clone())),
            tree,
            meddle,
        }
    }

    fn begin(&self, change: impl FnMut() + Send + 'static) {
        *self.meddle.0.lock() = Some(Box::new(change));
    }

    fn asker(&self) -> Asker {
        let served = self.served.clone();
        Asker::new(
            Box::new(move || Ok(Box::new(served.link()))),
            b"meddled",
            2 << 20,
        )
    }
}

#[test]
fn no_byte_is_wrong_where_each_step_sees_another_file() {
    let meddled = Meddled::new();
    let (node, file) = create(&meddled.tree, "file");
    cut(&*node, BLOCKS * BLOCK);
    let blocks: Arc<[Versions]> = (0..BLOCKS).map(|_| Versions::default()).collect();
    let (theirs, mut random) = (blocks.clone(), Random::new(5));
    meddled.begin(move || {
        for _ in 0..10 {
            change(&*file, &theirs, 0..BLOCKS, &mut random);
        }
    });
    let asker = meddled.asker();
    let handle = asker.look_up("file");
    let open = asker.open(&handle, 1);
    let (mut random, mut holes) = (Random::new(6), 0);
    for _ in 0..READS {
        let offset = random.below(BLOCKS * BLOCK);
        let since = ended(&blocks);
        let answer = asker.read_plus(&handle, &open, offset, 1 << 20);
        let (_, segments) = answer.expect("read");
        holes += check(&segments, &since, &begun(&blocks));
    }
    assert!(holes > READS / 10, "{holes} are told");
}

#[test]
fn no_hole_is_told_where_each_step_sees_a_longer_file() {
    let meddled = Meddled::new();
    let (_, file) = create(&meddled.tree, "file");
    let bytes = vec![7; 50_000];
    write(&*file, 0, &bytes);
    let mut size = bytes.len() as u64;
    let mut random = Random::new(3);
    meddled.begin(move || {
        // Sometimes changes nothing, so that the reader can reach the end.
        if random.below(2) == 0 {
            write(&*file, size, &bytes);
            size += bytes.len() as u64;
        }
    });
    let asker = meddled.asker();
    let handle = asker.look_up("file");
    let open = asker.open(&handle, 1);
    let mut at = 0;
    for _ in 0..50 {
        let answer = asker.read_plus(&handle, &open, at, 1 << 20);
        for segment in answer.expect("read").1 {
            let Segment::Data(start, bytes) = segment else {
                panic!("{segment:?} was never there");
            };
            assert_eq!(start, at);
            assert!(bytes.iter().all(|byte| *byte == 7));
            at += bytes.len() as u64;
        }
    }
}
