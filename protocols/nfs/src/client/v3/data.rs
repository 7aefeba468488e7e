//! READ, WRITE, COMMIT.

use wire::{Malformed, Xdr, XdrReader};

use super::{decode, decode_from, procedure};
use crate::client::{
    CallArguments, ClientCall, Failure, ReadData, SeparatePayload, Stable, Written,
};
use crate::v3::{Attributes, CommitOk, Outcome, ReadOk, Verifier, WriteOk};

/// A READ.
#[derive(Clone, Copy)]
pub struct Read<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The offset of the first byte.
    pub offset: u64,
    /// The maximum number of bytes.
    pub count: u32,
}

impl Read<'_> {
    /// Parses results up to the data, and returns the length of the data.
    pub(in crate::client) fn payload_len(
        &self,
        from: &mut XdrReader<'_>,
    ) -> Result<usize, Failure> {
        let attributes = Outcome::<Option<Attributes>, ()>::get(from)?;
        if let Outcome::Failed(status, ()) = attributes {
            return Err(super::failure_of(status));
        }
        let (count, _eof, len) = (from.u32()?, bool::get(from)?, from.u32()?);
        if count != len {
            return Err(Malformed::new("expected as many bytes as announced").into());
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
        let ok: ReadOk<'r> = decode_from(from)?;
        self.check(ok.data.len())?;
        Ok(ReadData {
            data: ok.data,
            eof: ok.eof,
        })
    }
}

impl CallArguments for Read<'_> {
    procedure!(Read);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        self.offset.put(to);
        self.count.put(to);
    }

    /// Adds up record mark, reply header, status, attributes, counts and data.
    fn max_reply(&self) -> usize {
        4 + 24 + 4 + 88 + 12 + self.count as usize
    }

    fn separate_payload(&self) -> Option<SeparatePayload> {
        Some(SeparatePayload::for_v3(self))
    }
}

impl ClientCall for Read<'_> {
    type Answer<'r> = ReadData<'r>;

    fn answer<'r>(&self, results: &'r [u8]) -> Result<ReadData<'r>, Failure> {
        self.read(XdrReader::new(results))
    }

    fn answer_with_payload<'r>(
        &self,
        head: &'r [u8],
        payload: &'r [u8],
    ) -> Result<ReadData<'r>, Failure> {
        self.read(XdrReader::with_payload(head, payload))
    }
}

/// A WRITE.
pub struct Write<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The offset of the first byte.
    pub offset: u64,
    /// The requested stability.
    pub stable: Stable,
    /// The data.
    pub data: &'a [u8],
}

impl CallArguments for Write<'_> {
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
}

impl ClientCall for Write<'_> {
    type Answer<'r> = Written;

    fn answer(&self, results: &[u8]) -> Result<Written, Failure> {
        let ok: WriteOk = decode(results)?;
        Ok(Written {
            count: ok.count.min(self.data.len() as u32),
            durable: ok.committed as u32 >= self.stable as u32 && ok.committed != Stable::Unstable,
            verifier: ok.verifier,
        })
    }
}

/// A COMMIT of a whole file.
pub struct Commit<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
}

impl CallArguments for Commit<'_> {
    procedure!(Commit);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        // The whole file.
        0u64.put(to);
        0u32.put(to);
    }
}

impl ClientCall for Commit<'_> {
    type Answer<'r> = Verifier;

    fn answer(&self, results: &[u8]) -> Result<Verifier, Failure> {
        decode(results).map(|ok: CommitOk| ok.verifier)
    }
}
