//! Verification of an image against its hashes and signature.

use std::fs::File;
use std::io;
use std::ops::Range;

use erofs::check::MAX_FINDINGS;
use sidecar::{
    HASH_SIZE, HEADER_SIZE, Hash, HashLayout, Header, Manifest, PublicKey, VerifyError, hash,
};
use sys::positioned::FileExt;

/// Chunks per read, 1 MiB. The hashes of chunks from a multiple of this number on are in one chunk.
const CHUNKS_PER_READ: u64 = 64;

/// Verifies the image in the first `len` bytes of `file` against its hashes, and those against a
/// signature by one of `keys`, if there are any, and the expected `root`. Passes errors to
/// `report`. Without `keys` and `root`, an image without hashes is valid.
pub(super) fn check(
    file: &File,
    len: u64,
    keys: &[PublicKey],
    root: Option<&Hash>,
    report: &mut dyn FnMut(String),
) -> io::Result<()> {
    let mut bytes = [0; HEADER_SIZE];
    let header = match len < HEADER_SIZE as u64 {
        true => Ok(None),
        false => {
            file.read_exact_at(&mut bytes, 0)?;
            Header::parse(&bytes, len)
        }
    };
    let header = match header {
        Ok(None) if keys.is_empty() => {
            if root.is_some() {
                report("expected hashes, according to the manifest, got none".into());
            }
            return Ok(());
        }
        Ok(header) => header.ok_or(VerifyError::NotSigned),
        Err(broken) => Err(broken),
    };
    let header = match header {
        Ok(header) => header,
        Err(broken) => {
            report(broken.to_string());
            return Ok(());
        }
    };
    check_signature(&header, keys, report);
    if root.is_some_and(|root| root != header.root()) {
        report("the root of the hashes is not that in the manifest".into());
    }
    let range = header.manifest_range();
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start)?;
    match Manifest::parse(&header, &bytes) {
        Ok(manifest) => {
            let shape = header.layout();
            HashTree {
                file,
                layout: shape,
                manifest,
            }
            .check(report)
        }
        Err(broken) => {
            report(broken.to_string());
            Ok(())
        }
    }
}

fn check_signature(header: &Header, keys: &[PublicKey], report: &mut dyn FnMut(String)) {
    if keys.is_empty() {
        if !header.is_consistent() {
            report(VerifyError::BadSignature.to_string());
        }
        return;
    }
    match (header.verify(keys), header.signer()) {
        (Ok(()), _) => {}
        (Err(VerifyError::UntrustedKey), Some(signer)) => {
            report(format!("{}: {signer}", VerifyError::UntrustedKey))
        }
        (Err(broken), _) => report(broken.to_string()),
    }
}

/// An image and its hashes.
struct HashTree<'a> {
    file: &'a File,
    layout: &'a HashLayout,
    manifest: Manifest,
}

impl HashTree<'_> {
    /// Verifies from the uppermost level down, so that wrong hashes are reported before the data
    /// they cover.
    fn check(&self, report: &mut dyn FnMut(String)) -> io::Result<()> {
        let mut found = 0;
        let mut report = |range: (u64, u64), what: &str| {
            report(format!("bytes {} to {}: {what}", range.0, range.1 - 1));
            found += 1;
            found < MAX_FINDINGS
        };
        for level in (0..self.layout.levels().len()).rev() {
            if let Some(above) = self.layout.levels().get(level + 1) {
                let between = (self.layout.levels()[level].end, above.start);
                let bytes = self.read(between.0, between.1)?;
                let zeros = bytes.iter().all(|byte| *byte == 0);
                if !zeros && !report(between, "expected zeros") {
                    return Ok(());
                }
            }
            let chunks = self.layout.chunks(level);
            for first in (0..chunks).step_by(CHUNKS_PER_READ as usize) {
                let numbers = first..chunks.min(first + CHUNKS_PER_READ);
                for number in self.mismatches(level, numbers)? {
                    let range = self.layout.chunk(level, number);
                    if !report((range.start, range.end), "does not match its hash") {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the chunks of a level whose hashes differ.
    fn mismatches(&self, level: usize, numbers: Range<u64>) -> io::Result<Vec<u64>> {
        let range_of = |number| self.layout.chunk(level, number);
        let start = range_of(numbers.start).start;
        let bytes = self.read(start, range_of(numbers.end - 1).end)?;
        let hashes = self.hashes(level, &numbers)?;
        let wrong = numbers.zip(hashes).filter(|(number, expected)| {
            let range = range_of(*number);
            let chunk = &bytes[(range.start - start) as usize..(range.end - start) as usize];
            hash(chunk, (level, *number) == (0, 0)) != *expected
        });
        Ok(wrong.map(|(number, _)| number).collect())
    }

    /// Returns the expected hashes of those chunks.
    fn hashes(&self, level: usize, numbers: &Range<u64>) -> io::Result<Vec<Hash>> {
        if level + 1 == self.layout.levels().len() {
            let each = numbers.clone().filter_map(|at| self.manifest.hash(at));
            return Ok(each.collect());
        }
        let (chunk, location) = HashLayout::hash_location(numbers.start);
        let at = self.layout.chunk(level + 1, chunk).start + location.start as u64;
        let mut hashes = vec![[0; HASH_SIZE]; (numbers.end - numbers.start) as usize];
        self.file.read_exact_at(hashes.as_flattened_mut(), at)?;
        Ok(hashes)
    }

    fn read(&self, start: u64, end: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (end - start) as usize];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }
}
