//! READ, WRITE, COMMIT.

use wire::{Malformed, Xdr, XdrReader};

use super::{done, done_in, procedure};
use crate::client::{Ask, Failure, Lands, ReadData, Stable, Written};
use crate::v3::{Attributes, CommitOk, Outcome, ReadOk, Verifier, WriteOk};

/// Reads.
#[derive(Clone, Copy)]
pub struct Read<'a> {
    /// From what.
    pub handle: &'a [u8],
    /// From where.
    pub offset: u64,
    /// How many bytes at most.
    pub count: u32,
}

impl Read<'_> {
    /// Reads results up to the data, and says how long it is.
    pub(in crate::client) fn payload_len(
        &self,
        from: &mut XdrReader<'_>,
    ) -> Result<usize, Failure> {
        let attributes = Outcome::<Option<Attributes>, ()>::get(from)?;
        if let Outcome::Failed(status, ()) = attributes {
            return Err(super::refused(status));
        }
        let (count, _eof, len) = (from.u32()?, bool::get(from)?, from.u32()?);
        if count != len {
            return Err(Malformed::new("expected as many bytes as it says").into());
        }
        self.check(len as usize)
    }

    fn check(&self, got: usize) -> Result<usize, Failure> {
        if got > self.count as usize {
            let what = format!("expected at most {} bytes, got {got}", self.count);
            return Err(Malformed::new(what).into());
        }
        Ok(got)
    }

    fn read<'r>(&self, from: XdrReader<'r>) -> Result<ReadData<'r>, Failure> {
        let ok: ReadOk<'r> = done_in(from)?;
        self.check(ok.data.len())?;
        Ok(ReadData {
            data: ok.data,
            eof: ok.eof,
        })
    }
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

    fn lands(&self) -> Option<Lands> {
        Some(Lands::three(self))
    }

    fn answer<'r>(&self, results: &'r [u8]) -> Result<ReadData<'r>, Failure> {
        self.read(XdrReader::new(results))
    }

    fn landed<'r>(&self, head: &'r [u8], payload: &'r [u8]) -> Result<ReadData<'r>, Failure> {
        self.read(XdrReader::before(head, payload))
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
