//! The page cache's threads in rare interleavings: random ones, and those of few well-chosen
//! context switches (PCT). A deadlock is a failure as well.

mod common;

use std::sync::Arc;

use common::{Bed, Passing, RW, Read, Write, tried, with};
use layers::fault::{FaultKind, Trigger};
use layers::pagecache::Mode;
use shuttle::thread::{spawn, yield_now};
use vfs::{Errno, File, FileSystem, Op, Payload, Result, SetAttr, Sink};
use vfs_testkit::{ReplyBuffer, TestPayload};

/// Two of these are more than a message holds, so that some data is sent without a flush.
const PIECE: usize = 700 << 10;

/// Yields to other threads while the source works, but not while it holds a lock that shuttle does
/// not know: data goes through a buffer.
struct Slow;

impl Passing for Slow {
    fn read(&self, _: u64, len: usize, sink: &mut dyn Sink, below: Read<'_>) -> Result<usize> {
        yield_now();
        let mut room = ReplyBuffer::new(len.min(sink.room()));
        below(&mut room)?;
        yield_now();
        sink.bytes(room.data());
        Ok(room.data().len())
    }

    fn write(&self, _: u64, data: &mut dyn Payload, below: Write<'_>) -> Result<usize> {
        let mut whole = Vec::new();
        data.bytes(&mut |piece| {
            whole.extend_from_slice(piece);
            Ok(())
        })?;
        yield_now();
        let written = below(&mut TestPayload::new(&whole));
        yield_now();
        written
    }
}

fn bed(memory: usize) -> Bed<Slow> {
    bed_of(Mode::Mmap, memory)
}

fn bed_of(mode: Mode, memory: usize) -> Bed<Slow> {
    Bed::new(mode, memory, Slow)
}

fn create(fs: &dyn FileSystem) -> Arc<dyn File> {
    common::create(fs, "file")
}

fn open(fs: &dyn FileSystem) -> Arc<dyn File> {
    common::open(fs, "file", RW)
}

fn write(file: &dyn File, at: usize, byte: u8, len: usize) -> Result<usize> {
    let data = vec![byte; len];
    tried(|cx| file.write(cx, at as u64, &mut TestPayload::new(&data)))
}

fn read(file: &dyn File, at: usize, len: usize) -> Vec<u8> {
    let mut room = ReplyBuffer::new(len);
    with(|cx| file.read(cx, at as u64, len, &mut room));
    room.into_data()
}

fn is_all(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|&each| each == byte)
}

/// Runs `test` in many interleavings.
fn explored(test: fn()) {
    shuttle::check_random(test, 150);
    shuttle::check_pct(test, 150, 3);
}

