//! NFS v3 procedures (RFC 1813).
//!
//! A procedure that changes something reports the attributes before and after the change
//! (`wcc_data`), each from a separate call to the source. Others may change the object in between;
//! the client then sees a change by others. The change itself is the last step that may return
//! `WOULD_BLOCK`; the steps after it wait as long as necessary.

pub(super) mod acl;
mod attr;
mod dir;
mod fs;
mod io;
mod make;
mod name;

use std::sync::Arc;

use vfs::{Attr, Cx, Errno, Kind, Node, Patience, Want};
use wire::{Answer, Xdr};

use super::handle::FileHandle;
use super::{Stop, Turn};
use crate::rpc::Refusal;
use crate::v3::{Attributes, Handle, Outcome, Procedure, Status, Wcc};

/// Serves a v3 call.
pub(crate) fn serve(turn: &mut Turn<'_>, procedure: u32) -> Result<(), Stop> {
    use Procedure as P;
    let procedure = P::from_number(procedure).ok_or(Refusal::ProcedureUnavailable)?;
    match procedure {
        P::Null => Ok(()),
        P::GetAttr => turn.answer(Turn::getattr),
        P::SetAttr => turn.answer_once(Turn::setattr),
        P::Lookup => turn.answer(Turn::lookup),
        P::Access => turn.answer(Turn::access),
        P::ReadLink => turn.readlink(),
        P::Read => turn.read(),
        P::Write => turn.write(),
        P::Create => turn.answer_once(Turn::create),
        P::MkDir => turn.answer_once(Turn::mkdir),
        P::Symlink => turn.answer_once(Turn::symlink),
        P::MkNod => turn.answer_once(Turn::mknod),
        P::Remove => turn.answer_once(Turn::remove),
        P::RmDir => turn.answer_once(Turn::rmdir),
        P::Rename => turn.answer_once(Turn::rename),
        P::Link => turn.answer_once(Turn::link),
        P::ReadDir => turn.readdir(),
        P::ReadDirPlus => turn.readdirplus(),
        P::FsStat => turn.answer(Turn::fsstat),
        P::FsInfo => turn.answer(Turn::fsinfo),
        P::PathConf => turn.answer(Turn::pathconf),
        P::Commit => turn.answer(Turn::commit),
    }
}

/// The result of a procedure.
type ProcedureResult<T, F> = Result<Outcome<T, F>, Stop>;

/// The result of a step of a procedure.
type StepResult<T> = Result<T, StepError>;

/// The reason for which a step fails.
enum StepError {
    /// The procedure's status.
    Status(Status),
    /// The call is to be served again later.
    Later(Answer),
}

impl From<Status> for StepError {
    fn from(status: Status) -> StepError {
        StepError::Status(status)
    }
}

impl From<Errno> for StepError {
    fn from(errno: Errno) -> StepError {
        match errno {
            Errno::WOULD_BLOCK => StepError::Later(Answer::WouldBlock),
            Errno::PARKED => StepError::Later(Answer::Parked),
            errno => StepError::Status(errno.into()),
        }
    }
}

/// Returns the outcome of `result`; if it failed, with the results `rest` that accompany a failure.
fn outcome<T, F>(result: StepResult<T>, rest: impl FnOnce() -> F) -> ProcedureResult<T, F> {
    match result {
        Ok(value) => Ok(Outcome::Done(value)),
        Err(StepError::Status(status)) => Ok(Outcome::Failed(status, rest())),
        Err(StepError::Later(answer)) => Err(Stop::Later(answer)),
    }
}

impl<'a> Turn<'a> {
    /// Serves a non-idempotent call as [`Turn::answer`], through the duplicate request cache.
    fn answer_once<'b, A: Xdr<'a>, R: Xdr<'b>>(
        &mut self,
        procedure: impl FnOnce(&Self, A) -> Result<R, Stop>,
    ) -> Result<(), Stop> {
        let arguments = self.take()?;
        self.serve_once(|turn| {
            let mut bytes = Vec::new();
            procedure(turn, arguments)?.put(&mut bytes);
            if let Some(status) = bytes.first_chunk() {
                turn.call.note_fault(u32::from_be_bytes(*status) as u16);
            }
            turn.out.bytes(&bytes);
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
        let attr = node.attr(&self.cx(), Want::STAT).ok()?;
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
    ) -> Result<(), Stop> {
        let begin = self.out.len();
        let (node, error) = match found {
            Err(error) => (None, error),
            Ok(node) => match fill(self, &node) {
                Err(error) => (Some(node), error),
                Ok(()) => return Ok(()),
            },
        };
        self.out.truncate(begin);
        let failed: Outcome<(), _> = outcome(Err(error), || self.attributes(node.as_ref()?))?;
        self.reply(&failed);
        Ok(())
    }

    /// Applies `what` to the node `found`, and returns its attributes before and after.
    fn change<T>(
        &self,
        found: StepResult<Arc<dyn Node>>,
        what: impl FnOnce(&Arc<dyn Node>, &Attr) -> StepResult<T>,
    ) -> Result<(Result<T, Status>, Wcc), Stop> {
        let mut wcc = Wcc::default();
        let result = found.and_then(|node| {
            let before = node.attr(&self.cx(), Want::STAT)?;
            let result = what(&node, &before);
            if !matches!(result, Err(StepError::Later(_))) {
                wcc = self.wcc(&before, &node);
            }
            result
        });
        match result {
            Ok(value) => Ok((Ok(value), wcc)),
            Err(StepError::Status(status)) => Ok((Err(status), wcc)),
            Err(StepError::Later(answer)) => Err(Stop::Later(answer)),
        }
    }

    /// Returns the `wcc_data` of `node` after a change, with the attributes `before` it.
    fn wcc(&self, before: &Attr, node: &Arc<dyn Node>) -> Wcc {
        let after = node.attr(&self.patient_cx(), Want::STAT).ok();
        Wcc {
            before: Some(before.into()),
            after: after.as_ref().map(Attributes::from),
        }
    }
}
