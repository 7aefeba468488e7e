//! Download of an image on another server: a check reads all of it.

use std::fs::File;
use std::io::{self, Write};

use image::{Piece, RangeSource};

/// Bytes per read: a few concurrent requests.
const READ_SIZE: u64 = 16 << 20;

/// Returns an unnamed file with the contents of the object.
pub(super) fn download(object: &dyn RangeSource) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let mut buffer = vec![0; READ_SIZE.min(object.len()) as usize];
    let mut at = 0;
    while at < object.len() {
        let len = READ_SIZE.min(object.len() - at);
        let into = &mut buffer[..len as usize];
        object.read(&mut [Piece {
            offset: at,
            buffer: into,
        }])?;
        file.write_all(&buffer[..len as usize])?;
        at += len;
    }
    Ok(file)
}
