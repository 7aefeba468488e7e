//! Holes and reserved space: lseek(2), extents, fallocate(2).

use vfs::{AllocateMode, Errno, Extent, Support, Whence};

use crate::context::{R, RW, Random, TestContext, TestFile, TestNode, ok, pattern, refused};
use crate::needs;

/// The unit of holes: 64 KiB, which every file system with holes can punch if aligned.
const HOLE: u64 = 64 << 10;

/// Creates a file of data, a hole of 15 times [`HOLE`], and data again.
fn sparse(test: &TestContext) -> (TestNode, TestFile) {
    let (node, file) = ok(test.root().create("sparse", RW, 0o644));
    ok(file.write_all(0, &pattern(HOLE as usize, 1)));
    ok(file.write_all(16 * HOLE, &pattern(HOLE as usize, 2)));
    ok(file.fsync(false));
    (node, file)
}

/// Runs the allocation, and returns whether it is supported.
fn allocate(file: &TestFile, how: AllocateMode, offset: u64, len: u64) -> bool {
    match file.allocate(how, offset, len) {
        Err(Errno::EOPNOTSUPP) => {
            eprintln!("skipped: {how:?} is not supported");
            false
        }
        done => {
            ok(done);
            true
        }
    }
}

/// Seeking finds data and holes.
pub fn seek_finds_data_and_holes(test: &TestContext) {
    needs!(test.caps.holes > Support::None, "holes");
    let (_node, file) = sparse(test);
    assert_eq!(ok(file.seek(0, Whence::Data)), 0);
    assert_eq!(ok(file.seek(5, Whence::Data)), 5);
    assert_eq!(ok(file.seek(0, Whence::Hole)), HOLE);
    assert_eq!(ok(file.seek(HOLE, Whence::Hole)), HOLE);
    assert_eq!(ok(file.seek(HOLE + 7, Whence::Hole)), HOLE + 7);
    assert_eq!(ok(file.seek(HOLE, Whence::Data)), 16 * HOLE);
    assert_eq!(ok(file.seek(16 * HOLE, Whence::Hole)), 17 * HOLE);
}

/// The end of a file is a hole, and offsets from there on are refused.
pub fn seek_at_the_end_is_enxio(test: &TestContext) {
    needs!(test.caps.holes > Support::None, "holes");
    let root = test.root();
    let file = ok(ok(root.file("file", b"data")).open(R));
    assert_eq!(ok(file.seek(0, Whence::Hole)), 4);
    for what in [Whence::Data, Whence::Hole] {
        refused(file.seek(4, what), Errno::ENXIO);
        refused(file.seek(1 << 40, what), Errno::ENXIO);
        // Negative offsets of lseek(2).
        refused(file.seek(1 << 63, what), Errno::ENXIO);
        refused(file.seek(u64::MAX, what), Errno::ENXIO);
    }
    let (node, tail) = ok(root.create("tail", RW, 0o644));
    refused(tail.seek(0, Whence::Data), Errno::ENXIO);
    refused(tail.seek(0, Whence::Hole), Errno::ENXIO);
    ok(node.truncate(HOLE));
    refused(tail.seek(0, Whence::Data), Errno::ENXIO);
    assert_eq!(ok(tail.seek(0, Whence::Hole)), 0);
}

/// A hole takes no space.
pub fn a_hole_takes_no_space(test: &TestContext) {
    needs!(test.caps.holes > Support::None, "holes");
    let (node, _file) = sparse(test);
    assert!(node.attr().blocks * 512 < 8 * HOLE);
}

fn check_extents(file: &TestFile, extents: &[Extent], start: u64, end: u64) {
    let mut at = start;
    for extent in extents {
        assert_eq!(extent.offset, at, "no gap");
        assert_ne!(extent.len, 0);
        at += extent.len;
        if extent.hole {
            let content = ok(file.read_exact(extent.offset, extent.len as usize));
            assert!(
                content.iter().all(|byte| *byte == 0),
                "a hole reads as zeros"
            );
        }
    }
    assert_eq!(at, end);
}

/// Extents are contiguous up to the end of the file.
pub fn extents_cover_a_file(test: &TestContext) {
    needs!(test.caps.holes > Support::None, "holes");
    let (_node, file) = sparse(test);
    let extents = ok(file.extents(0, u64::MAX));
    check_extents(&file, &extents, 0, 17 * HOLE);
    assert!(
        extents
            .iter()
            .any(|extent| extent.hole && extent.len == 15 * HOLE)
    );
    let part = ok(file.extents(HOLE + 100, 15 * HOLE));
    check_extents(&file, &part, HOLE + 100, 16 * HOLE + 100);
    assert!(part[0].hole && !part[part.len() - 1].hole);
    assert!(ok(file.extents(17 * HOLE, 100)).is_empty());
    assert!(ok(file.extents(0, 0)).is_empty());
}

/// Listing extents stops when the callback returns `false`.
pub fn extents_stop_when_told(test: &TestContext) {
    needs!(test.caps.holes > Support::None, "holes");
    let (_node, file) = sparse(test);
    let mut calls = 0;
    ok(crate::run(&file.caller, |cx| {
        file.file.extents(cx, 0, u64::MAX, &mut |_| {
            calls += 1;
            false
        })
    }));
    assert_eq!(calls, 1);
}

