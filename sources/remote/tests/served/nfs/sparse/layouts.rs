//! READ_PLUS on files of every layout (RFC 7862 section 15.10).

use vfs_testkit::context::Random;

use super::asker::{ANONYMOUS, BAD_STATEID, BYPASS, OPENMODE, REP_TOO_BIG};
use super::file::{Layout, Made};
use super::servers::Subject;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SIZE: u64 = 4 * MIB;

/// Sizes of reads: Linux's size, a smaller one, and odd ones.
const COUNTS: [u32; 4] = [1 << 20, 128 << 10, 100_003, 20 << 10];

fn made(subject: &Subject, name: &str, layout: Layout) -> Made {
    Made::new(subject.tree(), |name| subject.handle(name), name, layout)
}

fn of(size: u64, data: &[(u64, u64)]) -> Layout {
    Layout {
        size,
        data: data.iter().map(|&(from, to)| from..to).collect(),
        reserved: Vec::new(),
    }
}

pub(super) fn rfc7862_15_10_every_layout_reads_as_written(subject: &Subject) {
    let asker = subject.asker();
    let mut layouts = vec![
        ("data".to_owned(), of(SIZE, &[(0, SIZE)]), 0),
        ("hole".to_owned(), of(SIZE, &[]), SIZE),
        (
            "data then hole".to_owned(),
            of(SIZE, &[(0, MIB)]),
            SIZE - MIB,
        ),
        (
            "hole then data".to_owned(),
            of(SIZE, &[(SIZE - MIB, SIZE)]),
            SIZE - MIB,
        ),
    ];
    for chunk in [4 * KIB, 32 * KIB, 64 * KIB, MIB] {
        for first in [true, false] {
            let layout = Layout::alternating(chunk, SIZE, first);
            // Small holes may be sent as zeros.
            let holes = if chunk >= 64 * KIB { SIZE / 2 } else { 0 };
            layouts.push((format!("{chunk} {first}"), layout, holes));
        }
    }
    for (name, layout, holes) in layouts {
        let made = made(subject, &name, layout);
        let open = asker.open(&made.handle, 1);
        for count in COUNTS {
            let told = made.check_all(&asker, &open, 0, count);
            if subject.tells_holes && u64::from(count) >= MIB {
                assert!(told >= holes, "{name}: {told} of {holes} bytes as holes");
            }
        }
        // Again with the anonymous stateid, and from an offset within the file.
        made.check_all(&asker, &ANONYMOUS, 3 * MIB + 7, 64 << 10);
    }
}

pub(super) fn rfc7862_15_10_pieces_are_clipped_to_what_was_asked_for(subject: &Subject) {
    let asker = subject.asker();
    let made = made(subject, "clipped", of(SIZE, &[(MIB, 2 * MIB)]));
    let open = asker.open(&made.handle, 1);
    let hole_only = |offset, count| {
        let (told, holes) = made.check(&asker, &open, offset, count);
        if subject.tells_holes {
            assert_eq!((told, holes), (count.into(), count.into()), "{offset}");
        }
    };
    // The hole extends beyond both ends.
    hole_only(300 * KIB + 1, 200 << 10);
    hole_only(2 * MIB + 513, 333_333);
    hole_only(4096, 64 << 10);
    for edge in made.layout.edges() {
        for count in [1, 3, 511, 4096, 65_537, 1 << 20] {
            made.check(&asker, &open, edge, count);
            made.check(
                &asker,
                &open,
                edge.saturating_sub(u64::from(count) / 2),
                count,
            );
        }
    }
}

pub(super) fn rfc7862_15_10_holes_at_the_end_and_in_reserved_space(subject: &Subject) {
    let asker = subject.asker();
    let reserved = Layout {
        reserved: vec![MIB..2 * MIB, 3 * MIB..SIZE],
        ..of(SIZE, &[(0, MIB), (MIB + 256 * KIB, MIB + 260 * KIB)])
    };
    for (name, layout) in [("tail", of(SIZE + 1, &[(0, 5)])), ("reserved", reserved)] {
        let made = made(subject, name, layout);
        let open = asker.open(&made.handle, 1);
        for count in COUNTS {
            made.check_all(&asker, &open, 0, count);
        }
        for edge in made.layout.edges() {
            made.check(&asker, &open, edge, 1 << 20);
        }
    }
}

