//! Open-owners, their sequence IDs (v4.0), and the arguments of OPEN.

use std::cell::Cell;

use ::nfs::client::Tree;
use ::nfs::client::v4::{Claim, ClientId, Open, SeqidEffect};
use vfs::OpenFlags;

/// An open-owner.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    pub(super) id: u64,
    /// The sequence ID of its next operation (v4.0).
    pub(super) seqid: u32,
}

impl Owner {
    pub(super) fn name(self) -> [u8; 8] {
        self.id.to_be_bytes()
    }

    /// The name of the lock-owner for its file.
    pub(super) fn lock_name(self) -> [u8; 9] {
        let mut name = [b'L'; 9];
        name[1..].copy_from_slice(&self.name());
        name
    }
}

/// An open-owner whose sequence ID is counted during its operations.
pub(super) struct OwnerSeqid {
    owner: Cell<Owner>,
    pub(super) effect: Cell<SeqidEffect>,
}

impl OwnerSeqid {
    pub(super) fn new(owner: Owner) -> OwnerSeqid {
        OwnerSeqid {
            owner: Cell::new(owner),
            effect: Cell::default(),
        }
    }

    /// The owner with its current sequence ID.
    pub(super) fn current(&self) -> Owner {
        let mut owner = self.owner.get();
        if self.effect.get() == SeqidEffect::Advanced {
            self.effect.take();
            owner.seqid = owner.seqid.wrapping_add(1);
            self.owner.set(owner);
        }
        owner
    }
}

/// The arguments of an open.
#[derive(Clone, Copy)]
pub(super) struct OpenArgs<'a> {
    pub(super) claim: Claim<'a>,
    pub(super) flags: OpenFlags,
    pub(super) tree: Tree,
    /// Whether it may come with a delegation.
    pub(super) delegation: bool,
}

impl<'a> OpenArgs<'a> {
    /// The OPEN of v4.`minor` by `owner`, whose name is `name`.
    pub(super) fn request(
        &self,
        minor: u32,
        client: ClientId,
        name: &'a [u8],
        owner: &'a OwnerSeqid,
    ) -> Open<'a> {
        Open {
            client,
            owner: name,
            seqid: owner.current().seqid,
            seqid_effect: &owner.effect,
            flags: self.flags,
            refuse_delegation: minor > 0 && !self.delegation,
            claim: self.claim,
            tree: self.tree,
        }
    }
}
