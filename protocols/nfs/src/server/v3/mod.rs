//! NFS v3 procedures (RFC 1813).
//!
//! A procedure that changes something reports the attributes before and after the change
//! (`wcc_data`), each from a separate call to the source. Others may change the object in between;
//! the client then sees a change by others. The change itself is the last step that may return
//! `WOULD_BLOCK`; the steps after it wait as long as necessary.

pub(super) mod acl;
mod attr;
mod create;
mod directory;
mod fsinfo;
mod read_write;
mod readdir;

use std::sync::Arc;

use vfs::{Attr, AttrMask, Cx, Errno, Kind, Node, Patience};
use wire::{ServeOutcome, Xdr};

use super::filehandle::FileHandle;
use super::{CallError, RequestContext};
use crate::rpc::CallRejection;
use crate::v3::{Attributes, Handle, Outcome, Procedure, Status, Wcc};

/// Serves a v3 call.
pub(crate) fn serve(request: &mut RequestContext<'_>, procedure: u32) -> Result<(), CallError> {
    use Procedure as P;
    let procedure = P::from_number(procedure).ok_or(CallRejection::ProcedureUnavailable)?;
    match procedure {
        P::Null => Ok(()),
        P::GetAttr => request.serve(RequestContext::getattr),
        P::SetAttr => request.serve_procedure_once(RequestContext::setattr),
        P::Lookup => request.serve(RequestContext::lookup),
        P::Access => request.serve(RequestContext::access),
        P::ReadLink => request.readlink(),
        P::Read => request.read(),
        P::Write => request.write(),
        P::Create => request.serve_procedure_once(RequestContext::create),
        P::MkDir => request.serve_procedure_once(RequestContext::mkdir),
        P::Symlink => request.serve_procedure_once(RequestContext::symlink),
        P::MkNod => request.serve_procedure_once(RequestContext::mknod),
        P::Remove => request.serve_procedure_once(RequestContext::remove),
        P::RmDir => request.serve_procedure_once(RequestContext::rmdir),
        P::Rename => request.serve_procedure_once(RequestContext::rename),
        P::Link => request.serve_procedure_once(RequestContext::link),
        P::ReadDir => request.readdir(),
        P::ReadDirPlus => request.readdirplus(),
        P::FsStat => request.serve(RequestContext::fsstat),
        P::FsInfo => request.serve(RequestContext::fsinfo),
        P::PathConf => request.serve(RequestContext::pathconf),
        P::Commit => request.serve(RequestContext::commit),
    }
}

/// The result of a procedure.
type ProcedureResult<T, F> = Result<Outcome<T, F>, CallError>;

/// The result of a step of a procedure.
type StepResult<T> = Result<T, StepError>;

/// The reason for which a step fails.
enum StepError {
    /// The procedure's status.
    Status(Status),
    /// The call is to be served again later.
    Later(ServeOutcome),
}

impl From<Status> for StepError {
    fn from(status: Status) -> StepError {
        StepError::Status(status)
    }
}

impl From<Errno> for StepError {
    fn from(errno: Errno) -> StepError {
        match errno {
            Errno::WOULD_BLOCK => StepError::Later(ServeOutcome::WouldBlock),
            Errno::PARKED => StepError::Later(ServeOutcome::Parked),
            errno => StepError::Status(errno.into()),
        }
    }
}

/// Returns the outcome of `result`; if it failed, with the results `rest` that accompany a failure.
fn outcome<T, F>(result: StepResult<T>, rest: impl FnOnce() -> F) -> ProcedureResult<T, F> {
    match result {
        Ok(value) => Ok(Outcome::Done(value)),
        Err(StepError::Status(status)) => Ok(Outcome::Failed(status, rest())),
        Err(StepError::Later(answer)) => Err(CallError::Retry(answer)),
    }
}

