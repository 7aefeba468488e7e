//! Messages that the page cache sends: their number, their ranges, and the errors reported when
//! they fail.

mod common;

use std::sync::Arc;

use common::{Bed, Data, Passing, RW, Read, Write, create, open, tried, with, write};
use layers::fault::{FaultKind, Trigger};
use layers::pagecache::{Mode, Options, PageCache};
use layers::stack;
use memory::Memory;
use parking_lot::Mutex;
use vfs::{
    AttrMask, Call, Caller, Cx, Errno, File, FileSystem, Op, OpenFlags, Payload, Result, SetAttr,
    Sink,
};
use vfs_testkit::{ReplyBuffer, TestPayload, clock, wait_until};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Records the offsets and lengths of messages.
#[derive(Default)]
struct Messages {
    reads: Mutex<Vec<(u64, u64)>>,
    writes: Mutex<Vec<(u64, u64)>>,
}

impl Messages {
    fn take(of: &Mutex<Vec<(u64, u64)>>) -> Vec<(u64, u64)> {
        std::mem::take(&mut *of.lock())
    }
}

impl Passing for Messages {
    fn read(&self, at: u64, len: usize, sink: &mut dyn Sink, below: Read<'_>) -> Result<usize> {
        let mut reads = self.reads.lock();
        reads.push((at, len as u64));
        drop(reads);
        below(sink)
    }

    fn write(&self, at: u64, data: &mut dyn Payload, below: Write<'_>) -> Result<usize> {
        let mut writes = self.writes.lock();
        writes.push((at, data.len() as u64));
        drop(writes);
        below(data)
    }
}

fn bed(mode: Mode, memory: u64) -> Bed<Messages> {
    Bed::new(mode, memory as usize, Messages::default())
}

fn read(file: &dyn File, at: u64, len: u64) -> Vec<u8> {
    let mut room = ReplyBuffer::new(len as usize);
    with(|cx| file.read(cx, at, len as usize, &mut room));
    room.into_data()
}

fn pattern(len: u64, seed: u64) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 31 / 7) as u8).collect()
}

#[test]
fn a_stream_of_small_writes_leaves_in_large_messages() {
    let bed = bed(Mode::Mmap, 16 * MIB);
    let file = create(&*bed.above, "f");
    let data = pattern(20 * MIB, 1);
    for (number, page) in data.chunks(4096).enumerate() {
        write(&*file, number as u64 * 4096, page);
    }
    with(|cx| file.flush(cx));
    let written = Messages::take(&bed.passing.writes);
    assert!(written.len() <= 24, "{} messages", written.len());
    assert!(read(&*open(&*bed.below, "f", OpenFlags::READ), 0, 20 * MIB) == data);
}

#[test]
fn several_files_written_at_once_all_merge() {
    let bed = bed(Mode::Mmap, 32 * MIB);
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let bed = &bed;
            scope.spawn(move || {
                let file = create(&*bed.above, name);
                for number in 0..1024 {
                    write(&*file, number * 4 * KIB, &[7; 4096]);
                }
                with(|cx| file.flush(cx));
            });
        }
    });
    let written = Messages::take(&bed.passing.writes);
    let mean = 16 * MIB / written.len() as u64;
    assert!(mean >= 256 * KIB, "messages of {mean} bytes");
}

#[test]
fn four_writers_of_one_file_merge() {
    let bed = bed(Mode::Mmap, 32 * MIB);
    drop(create(&*bed.above, "f"));
    std::thread::scope(|scope| {
        for part in 0..4 {
            let bed = &bed;
            scope.spawn(move || {
                let file = open(&*bed.above, "f", RW);
                for number in 0..1024 {
                    write(
                        &*file,
                        part * 4 * MIB + number * 4 * KIB,
                        &[part as u8; 4096],
                    );
                }
                with(|cx| file.flush(cx));
            });
        }
    });
    let written = Messages::take(&bed.passing.writes);
    let mean = 16 * MIB / written.len() as u64;
    assert!(mean >= 256 * KIB, "messages of {mean} bytes");
    let below = open(&*bed.below, "f", OpenFlags::READ);
    for part in 0..4 {
        assert!(
            read(&*below, part * 4 * MIB, 4 * MIB)
                .iter()
                .all(|&byte| byte == part as u8)
        );
    }
}

