//! ALLOCATE, DEALLOCATE, SEEK, COPY, CLONE (v4.2, RFC 7862).

use vfs::{CopyMode, Whence as What};

use super::attr::PUTFH;
use super::compound::{Operations, Ops, Results};
use crate::client::Failure;
use crate::v4::op::{self, Op};
use crate::v4::reply::{Copied, Sought};
use crate::v4::types::{Content, Stable};
use crate::v4::{StateId, Status, Verifier};

/// An ALLOCATE or DEALLOCATE.
pub struct Allocate<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The stateid of the open.
    pub state: StateId,
    /// The offset of the range.
    pub offset: u64,
    /// The length of the range in bytes.
    pub len: u64,
    /// Whether to deallocate the range.
    pub hole: bool,
}

impl Operations for Allocate<'_> {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        let space = op::Space {
            state: self.state,
            offset: self.offset,
            length: self.len,
        };
        to.op(&Op::Putfh(self.handle)).op(&match self.hole {
            true => Op::Deallocate(space),
            false => Op::Allocate(space),
        });
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const ALLOCATE: u32 = 59;
        const DEALLOCATE: u32 = 62;
        from.take::<()>(PUTFH)?;
        from.take(if self.hole { DEALLOCATE } else { ALLOCATE })
    }
}

/// A SEEK for data or a hole.
pub struct Seek<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The stateid of the open.
    pub state: StateId,
    /// The offset to search from.
    pub offset: u64,
    /// Data or a hole.
    pub what: What,
}

impl Operations for Seek<'_> {
    /// The offset found; `None` if there is no data after `offset`, or if `offset` is at or beyond
    /// the end of the file.
    type Answer<'r> = Option<u64>;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        let what = match self.what {
            What::Data => Content::Data,
            What::Hole => Content::Hole,
        };
        to.op(&Op::Putfh(self.handle)).op(&Op::Seek(op::Seek {
            state: self.state,
            offset: self.offset,
            what: what as u32,
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Option<u64>, Failure> {
        const SEEK: u32 = 69;
        from.take::<()>(PUTFH)?;
        match from.end_of(SEEK)? {
            (Status::Nxio, _) => Ok(None),
            (Status::Ok, rest) => {
                let ok = <Sought as wire::Xdr>::get(rest)?;
                // A hole up to the end of the file, without data after it (RFC 7862 section
                // 15.11.3).
                Ok(Some(ok.offset).filter(|_| !(ok.eof && self.what == What::Data)))
            }
            (status, _) => Err(super::compound::failure_of(status)),
        }
    }
}

/// A COPY or CLONE between two files of a server, or within one.
pub struct Copy<'a> {
    /// The source file's handle and the stateid of its open.
    pub from: (&'a [u8], StateId),
    /// The destination file's handle and the stateid of its open.
    pub to: (&'a [u8], StateId),
    /// The source offset.
    pub offset: u64,
    /// The destination offset.
    pub to_offset: u64,
    /// The length in bytes; never 0, which would mean all up to the end of the file.
    pub len: u64,
    /// Whether to copy or clone.
    pub how: CopyMode,
}

/// The results of [`struct@Copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyResult {
    /// The number of bytes copied.
    pub count: u64,
    /// The write verifier, if the data are not on stable storage yet.
    pub unstable_verifier: Option<Verifier>,
}

impl Operations for Copy<'_> {
    type Answer<'r> = CopyResult;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.from.0))
            .op(&Op::Savefh)
            .op(&Op::Putfh(self.to.0))
            .op(&match self.how {
                CopyMode::Any => Op::Copy(op::Copy {
                    from: self.from.1,
                    to: self.to.1,
                    from_offset: self.offset,
                    to_offset: self.to_offset,
                    count: self.len,
                    consecutive: true,
                    // The client has no CB_OFFLOAD.
                    synchronous: true,
                    servers: Vec::new(),
                }),
                CopyMode::Clone => Op::Clone(op::Clone {
                    from: self.from.1,
                    to: self.to.1,
                    from_offset: self.offset,
                    to_offset: self.to_offset,
                    count: self.len,
                }),
            });
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<CopyResult, Failure> {
        const SAVEFH: u32 = 32;
        const COPY: u32 = 60;
        const CLONE: u32 = 71;
        from.take::<()>(PUTFH)?;
        from.take::<()>(SAVEFH)?;
        from.take::<()>(PUTFH)?;
        match self.how {
            CopyMode::Any => from.take(COPY).map(|ok: Copied| CopyResult {
                count: ok.written.count.min(self.len),
                unstable_verifier: (ok.written.committed == Stable::Unstable)
                    .then_some(ok.written.verifier),
            }),
            CopyMode::Clone => from.take::<()>(CLONE).map(|()| CopyResult {
                count: self.len,
                unstable_verifier: None,
            }),
        }
    }
}
