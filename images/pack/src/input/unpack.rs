//! Archives that are compressed, or come from a pipe: made a plain file without a name.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use flate2::read::MultiGzDecoder;

use super::tar::is_signed;

/// The bytes that identify an archive: a tar header, with its magic number or its checksum.
const HEAD: usize = 512;

/// Where a tar header has its magic number.
const USTAR: usize = 257;

/// How an archive is packed.
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// Whether a file that begins so is an archive that [`unpacked`] takes.
pub fn is_archive(head: &[u8]) -> bool {
    packing(head).is_some()
}

fn packing(head: &[u8]) -> Option<Packing> {
    if head.starts_with(&[0x1f, 0x8b]) {
        Some(Packing::Gzip)
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Some(Packing::Zstd)
    } else if head.get(USTAR..).is_some_and(|rest| rest.starts_with(b"ustar"))
        || head.try_into().is_ok_and(is_signed)
        // An empty archive is zeros, and nothing else is.
        || head.len() == HEAD && head.iter().all(|&byte| byte == 0)
    {
        Some(Packing::Plain)
    } else {
        None
    }
}

/// The plain archive in `file`: itself, or unpacked into `scratch`, a file without a name.
pub fn unpacked(mut file: File, scratch: impl FnOnce() -> io::Result<File>) -> io::Result<File> {
    let mut head = Vec::new();
    Read::by_ref(&mut file)
        .take(HEAD as u64)
        .read_to_end(&mut head)?;
    let packing = packing(&head).ok_or_else(|| {
        let what = "expected a tar archive, plain or packed by gzip or zstd";
        io::Error::new(io::ErrorKind::InvalidData, what)
    })?;
    if let (Packing::Plain, Ok(_)) = (&packing, file.seek(SeekFrom::Start(0))) {
        return Ok(file);
    }
    // What cannot be sought goes on behind what was looked at.
    let rest: Box<dyn Read> = match file.seek(SeekFrom::Start(0)) {
        Ok(_) => Box::new(file),
        Err(_) => Box::new(io::Cursor::new(head).chain(file)),
    };
    let mut plain: Box<dyn Read> = match packing {
        Packing::Plain => rest,
        Packing::Gzip => Box::new(MultiGzDecoder::new(BufReader::new(rest))),
        Packing::Zstd => Box::new(zstd::Decoder::new(rest)?),
    };
    let mut to = scratch()?;
    io::copy(&mut plain, &mut to)?;
    to.flush()?;
    to.seek(SeekFrom::Start(0))?;
    Ok(to)
}