#[test]
fn writes_at_random_leave_in_the_order_of_their_offsets() {
    let bed = bed(Mode::Mmap, 16 * MIB);
    let file = create(&*bed.above, "f");
    let data = pattern(MIB, 5);
    // 97 and 256 are coprime: all pages are visited, far from their neighbours.
    for number in (0..256).map(|number| number * 97 % 256) {
        let at = number * 4 * KIB;
        write(&*file, at, &data[at as usize..][..4096]);
    }
    with(|cx| file.fsync(cx, false));
    let written = Messages::take(&bed.passing.writes);
    assert_eq!(written, [(0, MIB)]);
    assert!(read(&*file, 0, 2 * MIB) == data);
    assert_eq!(
        Messages::take(&bed.passing.reads),
        [],
        "what was written is read here"
    );
}

#[test]
fn a_stream_of_small_reads_is_read_ahead_of() {
    let bed = bed(Mode::ReadAhead, 64 * MIB);
    let data = pattern(16 * MIB, 9);
    write(&*create(&*bed.below, "f"), 0, &data);
    let file = open(&*bed.above, "f", OpenFlags::READ);
    for (number, page) in data.chunks(4096).enumerate() {
        assert!(
            read(&*file, number as u64 * 4096, 4096) == page,
            "page {number}"
        );
    }
    let asked = Messages::take(&bed.passing.reads);
    assert!(asked.len() <= 40, "{} messages", asked.len());
    assert_eq!(
        asked.iter().map(|(_, len)| len).sum::<u64>(),
        16 * MIB,
        "nothing twice"
    );
}

/// Returns the numbers below `count` in a pseudo-random order.
fn shuffled(count: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    let mut state = 1u64;
    for at in (1..numbers.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(at, (state >> 33) as usize % (at + 1));
    }
    numbers
}

/// Pages that were handed out are evicted first, so that the memory is full of pages not yet
/// requested. With a fraction `r` of the file in memory, the minimum is `1 - r + r ln r` messages
/// per page, 0.15; reading whole blocks would take 0.52.
#[test]
fn a_file_twice_the_memory_is_read_at_random_by_few_messages() {
    let bed = bed(Mode::Mmap, 4 * MIB);
    let data = pattern(8 * MIB, 3);
    write(&*create(&*bed.below, "f"), 0, &data);
    let file = open(&*bed.above, "f", OpenFlags::READ);
    for number in shuffled(2048) {
        let at = number * 4 * KIB;
        assert!(
            read(&*file, at, 4096) == data[at as usize..][..4096],
            "page {number}"
        );
    }
    let asked = Messages::take(&bed.passing.reads);
    assert!(asked.len() <= 2048 / 4, "{} messages", asked.len());
    let bytes: u64 = asked.iter().map(|(_, len)| len).sum();
    assert!(bytes <= 3 * 8 * MIB, "{bytes} bytes");
}

#[test]
fn what_came_along_for_nothing_is_brought_along_no_more() {
    let bed = bed(Mode::Mmap, MIB);
    let below = create(&*bed.below, "f");
    write(&*below, 1 << 30, b"end");
    let file = open(&*bed.above, "f", OpenFlags::READ);
    let mut far = shuffled(4096).into_iter().map(|number| number << 18);
    for at in far.by_ref().take(64) {
        read(&*file, at, 4096);
    }
    Messages::take(&bed.passing.reads);
    for at in far.by_ref().take(1024) {
        read(&*file, at, 4096);
    }
    let asked = Messages::take(&bed.passing.reads);
    assert_eq!(asked.len(), 1024);
    let pages = asked.iter().filter(|&&(_, len)| len == 4096);
    assert!(pages.count() >= 1024 - 1024 / 32, "but for the tries");
}