pub(super) fn rfc7862_15_10_a_file_of_a_tebibyte(subject: &Subject) {
    const TIB: u64 = 1 << 40;
    let asker = subject.asker();
    let data = [
        (0, 4 * KIB),
        (TIB / 2, TIB / 2 + 8 * KIB),
        (TIB - 10, TIB - 3),
    ];
    let made = made(subject, "tebibyte", of(TIB, &data));
    let open = asker.open(&made.handle, 1);
    for edge in made.layout.edges() {
        for offset in [edge.saturating_sub(512 * KIB), edge, edge + 16 * MIB] {
            made.check(&asker, &open, offset, 1 << 20);
        }
    }
}

pub(super) fn rfc7862_15_10_short_files_and_their_ends(subject: &Subject) {
    let asker = subject.asker();
    for size in [0, 1, 5, 4095, 4096, 4097, 40_000] {
        for data in [true, false] {
            let written = if data { size } else { 0 };
            let name = format!("short {size} {data}");
            let made = made(subject, &name, of(size, &[(0, written)]));
            let open = asker.open(&made.handle, 1);
            let far = [
                0,
                1,
                size / 2,
                size,
                size + 1,
                size + MIB,
                u64::MAX - 7,
                u64::MAX,
            ];
            for offset in far.into_iter().chain(made.layout.edges()) {
                for count in [0, 1, 4096, 1 << 20] {
                    made.check(&asker, &open, offset, count);
                }
            }
        }
    }
}

pub(super) fn rfc7862_15_10_any_stateid_that_reads(subject: &Subject) {
    let asker = subject.asker();
    let made = made(subject, "states", Layout::alternating(64 * KIB, MIB, true));
    let open = asker.open(&made.handle, 1);
    let lock = asker.lock(&made.handle, &open);
    for state in [open, lock, ANONYMOUS, BYPASS] {
        made.check_all(&asker, &state, 0, 1 << 20);
    }
    // The current stateid of an open (RFC 8881 section 8.2.2).
    let mut latest = open;
    latest[..4].fill(0);
    made.check_all(&asker, &latest, 0, 1 << 20);
    let mut bad = open;
    bad[4..].fill(0x5a);
    let refused = asker.read_plus(&made.handle, &bad, 0, 10);
    assert_eq!(refused, Err(BAD_STATEID));
    // Linux and barge permit reads by opens for writing, as POSIX clients read before partial
    // writes; other servers need not.
    let writer = subject.asker();
    let to_write = writer.open(&made.handle, 2);
    let plain = writer.read(&made.handle, &to_write, 0, 10);
    assert!(plain.is_ok() || plain == Err(OPENMODE), "{plain:?}");
    let plus = writer.read_plus(&made.handle, &to_write, 0, 10);
    assert_eq!(plus.is_ok(), plain.is_ok(), "as READ has it");
}

pub(super) fn rfc7862_15_10_more_than_a_session_carries(subject: &Subject) {
    let made = made(subject, "much", Layout::alternating(64 * KIB, SIZE, true));
    // As much as can be requested.
    let asker = subject.asker();
    made.check_all(&asker, &ANONYMOUS, 0, u32::MAX);
    let small = subject.asker_with(8192);
    for offset in [0, 60 * KIB, 64 * KIB, 70_001, SIZE - 5] {
        match small.read_plus(&made.handle, &ANONYMOUS, offset, 1 << 20) {
            Err(status) => assert_eq!(status, REP_TOO_BIG),
            Ok(_) => {
                made.check(&small, &ANONYMOUS, offset, 1 << 20);
            }
        }
    }
}

/// Files of random layouts at random offsets, compared with READ.
pub(super) fn any_layout_reads_as_written(subject: &Subject) {
    let asker = subject.asker();
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let unit = [777, 4 * KIB, 16 * KIB, 40 * KIB][seed as usize % 4];
        let (mut at, mut data) = (0, Vec::new());
        while at < 2 * MIB {
            let hole = random.below(8) * unit;
            let len = (1 + random.below(8)) * unit;
            data.push((at + hole, at + hole + len));
            at += hole + len;
        }
        let size = at + random.below(2) * random.below(MIB);
        let made = made(subject, &format!("random {seed}"), of(size, &data));
        let open = asker.open(&made.handle, 1);
        for _ in 0..40 {
            let (offset, count) = (random.below(size + 100), random.below(MIB) as u32);
            made.check(&asker, &open, offset, count);
            let plain = asker.read(&made.handle, &open, offset, count);
            let (_, bytes) = plain.expect("read");
            assert!(bytes == made.layout.bytes(offset, bytes.len() as u64));
        }
    }
}
