//! Decompression of archives, and copying of those from pipes, into unnamed temporary files.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use flate2::read::MultiGzDecoder;

use super::tar::has_valid_checksum;

/// Number of bytes that identify an archive: a tar header, with its magic number or checksum.
const HEADER_SIZE: usize = 512;

/// Offset of the magic number in a tar header.
const USTAR_OFFSET: usize = 257;

/// The compression of an archive.
enum Compression {
    Plain,
    Gzip,
    Zstd,
}

/// Returns whether a file that begins with `head` is an archive that [`decompress`] accepts.
pub fn is_archive(head: &[u8]) -> bool {
    detect_compression(head).is_some()
}

fn detect_compression(head: &[u8]) -> Option<Compression> {
    if head.starts_with(&[0x1f, 0x8b]) {
        Some(Compression::Gzip)
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Some(Compression::Zstd)
    } else if head.get(USTAR_OFFSET..).is_some_and(|rest| rest.starts_with(b"ustar"))
        || head.try_into().is_ok_and(has_valid_checksum)
        // An empty archive consists of zeros; no other format does.
        || head.len() == HEADER_SIZE && head.iter().all(|&byte| byte == 0)
    {
        Some(Compression::Plain)
    } else {
        None
    }
}

/// Returns the uncompressed archive in `file`: the file itself, or one decompressed into `scratch`,
/// an unnamed file. Returns an error if that has more than `limit` bytes.
pub fn decompress(
    mut file: File,
    scratch: impl FnOnce() -> io::Result<File>,
    limit: u64,
) -> io::Result<File> {
    let mut head = Vec::new();
    Read::by_ref(&mut file)
        .take(HEADER_SIZE as u64)
        .read_to_end(&mut head)?;
    let packing = detect_compression(&head).ok_or_else(|| {
        let what = "expected a tar archive, plain or compressed with gzip or zstd";
        io::Error::new(io::ErrorKind::InvalidData, what)
    })?;
    if let (Compression::Plain, Ok(_)) = (&packing, file.seek(SeekFrom::Start(0))) {
        return Ok(file);
    }
    // A pipe continues after the bytes already read.
    let rest: Box<dyn Read> = match file.seek(SeekFrom::Start(0)) {
        Ok(_) => Box::new(file),
        Err(_) => Box::new(io::Cursor::new(head).chain(file)),
    };
    let plain: Box<dyn Read> = match packing {
        Compression::Plain => rest,
        Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::new(rest))),
        Compression::Zstd => Box::new(zstd::Decoder::new(rest)?),
    };
    unpack(plain, scratch()?, limit)
}

/// Returns the contents of `file`, which is compressed with zstd, in `scratch`, an unnamed file.
/// Returns an error if they have more than `limit` bytes.
pub fn decompress_zstd(
    file: File,
    scratch: impl FnOnce() -> io::Result<File>,
    limit: u64,
) -> io::Result<File> {
    unpack(Box::new(zstd::Decoder::new(file)?), scratch()?, limit)
}

/// Copies at most `limit` bytes to `to`.
fn unpack(plain: Box<dyn Read>, mut to: File, limit: u64) -> io::Result<File> {
    if io::copy(&mut plain.take(limit.saturating_add(1)), &mut to)? > limit {
        let line = format!("expected at most {limit} bytes when decompressed, got more");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, line));
    }
    to.flush()?;
    to.seek(SeekFrom::Start(0))?;
    Ok(to)
}
