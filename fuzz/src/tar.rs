//! Tar streams: they yield a plan, or an error message.

use std::fs::File;
use std::io::Write;

use pack::{Kind, input};
use rustix::fs::{MemfdFlags, memfd_create};

/// The maximum number of bytes that are read of a file.
const MOST: u64 = 1 << 16;

/// Plans an archive, unchanged and with corrected checksums.
pub fn archive(data: &[u8]) {
    plan(data);
    let mut fitting = data.to_vec();
    for header in fitting.chunks_exact_mut(512) {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    plan(&fitting);
}

fn plan(data: &[u8]) {
    let file = memfd_create("archive", MemfdFlags::empty()).expect("memory");
    let mut file = File::from(file);
    file.write_all(data).expect("written");
    let Ok(plan) = input::tar(file) else { return };
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