#[test]
fn writers_of_parts_are_all_below_after_fsync() {
    explored(|| {
        let bed = bed(4 << 20);
        let file = create(&*bed.above);
        let writers: Vec<_> = (0..3)
            .map(|part| {
                let file = file.clone();
                spawn(move || {
                    for half in 0..2 {
                        let at = part * PIECE + half * PIECE / 2;
                        assert_eq!(write(&*file, at, part as u8 + 1, PIECE / 2), Ok(PIECE / 2));
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("it ends");
        }
        with(|cx| file.fsync(cx, false));
        let below = open(&*bed.below);
        for part in 0..3 {
            assert!(is_all(&read(&*below, part * PIECE, PIECE), part as u8 + 1));
        }
    });
}

#[test]
fn a_reader_sees_what_was_written_whatever_is_on_its_way() {
    explored(|| {
        let bed = bed(4 << 20);
        let file = create(&*bed.above);
        assert_eq!(write(&*file, 0, 1, PIECE), Ok(PIECE));
        let syncing = spawn({
            let file = file.clone();
            move || with(|cx| file.fsync(cx, false))
        });
        let reading = spawn({
            let file = file.clone();
            move || {
                for _ in 0..2 {
                    let seen = read(&*file, PIECE / 2, 5000);
                    assert!(is_all(&seen, 1) || is_all(&seen, 2));
                }
            }
        });
        assert_eq!(write(&*file, PIECE / 2, 2, 5000), Ok(5000));
        assert!(is_all(&read(&*file, PIECE / 2, 5000), 2));
        syncing.join().expect("it ends");
        reading.join().expect("it ends");
        with(|cx| file.fsync(cx, false));
        assert!(is_all(&read(&*open(&*bed.below), PIECE / 2, 5000), 2));
    });
}

/// A worker that has sent a whole message does not look for data written over it meanwhile: the
/// caller that waits must send that.
#[test]
fn what_was_written_over_a_message_on_its_way_is_below_after_fsync() {
    const MESSAGE: usize = 1 << 20;
    explored(|| {
        let bed = bed(4 << 20);
        let file = create(&*bed.above);
        assert_eq!(write(&*file, 0, 1, MESSAGE), Ok(MESSAGE));
        assert_eq!(write(&*file, MESSAGE / 2, 2, 5000), Ok(5000));
        with(|cx| file.fsync(cx, false));
        assert!(is_all(&read(&*open(&*bed.below), MESSAGE / 2, 5000), 2));
    });
}

#[test]
fn what_came_along_is_not_of_before_a_write() {
    const PAGE: usize = 4 << 10;
    const AT: usize = 128 << 10;
    explored(|| {
        for mode in [Mode::Mmap, Mode::Loose] {
            let bed = bed_of(mode, 1 << 20);
            assert_eq!(write(&*create(&*bed.below), 0, 1, 2 * AT), Ok(2 * AT));
            let file = open(&*bed.above);
            let reading = spawn({
                let file = file.clone();
                move || assert!(is_all(&read(&*file, AT + 5 * PAGE, PAGE), 1))
            });
            assert_eq!(write(&*file, AT + 6 * PAGE, 2, PAGE), Ok(PAGE));
            assert!(is_all(&read(&*file, AT + 6 * PAGE, PAGE), 2));
            reading.join().expect("it ends");
            assert!(is_all(&read(&*file, AT + 6 * PAGE, PAGE), 2));
            assert!(is_all(&read(&*file, AT + 7 * PAGE, PAGE), 1));
        }
    });
}

#[test]
fn what_is_cut_off_does_not_come_back() {
    explored(|| {
        let bed = bed(4 << 20);
        let file = create(&*bed.above);
        assert_eq!(write(&*file, 0, 1, 2 * PIECE), Ok(2 * PIECE));
        let ahead = spawn({
            let file = file.clone();
            move || {
                let seen = read(&*file, PIECE, PIECE);
                assert!(is_all(&seen, 1) || is_all(&seen, 0));
            }
        });
        let size = |size| SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        with(|cx| file.setattr(cx, &size(PIECE as u64)));
        with(|cx| file.setattr(cx, &size(2 * PIECE as u64)));
        assert!(is_all(&read(&*file, PIECE, PIECE), 0));
        ahead.join().expect("it ends");
        with(|cx| file.fsync(cx, false));
        assert!(is_all(&read(&*open(&*bed.below), PIECE, PIECE), 0));
        assert!(is_all(&read(&*file, PIECE, PIECE), 0));
    });
}

#[test]
fn writers_who_wait_for_room_go_on() {
    explored(|| {
        // Less memory than the data written.
        let bed = bed(1 << 20);
        let file = create(&*bed.above);
        let writers: Vec<_> = (0..2)
            .map(|part| {
                let file = file.clone();
                spawn(move || {
                    for turn in 0..3 {
                        let at = (2 * turn + part) * PIECE;
                        assert_eq!(write(&*file, at, part as u8 + 1, PIECE), Ok(PIECE));
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("it ends");
        }
        with(|cx| file.flush(cx));
        let below = open(&*bed.below);
        for piece in 0..6 {
            let seen = read(&*below, piece * PIECE, PIECE);
            assert!(is_all(&seen, piece as u8 % 2 + 1));
        }
    });
}

#[test]
fn who_has_the_file_open_is_told_of_a_loss_once() {
    explored(|| {
        let bed = bed(4 << 20);
        let file = create(&*bed.above);
        let other = open(&*bed.above);
        bed.fault.add(
            Some(Op::Write),
            Trigger::Always,
            FaultKind::Fail(Errno::ENOSPC),
        );
        let written = write(&*file, 0, 1, PIECE);
        assert!(matches!(written, Ok(PIECE) | Err(Errno::ENOSPC)));
        let told = |file: Arc<dyn File>| {
            spawn(move || {
                let first = tried(|cx| file.fsync(cx, false));
                let second = tried(|cx| file.fsync(cx, false));
                (first, second)
            })
        };
        for told in [told(file), told(other)] {
            let told = told.join().expect("it ends");
            assert_eq!(told, (Err(Errno::ENOSPC), Ok(())));
        }
    });
}
