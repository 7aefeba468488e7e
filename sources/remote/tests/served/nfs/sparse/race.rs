//! READ_PLUS beside others who write, punch holes and append: each byte that is told is one that the file had at some
//! moment between the call and its reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vfs::Errno;
use vfs_testkit::bed::Random;

use super::asker::{ANONYMOUS, Segment};
use super::file::{create, cut, punch, write};
use super::servers::Subject;

const BLOCK: u64 = 4096;

/// Of how many blocks the file is, each written by one of [`WRITERS`] alone.
const BLOCKS: u64 = 512;
const WRITERS: u64 = 2;

/// How many times is read.
const READS: usize = 200;

/// A block's history: the last version whose making has begun, and the last whose has ended.
#[derive(Default)]
struct Versions {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// What a block of a version is full of: zeros of every third, which are made by a hole.
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
                    let len = 1 + random.below(48);
                    let first = writer * own + random.below(own - len);
                    let range = first as usize..(first + len) as usize;
                    // All of a stretch go on to versions of one kind.
                    let latest = blocks[range.clone()].iter();
                    let latest = latest.map(|block| block.begun.load(Ordering::SeqCst));
                    let version = latest.max().expect("not empty") + 1;
                    for block in &blocks[range.clone()] {
                        block.begun.store(version, Ordering::SeqCst);
                    }
                    match fill(version) {
                        0 => punch(&*file, first * BLOCK..(first + len) * BLOCK).expect("punched"),
                        byte => write(&*file, first * BLOCK, &vec![byte; (len * BLOCK) as usize]),
                    }
                    for block in &blocks[range] {
                        block.ended.store(version, Ordering::SeqCst);
                    }
                }
            });
        }
        let _over = Over(&over);
        let asker = subject.asker();
        let open = asker.open(&handle, 1);
        let mut random = Random::new(99);
        let mut holes = 0;
        for turn in 0..READS {
            // Whole blocks and others, by what the server knows and by somebody of whom it knows nothing.
            let offset = random.below(BLOCKS) * BLOCK + random.below(2) * random.below(BLOCK);
            let state = if turn % 4 == 0 { ANONYMOUS } else { open };
            let since: Vec<u64> = blocks
                .iter()
                .map(|block| block.ended.load(Ordering::SeqCst))
                .collect();
            let answer = asker.read_plus(&handle, &state, offset, 1 << 20);
            let until: Vec<u64> = blocks
                .iter()
                .map(|block| block.begun.load(Ordering::SeqCst))
                .collect();
            let (_, segments) = answer.expect("read");
            for segment in segments {
                let (start, len, data) = match &segment {
                    Segment::Data(start, data) => (*start, data.len() as u64, Some(data)),
                    Segment::Hole(start, len) => (*start, *len, None),
                };
                holes += u32::from(data.is_none());
                assert!(start + len <= BLOCKS * BLOCK);
                let mut at = start;
                while at < start + len {
                    let block = (at / BLOCK) as usize;
                    let mut may = [false; 256];
                    (since[block]..=until[block])
                        .for_each(|version| may[usize::from(fill(version))] = true);
                    let end = ((at / BLOCK + 1) * BLOCK).min(start + len);
                    let told =
                        data.map(|data| &data[(at - start) as usize..(end - start) as usize]);
                    let right = told
                        .unwrap_or(&[0])
                        .iter()
                        .all(|byte| may[usize::from(*byte)]);
                    let versions = (since[block], until[block]);
                    assert!(
                        right,
                        "block {block} of versions {versions:?}: {:?}",
                        told.map(|told| told[0])
                    );
                    at = end;
                }
            }
        }
        assert!(holes > 0 || !subject.tells_holes, "some are told");
    });
}

/// Says that it is over, however that came.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
        let _over = Over(&over);
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
            // Always around the end.
            at = told.saturating_sub(64 << 10);
        }
    });
}
