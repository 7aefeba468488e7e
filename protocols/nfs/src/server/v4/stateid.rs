//! Stateids: the files that they name, FREE_STATEID and TEST_STATEID (RFC 8881 sections 8.2, 18.38,
//! 18.48).

use std::sync::Arc;

use vfs::{AttrMask, File, Node, OpenFlags};

use super::compound::{Compound, OpError, OpResult};
use super::open_file::OpenFile;
use super::state::{Share, SlotRequest, Special, special};
use crate::server::RequestContext;
use crate::v4::{StateId, Status};

impl RequestContext<'_, Compound> {
    /// Returns the open, lock or delegation of `node` that `stateid` names, if that allows
    /// `access`. Returns `None` for the special stateids.
    pub(super) fn file_of(
        &self,
        stateid: &StateId,
        node: &Arc<dyn Node>,
        access: OpenFlags,
    ) -> Result<Option<OpenFile>, OpError> {
        let stateid = self.resolve_stateid(stateid)?;
        let key = self.key(node);
        let share = match access.contains(OpenFlags::WRITE) {
            true => Share::WRITE,
            false => Share::READ,
        };
        let state = &self.server.state;
        match special(&stateid) {
            Some(Special::Bypass) if share == Share::READ => Ok(None),
            Some(Special::Anonymous | Special::Bypass) => {
                state.anonymous(key, share)?;
                Ok(None)
            }
            Some(Special::Current | Special::Invalid) => Err(Status::BadStateid.into()),
            None => {
                self.check_holder(&stateid)?;
                let client = self.compound.slot.as_ref().map(SlotRequest::client);
                let open = state.io(client.as_ref(), &stateid, key, share)?;
                self.check_user(&open, node, share)?;
                Ok(Some(open))
            }
        }
    }

    /// Checks that the caller may use the open of a stateid, which is no secret: if the caller
    /// opened the file, could open it now, or owns it, as its mode may have changed since. From
    /// another address the caller may have another identity at the export: then only a check of
    /// whether the caller could open it now counts.
    fn check_user(&self, open: &OpenFile, node: &Arc<dyn Node>, share: Share) -> OpResult {
        let caller = self.caller;
        if open.addr != self.call.addr() {
            return self.check_access(node, share);
        }
        if open.caller == *caller || node.attr(&self.cx(), AttrMask::BASIC)?.uid == caller.uid {
            return Ok(());
        }
        self.check_access(node, share)
    }

    /// Returns the file that `state` names for `node`, or one opened for `access`.
    pub(super) fn file(
        &self,
        state: &StateId,
        node: &Arc<dyn Node>,
        access: OpenFlags,
    ) -> Result<Arc<dyn File>, OpError> {
        match self.file_of(state, node, access)? {
            Some(open) => Ok(open.file),
            None => Ok(self.server.file(&self.cx(), node, access)?),
        }
    }

    pub(super) fn free_stateid(&mut self, state: StateId) -> OpResult {
        let client = self.session_client()?;
        let state = self.resolve_stateid(&state)?;
        Ok(self.server.state.free_stateid(&client, &state)?)
    }

    pub(super) fn test_stateids(&mut self, states: &[StateId]) -> OpResult {
        let client = self.session_client()?;
        let tested: Vec<Status> = states
            .iter()
            .map(|state| self.server.state.test_stateid(&client, state))
            .collect();
        self.reply.value(&tested);
        Ok(())
    }
}