#[test]
fn what_was_handed_out_comes_along_again_once_the_file_is_opened_anew() {
    let bed = bed(Mode::Mmap, MIB);
    write(&*create(&*bed.below, "f"), 0, &pattern(4 * MIB, 5));
    let block = 512 * KIB;
    let page = |file: &dyn File, number: u64| {
        read(file, block + number * 4 * KIB, 4096);
        Messages::take(&bed.passing.reads)
    };
    // Reads blocks backwards, which is not sequential.
    let crowd = |file: &dyn File| {
        for number in (32..64).rev() {
            read(file, number * 64 * KIB, 64 << 10);
        }
        Messages::take(&bed.passing.reads);
    };
    let file = open(&*bed.above, "f", OpenFlags::READ);
    assert_eq!(page(&*file, 7), [(block, 64 * KIB)], "and all around it");
    for number in (0..16).rev() {
        assert_eq!(page(&*file, number), []);
    }
    crowd(&*file);
    assert_eq!(page(&*file, 9), [(block + 36 * KIB, 4096)]);
    let file = open(&*bed.above, "f", OpenFlags::READ);
    crowd(&*file);
    assert_eq!(page(&*file, 5), [(block, 64 * KIB)]);
}

#[test]
fn loose_has_only_what_came_along_with_reads_at_random() {
    let bed = bed(Mode::Loose, 4 * MIB);
    let mut data = pattern(4 * MIB, 11);
    write(&*create(&*bed.below, "f"), 0, &data);
    let reads = || Messages::take(&bed.passing.reads);
    let file = open(&*bed.above, "f", RW);
    let stream: Vec<_> = (0..4).map(|number| (number * 16 * KIB, 16 * KIB)).collect();
    for &(at, len) in &stream {
        read(&*file, at, len);
    }
    assert_eq!(reads(), stream, "as it was read");
    read(&*file, 2 * MIB, 64 << 10);
    read(&*file, 2 * MIB, 64 << 10);
    assert_eq!(reads(), [(2 * MIB, 64 * KIB); 2], "as it was read");
    let page = |file: &dyn File, data: &[u8], number: u64| {
        let at = number * 4 * KIB;
        assert!(
            read(file, at, 4096) == data[at as usize..][..4096],
            "page {number}"
        );
        reads()
    };
    assert_eq!(page(&*file, &data, 840), [(832 * 4 * KIB, 64 * KIB)]);
    assert_eq!(page(&*file, &data, 835), []);
    // A write goes below at once, and is visible to the next read.
    write(&*file, 846 * 4 * KIB + 5, b"written");
    data[(846 << 12) + 5..][..7].copy_from_slice(b"written");
    assert_eq!(Messages::take(&bed.passing.writes).len(), 1);
    assert_eq!(page(&*file, &data, 846).len(), 1);
    assert_eq!(page(&*file, &data, 847), []);
    let again = open(&*bed.above, "f", RW);
    drop(file);
    assert_eq!(page(&*again, &data, 833), []);
    drop(again);
    let file = open(&*bed.above, "f", RW);
    assert_eq!(page(&*file, &data, 834).len(), 1, "nobody had it open");
    // Reads end at the end of the file.
    write(&*file, 4 * MIB, b"tail");
    assert_eq!(read(&*file, 4 * MIB, 4096), b"tail");
    assert_eq!(read(&*file, 4 * MIB + 4, 4096), b"");
}

/// A page fetched along can be written and truncated like any other.
#[test]
fn what_came_along_is_written_to_and_cut_off() {
    let bed = bed(Mode::Mmap, 4 * MIB);
    let mut data = pattern(MIB, 7);
    write(&*create(&*bed.below, "f"), 0, &data);
    let file = open(&*bed.above, "f", RW);
    let at = 512 * KIB;
    read(&*file, at + 20 * KIB, 4096);
    assert_eq!(
        Messages::take(&bed.passing.reads),
        [(at, 64 * KIB)],
        "all of its block"
    );
    // Parts of two pages, one of which was handed out.
    let here = at as usize + (20 << 10) - 100;
    write(&*file, here as u64, &[9; 200]);
    data[here..here + 200].fill(9);
    assert!(read(&*file, at, 60 << 10) == data[at as usize..][..60 << 10]);
    assert_eq!(Messages::take(&bed.passing.reads), []);
    let cut = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let end = at + 50 * KIB + 10;
    with(|cx| file.setattr(cx, &cut(end)));
    with(|cx| file.setattr(cx, &cut(MIB)));
    data[end as usize..].fill(0);
    for page in shuffled(16) {
        let at = at + page * 4 * KIB;
        assert!(
            read(&*file, at, 4096) == data[at as usize..][..4096],
            "page {page}"
        );
    }
    with(|cx| file.flush(cx));
    assert!(read(&*open(&*bed.below, "f", OpenFlags::READ), 0, MIB) == data);
}

