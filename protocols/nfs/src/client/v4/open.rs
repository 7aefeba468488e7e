//! OPEN, OPEN_CONFIRM, CLOSE.
//!
//! In v4.0 what an open owner does is numbered, and the number counts whether it succeeds or not, but for
//! some failures (RFC 7530 section 9.1.7): each of these says whether it did count.

use std::cell::Cell;

use vfs::OpenFlags;

use super::attr::{self, PUTFH, STAT, take_handle};
use super::compound::{Ops, Results, Steps, refused};
use crate::client::{Failure, Made, Tree};
use crate::v4::attr::Attributes;
use crate::v4::op::{self, CreateHow, Op, OpenHow};
use crate::v4::reply::{Delegation, Opened as OpenedReply};
use crate::v4::types::Owner;
use crate::v4::{ClientId, StateId, Status};

/// The next result, noting whether its operation counts.
pub(super) fn counted<'r, T: wire::Xdr<'r>>(
    from: &mut Results<'r>,
    number: u32,
    counts: &Cell<bool>,
) -> Result<T, Failure> {
    let (status, rest) = from.end_of(number)?;
    counts.set(status.counts());
    match status {
        Status::Ok => Ok(T::get(rest)?),
        status => Err(refused(status)),
    }
}

/// Opens a file.
pub struct Open<'a> {
    /// By which client; in v4.1 and later, the session says that.
    pub client: ClientId,
    /// By which of its owners.
    pub owner: &'a [u8],
    /// v4.0: the owner's next number.
    pub seqid: u32,
    /// v4.0: whether that has been counted.
    pub counts: &'a Cell<bool>,
    /// For what.
    pub flags: OpenFlags,
    /// Whether there may be delegations to refuse: v4.1 and later.
    pub refuse_delegation: bool,
    /// What is opened.
    pub claim: Claim<'a>,
    /// Of which tree.
    pub tree: Tree,
}

/// What is opened.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// A name in a directory, which must be there.
    Name(&'a [u8], &'a [u8]),
    /// A name in a directory; it is made with these permissions if there is none.
    Create(&'a [u8], &'a [u8], u32),
    /// A file (v4.1 and later).
    Handle(&'a [u8]),
    /// A file that was open before the server's restart.
    Previous(&'a [u8]),
}

/// A file that has been opened.
pub struct Opened {
    /// By what it is read and written.
    pub state: StateId,
    /// v4.0: whether that has to be confirmed first.
    pub confirm: bool,
    /// The file.
    pub made: Made,
    /// The delegation that came with it.
    pub delegation: Option<Delegated>,
}

/// A delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// What it is given back by.
    pub state: StateId,
    /// Whether it is one to read that the server does not want back at once.
    pub of_use: bool,
}

impl Steps for Open<'_> {
    type Answer<'r> = Opened;

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        const READ: u32 = 1;
        const WRITE: u32 = 2;
        /// `OPEN4_SHARE_ACCESS_WANT_NO_DELEG`
        const NO_DELEGATION: u32 = 0x0400;
        let mut access = 0;
        if self.flags.intersects(OpenFlags::READ | OpenFlags::EXEC) {
            access |= READ;
        }
        if self.flags.contains(OpenFlags::WRITE) || access == 0 {
            access |= WRITE;
        }
        if self.refuse_delegation {
            access |= NO_DELEGATION;
        }
        let (handle, how, claim) = match self.claim {
            Claim::Name(dir, name) => (dir, OpenHow::NoCreate, op::Claim::Null(name)),
            Claim::Handle(file) => (file, OpenHow::NoCreate, op::Claim::Handle),
            // Without a delegation.
            Claim::Previous(file) => (file, OpenHow::NoCreate, op::Claim::Previous(0)),
            Claim::Create(dir, name, mode) => {
                let attributes = Attributes {
                    size: self.flags.contains(OpenFlags::TRUNC).then_some(0),
                    ..attr::mode(mode)
                };
                let how = match self.flags.contains(OpenFlags::EXCL) {
                    true => CreateHow::Guarded(attributes),
                    false => CreateHow::Unchecked(attributes),
                };
                (dir, OpenHow::Create(how), op::Claim::Null(name))
            }
        };
        to.op(&Op::Putfh(handle))
            .op(&Op::Open(op::Open {
                seqid: self.seqid,
                access,
                deny: 0,
                owner: Owner {
                    client: self.client,
                    name: self.owner,
                },
                how,
                claim,
            }))
            .op(&Op::Getfh)
            .op(&Op::Getattr(STAT));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Opened, Failure> {
        const OPEN: u32 = 18;
        /// `OPEN4_RESULT_CONFIRM`
        const CONFIRM: u32 = 2;
        self.counts.set(false);
        from.take::<()>(PUTFH)?;
        let ok: OpenedReply<'r> = counted(from, OPEN, self.counts)?;
        let handle = take_handle(from)?;
        let attr = attr::take(self.tree, from)?;
        let delegation = match ok.delegation {
            Delegation::Read(read) => Some(Delegated {
                state: read.state,
                of_use: !read.recall,
            }),
            Delegation::Write(write) => Some(Delegated {
                state: write.state,
                of_use: false,
            }),
            Delegation::None | Delegation::NoneBecause(_) => None,
        };
        Ok(Opened {
            delegation,
            state: ok.state,
            confirm: ok.flags & CONFIRM != 0,
            made: Made {
                handle: Some(handle),
                attr: Some(attr),
            },
        })
    }
}

/// Confirms the first open of an owner (v4.0).
pub struct OpenConfirm<'a> {
    /// Of which file.
    pub handle: &'a [u8],
    /// Which open.
    pub state: StateId,
    /// The owner's next number.
    pub seqid: u32,
    /// Whether that has been counted.
    pub counts: &'a Cell<bool>,
}

impl Steps for OpenConfirm<'_> {
    type Answer<'r> = StateId;

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::OpenConfirm(op::OpenConfirm {
                state: self.state,
                seqid: self.seqid,
            }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<StateId, Failure> {
        const OPEN_CONFIRM: u32 = 20;
        self.counts.set(false);
        from.take::<()>(PUTFH)?;
        counted(from, OPEN_CONFIRM, self.counts)
    }
}

/// Closes a file.
pub struct Close<'a> {
    /// Which.
    pub handle: &'a [u8],
    /// Which open.
    pub state: StateId,
    /// v4.0: the owner's next number.
    pub seqid: u32,
    /// v4.0: whether that has been counted.
    pub counts: &'a Cell<bool>,
}

impl Steps for Close<'_> {
    type Answer<'r> = ();

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle)).op(&Op::Close(op::Close {
            seqid: self.seqid,
            state: self.state,
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const CLOSE: u32 = 4;
        self.counts.set(false);
        from.take::<()>(PUTFH)?;
        counted::<StateId>(from, CLOSE, self.counts).map(drop)
    }
}
