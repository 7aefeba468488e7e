//! OPEN, OPEN_CONFIRM, CLOSE.
//!
//! In v4.0 the requests of an open owner have seqids, which advance on success and on most errors
//! (RFC 7530 section 9.1.7). Each of these operations reports what it has done to its seqid.

use std::cell::Cell;

use vfs::OpenFlags;

use super::attr::{self, PUTFH, STAT, take_handle};
use super::compound::{Operations, Ops, Results, failure_of};
use crate::client::{Failure, NodeInfo, Tree};
use crate::v4::attr::Attributes;
use crate::v4::op::{self, CreateHow, Op, OpenHow};
use crate::v4::reply::{Delegation, Opened as OpenedReply};
use crate::v4::types::Owner;
use crate::v4::{ClientId, StateId, Status};

/// The effect of a request on the seqid of its owner (v4.0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeqidEffect {
    /// The request was not executed, or not sent: the next one has the same seqid.
    #[default]
    None,
    /// The next request has the next seqid.
    Advanced,
    /// There is no reply, as the caller has given up waiting. The server may execute the request
    /// later. It replays the reply to any other request with the same seqid.
    Unknown,
}

impl SeqidEffect {
    /// The effect of an operation with this status.
    pub(super) fn of(status: Status) -> SeqidEffect {
        match status.advances_seqid() {
            true => SeqidEffect::Advanced,
            false => SeqidEffect::None,
        }
    }
}

/// Parses the next result, and records its `effect` on the seqid.
pub(super) fn take_with_seqid<'r, T: wire::Xdr<'r>>(
    from: &mut Results<'r>,
    number: u32,
    effect: &Cell<SeqidEffect>,
) -> Result<T, Failure> {
    let (status, rest) = from.end_of(number)?;
    effect.set(SeqidEffect::of(status));
    match status {
        Status::Ok => Ok(T::get(rest)?),
        status => Err(failure_of(status)),
    }
}

/// An OPEN.
pub struct Open<'a> {
    /// The client ID; in v4.1 and later the session implies it.
    pub client: ClientId,
    /// The open owner.
    pub owner: &'a [u8],
    /// v4.0: the owner's next seqid.
    pub seqid: u32,
    /// v4.0: set to what the request has done to the seqid.
    pub seqid_effect: &'a Cell<SeqidEffect>,
    /// The access mode and the create flags.
    pub flags: OpenFlags,
    /// Whether to ask for no delegation; v4.1 and later only.
    pub refuse_delegation: bool,
    /// The file to open.
    pub claim: Claim<'a>,
    /// The tree that it belongs to.
    pub tree: Tree,
}

/// The file to open.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// The name of an existing file in a directory.
    Name(&'a [u8], &'a [u8]),
    /// A name in a directory, created with these permissions if it does not exist.
    Create(&'a [u8], &'a [u8], u32),
    /// A file by its handle (v4.1 and later).
    Handle(&'a [u8]),
    /// A file that was open before the server's restart.
    Previous(&'a [u8]),
}

/// The results of OPEN.
pub struct Opened {
    /// The stateid of the open.
    pub state: StateId,
    /// v4.0: whether OPEN_CONFIRM is required.
    pub confirm: bool,
    /// v4.1 and later: whether the server keeps the file if it loses its last name, until the
    /// last close and over a restart.
    pub preserves_unlinked: bool,
    /// The file's handle and attributes.
    pub node: NodeInfo,
    /// The delegation that was granted.
    pub delegation: Option<GrantedDelegation>,
}

/// A granted delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedDelegation {
    /// Its stateid.
    pub state: StateId,
    /// Whether to keep it: a read delegation that the server does not recall at once.
    pub is_useful: bool,
}

impl Operations for Open<'_> {
    type Answer<'r> = Opened;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        self.seqid_effect.set(SeqidEffect::Unknown);
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
        /// `OPEN4_RESULT_PRESERVE_UNLINKED`
        const PRESERVE_UNLINKED: u32 = 8;
        self.seqid_effect.set(SeqidEffect::None);
        from.take::<()>(PUTFH)?;
        let ok: OpenedReply<'r> = take_with_seqid(from, OPEN, self.seqid_effect)?;
        let handle = take_handle(from)?;
        let attr = attr::take(self.tree, from)?;
        let delegation = match ok.delegation {
            Delegation::Read(read) => Some(GrantedDelegation {
                state: read.state,
                is_useful: !read.recall,
            }),
            Delegation::Write(write) => Some(GrantedDelegation {
                state: write.state,
                is_useful: false,
            }),
            Delegation::None | Delegation::NoneBecause(_) => None,
        };
        Ok(Opened {
            delegation,
            state: ok.state,
            confirm: ok.flags & CONFIRM != 0,
            preserves_unlinked: ok.flags & PRESERVE_UNLINKED != 0,
            node: NodeInfo {
                handle: Some(handle),
                attr: Some(attr),
            },
        })
    }
}

/// An OPEN_CONFIRM: confirms the first open of an owner (v4.0).
pub struct OpenConfirm<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The stateid of the open.
    pub state: StateId,
    /// The owner's next seqid.
    pub seqid: u32,
    /// Set to what the request has done to the seqid.
    pub seqid_effect: &'a Cell<SeqidEffect>,
}

impl Operations for OpenConfirm<'_> {
    type Answer<'r> = StateId;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        self.seqid_effect.set(SeqidEffect::Unknown);
        to.op(&Op::Putfh(self.handle))
            .op(&Op::OpenConfirm(op::OpenConfirm {
                state: self.state,
                seqid: self.seqid,
            }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<StateId, Failure> {
        const OPEN_CONFIRM: u32 = 20;
        self.seqid_effect.set(SeqidEffect::None);
        from.take::<()>(PUTFH)?;
        take_with_seqid(from, OPEN_CONFIRM, self.seqid_effect)
    }
}

/// A CLOSE.
pub struct Close<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The stateid of the open.
    pub state: StateId,
    /// v4.0: the owner's next seqid.
    pub seqid: u32,
    /// v4.0: set to what the request has done to the seqid.
    pub seqid_effect: &'a Cell<SeqidEffect>,
}

impl Operations for Close<'_> {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        self.seqid_effect.set(SeqidEffect::Unknown);
        to.op(&Op::Putfh(self.handle)).op(&Op::Close(op::Close {
            seqid: self.seqid,
            state: self.state,
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const CLOSE: u32 = 4;
        self.seqid_effect.set(SeqidEffect::None);
        from.take::<()>(PUTFH)?;
        take_with_seqid::<StateId>(from, CLOSE, self.seqid_effect).map(drop)
    }
}
