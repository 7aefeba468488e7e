//! The mkfs.erofs options that change the image: all of version 1.5, and the supported ones of
//! later versions.

use crate::compare::Holes;

/// Option lists, and which holes are compared.
pub(crate) const OPTIONS: &[(&[&str], Holes)] = &[
    (&[], Holes::Each),
    (&["-x-1"], Holes::Each),
    (&["-x1"], Holes::Each),
    (&["-T1234567890"], Holes::Each),
    (&["--ignore-mtime"], Holes::Each),
    (&["--all-root"], Holes::Each),
    (&["-Eforce-inode-extended"], Holes::Each),
    (&["-Enoinline_data"], Holes::Each),
    (&["-Enosbcrc"], Holes::Each),
    (&["--chunksize=4096"], Holes::Each),
    (&["--chunksize=65536"], Holes::Each),
    (&["-Eforce-chunk-indexes", "--chunksize=4096"], Holes::Each),
    (&["--blobdev=BLOB", "--chunksize=4096"], Holes::Each),
    (&["-zlz4"], Holes::None),
    (&["-zlz4", "-Elegacy-compress"], Holes::None),
    (&["-zlz4hc,12"], Holes::None),
    (&["-zlz4", "-C16384"], Holes::None),
    (&["-zlz4hc", "-C65536"], Holes::None),
    (&["-zlz4hc", "-C1048576"], Holes::None),
    (&["-zlz4", "--max-extent-bytes=8192"], Holes::None),
    (&["-zlz4", "-Eztailpacking"], Holes::None),
    (&["-zlz4hc", "-C65536", "-Eztailpacking"], Holes::None),
    (&["-zlz4", "-Efragments"], Holes::None),
    (
        &["-zlz4", "-C65536", "-Efragments,ztailpacking"],
        Holes::None,
    ),
    (&["-zlz4", "-Eall-fragments"], Holes::None),
    (
        &["-zlz4hc", "-C16384", "-Eall-fragments,ztailpacking"],
        Holes::None,
    ),
    (&["-zlz4", "-Ededupe"], Holes::None),
    (
        &["-zlz4hc", "-C65536", "-Ededupe,fragments,ztailpacking"],
        Holes::None,
    ),
    // Not legacy-compress with fragments: 1.8.6 and 1.9.4 make images with file tails that neither
    // the kernel nor barge can read.
    (&["-zlz4", "-Ededupe,force-inode-extended"], Holes::None),
    // Options of later versions.
    (&["-b512"], Holes::Each),
    (&["-b1024", "-zlz4"], Holes::None),
    (&["-zlzma", "-C65536"], Holes::None),
    (
        &["-zlzma", "-C65536", "-Eall-fragments,dedupe"],
        Holes::None,
    ),
    (&["-zdeflate", "-C65536"], Holes::None),
    (
        &["-zdeflate", "-C65536", "-Efragments,dedupe,ztailpacking"],
        Holes::None,
    ),
    (&["-zzstd", "-C65536"], Holes::None),
    (
        &["-zzstd", "-C1048576", "-Eall-fragments,dedupe"],
        Holes::None,
    ),
    (
        &[
            "--xattr-prefix=user.number.",
            "--xattr-prefix=trusted.overlay.",
        ],
        Holes::Each,
    ),
    (
        &["-zlz4", "-Efragments", "--xattr-prefix=user.number."],
        Holes::None,
    ),
    (&["-E48bit"], Holes::Each),
    (&["-E48bit", "-zlz4"], Holes::None),
    (
        &[
            "-E48bit,plain-xattr-prefixes",
            "-zlz4hc",
            "-C65536",
            "--xattr-prefix=user.number.",
        ],
        Holes::None,
    ),
    (&["-m4096", "-zlz4"], Holes::None),
];
