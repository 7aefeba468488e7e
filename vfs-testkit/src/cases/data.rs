//! Reading and writing files.

use std::thread;

use vfs::{CopyMode, Errno, OpenFlags, Support};

use crate::context::{R, RW, Random, TestContext, TestFile, W, ok, pattern, refused, refused_as};
use crate::{Script, needs};

/// Written data is read back, and nothing after it.
pub fn reads_what_was_written(test: &TestContext) {
    let (_node, file) = ok(test.root().create("file", RW, 0o644));
    assert_eq!(ok(file.read(0, 10)), b"");
    assert_eq!(ok(file.write(0, b"0123456789")), 10);
    assert_eq!(ok(file.read(0, 10)), b"0123456789");
    assert_eq!(ok(file.read(3, 4)), b"3456");
    assert_eq!(ok(file.read(8, 100)), b"89");
    assert_eq!(ok(file.read(10, 1)), b"");
    assert_eq!(ok(file.read(1 << 40, 1)), b"");
    assert_eq!(ok(file.read(i64::MAX as u64, 1)), b"");
}

/// Empty reads and writes are valid.
pub fn nothing_is_read_and_written(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    let file = ok(node.open(RW));
    let before = node.attr();
    assert_eq!(ok(file.read(1, 0)), b"");
    assert_eq!(ok(file.write(100, b"")), 0);
    let after = node.attr();
    assert_eq!((after.size, after.mtime), (4, before.mtime));
}

/// Writing in the middle leaves the rest unchanged.
pub fn overwrites_in_place(test: &TestContext) {
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    ok(file.write_all(0, b"0123456789"));
    ok(file.write_all(3, b"xyz"));
    assert_eq!(ok(file.read_all()), b"012xyz6789");
    assert_eq!(node.attr().size, 10);
}

/// A gap reads as zeros.
pub fn a_gap_reads_as_zeros(test: &TestContext) {
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    ok(file.write_all(0, b"start"));
    ok(file.write_all(10_000, b"end"));
    assert_eq!(node.attr().size, 10_003);
    let content = ok(file.read_all());
    assert_eq!(&content[..5], b"start");
    assert!(content[5..10_000].iter().all(|byte| *byte == 0));
    assert_eq!(&content[10_000..], b"end");
}

/// Sizes that are no multiple of a block are transferred unchanged.
pub fn odd_sizes_come_through(test: &TestContext) {
    let (_node, file) = ok(test.root().create("file", RW, 0o644));
    let data = pattern(3 << 20, 42);
    let mut at = 0;
    for len in [1, 4095, 4096, 4097, 65_535, 131_073, 1 << 20]
        .iter()
        .cycle()
    {
        let end = (at + len).min(data.len());
        ok(file.write_all(at as u64, &data[at..end]));
        at = end;
        if at == data.len() {
            break;
        }
    }
    assert_eq!(ok(file.read_all()), data);
    for (offset, len) in [(1, 4096), (4095, 2), (65_537, 100_000), (data.len() - 5, 5)] {
        let read = ok(file.read_exact(offset as u64, len));
        assert_eq!(read, data[offset..offset + len]);
    }
}

/// A payload may consist of several pieces.
pub fn a_payload_may_come_in_pieces(test: &TestContext) {
    let (_node, file) = ok(test.root().create("file", RW, 0o644));
    let data = pattern(20_000, 7);
    assert_eq!(ok(file.write_pieces(5, &data, 777)), data.len());
    assert_eq!(ok(file.read_exact(5, data.len())), data);
}

/// Writes to a file opened with `O_APPEND` go to its end, whatever their offset. `O_TRUNC` empties
/// it first.
pub fn append_goes_to_the_end(test: &TestContext) {
    let node = ok(test.root().file("file", b"start"));
    let file = ok(node.open(RW | OpenFlags::APPEND));
    assert_eq!(ok(file.write(0, b"-more")), 5);
    ok(ok(node.open(W)).write_all(10, b"-other"));
    ok(file.write_pieces(3, b"-end", 2));
    assert_eq!(ok(node.content()), b"start-more-other-end");
    let file = ok(node.open(W | OpenFlags::APPEND | OpenFlags::TRUNC));
    ok(ok(node.open(W)).write_all(0, b"new"));
    assert_eq!(ok(file.write(0, b"-end")), 4);
    assert_eq!(ok(node.content()), b"new-end");
}

/// Concurrent appends lose nothing.
pub fn appends_at_a_time_lose_nothing(test: &TestContext) {
    let node = ok(test.root().file("file", b""));
    const RECORD: usize = 100;
    const EACH: usize = 50;
    thread::scope(|scope| {
        for writer in 0..4u8 {
            let node = &node;
            scope.spawn(move || {
                let file = ok(node.open(W | OpenFlags::APPEND));
                for _ in 0..EACH {
                    assert_eq!(ok(file.write(0, &[b'a' + writer; RECORD])), RECORD);
                }
            });
        }
    });
    let content = ok(node.content());
    assert_eq!(content.len(), 4 * EACH * RECORD);
    for record in content.chunks(RECORD) {
        assert!(
            record.iter().all(|byte| *byte == record[0]),
            "a torn record"
        );
    }
}

