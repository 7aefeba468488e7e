//! Comparison of an image's source with a mounted tree.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use image::ImageFs;
use rustix::fs::{SeekFrom, lgetxattr, llistxattr};
use vfs::{Caller, Errno, FileSystem, Kind, OpenFlags, ReaddirMode, Whence};
use vfs_testkit::{TestNode, run};

/// The holes to compare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holes {
    /// All holes.
    Each,
    /// None: in compressed images the kernel reports different holes.
    None,
}

/// Returns the root node, as seen by root.
pub(crate) fn root(fs: &ImageFs) -> TestNode {
    let who = Caller::ROOT;
    let node = run(&who, |cx| fs.root(cx)).expect("a root");
    TestNode { node, caller: who }
}

/// Checks that both trees are the same, and returns the number of nodes.
pub(crate) fn same(fs: &ImageFs, mounted: &Path, holes: Holes) -> usize {
    let mut nodes = 0;
    let mut left = vec![(root(fs), mounted.to_owned())];
    while let Some((seen, path)) = left.pop() {
        nodes += 1;
        same_node(&seen, &path, holes);
        let handle = seen.handle().expect("a handle");
        let again = run(&seen.caller, |cx| fs.resolve(cx, &handle)).expect("it resolves");
        assert_eq!(again.id(), seen.id(), "{}", path.display());
        if seen.kind() != Kind::Directory {
            continue;
        }
        for (name, child) in children(&seen, &path) {
            assert_eq!(
                child.parent().map(|node| node.id()).unwrap_or(seen.id()),
                seen.id()
            );
            left.push((child, path.join(std::ffi::OsStr::from_bytes(&name))));
        }
    }
    nodes
}

/// Returns the children of a directory, after checking that both trees have the same names and
/// kinds.
fn children(seen: &TestNode, path: &Path) -> BTreeMap<Vec<u8>, TestNode> {
    let dir = seen.open(OpenFlags::READ).expect("opened");
    let listed = dir.readdir_all(ReaddirMode::Entries, 1000).expect("listed");
    let mut there: BTreeMap<Vec<u8>, (u64, Kind)> = fs::read_dir(path)
        .expect("listed")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let kind = kind(entry.file_type().expect("a type"));
            let number = std::os::unix::fs::DirEntryExt::ino(&entry);
            (entry.file_name().into_vec(), (number, kind))
        })
        .collect();
    let mut children = BTreeMap::new();
    for entry in listed {
        let expected = there.remove(&entry.name);
        let told = (entry.id, entry.kind.expect("a kind"));
        assert_eq!(Some(told), expected, "{}", entry.name.escape_ascii());
        let child = seen.lookup(&entry.name).expect("found");
        assert_eq!(entry.entry.expect("with its node").attr, child.attr());
        children.insert(entry.name, child);
    }
    assert!(
        there.is_empty(),
        "{}: {there:?} are missing",
        path.display()
    );
    let missing = seen.lookup("no such name").map(drop);
    assert_eq!(missing, Err(Errno::ENOENT));
    children
}

fn kind(kind: fs::FileType) -> Kind {
    match () {
        () if kind.is_dir() => Kind::Directory,
        () if kind.is_symlink() => Kind::Symlink,
        () if kind.is_fifo() => Kind::Fifo,
        () if kind.is_socket() => Kind::Socket,
        () if kind.is_char_device() => Kind::CharDevice,
        () if kind.is_block_device() => Kind::BlockDevice,
        () => Kind::File,
    }
}

fn same_node(seen: &TestNode, path: &Path, holes: Holes) {
    let shown = path.display();
    let there = fs::symlink_metadata(path).expect("there");
    let here = seen.attr();
    let rdev = rustix::fs::makedev(here.rdev.major, here.rdev.minor);
    assert_eq!(here.st_mode(), there.mode(), "{shown}");
    assert_eq!((here.uid, here.gid), (there.uid(), there.gid()), "{shown}");
    assert_eq!(
        (here.id, u64::from(here.nlink)),
        (there.ino(), there.nlink()),
        "{shown}"
    );
    assert_eq!((here.size, rdev), (there.size(), there.rdev()), "{shown}");
    assert_eq!(
        (here.mtime.sec, i64::from(here.mtime.nsec)),
        (there.mtime(), there.mtime_nsec()),
        "{shown}"
    );
    assert_eq!(
        (here.ctime.sec, i64::from(here.ctime.nsec)),
        (there.ctime(), there.ctime_nsec()),
        "{shown}"
    );
    same_attributes(seen, path);
    match here.kind {
        Kind::Symlink => {
            let target = fs::read_link(path).expect("a target");
            assert_eq!(
                seen.readlink(),
                Ok(target.into_os_string().into_vec()),
                "{shown}"
            );
        }
        Kind::File => same_contents(seen, path, holes),
        _ => {}
    }
}

fn same_attributes(seen: &TestNode, path: &Path) {
    let mut list = vec![0; 1 << 16];
    let len = llistxattr(path, &mut list).expect("listed");
    let mut names: Vec<_> = list[..len]
        .split(|byte| *byte == 0)
        .map(<[u8]>::to_vec)
        .collect();
    names.retain(|name| !name.is_empty());
    names.sort();
    let mut here = seen.xattrs().expect("listed");
    here.sort();
    assert_eq!(here, names, "{}", path.display());
    for name in names {
        let mut value = vec![0; 1 << 16];
        let len = lgetxattr(path, &name[..], &mut value).expect("a value");
        assert_eq!(
            seen.xattr(&name),
            Ok(value[..len].to_vec()),
            "{}",
            name.escape_ascii()
        );
    }
    assert_eq!(seen.xattr(b"user.none").map(drop).ok(), None);
}

fn same_contents(seen: &TestNode, path: &Path, holes: Holes) {
    let shown = path.display();
    let there = File::open(path).expect("opened");
    let contents = fs::read(path).expect("read");
    let here = seen.open(OpenFlags::READ).expect("opened");
    let all = here.read_all().expect("read");
    // Not `assert_eq!`, which would print both.
    assert!(all == contents, "{shown}: another {} bytes", all.len());
    // Reads in the middle, across block boundaries.
    for at in (0..contents.len()).step_by(contents.len() / 20 + 1) {
        let mut expected = vec![0; 9001.min(contents.len() - at)];
        there.read_exact_at(&mut expected, at as u64).expect("read");
        let read = here.read_exact(at as u64, expected.len()).expect("read");
        assert!(read == expected, "{shown} at {at}");
    }
    assert_eq!(
        here.read(contents.len() as u64, 10),
        Ok(Vec::new()),
        "{shown}"
    );
    if holes == Holes::Each {
        let mut at = 0;
        while at < contents.len() as u64 {
            let data = rustix::fs::seek(&there, SeekFrom::Data(at)).ok();
            assert_eq!(here.seek(at, Whence::Data).ok(), data, "{shown} at {at}");
            let Some(data) = data else { break };
            let hole = rustix::fs::seek(&there, SeekFrom::Hole(data)).expect("an end");
            assert_eq!(here.seek(data, Whence::Hole), Ok(hole), "{shown} at {data}");
            at = hole;
        }
    }
    let extents = here.extents(0, u64::MAX).expect("extents");
    let mut at = 0;
    for extent in extents {
        assert_eq!(extent.offset, at, "{shown}");
        at += extent.len;
        let part = &contents[extent.offset as usize..at as usize];
        assert!(
            !extent.hole || part.iter().all(|byte| *byte == 0),
            "{shown}"
        );
    }
    assert_eq!(at, contents.len() as u64, "{shown}");
}