#[test]
fn what_was_read_is_kept_until_others_change_it() {
    let bed = bed(Mode::Mmap, 16 * MIB);
    let other = create(&*bed.below, "f");
    write(&*other, 0, b"before");
    for _ in 0..3 {
        assert_eq!(read(&*open(&*bed.above, "f", RW), 0, 10), b"before");
    }
    assert_eq!(Messages::take(&bed.passing.reads).len(), 1);
    write(&*other, 0, b"behind it");
    assert_eq!(read(&*open(&*bed.above, "f", RW), 0, 10), b"behind it");
}

#[test]
fn what_is_lost_is_told_to_each_once() {
    for errno in [Errno::ENOSPC, Errno::EIO] {
        let bed = bed(Mode::Mmap, 16 * MIB);
        let (a, b) = (create(&*bed.above, "f"), open(&*bed.above, "f", RW));
        bed.fault
            .add(Op::Write, Trigger::Always, FaultKind::Fail(errno));
        write(&*a, 0, b"lost");
        assert_eq!(tried(|cx| a.fsync(cx, true)), Err(errno));
        bed.fault.clear();
        assert_eq!(tried(|cx| a.fsync(cx, true)), Ok(()));
        assert_eq!(tried(|cx| b.flush(cx)), Err(errno));
        assert_eq!(tried(|cx| b.flush(cx)), Ok(()));
        assert_eq!(read(&*a, 0, 10), b"", "as it is below");
        assert_eq!(with(|cx| a.attr(cx, AttrMask::STAT)).size, 0);
        let c = open(&*bed.above, "f", RW);
        assert_eq!(tried(|cx| c.flush(cx)), Ok(()), "it was told");
    }
}

#[test]
fn what_nobody_was_told_is_told_to_the_next() {
    let bed = bed(Mode::Mmap, 16 * MIB);
    let file = create(&*bed.above, "f");
    bed.fault
        .add(Op::Write, Trigger::Nth(1), FaultKind::Fail(Errno::EIO));
    write(&*file, 0, b"lost");
    drop(file);
    // The write happens after the drop.
    wait_until("the page is written", || {
        !Messages::take(&bed.passing.writes).is_empty()
    });
    // A sync reports the error, too.
    let sync = || tried(|cx| bed.above.sync(cx));
    assert_eq!(sync(), Err(Errno::EIO));
    let next = open(&*bed.above, "f", RW);
    assert_eq!(sync(), Ok(()));
    assert_eq!(tried(|cx| next.fsync(cx, false)), Err(Errno::EIO));
}

#[test]
fn a_cut_takes_what_was_not_sent_along() {
    let bed = bed(Mode::Mmap, 16 * MIB);
    let file = create(&*bed.above, "f");
    write(&*file, 0, &[1; 10_000]);
    let cut = SetAttr {
        size: Some(100),
        ..SetAttr::default()
    };
    assert_eq!(with(|cx| file.setattr(cx, &cut)).size, 100);
    write(&*file, 200, &[2; 10]);
    let mut expected = vec![1; 100];
    expected.resize(200, 0);
    expected.resize(210, 2);
    assert_eq!(read(&*file, 0, 300), expected);
    with(|cx| file.flush(cx));
    assert_eq!(read(&*open(&*bed.below, "f", RW), 0, 300), expected);
}

#[test]
fn writes_past_the_cache_are_seen_and_see_what_was_written() {
    for past in [OpenFlags::DIRECT, OpenFlags::SYNC, OpenFlags::APPEND] {
        let bed = bed(Mode::Mmap, 16 * MIB);
        let (file, below) = (create(&*bed.above, "f"), open(&*bed.below, "f", RW));
        write(&*file, 0, b"0123");
        let direct = open(&*bed.above, "f", RW | past);
        write(&*direct, 4, b"4567");
        assert_eq!(read(&*below, 0, 10), b"01234567", "{past:?}");
        assert_eq!(read(&*file, 0, 10), b"01234567", "{past:?}");
        write(&*file, 0, b"x");
        assert_eq!(read(&*direct, 0, 10), b"x1234567", "{past:?}");
    }
}