/// Concurrent writers of different ranges do not disturb each other.
pub fn writers_of_different_parts_agree(test: &TestContext) {
    let node = ok(test.root().file("file", b""));
    const PART: usize = 10_000;
    thread::scope(|scope| {
        for part in 0..4usize {
            let node = &node;
            scope.spawn(move || {
                let file = ok(node.open(RW));
                let data = pattern(PART, part as u64);
                for (i, piece) in data.chunks(333).enumerate() {
                    ok(file.write_all((part * PART + i * 333) as u64, piece));
                }
            });
        }
    });
    let content = ok(node.content());
    for part in 0..4 {
        assert_eq!(
            content[part * PART..(part + 1) * PART],
            pattern(PART, part as u64)
        );
    }
}

/// All opens of a file see a write.
pub fn all_open_files_see_a_write(test: &TestContext) {
    let node = ok(test.root().file("file", b""));
    let (a, b) = (ok(node.open(RW)), ok(node.open(RW)));
    ok(a.write_all(0, b"hello"));
    assert_eq!(ok(b.read_all()), b"hello");
    ok(b.write_all(5, b" world"));
    assert_eq!(ok(a.read_all()), b"hello world");
    assert_eq!(a.attr().size, 11);
}

/// A file can be used only as it was opened.
pub fn a_file_is_used_as_it_was_opened(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    refused(ok(node.open(W)).read(0, 1), Errno::EBADF);
    refused(ok(node.open(R)).write(0, b"x"), Errno::EBADF);
    assert_eq!(ok(node.content()), b"data");
}

/// Opening for execution permits reading.
pub fn executing_grants_reading(test: &TestContext) {
    let node = ok(test.root().file("file", b"#!"));
    ok(node.chmod(0o755));
    assert_eq!(ok(ok(node.open(OpenFlags::EXEC)).read(0, 2)), b"#!");
    ok(node.chmod(0o644));
    refused(node.open(OpenFlags::EXEC), Errno::EACCES);
}

/// Directories cannot be read or written as files.
pub fn a_directory_is_no_file(test: &TestContext) {
    let dir = ok(test.root().mkdir("dir", 0o755));
    refused(dir.open(RW), Errno::EISDIR);
    refused(dir.open(W), Errno::EISDIR);
    refused(dir.open(R | OpenFlags::TRUNC), Errno::EISDIR);
    refused(ok(dir.open(R)).read(0, 10), Errno::EISDIR);
}

/// Opening with `TRUNC` truncates.
pub fn open_trunc_cuts(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    let file = ok(node.open(RW | OpenFlags::TRUNC));
    assert_eq!(node.attr().size, 0);
    assert_eq!(ok(file.read(0, 10)), b"");
}

/// Files can be synced, whatever their open flags.
pub fn files_sync(test: &TestContext) {
    let root = test.root();
    let (_node, file) = ok(root.create("file", RW | OpenFlags::DSYNC, 0o644));
    ok(file.write_all(0, b"data"));
    ok(file.fsync(true));
    ok(file.fsync(false));
    ok(file.flush());
    ok(ok(root.open(R)).fsync(false));
}

/// Writes beyond the maximum of `off_t` are refused.
pub fn writing_beyond_bounds_is_refused(test: &TestContext) {
    let node = ok(test.root().file("file", b""));
    let file = ok(node.open(RW));
    let beyond = [Errno::EFBIG, Errno::EINVAL];
    refused_as(file.write(i64::MAX as u64, b"x"), &beyond);
    refused_as(file.write(u64::MAX - 1, b"x"), &beyond);
    assert_eq!(node.attr().size, 0);
}

/// Random writes, truncations and reads agree with an array of bytes.
pub fn agrees_with_an_array_of_bytes(test: &TestContext) {
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    let mut model: Vec<u8> = Vec::new();
    const MAX: u64 = 40_000;
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (at, len) = (random.below(MAX) as usize, random.below(9000) as usize);
        match random.below(4) {
            0 | 1 => {
                let data = pattern(len, seed);
                ok(file.write_all(at as u64, &data));
                if len > 0 {
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&data);
                }
            }
            2 => {
                ok(node.truncate(at as u64));
                model.resize(at, 0);
            }
            _ => {
                let end = (at + len).min(model.len());
                let expected = &model[at.min(end)..end];
                assert_eq!(ok(file.read_exact(at as u64, len)), expected, "step {seed}");
            }
        }
        assert_eq!(node.attr().size, model.len() as u64, "step {seed}");
    }
    assert_eq!(ok(file.read_all()), model);
}

fn two_files(test: &TestContext, data: &[u8]) -> (TestFile, TestFile) {
    let root = test.root();
    let from = ok(ok(root.file("from", data)).open(RW));
    let (_node, to) = ok(root.create("to", RW, 0o644));
    (from, to)
}

