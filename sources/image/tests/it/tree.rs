//! A deterministic tree with every kind of file-system object.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use tempfile::TempDir;

/// Returns incompressible bytes, determined by `seed`.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns compressible text, determined by `seed`.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let words = [
        "tree ", "carries ", "leaf ", "a ", "branch\n", "of ", "the ", "barge ",
    ];
    let picks = noise(len, seed);
    let mut text = Vec::with_capacity(len + 8);
    for (at, pick) in picks.iter().enumerate() {
        if text.len() >= len {
            break;
        }
        text.extend_from_slice(words[usize::from(pick % 8)].as_bytes());
        if pick >> 4 == 0 {
            text.extend_from_slice(at.to_string().as_bytes());
        }
    }
    text.truncate(len);
    text
}

/// The maximum length of a name in bytes; mkfs.erofs 1.5 fails with 255.
const LONGEST: usize = 254;

/// Returns the tree, shared by all tests running at the time and removed after the last one.
pub(crate) fn planted() -> Arc<TempDir> {
    static TREE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut tree = TREE.lock();
    tree.upgrade().unwrap_or_else(|| {
        let dir = Arc::new(tempfile::tempdir().expect("a directory"));
        plant(dir.path());
        *tree = Arc::downgrade(&dir);
        dir
    })
}

/// Creates the tree in `root`.
fn plant(root: &Path) {
    let sizes = [
        0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 12345, 65536, 100_001,
    ];
    for size in sizes {
        fs::write(root.join(format!("text-{size}")), text(size, size as u64)).expect("written");
        fs::write(root.join(format!("noise-{size}")), noise(size, size as u64)).expect("written");
    }
    let large = [
        text(1_500_000, 1),
        noise(500_000, 2),
        vec![0; 300_000],
        text(700_000, 3),
    ]
    .concat();
    fs::write(root.join("large"), &large).expect("written");
    // The same contents after a prefix, for layouts that share clusters.
    fs::write(
        root.join("large-again"),
        [&noise(8192, 4), &large[..]].concat(),
    )
    .expect("written");
    fs::write(root.join("zeros"), vec![0; 1_000_000]).expect("written");

    let sparse = File::create(root.join("sparse")).expect("made");
    sparse.set_len(9 << 20).expect("longer");
    for at in [0, 5 << 20, (5 << 20) + 4096, (8 << 20) + 100] {
        sparse.write_all_at(&text(10_000, at), at).expect("written");
    }
    File::create(root.join("hole"))
        .expect("made")
        .set_len(1 << 20)
        .expect("longer");

    fs::hard_link(root.join("text-4097"), root.join("linked")).expect("linked");
    symlink("text-1", root.join("link")).expect("linked");
    symlink("x/".repeat(2000) + "end", root.join("long-link")).expect("linked");

    let deep = (0..100).fold(root.join("deep"), |path, at| path.join(format!("d{at}")));
    fs::create_dir_all(&deep).expect("made");
    fs::write(deep.join("bottom"), b"here").expect("written");
    fs::create_dir(root.join("empty")).expect("made");
    let wide = root.join("wide");
    fs::create_dir(&wide).expect("made");
    for at in 0..1000 {
        fs::write(
            wide.join(format!("{:0width$}", at, width = 1 + at % 200)),
            [at as u8],
        )
        .expect("written");
    }
    let names = root.join("names");
    fs::create_dir(&names).expect("made");
    for byte in (1..=255u8).filter(|byte| !b"/.".contains(byte)) {
        fs::write(names.join(OsStr::from_bytes(&[byte])), [byte]).expect("written");
        fs::write(names.join(OsStr::from_bytes(&[byte; LONGEST])), [byte]).expect("written");
    }

    let root_user = rustix::process::geteuid().is_root();
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, (0, 0)),
        ("socket", FileType::Socket, (0, 0)),
        ("char", FileType::CharacterDevice, (1, 3)),
        ("block", FileType::BlockDevice, (0xabc, 0xfedcb)),
    ] {
        if root_user || matches!(kind, FileType::Fifo | FileType::Socket) {
            let device = rustix::fs::makedev(device.0, device.1);
            let mode = Mode::from_raw_mode(0o640);
            rustix::fs::mknodat(CWD, root.join(name), kind, mode, device).expect("made");
        }
    }
    if root_user {
        for (name, uid, gid) in [
            ("text-513", 1000, 1001),
            ("text-4096", 70_000, 4_000_000_000),
        ] {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::chownat(CWD, root.join(name), Some(uid), Some(gid), AtFlags::empty())
                .expect("owned");
        }
    }
    for (name, mode) in [
        ("noise-1", 0o4755),
        ("noise-511", 0),
        ("empty", 0o1777),
        ("wide", 0o2711),
    ] {
        rustix::fs::chmod(root.join(name), Mode::from_raw_mode(mode)).expect("changed");
    }
    attributes(root);
    for (name, sec, nsec) in [
        ("text-1", 1, 1),
        ("noise-512", 2_000_000_000, 999_999_999),
        ("text-8192", 5_000_000_000, 123_456_789),
        ("link", 3, 5),
    ] {
        let time = Timespec {
            tv_sec: sec,
            tv_nsec: nsec,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW)
            .expect("timed");
    }
}

fn attributes(root: &Path) {
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
    };
    let one = root.join("attributes");
    fs::write(&one, b"several").expect("written");
    // Attributes stored inline in one file, and attributes shared by many.
    for at in 0..60 {
        // The file system may have no space for more of them.
        let _ = set(&one, &format!("user.number.{at}"), &noise(at, at as u64));
    }
    let _ = set(&one, &format!("user.{}", "n".repeat(250)), b"a long name");
    let _ = set(&one, "user.empty", b"");
    let _ = set(&root.join("text-12345"), "user.large", &noise(3500, 9));
    for at in 0..20 {
        let path = root.join(format!("shares-{at}"));
        fs::write(&path, b"alike").expect("written");
        let _ = set(&path, "user.shared", b"the same of all");
        let _ = set(&path, "trusted.overlay.opaque", b"y");
        let _ = set(&path, "security.label", b"system_u:object_r:etc_t:s0\0");
        let _ = set(&path, "user.own", at.to_string().as_bytes());
    }
    let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    let _ = set(&root.join("text-511"), "system.posix_acl_access", acl);
    let _ = set(&root.join("empty"), "system.posix_acl_default", acl);
}
