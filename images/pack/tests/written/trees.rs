//! Test directories, and snapshots of directory trees for comparison.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pack::{Kind, Output, Plan, input};
use rustix::fs::{FileType, Mode, Timespec, Timestamps, XattrFlags};
use tempfile::TempDir;
use vfs::{AttrMask, Call, Caller, Cx, Entry, FileSystem};

/// The attributes and contents of a node, including the times of symbolic links and directories.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeSnapshot {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    mtime: (i64, i64),
    device: u64,
    xattrs: BTreeMap<String, Vec<u8>>,
    /// A hash of contents, or the target.
    contents: Vec<u8>,
    /// The first path of the same file.
    first_path: PathBuf,
}

impl NodeSnapshot {
    /// Returns whether file type, permissions except set-id bits, owner, contents, target and
    /// device are the same.
    pub(crate) fn same_contents(&self, other: &NodeSnapshot) -> bool {
        let of = |seen: &NodeSnapshot| (seen.mode & !0o6000, seen.owner, seen.size, seen.device);
        of(self) == of(other) && self.contents == other.contents
    }
}

/// Returns everything below `root`, by path.
pub(crate) fn snapshot(root: &Path) -> BTreeMap<PathBuf, NodeSnapshot> {
    let mut all = BTreeMap::new();
    let mut first = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let inside = path.strip_prefix(root).expect("below").to_owned();
        let meta = fs::symlink_metadata(&path).expect("attributes");
        let kind = meta.file_type();
        if kind.is_dir() {
            let mut names: Vec<_> = (fs::read_dir(&path).expect("a directory"))
                .map(|entry| entry.expect("an entry").path())
                .collect();
            names.sort();
            pending.extend(names.into_iter().rev());
        }
        let has = if kind.is_symlink() {
            fs::read_link(&path)
                .expect("a target")
                .as_os_str()
                .as_bytes()
                .to_vec()
        } else if kind.is_file() {
            blake3::hash(&fs::read(&path).expect("contents"))
                .as_bytes()
                .to_vec()
        } else {
            Vec::new()
        };
        let same = first
            .entry(meta.ino())
            .or_insert_with(|| inside.clone())
            .clone();
        let seen = NodeSnapshot {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            links: meta.nlink(),
            size: if kind.is_dir() { 0 } else { meta.size() },
            mtime: (meta.mtime(), meta.mtime_nsec()),
            device: match kind.is_char_device() || kind.is_block_device() {
                true => meta.rdev(),
                false => 0,
            },
            xattrs: xattrs(&path),
            contents: has,
            first_path: same,
        };
        all.insert(inside, seen);
    }
    all
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).expect("names of attributes");
    let names = names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    let values = names.map(|name| {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("a value");
        value.truncate(len);
        (String::from_utf8_lossy(name).into_owned(), value)
    });
    values.collect()
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).expect(name);
}

fn touch(path: &Path, sec: i64, nsec: i64) {
    let time = Timespec {
        tv_sec: sec,
        tv_nsec: nsec,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("times");
}

/// Returns deterministic compressible text.
pub(crate) fn text(len: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(len + 80);
    let mut number = 1_u64;
    while text.len() < len {
        number = number
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let line = format!(
            "line {} of {} is here: {:x}\n",
            text.len() / 7,
            number >> 60,
            number >> 44
        );
        text.extend(line.into_bytes());
    }
    text.truncate(len);
    text
}

/// Returns incompressible bytes.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut noise = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    noise
}

