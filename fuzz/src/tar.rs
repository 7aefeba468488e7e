//! Tar streams: they yield a plan, or an error message.

use std::fs::File;
use std::io::Write;

use pack::{Kind, Plan, input};
use rustix::fs::{MemfdFlags, memfd_create};

/// The maximum number of bytes that are read of a file.
const MOST: u64 = 1 << 16;

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

/// Reads the files of a plan.
pub(crate) fn read(plan: &Plan) {
    let Ok(visits) = plan.walk() else { return };
    for visit in visits {
        if let Kind::File(contents) = plan.kind(visit.node) {
            let mut buffer = vec![0; contents.len().min(MOST) as usize];
            contents
                .read(0, &mut buffer)
                .expect("all parts are within the archive");
        }
    }
}