impl<'a> RequestContext<'a> {
    /// Serves a non-idempotent call as [`RequestContext::serve`], through the duplicate request
    /// cache.
    fn serve_procedure_once<'b, A: Xdr<'a>, R: Xdr<'b>>(
        &mut self,
        procedure: impl FnOnce(&Self, A) -> Result<R, CallError>,
    ) -> Result<(), CallError> {
        let arguments = self.decode()?;
        self.serve_once(|request| {
            let mut bytes = Vec::new();
            procedure(request, arguments)?.put(&mut bytes);
            if let Some(status) = bytes.first_chunk() {
                request.call.note_error(u32::from_be_bytes(*status) as u16);
            }
            request.reply.out.bytes(&bytes);
            Ok(Some(bytes.into()))
        })
    }

    /// Returns the context for the steps after a change: its results must be reported, however long
    /// that takes.
    fn patient_cx(&self) -> Cx<'_> {
        Cx {
            patience: Patience::Full,
            ..self.cx()
        }
    }

    /// Returns the node of a client's handle.
    fn object(&self, handle: &Handle) -> StepResult<Arc<dyn Node>> {
        let handle = FileHandle::read(handle.bytes()).ok_or(Status::Badhandle)?;
        Ok(self.server.node(&self.cx(), &handle)?)
    }

    /// Returns the directory of a client's handle.
    fn directory(&self, handle: &Handle) -> StepResult<Arc<dyn Node>> {
        let node = self.object(handle)?;
        if node.kind() != Kind::Directory {
            return Err(Status::Notdir.into());
        }
        Ok(node)
    }

    /// Returns the handle of `node` for clients.
    fn handle_of(&self, cx: &Cx<'_>, node: &Arc<dyn Node>) -> StepResult<Handle> {
        let handle = self.server.handle(cx, node)?;
        Ok(Handle::new(&handle.bytes()).ok_or(Status::Serverfault)?)
    }

    /// Returns a node's current attributes, if they are available with the call's patience.
    fn attributes(&self, node: &Arc<dyn Node>) -> Option<Attributes> {
        let attr = node.attr(&self.cx(), AttrMask::STAT).ok()?;
        Some((&attr).into())
    }

    /// Applies `what` to the node `found`. If that fails, the results contain the node's
    /// attributes.
    fn with_node<T>(
        &self,
        found: StepResult<Arc<dyn Node>>,
        what: impl FnOnce(&Arc<dyn Node>) -> StepResult<T>,
    ) -> ProcedureResult<T, Option<Attributes>> {
        match found {
            Ok(node) => outcome(what(&node), || self.attributes(&node)),
            Err(error) => outcome(Err(error), || None),
        }
    }

    /// Writes the results for `found` into the reply with `fill`. If that fails, discards them and
    /// reports the status and the node's attributes.
    fn fill(
        &mut self,
        found: StepResult<Arc<dyn Node>>,
        fill: impl FnOnce(&mut Self, &Arc<dyn Node>) -> StepResult<()>,
    ) -> Result<(), CallError> {
        let begin = self.reply.out.len();
        let (node, error) = match found {
            Err(error) => (None, error),
            Ok(node) => match fill(self, &node) {
                Err(error) => (Some(node), error),
                Ok(()) => return Ok(()),
            },
        };
        self.reply.out.truncate(begin);
        let failed: Outcome<(), _> = outcome(Err(error), || self.attributes(node.as_ref()?))?;
        self.answer(&failed);
        Ok(())
    }

    /// Applies `what` to the node `found`, and returns its attributes before and after.
    fn change<T>(
        &self,
        found: StepResult<Arc<dyn Node>>,
        what: impl FnOnce(&Arc<dyn Node>, &Attr) -> StepResult<T>,
    ) -> Result<(Result<T, Status>, Wcc), CallError> {
        let mut wcc = Wcc::default();
        let result = found.and_then(|node| {
            let before = node.attr(&self.cx(), AttrMask::STAT)?;
            let result = what(&node, &before);
            if !matches!(result, Err(StepError::Later(_))) {
                wcc = self.wcc(&before, &node);
            }
            result
        });
        match result {
            Ok(value) => Ok((Ok(value), wcc)),
            Err(StepError::Status(status)) => Ok((Err(status), wcc)),
            Err(StepError::Later(answer)) => Err(CallError::Retry(answer)),
        }
    }

    /// Returns the `wcc_data` of `node` after a change, with the attributes `before` it.
    fn wcc(&self, before: &Attr, node: &Arc<dyn Node>) -> Wcc {
        let after = node.attr(&self.patient_cx(), AttrMask::STAT).ok();
        Wcc {
            before: Some(before.into()),
            after: after.as_ref().map(Attributes::from),
        }
    }
}
