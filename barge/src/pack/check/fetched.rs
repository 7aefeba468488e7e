//! An image that is an object in a store: all of it is looked at, so all of it is fetched.

use std::fs::File;
use std::io::{self, Write};

use image::Piece;
use objects::{Object, Tuning, Url};

/// Bytes that are asked for at once: a few requests at a time.
const STEP: u64 = 16 << 20;

/// A file without a name that has the bytes of the object.
pub(super) fn fetched(url: &Url) -> io::Result<File> {
    let object = Object::open(url, Tuning::default())?;
    let mut file = tempfile::tempfile()?;
    let mut buffer = vec![0; STEP.min(object.len()) as usize];
    let mut at = 0;
    while at < object.len() {
        let len = STEP.min(object.len() - at);
        let into = &mut buffer[..len as usize];
        object.read(&mut [Piece { at, into }])?;
        file.write_all(&buffer[..len as usize])?;
        at += len;
    }
    Ok(file)
}
