//! Tar streams: they yield a plan that can be written as an image, or an error message.

use std::fs::File;
use std::io::Write;

use image::{ImageFs, Trust};
use pack::{Kind, Output, Plan, erofs, input, rofs};
use rustix::fs::{MemfdFlags, memfd_create};
use vfs_testkit::walk_all;

/// The maximum number of bytes that are read of a file.
const MOST: u64 = 1 << 16;

/// The maximum size in bytes of the contents of a tree that is written as an image.
const MOST_CONTENTS: u64 = 1 << 20;

/// The maximum number of nodes of an image that are visited.
const MOST_NODES: usize = 500;

/// Plans an archive, unchanged and with corrected checksums.
pub fn archive(data: &[u8]) {
    plan(data);
    plan(&with_checksums(data));
}

/// Corrects the checksums of an archive.
pub(crate) fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut fitting = data.to_vec();
    for header in fitting.chunks_exact_mut(512) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    fitting
}

/// Returns an empty file in memory.
pub(crate) fn scratch() -> File {
    let file = memfd_create("archive", MemfdFlags::empty());
    file.expect("memory").into()
}

fn plan(data: &[u8]) {
    let mut file = scratch();
    file.write_all(data).expect("written");
    if let Ok(plan) = input::tar(file) {
        read(&plan);
    }
}

/// Reads the files of a plan, and writes it in each format. Each result is an image that barge can
/// read.
pub(crate) fn read(plan: &Plan) {
    let Ok(visits) = plan.walk() else { return };
    let is_small = plan.contents_size(&visits) <= MOST_CONTENTS;
    for visit in visits {
        if let Kind::File(contents) = plan.kind(visit.node) {
            let mut buffer = vec![0; contents.len().min(MOST) as usize];
            contents
                .read(0, &mut buffer)
                .expect("all parts are within the archive");
        }
    }
    if is_small {
        open_written(|output| erofs::write(plan, &erofs::Options::default(), output, &()).is_ok());
        open_written(|output| rofs::write(plan, output, &()).is_ok());
    }
}

/// Opens the image that `write` has written, and reads all of it. Does nothing if `write` returns
/// that the tree cannot be written.
fn open_written(write: impl FnOnce(&mut Output) -> bool) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = dir.path().join("image");
    let mut output = Output::to_file(&path).expect("begun");
    if write(&mut output) {
        output.finish().expect("written");
        let image = ImageFs::open(&path, &[], &Trust::Hashes).expect("an image");
        walk_all(&image, MOST_NODES);
    }
}
