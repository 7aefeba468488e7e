//! The state of a compound: the current and the saved filehandle and stateid (RFC 8881 sections
//! 2.3, 16.2.3), and the results of its operations.

use std::sync::Arc;

use vfs::{Errno, Kind, Node, Patience};
use wire::{Malformed, ServeOutcome};

use super::open_file::ExportTree;
use super::state::{NodeKey, SlotRequest};
use crate::server::filehandle::{FileHandle, Located};
use crate::server::{CallError, RequestContext};
use crate::v4::{StateId, Status};

/// The state of a compound under way.
#[derive(Default)]
pub(super) struct Compound {
    /// The minor version.
    pub(super) minor: u32,
    /// The offset of the compound's results in the reply.
    pub(super) start: usize,
    /// The number of the current operation.
    pub(super) number: u32,
    /// The weight of the operation that names the compound so far.
    pub(super) weight: u8,
    /// The session's slot that the compound uses (v4.1).
    pub(super) slot: Option<SlotRequest<ExportTree>>,
    /// The current filehandle.
    pub(super) current: Option<CurrentHandle>,
    /// The saved filehandle.
    pub(super) saved: Option<CurrentHandle>,
    /// The current stateid (RFC 8881 section 16.2.3.1.2).
    pub(super) stateid: Option<StateId>,
    /// The saved stateid.
    pub(super) saved_stateid: Option<StateId>,
}

/// The node of the current or the saved filehandle.
#[derive(Clone)]
pub(super) struct CurrentHandle {
    pub(super) node: Arc<dyn Node>,
    /// Whether the node was found through the export's name.
    pub(super) at_name: bool,
    /// The node's filehandle, if already computed.
    pub(super) handle: Option<FileHandle>,
}

/// The reason why an operation is not done, or not yet.
#[derive(Debug)]
pub(super) enum OpError {
    /// The operation failed.
    Status(Status),
    /// The operation failed, and the reply already contains the body that goes with the status.
    WithBody(Status),
    /// The whole call ends.
    Call(CallError),
}

impl From<Status> for OpError {
    fn from(status: Status) -> OpError {
        OpError::Status(status)
    }
}

impl From<Errno> for OpError {
    fn from(errno: Errno) -> OpError {
        if errno == Errno::PARKED {
            // The holder may be this very client, whose DELEGRETURN may wait for this reply.
            return OpError::Status(Status::Delay);
        }
        match CallError::retry(errno) {
            Some(stop) => OpError::Call(stop),
            None => OpError::Status(errno.into()),
        }
    }
}

impl From<Malformed> for OpError {
    fn from(what: Malformed) -> OpError {
        tracing::debug!("malformed operation: {what}");
        OpError::Status(Status::Badxdr)
    }
}

/// The result of an operation.
pub(super) type OpResult = Result<(), OpError>;

