//! Files on systems where sinks read no descriptors.

use std::fs::File;
use std::io;

use sys::positioned::FileExt;
use vfs::Sink;

use super::COPY_SIZE;

/// Puts `len` bytes of `file` from `at` into `sink`, and returns their number. Returns an error if
/// the file ends before.
pub(super) fn to_sink(file: &File, at: u64, len: usize, sink: &mut dyn Sink) -> io::Result<usize> {
    let mut buffer = vec![0; len.min(COPY_SIZE as usize)];
    let mut done = 0;
    while done < len {
        let size = buffer.len().min(len - done);
        let piece = &mut buffer[..size];
        file.read_exact_at(piece, at + done as u64)?;
        sink.bytes(piece);
        done += size;
    }
    Ok(done)
}
