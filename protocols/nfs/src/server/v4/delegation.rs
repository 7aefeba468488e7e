//! Delegations: when an OPEN returns one, and how it ends (RFC 8881 sections 10.4, 18.6 and 18.16).
//!
//! As in Linux's server, a read delegation requires that the file has no writers, and a write
//! delegation (for reading and writing) that nobody else has it open. A client without a callback
//! channel gets none, and neither does a file with a recent conflict. The source decides whether a
//! file is in use by others, by granting a lease or not: it sees all protocols and the host.
//!
//! A write delegation has a space limit of zero, so that its client writes back when it closes the
//! file. Thus others see the same size and times as without the delegation (RFC 8881 section
//! 10.4.3), and no file system is too full for data that a program has already closed.

use std::sync::Arc;

use vfs::{Errno, LeaseKind, Node};

use super::compound::{Compound, OpResult};
use super::open_file::{ExportTree, OpenFile};
use super::state::{ClientRef, NoDelegation, NodeKey, Share};
use crate::server::RequestContext;
use crate::v4::attr::{Ace, Who};
use crate::v4::reply::{Delegation, ReadDelegation, SpaceLimit, WhyNone, WriteDelegation};
use crate::v4::{StateId, Status};

/// The client's wishes about delegations (`OPEN4_SHARE_ACCESS_WANT_*`).
mod want {
    pub(super) const MASK: u32 = 0xff00;
    pub(super) const READ: u32 = 0x100;
    pub(super) const WRITE: u32 = 0x200;
    pub(super) const ANY: u32 = 0x300;
    pub(super) const NONE: u32 = 0x400;
    pub(super) const CANCEL: u32 = 0x500;
}

/// The arguments of an OPEN that may return a delegation.
pub(super) struct DelegationRequest {
    /// `share_access`, including the want bits.
    pub(super) access: u32,
    /// The access of the open.
    pub(super) share: Share,
    /// Whether the OPEN reclaims a delegation from before the server's restart.
    pub(super) reclaim: bool,
}

impl RequestContext<'_, Compound> {
    /// Returns the delegation that comes with the open of `node` as `file`, or the reason why there
    /// is none.
    pub(super) fn delegation(
        &self,
        client: &ClientRef<ExportTree>,
        node: &Arc<dyn Node>,
        file: &OpenFile,
        requested: &DelegationRequest,
    ) -> Delegation<'static> {
        let wanted = requested.access & want::MASK;
        let kind = match (requested.share, wanted) {
            (_, want::NONE) => return Delegation::NoneBecause(WhyNone::NotWanted),
            (_, want::CANCEL) => return Delegation::NoneBecause(WhyNone::Cancelled),
            (Share::READ, 0 | want::READ | want::ANY) => Share::READ,
            (share, 0 | want::WRITE | want::ANY) if share == Share::all() => share,
            (_, 0) => return Delegation::None,
            _ => return Delegation::NoneBecause(WhyNone::Resource(false)),
        };
        match self.delegate(client, node, file, kind, requested.reclaim) {
            Ok(state) if kind == Share::READ => Delegation::Read(ReadDelegation {
                state,
                recall: requested.reclaim,
                permissions: NO_PRINCIPAL,
            }),
            Ok(state) => Delegation::Write(WriteDelegation {
                state,
                recall: requested.reclaim,
                limit: SpaceLimit::Size(0),
                permissions: NO_PRINCIPAL,
            }),
            Err(_) if wanted == 0 => Delegation::None,
            Err(NoDelegation::Contention) => Delegation::NoneBecause(WhyNone::Contention(false)),
            Err(NoDelegation::Resource) => Delegation::NoneBecause(WhyNone::Resource(false)),
        }
    }

    fn delegate(
        &self,
        client: &ClientRef<ExportTree>,
        node: &Arc<dyn Node>,
        file: &OpenFile,
        kind: Share,
        again: bool,
    ) -> Result<StateId, NoDelegation> {
        let server = self.server;
        let key = self.key(node);
        // A client with a delegation grants locks locally.
        let unsettled = !again && server.state.locks_in_grace();
        if !server.options.delegations || unsettled {
            return Err(NoDelegation::Resource);
        }
        server.state.may_delegate(client, key, again)?;
        let lease_kind = match kind {
            Share::READ => LeaseKind::Read,
            _ => LeaseKind::Write,
        };
        let this = Arc::downgrade(server);
        let broken: vfs::BreakCallback = Arc::new(move || {
            if let Some(server) = this.upgrade() {
                server.recall(key);
            }
        });
        let lease = file.file.lease(&self.cx(), lease_kind, &broken);
        let lease: Arc<dyn vfs::Lease> = Arc::from(lease.map_err(|errno| match errno {
            Errno::EAGAIN => NoDelegation::Contention,
            Errno::ENFILE => {
                server.state.no_room_for_delegations();
                NoDelegation::Resource
            }
            _ => NoDelegation::Resource,
        })?);
        let leased = OpenFile {
            _lease: Some(lease.clone()),
            ..file.clone()
        };
        let state = server
            .state
            .delegate(client, key, self.located(node.clone()), kind, leased)
            .map_err(|_| NoDelegation::Resource)?;
        if again {
            // The host's programs may have conflicted with it, unseen, while the server was down.
            server.state.recall(key);
        } else if lease.is_broken() {
            // The lease was broken before there was a delegation to recall.
            server.recall(key);
        }
        Ok(state)
    }

    /// Returns the file of a delegation of `key` that the client already holds, for an open by it.
    pub(super) fn delegated(
        &self,
        client: &ClientRef<ExportTree>,
        key: NodeKey,
        access: Share,
    ) -> Option<OpenFile> {
        let delegated = self.server.state.delegated_file(client, key, access)?;
        Some(self.opened(delegated.file))
    }

    /// Returns the file of a delegation of `node` that the session's client holds, if it covers
    /// `access`.
    pub(super) fn delegated_to_caller(
        &self,
        node: &Arc<dyn Node>,
        access: Share,
    ) -> Option<OpenFile> {
        let client = self.session_client().ok()?;
        let state = &self.server.state;
        state.delegated_file(&client, self.key(node), access)
    }

    /// Returns `DELAY` and recalls the delegations if an OPEN with deny bits conflicts with those
    /// of other clients, which could open the file locally.
    pub(super) fn clear_of_delegations(
        &self,
        client: &ClientRef<ExportTree>,
        key: NodeKey,
        deny: Share,
    ) -> OpResult {
        let server = self.server;
        if deny.is_empty() || !server.state.is_delegated(client, key, deny) {
            return Ok(());
        }
        server.recall(key);
        Err(Status::Delay.into())
    }

    pub(super) fn delegation_return(&mut self, stateid: StateId) -> OpResult {
        if self.compound.minor == 0 {
            // v4.0 clients have none.
            return Err(Status::BadStateid.into());
        }
        let key = self.key(&self.node()?);
        let client = self.session_client()?;
        let stateid = self.resolve_stateid(&stateid)?;
        let state = &self.server.state;
        Ok(state.delegation_return(&client, &stateid, key)?)
    }
}

/// No principal may open the file without asking the server.
const NO_PRINCIPAL: Ace<'static> = Ace {
    kind: 0,
    flag: 0,
    mask: 0,
    who: Who::Name(b""),
};
