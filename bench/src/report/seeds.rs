//! Published tables that barge's tables repeat, from the five systems that barge unites, measured
//! on other machines. Only their ratios are compared with barge's, not their figures.

use super::shape::{Outcome, Report, Seed, ratio};

/// A published table.
pub(super) struct Published {
    /// The table here that repeats it.
    pub(super) table: &'static str,
    pub(super) title: &'static str,
    pub(super) head: &'static [&'static str],
    pub(super) rows: Vec<Vec<String>>,
    /// The endings of the names of the rows here that repeat it.
    keys: Vec<String>,
    /// The differences and omissions here, with the reasons.
    pub(super) otherwise: &'static [&'static str],
}

/// MB/s by operation and chunk size: virtio block with ext4, 9P before, 9P with merged messages.
const COALESCING: [(&str, [f64; 3]); 8] = [
    ("write 1M", [391.0, 127.0, 330.0]),
    ("read 1M", [469.0, 221.0, 432.0]),
    ("write 4K", [410.0, 128.0, 297.0]),
    ("read 4K", [465.0, 192.0, 327.0]),
    ("random write 1M", [403.0, 145.0, 313.0]),
    ("random read 1M", [347.0, 161.0, 195.0]),
    ("random write 4K", [344.0, 119.0, 131.0]),
    ("random read 4K", [44.0, 41.0, 64.0]),
];

/// MB/s, operations a second, mean latency in µs.
const VIRTIOFS: [(&str, [f64; 3]); 2] = [
    ("9P over virtio", [1175.0, 1175.0, 847.0]),
    ("virtiofs, cache=none", [802.0, 783.0, 1273.0]),
];

/// The head of [`READPLUS`]: the layout, then its file systems.
const READPLUS_HEAD: [&str; 7] = [
    "layout",
    "xfs uncached",
    "xfs cached",
    "ext4 uncached",
    "ext4 cached",
    "btrfs uncached",
    "btrfs cached",
];

/// Seconds with READ and with READ_PLUS.
const READPLUS: [(&str, [(f64, f64); 6]); 10] = [
    (
        "whole data",
        [
            (3.382, 3.483),
            (0.942, 1.153),
            (6.342, 6.137),
            (1.890, 2.344),
            (9.840, 11.790),
            (2.854, 3.492),
        ],
    ),
    (
        "whole hole",
        [
            (1.066, 0.805),
            (0.946, 0.826),
            (2.315, 1.715),
            (1.917, 1.554),
            (3.619, 2.519),
            (2.929, 2.372),
        ],
    ),
    (
        "4K data first",
        [
            (3.535, 3.515),
            (0.996, 1.166),
            (7.149, 7.459),
            (1.986, 2.408),
            (9.819, 12.471),
            (2.951, 3.663),
        ],
    ),
    (
        "4K hole first",
        [
            (3.113, 2.709),
            (1.001, 1.201),
            (6.880, 6.138),
            (1.988, 2.458),
            (9.610, 9.054),
            (3.050, 3.705),
        ],
    ),
    (
        "8K data first",
        [
            (3.476, 3.494),
            (0.974, 1.200),
            (6.086, 6.154),
            (1.954, 2.437),
            (8.660, 10.555),
            (3.034, 3.652),
        ],
    ),
    (
        "8K hole first",
        [
            (2.889, 2.863),
            (1.006, 1.248),
            (5.578, 5.442),
            (2.015, 2.509),
            (8.332, 7.850),
            (2.989, 3.762),
        ],
    ),
    (
        "16K data first",
        [
            (3.507, 3.569),
            (1.054, 1.210),
            (5.588, 5.856),
            (2.070, 2.411),
            (8.002, 9.940),
            (3.081, 3.631),
        ],
    ),
    (
        "16K hole first",
        [
            (3.136, 2.712),
            (1.038, 1.214),
            (5.195, 4.983),
            (1.996, 2.422),
            (7.558, 7.062),
            (2.988, 3.623),
        ],
    ),
    (
        "32K data first",
        [
            (3.643, 3.485),
            (0.990, 1.203),
            (5.578, 5.378),
            (2.013, 2.388),
            (7.705, 9.219),
            (2.962, 3.585),
        ],
    ),
    (
        "32K hole first",
        [
            (2.665, 2.829),
            (0.983, 1.254),
            (4.466, 4.633),
            (1.974, 2.398),
            (6.464, 6.486),
            (2.951, 3.639),
        ],
    ),
];