/// Makes a directory with difficult contents. Without root it lacks owners, devices and trusted
/// attributes.
pub(crate) fn tree() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("tree");
    fs::create_dir(&root).expect("made");
    let at = |name: &str| root.join(name);
    let write = |name: &str, bytes: &[u8]| fs::write(at(name), bytes).expect("written");
    for size in [
        0, 1, 511, 512, 513, 4031, 4032, 4033, 4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536,
        65537,
    ] {
        write(&format!("size-{size}"), &text(size));
        write(&format!("noise-{size}"), &noise(size));
    }
    write("text", &text(5_000_001));
    write("noise", &noise(3_000_001));
    let mixed = [
        text(700_000),
        noise(800_000),
        vec![0; 900_000],
        text(5000),
        noise(70),
    ]
    .concat();
    write("mixed", &mixed);
    write("twin", &mixed);
    write("zeros", &vec![0; 2_500_000]);
    let long = "n".repeat(255);
    write(&long, b"long");
    write("é\u{1F6A2}", b"");
    fs::write(
        root.join(std::ffi::OsStr::from_bytes(b"\xff\xfe!")),
        b"no UTF-8",
    )
    .expect("written");
    fs::create_dir(at("many")).expect("made");
    for number in 0..3000 {
        fs::write(
            at("many").join(format!("{number:0width$}", width = 4 + number % 60)),
            [number as u8; 3],
        )
        .expect("written");
    }
    fs::create_dir_all(at("a/b/c/d")).expect("made");
    fs::create_dir(at("empty")).expect("made");
    fs::hard_link(at("text"), at("a/b/text too")).expect("linked");
    fs::hard_link(at("text"), at("0")).expect("linked");
    symlink("a/b", at("link")).expect("linked");
    symlink("t".repeat(4000), at("long link")).expect("linked");
    let sparse = File::create(at("sparse")).expect("made");
    sparse.set_len(40 << 20).expect("cut");
    sparse.write_all_at(&text(5000), 12 << 20).expect("written");
    sparse
        .write_all_at(b"end", (40 << 20) - 3)
        .expect("written");
    File::create(at("hole"))
        .expect("made")
        .set_len((1 << 20) + 1)
        .expect("cut");
    let fifo = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, fifo, 0).expect("made");
    rustix::fs::mknodat(rustix::fs::CWD, at("socket"), FileType::Socket, fifo, 0).expect("made");
    set_xattr(&at("text"), "user.one", b"1");
    for number in 0..40 {
        set_xattr(
            &at(&format!("size-{}", [1, 512, 4096][number % 3])),
            &format!("user.n{number}"),
            b"shared by more than one",
        );
    }
    set_xattr(&at("size-4031"), "user.big", &noise(1500));
    set_xattr(&at("many"), "user.dir", b"");
    // An ACL that lets user 7 read.
    let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\x07\0\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    set_xattr(&at("size-1"), "system.posix_acl_access", acl);
    set_xattr(&at("a"), "system.posix_acl_default", acl);
    if is_root() {
        for (name, kind, device) in [
            ("null", FileType::CharacterDevice, (1, 3)),
            ("disk", FileType::BlockDevice, (259, 70_000)),
        ] {
            let device = rustix::fs::makedev(device.0, device.1);
            rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, fifo, device).expect("made");
        }
        std::os::unix::fs::lchown(at("size-1"), Some(70_000), Some(3)).expect("given");
        std::os::unix::fs::lchown(at("size-512"), Some(5), Some(4_000_000_000)).expect("given");
        set_xattr(&at("text"), "trusted.overlay.opaque", b"y");
        set_xattr(
            &at("text"),
            "security.capability",
            b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        );
    }
    fs::set_permissions(at("size-4097"), PermissionsExt::from_mode(0o4711)).expect("set");
    fs::set_permissions(at("empty"), PermissionsExt::from_mode(0o1777)).expect("set");
    touch(&at("size-1"), -5, 999_999_999);
    touch(&at("size-511"), 5_000_000_000, 1);
    touch(&at("link"), 1_000_000_000, 123_456_789);
    touch(&at("empty"), 0, 0);
    dir
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the plan of the directory `root`.
pub(crate) fn plan_of(root: &Path) -> Plan {
    let fs = hostdir::HostDir::open(root, hostdir::Options::default()).expect("opened");
    let caller = Arc::new(Caller::ROOT);
    let call = Call::detached();
    let cx = Cx::new(&caller, &call);
    let root = fs.root(&cx).expect("a root");
    let attr = root.attr(&cx, AttrMask::STAT).expect("attributes");
    let root = Entry { node: root, attr };
    input::file_system(fs, caller.clone(), root, &pack::TreeLimit::none()).expect("walked")
}

/// Writes an image of `plan` in `dir`.
pub(crate) fn write_image(plan: &Plan, options: &pack::erofs::Options, dir: &Path) -> PathBuf {
    let path = dir.join("image");
    let mut output = Output::to_file(&path).expect("begun");
    pack::erofs::write(plan, options, &mut output, &()).expect("written");
    output.finish().expect("finished");
    path
}

/// Returns a tree with one file of these bytes.
pub(crate) fn one_file(bytes: Vec<u8>) -> Plan {
    let mut plan = Plan::new(pack::Attributes::default());
    plan.add(
        pack::NodeId::ROOT,
        b"file",
        pack::Attributes::default(),
        Kind::file(bytes),
    );
    plan
}

/// Runs a command; returns its error output if it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let told = [output.stdout, output.stderr].concat();
    let told = || format!("{command:?}: {}", String::from_utf8_lossy(&told));
    output.status.success().then_some(()).ok_or_else(told)
}