/// Runs an action, once, between a read below and the arrival of its data.
#[derive(Default)]
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Meanwhile {
    fn act(&self) {
        let act = self.0.lock().take();
        if let Some(act) = act {
            act();
        }
    }
}

impl Passing for Meanwhile {
    fn found(&self) {
        self.act();
    }

    fn read(&self, _: u64, len: usize, sink: &mut dyn Sink, below: Read<'_>) -> Result<usize> {
        let mut room = ReplyBuffer::new(len);
        let got = below(&mut room)?;
        self.act();
        sink.bytes(room.data());
        Ok(got)
    }
}

/// Data in flight is outdated by a change made meanwhile, and is not cached.
#[test]
fn what_was_on_its_way_is_not_kept_over_a_change() {
    type Change = fn(&dyn File);
    let changes: [(Change, &[u8]); 3] = [
        (|file| write(file, 0, b"new"), b"newore"),
        (
            |file| {
                write(file, 0, b"new");
                with(|cx| file.flush(cx));
            },
            b"newore",
        ),
        (
            |file| {
                let cut = |size| SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                with(|cx| file.setattr(cx, &cut(0)));
                with(|cx| file.setattr(cx, &cut(6)));
            },
            b"\0\0\0\0\0\0",
        ),
    ];
    for past in [OpenFlags::empty(), OpenFlags::DIRECT] {
        for (change, expected) in changes {
            let below: Arc<dyn FileSystem> = Memory::new(clock());
            write(&*create(&*below, "f"), 0, b"before");
            let meanwhile = Arc::new(Meanwhile::default());
            let cache = PageCache::new(Options::default()).expect("a thread");
            let above = stack(stack(below, Data(meanwhile.clone())), cache);
            let (reader, writer) = (open(&*above, "f", RW), open(&*above, "f", RW | past));
            let act = Box::new(move || change(&*writer));
            *meanwhile.0.lock() = Some(act);
            read(&*reader, 0, 6);
            assert_eq!(read(&*reader, 0, 6), expected, "{past:?}");
        }
    }
}

/// An entry shows the times of writes made here, even if they arrive between its reply and its use.
#[test]
fn what_arrives_while_a_name_is_looked_up_is_in_its_times() {
    let below: Arc<dyn FileSystem> = Memory::new(clock());
    let meanwhile = Arc::new(Meanwhile::default());
    let cache = PageCache::new(Options::default()).expect("a thread");
    let above = stack(stack(below, Data(meanwhile.clone())), cache);
    let file = create(&*above, "f");
    write(&*file, 0, b"written");
    let writer = file.clone();
    let act = Box::new(move || with(|cx| writer.flush(cx)));
    *meanwhile.0.lock() = Some(act);
    let entry = with(|cx| above.root(cx)?.lookup(cx, vfs::Name::new(b"f")?));
    let attr = with(|cx| file.attr(cx, AttrMask::STAT));
    assert_eq!(entry.attr.size, 7);
    assert_eq!(
        (entry.attr.mtime, entry.attr.change),
        (attr.mtime, attr.change)
    );
}

/// Without patience, operations return what is cached or leave no trace.
#[test]
fn who_may_not_wait_gets_what_is_here_and_leaves_what_is_not() {
    let bed = bed(Mode::Mmap, 16 * MIB);
    let file = create(&*bed.above, "f");
    write(&*file, 0, b"here");
    let call = Call::detached();
    let cx = Cx {
        patience: vfs::Patience::None,
        ..Cx::new(&Caller::ROOT, &call)
    };
    let mut room = ReplyBuffer::new(4);
    assert_eq!(file.read(&cx, 0, 4, &mut room), Ok(4));
    assert_eq!(file.write(&cx, 4, &mut TestPayload::new(b"too")), Ok(3));
    assert_eq!(file.flush(&cx), Err(Errno::WOULD_BLOCK));
    assert_eq!(
        file.attr(&cx, AttrMask::STAT).map(drop),
        Err(Errno::WOULD_BLOCK)
    );
    assert_eq!(Messages::take(&bed.passing.writes), []);
}
