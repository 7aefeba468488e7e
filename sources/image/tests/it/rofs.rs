//! ROFS images: their contents are readable, and every call on a corrupt one returns.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use image::{FileRanges, ImageFs, MemoryRanges, RangeSource, Trust};
use proptest::prelude::*;
use rofs::Writer;
use vfs::{Caller, Errno, FileSystem, Handle, Kind};
use vfs_testkit::context::{RW, TestNode, ok, refused};
use vfs_testkit::{run, walk_all};

use crate::compare::root;
use crate::tree::noise;

/// The cache limit in bytes.
const CACHE: u64 = 1 << 20;

/// Makes a tree with a directory of unsorted children, a file with two names, and symbolic links.
fn image() -> Vec<u8> {
    let mut writer = Writer::new();
    let mut data = Vec::new();
    writer.enter(b"dir").expect("short");
    for name in [&b"z"[..], b"a", b"\xff\xfe", b"m"] {
        data.push((writer.file(name, 3).expect("short").1, name.to_vec()));
    }
    writer.leave();
    let (large, at) = writer.file(b"large", 100_000).expect("short");
    data.push((at, noise(100_000, 1)));
    writer.file(b"empty", 0).expect("short");
    writer.symlink(b"link", b"dir/a").expect("short");
    writer.link(b"again", large).expect("short");
    let finished = writer.finish();
    let mut image = vec![0; finished.tables_offset as usize];
    image.extend(&finished.tables);
    image[..512].copy_from_slice(&finished.superblock);
    for (at, bytes) in data {
        image[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    image
}

fn in_memory(image: Vec<u8>) -> Result<ImageFs, String> {
    let source: Arc<dyn RangeSource> = Arc::new(MemoryRanges(image));
    ImageFs::from_devices(vec![source], CACHE, &Trust::Hashes).map_err(|error| error.to_string())
}

fn in_a_file(image: &[u8]) -> ImageFs {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().write_all_at(image, 0).expect("written");
    let source: Arc<dyn RangeSource> = Arc::new(FileRanges::open(file.path()).expect("opened"));
    ImageFs::from_devices(vec![source], CACHE, &Trust::Hashes).expect("an image")
}

fn names(seen: &TestNode) -> Vec<String> {
    let names = ok(seen.names()).into_iter();
    names.map(|name| name.escape_ascii().to_string()).collect()
}

#[test]
fn what_is_in_an_image_is_shown() {
    for fs in [in_memory(image()).expect("an image"), in_a_file(&image())] {
        let root = root(&fs);
        assert_eq!(names(&root), ["again", "dir", "empty", "large", "link"]);
        let dir = ok(root.lookup("dir"));
        assert_eq!(names(&dir), ["a", "m", "z", "\\xff\\xfe"]);
        for name in [&b"z"[..], b"a", b"\xff\xfe", b"m"] {
            let content = ok(ok(dir.lookup(name)).content());
            assert_eq!(content, [name, &[0, 0]].concat()[..3]);
        }
        refused(dir.lookup("b"), Errno::ENOENT);
        assert_eq!(ok(dir.parent()).id(), root.id());
        let large = ok(root.lookup("large"));
        assert!(ok(large.content()) == noise(100_000, 1));
        assert_eq!(ok(root.lookup("again")).id(), large.id());
        assert_eq!(large.attr().nlink, 2);
        assert_eq!(ok(ok(root.lookup("empty")).content()), b"");
        let link = ok(root.lookup("link"));
        assert_eq!(
            (link.kind(), ok(link.readlink())),
            (Kind::Symlink, b"dir/a".to_vec())
        );
        refused(large.open(RW), Errno::EROFS);
        refused(dir.mkdir("new", 0o755), Errno::EROFS);
    }
}

#[test]
fn handles_outlive_a_process_and_are_of_one_image() {
    let fs = in_memory(image()).expect("an image");
    let handle = ok(ok(root(&fs).lookup("large")).handle());
    let again = in_memory(image()).expect("an image");
    let resolve = |fs: &ImageFs, handle: &Handle| {
        run(&Caller::ROOT, |cx| fs.resolve(cx, handle)).map(|node| node.id())
    };
    assert_eq!(resolve(&again, &handle), resolve(&fs, &handle));
    let mut other = image();
    // Corrupts the last inode's number.
    let tables = other.len() - 512;
    other[tables..].rotate_left(1);
    if let Ok(other) = in_memory(other) {
        assert_eq!(resolve(&other, &handle), Err(Errno::ESTALE));
    }
    for number in [0, 99, u64::MAX] {
        let mut forged = handle.bytes().to_vec();
        forged[8..16].copy_from_slice(&u64::to_le_bytes(number));
        let forged = ok(Handle::new(&forged));
        assert_eq!(resolve(&fs, &forged), Err(Errno::ESTALE), "{number}");
    }
}

#[test]
fn tables_that_would_fill_the_memory_are_refused() {
    let mut image = image();
    image[32..40].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().write_all_at(&image, 0).expect("written");
    file.as_file().set_len(1 << 42).expect("sparse");
    let source: Arc<dyn RangeSource> = Arc::new(FileRanges::open(file.path()).expect("opened"));
    assert!(ImageFs::from_devices(vec![source], CACHE, &Trust::Hashes).is_err());
}

proptest! {
    #[test]
    fn no_change_does_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..12),
    ) {
        let mut image = image();
        let tables = image.len() - 1024;
        for (at, byte, near) in changes {
            let at = match near {
                true => at.index(64),
                false => tables + at.index(1024),
            };
            image[at] = byte;
        }
        if let Ok(fs) = in_memory(image) {
            walk_all(&fs, 2000);
        }
    }
}