/// Copies within the file system, of whole files or ranges, end at the end of the source.
pub fn copies_within_the_file_system(test: &TestContext) {
    needs!(test.caps.copy > Support::None, "copy");
    let data = pattern(100_000, 9);
    let (from, to) = two_files(test, &data);
    let copy_all = |offset: u64, to_offset: u64, len: u64| {
        let mut done = 0;
        while done < len {
            let some = ok(from.copy(
                offset + done,
                &to,
                to_offset + done,
                len - done,
                CopyMode::Any,
            ));
            if some == 0 {
                break;
            }
            done += some;
        }
        done
    };
    assert_eq!(copy_all(0, 0, 100_000), 100_000);
    assert_eq!(ok(to.read_all()), data);
    assert_eq!(copy_all(5, 200_003, 70_000), 70_000);
    assert_eq!(ok(to.read_exact(200_003, 70_000)), data[5..70_005]);
    assert_eq!(copy_all(99_000, 0, 5000), 1000);
    assert_eq!(ok(to.read_exact(0, 1000)), data[99_000..]);
    assert_eq!(copy_all(100_000, 0, 1), 0);
}

/// Holes are copied as zeros over existing data.
pub fn copies_holes_as_zeros(test: &TestContext) {
    needs!(test.caps.copy > Support::None, "copy");
    let (from, to) = two_files(test, b"");
    ok(from.write_all(50_000, b"end"));
    ok(to.write_all(0, &pattern(60_000, 5)));
    let mut done = 0;
    while done < 50_003 {
        let some = ok(from.copy(done, &to, done, 50_003 - done, CopyMode::Any));
        assert!(some > 0);
        done += some;
    }
    let content = ok(to.read_all());
    assert!(content[..50_000].iter().all(|byte| *byte == 0));
    assert_eq!(&content[50_000..50_003], b"end");
    assert_eq!(content[50_003..], pattern(60_000, 5)[50_003..]);
}

/// Copies within a file work if the ranges do not overlap.
pub fn copies_within_a_file(test: &TestContext) {
    needs!(test.caps.copy > Support::None, "copy");
    let (file, _other) = two_files(test, &pattern(20_000, 1));
    assert_eq!(
        ok(file.copy(0, &file, 10_000, 10_000, CopyMode::Any)),
        10_000
    );
    assert_eq!(ok(file.read(10_000, 10_000)), pattern(20_000, 1)[..10_000]);
    refused(
        file.copy(0, &file, 5000, 10_000, CopyMode::Any),
        Errno::EINVAL,
    );
}

/// The source of a copy must be open for reading, the target for writing.
pub fn copy_needs_the_right_files(test: &TestContext) {
    needs!(test.caps.copy > Support::None, "copy");
    let root = test.root();
    let a = ok(root.file("a", b"data"));
    let b = ok(root.file("b", b""));
    let copy = |from: &TestFile, to: &TestFile| from.copy(0, to, 0, 4, CopyMode::Any);
    refused(copy(&ok(a.open(W)), &ok(b.open(W))), Errno::EBADF);
    refused(copy(&ok(a.open(R)), &ok(b.open(R))), Errno::EBADF);
    refused(
        copy(&ok(a.open(R)), &ok(b.open(W | OpenFlags::APPEND))),
        Errno::EBADF,
    );
    refused(copy(&ok(root.open(R)), &ok(b.open(W))), Errno::EISDIR);
    assert_eq!(ok(b.content()), b"");
}

/// Copies to another file system are refused.
pub fn copy_to_a_foreign_file_is_exdev(test: &TestContext) {
    needs!(test.caps.copy > Support::None, "copy");
    let file = ok(ok(test.root().file("file", b"data")).open(R));
    let foreign = TestFile {
        file: Script::new().file(2),
        caller: file.caller.clone(),
    };
    refused(file.copy(0, &foreign, 0, 4, CopyMode::Any), Errno::EXDEV);
}

/// A clone is a copy of whole blocks that changes independently.
pub fn a_clone_changes_on_its_own(test: &TestContext) {
    needs!(test.caps.clone > Support::None, "clones");
    let data = pattern(100_000, 4);
    let (from, to) = two_files(test, &data);
    assert_eq!(ok(from.copy(0, &to, 0, 100_000, CopyMode::Clone)), 100_000);
    assert_eq!(ok(to.read_all()), data);
    ok(from.write_all(10, b"changed"));
    ok(to.write_all(50_000, b"also changed"));
    assert_eq!(ok(to.read_exact(0, 50_000)), data[..50_000]);
    assert_eq!(ok(from.read_exact(50_000, 50_000)), data[50_000..]);
    refused(from.copy(1, &to, 0, 4096, CopyMode::Clone), Errno::EINVAL);
    refused(
        from.copy(0, &to, 0, 200_000, CopyMode::Clone),
        Errno::EINVAL,
    );
}