/// Punching makes a hole and keeps the size.
pub fn punching_makes_a_hole(test: &TestContext) {
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    let mut data = pattern(8 * HOLE as usize, 3);
    ok(file.write_all(0, &data));
    let (start, end) = (HOLE + 100, 5 * HOLE - 100);
    if !allocate(&file, AllocateMode::Punch, start, end - start) {
        return;
    }
    data[start as usize..end as usize].fill(0);
    assert_eq!(ok(file.read_all()), data);
    ok(file.fsync(false));
    assert!(node.attr().blocks * 512 < 7 * HOLE);
    if test.caps.holes > Support::None {
        let hole = ok(file.seek(0, Whence::Hole));
        assert!((start..=2 * HOLE).contains(&hole), "{hole}");
    }
    ok(file.allocate(AllocateMode::Punch, 7 * HOLE, 100 * HOLE));
    assert_eq!(node.attr().size, 8 * HOLE);
    ok(file.allocate(AllocateMode::Punch, 100, 200));
    data[100..300].fill(0);
    assert_eq!(ok(file.read_exact(0, 1000)), data[..1000]);
}

/// Space can be reserved within and beyond a file.
pub fn space_can_be_reserved(test: &TestContext) {
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    if !allocate(&file, AllocateMode::Extend, 0, 4 * HOLE) {
        return;
    }
    assert_eq!(node.attr().size, 4 * HOLE);
    assert!(node.attr().blocks * 512 >= 4 * HOLE);
    assert!(ok(file.read_all()).iter().all(|byte| *byte == 0));
    if !allocate(&file, AllocateMode::KeepSize, 0, 8 * HOLE) {
        return;
    }
    assert_eq!(node.attr().size, 4 * HOLE);
    ok(file.write_all(0, b"kept"));
    ok(file.allocate(AllocateMode::Extend, 0, 100));
    assert_eq!(ok(file.read(0, 4)), b"kept");
    assert_eq!(node.attr().size, 4 * HOLE);
}

/// A range can be zeroed, with or without extending the file.
pub fn ranges_can_be_zeroed(test: &TestContext) {
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    let mut data = pattern(2 * HOLE as usize, 8);
    ok(file.write_all(0, &data));
    if !allocate(&file, AllocateMode::Zero, 100, HOLE) {
        return;
    }
    data[100..100 + HOLE as usize].fill(0);
    assert_eq!(ok(file.read_all()), data);
    ok(file.allocate(AllocateMode::ZeroKeepSize, HOLE + 500, 9 * HOLE));
    data[HOLE as usize + 500..].fill(0);
    assert_eq!(ok(file.read_all()), data);
    ok(file.allocate(AllocateMode::Zero, 0, 3 * HOLE));
    assert_eq!(node.attr().size, 3 * HOLE);
    assert!(ok(file.read_all()).iter().all(|byte| *byte == 0));
}

/// A range can be removed from the middle, and one inserted.
pub fn ranges_can_be_taken_out_and_put_in(test: &TestContext) {
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    let data = pattern(4 * HOLE as usize, 6);
    ok(file.write_all(0, &data));
    ok(file.fsync(false));
    let hole = HOLE as usize;
    if !allocate(&file, AllocateMode::Collapse, HOLE, HOLE) {
        return;
    }
    let mut model = [&data[..hole], &data[2 * hole..]].concat();
    assert_eq!(ok(file.read_all()), model);
    ok(file.allocate(AllocateMode::Insert, 2 * HOLE, HOLE));
    model.splice(2 * hole..2 * hole, vec![0; hole]);
    assert_eq!(ok(file.read_all()), model);
    assert_eq!(node.attr().size, 4 * HOLE);
    refused(
        file.allocate(AllocateMode::Collapse, 1, HOLE),
        Errno::EINVAL,
    );
    refused(file.allocate(AllocateMode::Insert, 1, HOLE), Errno::EINVAL);
    refused(
        file.allocate(AllocateMode::Collapse, 3 * HOLE, HOLE),
        Errno::EINVAL,
    );
    refused(
        file.allocate(AllocateMode::Insert, 4 * HOLE, HOLE),
        Errno::EINVAL,
    );
}

/// Refused: empty ranges, ranges beyond the maximum size, and files not open for writing.
pub fn allocation_checks_its_range(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    let file = ok(node.open(RW));
    if !allocate(&file, AllocateMode::Extend, 0, 4) {
        return;
    }
    refused(file.allocate(AllocateMode::Extend, 0, 0), Errno::EINVAL);
    refused(
        file.allocate(AllocateMode::Extend, i64::MAX as u64 - 5, 10),
        Errno::EFBIG,
    );
    refused(
        ok(node.open(R)).allocate(AllocateMode::Extend, 0, 10),
        Errno::EBADF,
    );
    assert_eq!(node.attr().size, 4);
}

/// Random writes, truncations and punches agree with an array of bytes, and the extents with the
/// data.
pub fn holes_agree_with_an_array_of_bytes(test: &TestContext) {
    needs!(test.caps.holes > Support::None, "holes");
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    if !allocate(&file, AllocateMode::Punch, 0, 1) {
        return;
    }
    let mut model: Vec<u8> = Vec::new();
    const PAGE: u64 = 4096;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let unit = if random.below(2) == 0 { PAGE } else { 777 };
        let at = (random.below(20) * unit) as usize;
        let len = (1 + random.below(8)) as usize * unit as usize;
        let within = |model: &[u8]| at.min(model.len())..(at + len).min(model.len());
        match random.below(4) {
            0 => {
                let data = pattern(len, seed);
                ok(file.write_all(at as u64, &data));
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&data);
            }
            1 => {
                ok(node.truncate(at as u64));
                model.resize(at, 0);
            }
            2 => {
                ok(file.allocate(AllocateMode::Punch, at as u64, len as u64));
                let range = within(&model);
                model[range].fill(0);
            }
            _ => {
                let extents = ok(file.extents(at as u64, len as u64));
                let range = within(&model);
                let end = if range.is_empty() { at } else { range.end };
                check_extents(&file, &extents, at as u64, end as u64);
            }
        }
        assert_eq!(ok(file.read_all()), model, "step {seed}");
    }
}