/// kB/s by block size in bytes: writes without and with zero copy, then reads likewise.
const ZEROCOPY: [(&str, [f64; 4]); 9] = [
    ("1 B", [22.4, 19.8, 26.6, 23.1]),
    ("32 B", [711.0, 633.0, 783.0, 734.0]),
    ("64 B", [1400.0, 1300.0, 1700.0, 1500.0]),
    ("128 B", [2800.0, 2600.0, 3400.0, 3000.0]),
    ("256 B", [5600.0, 5100.0, 4200.0, 5900.0]),
    ("512 B", [10400.0, 10200.0, 6900.0, 11600.0]),
    ("1 KiB", [19700.0, 20400.0, 23300.0, 23400.0]),
    ("2 KiB", [40100.0, 43700.0, 42500.0, 45400.0]),
    ("4 KiB", [71400.0, 73100.0, 67400.0, 73900.0]),
];

/// Milliseconds for a Java and a Node.js program, and the blocks of 512 bytes read for each.
const IMAGE: [(&str, [f64; 2], &str); 5] = [
    ("ramfs (all in memory)", [123.0, 166.0], ""),
    ("zfs", [6580.0, 7107.0], ""),
    ("mfs, block at a time", [3245.0, 3312.0], "26,591 / 25,672"),
    ("mfs2, no cache", [668.0, 600.0], "26,316 / 25,592"),
    ("mfs2, segment cache", [338.0, 289.0], "32,473 / 30,750"),
];

impl Published {
    /// Returns the rows that a report has not measured.
    pub(super) fn unmeasured(&self, report: &Report) -> Vec<&str> {
        let rows = report.tables.iter().flat_map(|entry| match &entry.outcome {
            Outcome::Measured(table) => &*table.rows,
            Outcome::Failed(_) | Outcome::LeftOut(_) => &[],
        });
        let seeded: Vec<_> = rows.filter(|row| row.seed.is_some()).collect();
        let is_missing = |key: &&str| !seeded.iter().any(|row| row.name.ends_with(key));
        self.keys
            .iter()
            .map(|key| &**key)
            .filter(is_missing)
            .collect()
    }
}

/// Returns the published figures for a row of one of barge's tables.
pub(super) fn of_row(table: &str, row: &str) -> Option<Seed> {
    let seed = |against: &str, ratio, figures| Seed {
        against: against.into(),
        ratio,
        figures,
    };
    match table {
        "coalescing" => {
            let (_, job) = row.split_once(", ")?;
            let (_, [disk, paged, merged]) = found(&COALESCING, job)?;
            let figures = format!("{paged} → {merged} MB/s, disk {disk}");
            Some(seed("a page each", merged / paged, figures))
        }
        "guest caches" => {
            let (_, [disk, paged, merged]) = found(&COALESCING, row)?;
            let figures = format!("{paged} → {merged} MB/s, disk {disk}");
            Some(seed("v9fs, a page each", merged / paged, figures))
        }
        "readplus" => {
            let (place, layout) = row.split_once(", ")?;
            let column = READPLUS_HEAD[1..].iter().position(|name| *name == place)?;
            let (_, seconds) = found(&READPLUS, layout)?;
            let (read, plus) = seconds[column];
            Some(seed(
                "4.2 READ",
                read / plus,
                format!("{read:.3} → {plus:.3} s"),
            ))
        }
        "guest readplus" => {
            // xfs is closest to a file in the host's page cache.
            let (read, plus) = found(&READPLUS, row)?.1[1];
            Some(seed(
                "READ",
                read / plus,
                format!("{read:.3} → {plus:.3} s (xfs, cached)"),
            ))
        }
        "zerocopy" => {
            let mut parts = row.split(", ").skip(1);
            let (what, size) = (parts.next()?, parts.next()?);
            let (_, figures) = found(&ZEROCOPY, size)?;
            let [without, with] = match what {
                "write" => [figures[0], figures[1]],
                _ => [figures[2], figures[3]],
            };
            Some(seed(
                "zerocopy=off",
                with / without,
                format!("{without} → {with} kB/s"),
            ))
        }
        "image" => {
            let (program, which) = row.split_once(" hello, plain, ")?;
            let at = usize::from(program == "node");
            let ms = |row: usize| IMAGE[row].1[at];
            let (memory, cached) = (ms(0), ms(4));
            let figures = format!("ramfs {memory}, mfs2 {cached} ms");
            (which == "cold").then(|| seed("tmpfs", memory / cached, figures))
        }
        _ => None,
    }
}

