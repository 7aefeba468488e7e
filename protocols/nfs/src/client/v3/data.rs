//! READ, WRITE, COMMIT.

use wire::{Malformed, Xdr};

use super::{done, procedure};
use crate::client::{Ask, Failure, ReadData, Stable, Written};
use crate::v3::{CommitOk, ReadOk, Verifier, WriteOk};

/// Reads.
pub struct Read<'a> {
    /// From what.
    pub handle: &'a [u8],
    /// From where.
    pub offset: u64,
    /// How many bytes at most.
    pub count: u32,
}

impl Ask for Read<'_> {
    type Answer<'r> = ReadData<'r>;

    procedure!(Read);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        self.offset.put(to);
        self.count.put(to);
    }

    /// Mark, head of the reply, status, attributes, counts.
    fn room(&self) -> usize {
        4 + 24 + 4 + 88 + 12 + self.count as usize
    }

    fn answer<'r>(&self, results: &'r [u8]) -> Result<ReadData<'r>, Failure> {
        let ok: ReadOk<'r> = done(results)?;
        if ok.data.len() > self.count as usize {
            let (most, got) = (self.count, ok.data.len());
            let what = format!("expected at most {most} bytes, got {got}");
            return Err(Malformed::new(what).into());
        }
        Ok(ReadData {
            data: ok.data,
            eof: ok.eof,
        })
    }
}

/// Writes.
pub struct Write<'a> {
    /// To what.
    pub handle: &'a [u8],
    /// To where.
    pub offset: u64,
    /// How durably.
    pub stable: Stable,
    /// The bytes.
    pub data: &'a [u8],
}

impl Ask for Write<'_> {
    type Answer<'r> = Written;

    procedure!(Write);

    fn put(&self, to: &mut Vec<u8>) {
        let len = self.data.len() as u32;
        self.handle.put(to);
        self.offset.put(to);
        len.put(to);
        self.stable.put(to);
        len.put(to);
    }

    fn payload(&self) -> &[u8] {
        self.data
    }

    fn answer(&self, results: &[u8]) -> Result<Written, Failure> {
        let ok: WriteOk = done(results)?;
        Ok(Written {
            count: ok.count.min(self.data.len() as u32),
            durable: ok.committed as u32 >= self.stable as u32 && ok.committed != Stable::Unstable,
            verifier: ok.verifier,
        })
    }
}

/// Makes all that was written to a file durable.
pub struct Commit<'a> {
    /// To what.
    pub handle: &'a [u8],
}

impl Ask for Commit<'_> {
    type Answer<'r> = Verifier;

    procedure!(Commit);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        // From the start to the end.
        0u64.put(to);
        0u32.put(to);
    }

    fn answer(&self, results: &[u8]) -> Result<Verifier, Failure> {
        done(results).map(|ok: CommitOk| ok.verifier)
    }
}
