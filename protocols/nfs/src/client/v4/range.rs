//! ALLOCATE, DEALLOCATE, SEEK, COPY, CLONE (v4.2, RFC 7862).

use vfs::{CopyHow, Seek as What};

use super::attr::PUTFH;
use super::compound::{Ops, Results, Steps};
use crate::client::Failure;
use crate::v4::op::{self, Op};
use crate::v4::reply::{Copied, Sought};
use crate::v4::types::{Content, Stable};
use crate::v4::{StateId, Status, Verifier};

/// Reserves space, or makes a hole.
pub struct Allocate<'a> {
    /// Of what.
    pub handle: &'a [u8],
    /// By which open.
    pub state: StateId,
    /// From where.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Whether it shall be a hole.
    pub hole: bool,
}

impl Steps for Allocate<'_> {
    type Answer<'r> = ();

    const ONCE: bool = true;

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

/// Seeks data or a hole.
pub struct Seek<'a> {
    /// Of what.
    pub handle: &'a [u8],
    /// By which open.
    pub state: StateId,
    /// From where.
    pub offset: u64,
    /// What.
    pub what: What,
}

impl Steps for Seek<'_> {
    /// Where there is one: not even the hole behind the end is there if this is nothing.
    type Answer<'r> = Option<u64>;

    const ONCE: bool = false;

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
                // Data up to the end, and then none: RFC 7862 section 15.11.3.
                Ok(Some(ok.offset).filter(|_| !(ok.eof && self.what == What::Data)))
            }
            (status, _) => Err(super::compound::refused(status)),
        }
    }
}

/// Copies from one file to another of the same server, or to itself.
pub struct Copy<'a> {
    /// From what, by which open.
    pub from: (&'a [u8], StateId),
    /// To what, by which open.
    pub to: (&'a [u8], StateId),
    /// From where.
    pub offset: u64,
    /// To where.
    pub to_offset: u64,
    /// How many bytes; never 0, which would be all there are.
    pub len: u64,
    /// How.
    pub how: CopyHow,
}

/// The answer to [`struct@Copy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyDone {
    /// How many bytes.
    pub count: u64,
    /// The write verifier, if they are not durable yet.
    pub unstable: Option<Verifier>,
}

impl Steps for Copy<'_> {
    type Answer<'r> = CopyDone;

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.from.0))
            .op(&Op::Savefh)
            .op(&Op::Putfh(self.to.0))
            .op(&match self.how {
                CopyHow::Any => Op::Copy(op::Copy {
                    from: self.from.1,
                    to: self.to.1,
                    from_offset: self.offset,
                    to_offset: self.to_offset,
                    count: self.len,
                    consecutive: true,
                    // Nobody would be called back.
                    synchronous: true,
                    servers: Vec::new(),
                }),
                CopyHow::Clone => Op::Clone(op::Clone {
                    from: self.from.1,
                    to: self.to.1,
                    from_offset: self.offset,
                    to_offset: self.to_offset,
                    count: self.len,
                }),
            });
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<CopyDone, Failure> {
        const SAVEFH: u32 = 32;
        const COPY: u32 = 60;
        const CLONE: u32 = 71;
        from.take::<()>(PUTFH)?;
        from.take::<()>(SAVEFH)?;
        from.take::<()>(PUTFH)?;
        match self.how {
            CopyHow::Any => from.take(COPY).map(|ok: Copied| CopyDone {
                count: ok.written.count.min(self.len),
                unstable: (ok.written.committed == Stable::Unstable).then_some(ok.written.verifier),
            }),
            CopyHow::Clone => from.take::<()>(CLONE).map(|()| CopyDone {
                count: self.len,
                unstable: None,
            }),
        }
    }
}