fn found<'a, T>(rows: &'a [(&str, T)], name: &str) -> Option<&'a (&'a str, T)> {
    rows.iter().find(|(row, _)| *row == name)
}

/// Returns the tables by year, except the first, which is the oldest about caches.
pub(super) fn published() -> [Published; 5] {
    let row = |name: &str, cells: Vec<String>| {
        let mut row = vec![name.to_owned()];
        row.extend(cells);
        row
    };
    let plain = |cells: &[f64]| -> Vec<String> { cells.iter().map(f64::to_string).collect() };
    let coalescing = |(name, cells): &(&str, [f64; 3])| {
        let [disk, paged, merged] = *cells;
        let ratios = [ratio(merged / paged), ratio(merged / disk)];
        row(name, [plain(cells), ratios.into()].concat())
    };
    let readplus = |(name, cells): &(&str, [(f64, f64); 6])| {
        let pair = |(read, plus): &(f64, f64)| format!("{read:.3} → {plus:.3}");
        row(name, cells.iter().map(pair).collect())
    };
    let zerocopy = |(name, cells): &(&str, [f64; 4])| {
        let [w0, w1, r0, r1] = cells;
        row(name, vec![format!("{w0} → {w1}"), format!("{r0} → {r1}")])
    };
    let image = |(name, cells, blocks): &(&str, [f64; 2], &str)| {
        row(name, [plain(cells), vec![(*blocks).to_owned()]].concat())
    };
    [
        Published {
            table: "coalescing",
            title: "Page coalescing in Linux's 9P client (2016): iozone, a file of 6 GiB, MB/s",
            head: &[
                "operation, chunk",
                "virtio block, ext4",
                "9P as it was",
                "9P, merged",
                "merged / as it was",
                "merged / block",
            ],
            rows: COALESCING.iter().map(coalescing).collect(),
            keys: COALESCING
                .iter()
                .map(|(job, _)| (*job).to_owned())
                .collect(),
            otherwise: &[
                "fio in place of iozone, a smaller file and a time limit: a page in each message would take minutes for each row with 6 GiB; the kernel may \
                 keep a quarter of the file, so that it has to be fetched as one of 6 GiB had to",
                "virtio block with ext4: here the local file system that is served (column 'local'); a real virtio disk beside the kernel's 9P client is in \
                 the table 'guest caches' (--guest)",
            ],
        },
        Published {
            table: "virtiofs",
            title: "A virtiofs daemon with many workers (2019): fio, 1 MiB random writes, direct, libaio, depth 1, a file of 1 GiB on a RAM disk with ext4",
            head: &["mount", "MB/s", "IOPS", "mean latency, µs"],
            rows: VIRTIOFS
                .iter()
                .map(|(name, cells)| row(name, plain(cells)))
                .collect(),
            keys: Vec::new(),
            otherwise: &[
                "the two mounts take a virtual machine: row '1 MiB writes' of the tables 'guest defaults virtiofs' and 'guest defaults 9p' (column QEMU, \
                 --guest), with 128 MiB on the host's tmpfs in place of 1 GiB of ext4; they are two tables, so that no ratio stands beside the published one",
                "IOPS are not a row of their own: with one MiB in each they are the rate in MiB/s",
                "the pool of 64 workers, and the C daemon that was measured, are columns of 'virtiofs', which takes no virtual machine",
            ],
        },
        Published {
            table: "readplus",
            title: "NFS 4.2 READ_PLUS (2020): dd of a file, seconds by READ → by READ_PLUS",
            head: &READPLUS_HEAD,
            rows: READPLUS.iter().map(readplus).collect(),
            keys: READPLUS_HEAD[1..]
                .iter()
                .flat_map(|column| {
                    READPLUS
                        .iter()
                        .map(move |(layout, _)| format!("{column}, {layout}"))
                })
                .collect(),
            otherwise: &[
                "barge's own client in place of dd on the kernel's: it reads 8 MiB at a time, in calls of 1 MiB, and MB/s are told in place of seconds; \
                 the kernel's client is in the table 'guest readplus' (--guest)",
                "v3, v4.0 and v4.1 are columns, of which the publication gave no figures",
            ],
        },
        Published {
            table: "zerocopy",
            title: "Zero-copy 9P transports (2011): dd, blocks of 1 to 4096 bytes, kB/s without → with zero copy",
            head: &["block", "write", "read"],
            rows: ZEROCOPY.iter().map(zerocopy).collect(),
            keys: ["write", "read"]
                .into_iter()
                .flat_map(|what| {
                    ZEROCOPY
                        .iter()
                        .map(move |(size, _)| format!("{what}, {size}"))
                })
                .collect(),
            otherwise: &[
                "barge's client and server without a kernel's client between; sizes go on to 1 MiB, and three transports are measured",
                "blocks below 4 KiB go inline with and without zero copy, so that nothing is to be lost there: their ratio is 1 but for what runs differ by",
            ],
        },
        Published {
            table: "image",
            title: "A read-only image for unikernels (OSv's mfs2, 2017): from before the root is mounted until after it is unmounted, ms",
            head: &["file system", "java", "node", "blocks read, java / node"],
            rows: IMAGE.iter().map(image).collect(),
            keys: ["java", "node"]
                .map(|program| format!("{program} hello, plain, cold"))
                .into(),
            otherwise: &[
                "on Linux, not on OSv: neither OSv's kernel nor its mfs and mfs2 are to be had as packages, and unikernels want a virtual machine with KVM",
                "ramfs: here tmpfs; mfs and mfs2 without a cache: 'cache=none', where the kernel keeps nothing; mfs2 with its cache: 'barge mount'",
                "zfs is left out: its module is no part of Debian's kernel; the kernel's EROFS and squashfs, erofsfuse and squashfuse are what a user would \
                 take instead",
                "blocks read: rows 'cold, requests' and 'cold, read', in MiB",
            ],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_found_by_the_names_of_ours() {
        let ratio = |table, row| of_row(table, row).map(|seed| format!("{:.2}", seed.ratio));
        let rows = [
            ("coalescing", "Unix, write 1M", "2.60"),
            ("guest caches", "random read 4K", "1.56"),
            ("readplus", "xfs uncached, whole hole", "1.32"),
            ("readplus", "btrfs cached, 32K hole first", "0.81"),
            ("guest readplus", "whole hole", "1.15"),
            ("zerocopy", "unix, write, 4 KiB", "1.02"),
            ("zerocopy", "tcp, read, 512 B", "1.68"),
            ("image", "java hello, plain, cold", "0.36"),
        ];
        for (table, row, expected) in rows {
            assert_eq!(
                ratio(table, row).as_deref(),
                Some(expected),
                "{table}, {row}"
            );
        }
        for (table, row) in [
            ("zerocopy", "unix, read, 1 MiB"),
            ("readplus", "xfs, whole hole, on the wire"),
            ("image", "java hello, lz4, cold"),
            ("9p", "whole hole"),
        ] {
            assert_eq!(ratio(table, row), None, "{table}, {row}");
        }
    }

    #[test]
    fn rows_are_as_wide_as_their_heads() {
        for published in published() {
            let width = published.head.len();
            assert!(
                published.rows.iter().all(|row| row.len() == width),
                "{}",
                published.title
            );
        }
    }
}
