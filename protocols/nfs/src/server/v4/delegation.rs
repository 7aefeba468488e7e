//! Delegations: when one comes with an OPEN, and how it goes (RFC 8881 sections 10.4, 18.6 and 18.16).
//!
//! As Linux's server does: one for reading where nobody writes, one for both where nobody else has the file open;
//! none to a client that cannot be called, or of a file that was wanted lately. Who has the file open is the source's to
//! say, by giving a lease or not: it sees all protocols and the host.
//!
//! A client under a write delegation is told to write back when it closes the file (a space limit of nothing): so what
//! others find of size and times is as it would be without (RFC 8881 section 10.4.3), and no disk is too full for
//! what a program has closed.

use std::sync::Arc;

use vfs::{Errno, LeaseKind, Node};

use super::state::{ClientRef, NoDelegation, NodeKey, Share};
use super::{Compound, Done, Files};
use crate::server::Tree;
use crate::v4::attr::{Ace, Who};
use crate::v4::reply::{Delegation, ReadDelegation, SpaceLimit, WhyNone, WriteDelegation};
use crate::v4::{StateId, Status};

/// What a client wants of delegations (`OPEN4_SHARE_ACCESS_WANT_*`).
mod want {
    pub(super) const MASK: u32 = 0xff00;
    pub(super) const READ: u32 = 0x100;
    pub(super) const WRITE: u32 = 0x200;
    pub(super) const ANY: u32 = 0x300;
    pub(super) const NONE: u32 = 0x400;
    pub(super) const CANCEL: u32 = 0x500;
}

/// What an OPEN that may come with a delegation was.
pub(super) struct Asked {
    /// `share_access`, with what is wanted.
    pub(super) access: u32,
    /// What it opened for.
    pub(super) share: Share,
    /// Of a delegation before the server's restart.
    pub(super) again: bool,
}

impl Compound<'_, '_> {
    /// The delegation that comes with the open of `node` as `file`, or why there is none.
    pub(super) fn delegation(
        &self,
        client: &ClientRef<Files, Tree>,
        node: &Arc<dyn Node>,
        file: &Files,
        asked: &Asked,
    ) -> Delegation<'static> {
        let wanted = asked.access & want::MASK;
        let kind = match (asked.share, wanted) {
            (_, want::NONE) => return Delegation::NoneBecause(WhyNone::NotWanted),
            (_, want::CANCEL) => return Delegation::NoneBecause(WhyNone::Cancelled),
            (Share::READ, 0 | want::READ | want::ANY) => Share::READ,
            (share, 0 | want::WRITE | want::ANY) if share == Share::all() => share,
            (_, 0) => return Delegation::None,
            _ => return Delegation::NoneBecause(WhyNone::Resource(false)),
        };
        match self.delegate(client, node, file, kind, asked.again) {
            Ok(state) if kind == Share::READ => Delegation::Read(ReadDelegation {
                state,
                recall: asked.again,
                permissions: NOBODY,
            }),
            Ok(state) => Delegation::Write(WriteDelegation {
                state,
                recall: asked.again,
                limit: SpaceLimit::Size(0),
                permissions: NOBODY,
            }),
            Err(_) if wanted == 0 => Delegation::None,
            Err(NoDelegation::Contention) => Delegation::NoneBecause(WhyNone::Contention(false)),
            Err(NoDelegation::Resource) => Delegation::NoneBecause(WhyNone::Resource(false)),
        }
    }

    fn delegate(
        &self,
        client: &ClientRef<Files, Tree>,
        node: &Arc<dyn Node>,
        file: &Files,
        kind: Share,
        again: bool,
    ) -> Result<StateId, NoDelegation> {
        let server = self.turn.server;
        let key = self.key(node);
        // A client with a delegation locks by itself.
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
        let broken: vfs::Broken = Arc::new(move || {
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
        let leased = Files {
            _lease: Some(lease.clone()),
            ..file.clone()
        };
        let state = server
            .state
            .delegate(client, key, self.located(node.clone()), kind, leased)
            .map_err(|_| NoDelegation::Resource)?;
        if again {
            // What programs of the host did while there was no server nobody has seen.
            server.state.recall(key);
        } else if lease.is_broken() {
            // Before there was anything to recall.
            server.recall(key);
        }
        Ok(state)
    }

    /// The file of a delegation of `key` that the client has already, for an open by it.
    pub(super) fn delegated(
        &self,
        client: &ClientRef<Files, Tree>,
        key: NodeKey,
        access: Share,
    ) -> Option<Files> {
        let delegated = self.turn.server.state.delegated_file(client, key, access)?;
        Some(self.opened(delegated.file))
    }

    /// The file of a delegation of `node` that the session's client has, if that covers `access`.
    pub(super) fn delegated_to_caller(&self, node: &Arc<dyn Node>, access: Share) -> Option<Files> {
        let client = self.session_client().ok()?;
        let state = &self.turn.server.state;
        state.delegated_file(&client, self.key(node), access)
    }

    /// An OPEN that denies others something waits for those who could open the file by themselves.
    pub(super) fn clear_of_delegations(
        &self,
        client: &ClientRef<Files, Tree>,
        key: NodeKey,
        deny: Share,
    ) -> Done {
        let server = self.turn.server;
        if deny.is_empty() || !server.state.is_delegated(client, key, deny) {
            return Ok(());
        }
        server.recall(key);
        Err(Status::Delay.into())
    }

    pub(super) fn delegation_return(&mut self, given: StateId) -> Done {
        if self.minor == 0 {
            // Which has none.
            return Err(Status::BadStateid.into());
        }
        let key = self.key(&self.node()?);
        let client = self.session_client()?;
        let given = self.current_of(&given)?;
        let state = &self.turn.server.state;
        Ok(state.delegation_return(&client, &given, key)?)
    }
}

/// Nobody may open the file who has not asked the server.
const NOBODY: Ace<'static> = Ace {
    kind: 0,
    flag: 0,
    mask: 0,
    who: Who::Name(b""),
};
