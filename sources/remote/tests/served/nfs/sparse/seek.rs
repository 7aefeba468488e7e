//! SEEK (RFC 7862 section 15.11).

use super::asker::{ANONYMOUS, BYPASS, NXIO, UNION_NOTSUPP};
use super::file::{Layout, Made};
use super::servers::Subject;

const DATA: u32 = 0;
const HOLE: u32 = 1;
const KIB: u64 = 1 << 10;

/// A size and alignment at which every file system can have holes.
const UNIT: u64 = 64 * KIB;

/// Data in the units 0, 1, 3 and 6, followed by a hole.
fn made(subject: &Subject, name: &str) -> Made {
    let layout = Layout {
        size: 8 * UNIT,
        data: vec![0..2 * UNIT, 3 * UNIT..4 * UNIT, 6 * UNIT..7 * UNIT],
        reserved: Vec::new(),
    };
    Made::new(subject.tree(), |name| subject.handle(name), name, layout)
}

pub(super) fn rfc7862_15_11_data_and_holes_at_each_boundary(subject: &Subject) {
    let asker = subject.asker();
    let made = made(subject, "boundaries");
    let open = asker.open(&made.handle, 1);
    let seek = |offset, what| {
        let answer = asker.seek(&made.handle, &open, offset, what);
        answer.unwrap_or_else(|status| panic!("{what} from {offset}: status {status}"))
    };
    for (start, end, next) in [(0, 2, 3), (3, 4, 6)] {
        let (start, end, next) = (start * UNIT, end * UNIT, next * UNIT);
        for at in [start, start + 1, end - 1] {
            assert_eq!(seek(at, DATA), (false, at), "data from {at}");
            assert_eq!(seek(at, HOLE), (false, end), "a hole from {at}");
        }
        for at in [end, end + 1, next - 1] {
            assert_eq!(seek(at, DATA), (false, next), "data from {at}");
            assert_eq!(seek(at, HOLE), (false, at), "a hole from {at}");
        }
    }
    for at in [7 * UNIT, 7 * UNIT + 1, 8 * UNIT - 1] {
        assert_eq!(seek(at, HOLE), (false, at), "a hole from {at}");
        // The RFC requires sr_eof "if the server cannot find a corresponding sa_what"; Linux's
        // server returns NXIO, as lseek(2) does.
        match asker.seek(&made.handle, &open, at, DATA) {
            Ok((eof, _)) => assert!(eof, "no data from {at}"),
            Err(status) => {
                assert_eq!(status, NXIO);
                assert!(!subject.is_barge, "the RFC's way");
            }
        }
    }
}

pub(super) fn rfc7862_15_11_behind_the_end_is_nxio(subject: &Subject) {
    let asker = subject.asker();
    let made = made(subject, "behind");
    let open = asker.open(&made.handle, 1);
    let size = made.layout.size;
    for offset in [size, size + 1, size + (1 << 40), i64::MAX as u64] {
        for what in [DATA, HOLE] {
            let answer = asker.seek(&made.handle, &open, offset, what);
            assert_eq!(answer, Err(NXIO), "{what} from {offset}");
        }
    }
    let empty = Made::new(
        subject.tree(),
        |name| subject.handle(name),
        "empty",
        Layout::default(),
    );
    let open = asker.open(&empty.handle, 1);
    for what in [DATA, HOLE] {
        let answer = asker.seek(&empty.handle, &open, 0, what);
        assert_eq!(answer, Err(NXIO), "{what}");
    }
}

pub(super) fn rfc7862_15_11_the_end_is_a_hole(subject: &Subject) {
    let asker = subject.asker();
    for size in [5, 3 * UNIT, 3 * UNIT + 5] {
        let layout = Layout {
            size,
            data: std::iter::once(0..size).collect(),
            reserved: Vec::new(),
        };
        let name = format!("end {size}");
        let made = Made::new(subject.tree(), |name| subject.handle(name), &name, layout);
        let open = asker.open(&made.handle, 1);
        for at in [0, size / 2, size - 1] {
            let (eof, offset) = asker.seek(&made.handle, &open, at, HOLE).expect("found");
            assert_eq!(offset, size, "from {at} of {size}");
            assert!(eof || !subject.is_barge, "there is no other hole");
        }
    }
}

pub(super) fn rfc7862_15_11_what_is_neither_data_nor_hole_is_refused(subject: &Subject) {
    let asker = subject.asker();
    let made = made(subject, "neither");
    let open = asker.open(&made.handle, 1);
    for what in [2, 7, u32::MAX] {
        let answer = asker.seek(&made.handle, &open, 0, what);
        assert_eq!(answer, Err(UNION_NOTSUPP), "{what}");
    }
}

/// Holes found with SEEK read as zeros, and alternating SEEKs reach the end of the file.
pub(super) fn rfc7862_15_11_seek_and_read_agree(subject: &Subject) {
    let asker = subject.asker();
    let layout = Layout::alternating(UNIT, 16 * UNIT, false);
    let made = Made::new(subject.tree(), |name| subject.handle(name), "agree", layout);
    let open = asker.open(&made.handle, 1);
    let (mut at, mut what, mut steps) = (0, HOLE, 0);
    while let Ok((_, next)) = asker.seek(&made.handle, &open, at, what) {
        if next >= made.layout.size {
            break;
        }
        assert!(next >= at && steps < 100, "it goes on");
        if what == DATA && next > at {
            let read = asker.read(&made.handle, &open, at, (next - at) as u32);
            let (_, bytes) = read.expect("read");
            assert!(bytes.iter().all(|byte| *byte == 0), "a hole at {at}");
        }
        (at, what, steps) = (next, 1 - what, steps + 1);
    }
    assert_eq!(steps, 16);
}

pub(super) fn rfc7862_15_11_any_stateid_that_reads(subject: &Subject) {
    let asker = subject.asker();
    let made = made(subject, "states");
    let open = asker.open(&made.handle, 1);
    let lock = asker.lock(&made.handle, &open);
    for state in [open, lock, ANONYMOUS, BYPASS] {
        let answer = asker.seek(&made.handle, &state, 5, HOLE);
        assert_eq!(answer, Ok((false, 2 * UNIT)));
    }
}