impl RequestContext<'_, Compound> {
    /// Returns the current node.
    pub(super) fn node(&self) -> Result<Arc<dyn Node>, Status> {
        let handle = self.compound.current.as_ref().ok_or(Status::Nofilehandle)?;
        Ok(handle.node.clone())
    }

    /// Returns the saved node.
    pub(super) fn saved_node(&self) -> Result<Arc<dyn Node>, Status> {
        let handle = self.compound.saved.as_ref().ok_or(Status::Nofilehandle)?;
        Ok(handle.node.clone())
    }

    /// Returns the current node, which must be a directory.
    pub(super) fn directory(&self) -> Result<Arc<dyn Node>, Status> {
        let node = self.node()?;
        match node.kind() {
            Kind::Directory => Ok(node),
            Kind::Symlink => Err(Status::Symlink),
            _ => Err(Status::Notdir),
        }
    }

    /// Returns the current node, which must be a regular file.
    pub(super) fn regular(&self) -> Result<Arc<dyn Node>, Status> {
        let node = self.node()?;
        self.check_regular(&node)?;
        Ok(node)
    }

    /// Returns the error for a node that is not a regular file.
    pub(super) fn check_regular(&self, node: &Arc<dyn Node>) -> Result<(), Status> {
        match node.kind() {
            Kind::File => Ok(()),
            Kind::Directory => Err(Status::Isdir),
            Kind::Symlink if self.compound.minor == 0 => Err(Status::Inval),
            Kind::Symlink => Err(Status::Symlink),
            _ if self.compound.minor == 0 => Err(Status::Inval),
            _ => Err(Status::WrongType),
        }
    }

    /// Returns the file handle of the current node.
    pub(super) fn handle(&mut self) -> Result<FileHandle, OpError> {
        let cx = self.cx();
        let current = self.compound.current.as_mut().ok_or(Status::Nofilehandle)?;
        if let Some(handle) = current.handle {
            return Ok(handle);
        }
        let server = self.server;
        let handle = server.handle_in(&cx, &current.node, current.at_name)?;
        current.handle = Some(handle);
        Ok(handle)
    }

    /// Makes `node`, found from the current node, the current one.
    pub(super) fn set_current(&mut self, node: Arc<dyn Node>) {
        let at_name = self.is_at_name();
        self.set_current_in(node, at_name);
    }

    /// Makes `node` the current node, in the tree at the export's name if `at_name`, otherwise in
    /// the tree at `/`.
    pub(super) fn set_current_in(&mut self, node: Arc<dyn Node>, at_name: bool) {
        self.compound.stateid = None;
        self.compound.current = Some(CurrentHandle {
            node,
            at_name,
            handle: None,
        });
    }

    /// Returns `node`, found from the current node, in the form that the state stores.
    pub(super) fn located(&self, node: Arc<dyn Node>) -> Located {
        let at_name = self.is_at_name();
        Located { node, at_name }
    }

    /// Returns whether the current node was found through the export's name.
    pub(super) fn is_at_name(&self) -> bool {
        self.compound
            .current
            .as_ref()
            .is_some_and(|handle| handle.at_name)
    }

    /// Returns the state's key of `node`.
    pub(super) fn key(&self, node: &Arc<dyn Node>) -> NodeKey {
        self.server.key(node)
    }

    /// Returns the stateid that `stateid` stands for: the current one if it is the special current
    /// stateid.
    pub(super) fn resolve_stateid(&self, stateid: &StateId) -> Result<StateId, Status> {
        match *stateid {
            StateId::CURRENT if self.compound.minor > 0 => {
                self.compound.stateid.ok_or(Status::BadStateid)
            }
            stateid => Ok(stateid),
        }
    }

    /// Writes the new stateid of the state that an operation changed, and makes it the current one.
    pub(super) fn changed(&mut self, state: StateId) {
        self.compound.stateid = Some(state);
        self.reply.value(&state);
    }

    /// Returns the status of an operation whose result does not fit in the reply (RFC 8881 section
    /// 2.10.6.4; v4.0 has `RESOURCE` for that).
    pub(super) fn too_big(&self) -> Status {
        match &self.compound.slot {
            Some(slot) if slot.request().cache_this => Status::RepTooBigToCache,
            Some(_) => Status::RepTooBig,
            None => Status::Resource,
        }
    }

    /// Returns the error of an operation: the call is to be served again later if a limit of the
    /// share makes it wait, for which no other client has to act.
    pub(super) fn parked_by_limit(&self, error: OpError) -> OpError {
        match error {
            OpError::Status(Status::Delay) if self.source_call.take_awaits_admission() => {
                OpError::Call(CallError::Retry(ServeOutcome::Parked))
            }
            error => error,
        }
    }

    /// Runs an operation after whose success the compound cannot be restarted.
    pub(super) fn with_effect(
        &mut self,
        operation: impl FnOnce(&mut Self) -> OpResult,
    ) -> OpResult {
        operation(self)?;
        self.forbid_restart();
        Ok(())
    }

    /// Records that the compound had an effect, so that it cannot be restarted.
    pub(super) fn forbid_restart(&mut self) {
        self.patience = Patience::Full;
        self.source_call.end_admission();
    }
}
