//! Disks over a tree in memory: bytes in, bytes out.

mod nbd;
mod virtio;

use std::sync::Arc;

use block::Disk;
use memory::Memory;
use vfs::{Caller, Errno, Export, OpenFlags, Result};
use vfs_testkit::clock;
use vfs_testkit::context::{RW, TestNode, ok, refused, run};

/// The size in bytes of the disk in every test.
const SIZE: u64 = 1 << 20;

/// The range of data on the disk: the rest is holes.
const DATA: std::ops::Range<u64> = SIZE / 4..SIZE / 2;

/// Returns a tree with a disk at `dir/disk`.
fn export() -> Arc<Export> {
    let export = Arc::new(Export::new("", Memory::new(clock())));
    let dir = ok(root(&export).mkdir("dir", 0o755));
    let disk = ok(ok(dir.file("disk", b"")).open(RW));
    ok(disk.write_all(DATA.start, &[7; (DATA.end - DATA.start) as usize]));
    ok(ok(dir.lookup("disk")).truncate(SIZE));
    ok(root(&export).symlink("link", b"dir/disk"));
    export
}

fn root(export: &Export) -> TestNode {
    TestNode {
        node: ok(run(&Caller::ROOT, |cx| export.fs.root(cx))),
        caller: Caller::ROOT,
    }
}

/// Returns the contents of the disk.
fn content(export: &Export) -> Vec<u8> {
    ok(ok(ok(root(export).lookup("dir")).lookup("disk")).content())
}

fn open(export: &Export, path: &str, read_only: bool) -> Result<Disk> {
    run(&Caller::ROOT, |cx| {
        Disk::open(cx, export, path.as_bytes(), read_only)
    })
}

#[test]
fn a_disk_is_a_file_by_its_path() {
    let export = export();
    let disk = ok(open(&export, "dir/disk", false));
    assert_eq!((disk.size(), disk.is_read_only()), (SIZE, false));
    let disk = ok(open(&export, "/dir//disk", true));
    assert!(disk.is_read_only() && !disk.can_discard());
    for (path, errno) in [
        ("", Errno::EISDIR),
        ("dir", Errno::EISDIR),
        ("link", Errno::ELOOP),
        ("none", Errno::ENOENT),
        ("dir/disk/x", Errno::ENOTDIR),
    ] {
        refused(open(&export, path, false).map(drop), errno);
    }
    assert!(open(&export, "dir/../dir/disk", false).is_err());
}

#[test]
fn a_file_that_cannot_be_written_is_a_disk_to_be_read() {
    let tree = Memory::new(clock());
    let whole = Export::new("", tree.clone());
    drop(ok(root(&whole).file("disk", &[1; 512])));
    let export = Export::new("", layers::stack(tree, layers::ReadOnly));
    assert!(ok(open(&export, "disk", false)).is_read_only());
    let node = ok(root(&export).lookup("disk"));
    assert!(node.open(OpenFlags::WRITE).is_err());
}
