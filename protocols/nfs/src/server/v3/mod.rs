//! v3: a procedure a call (RFC 1813).
//!
//! A procedure that changes something tells its directories' or file's attributes from before and behind (`wcc_data`),
//! each by a call of the source of its own: others may have come between, which a client takes for a change by others.
//! The change itself is the last thing that may answer `WOULD_BLOCK`; what follows it waits as long as it has to.

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

/// Answers a call of v3.
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

/// What a procedure comes to.
type Answered<T, F> = Result<Outcome<T, F>, Stop>;

/// What a step of a procedure comes to.
type Tried<T> = Result<T, Fault>;

/// Why a step comes to nothing.
enum Fault {
    /// The procedure's status.
    Status(Status),
    /// Not now.
    Later(Answer),
}

impl From<Status> for Fault {
    fn from(status: Status) -> Fault {
        Fault::Status(status)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        match errno {
            Errno::WOULD_BLOCK => Fault::Later(Answer::WouldBlock),
            Errno::PARKED => Fault::Later(Answer::Parked),
            errno => Fault::Status(errno.into()),
        }
    }
}

/// The outcome of `tried`; if it failed, what is told anyway is `rest`'s.
fn outcome<T, F>(tried: Tried<T>, rest: impl FnOnce() -> F) -> Answered<T, F> {
    match tried {
        Ok(value) => Ok(Outcome::Done(value)),
        Err(Fault::Status(status)) => Ok(Outcome::Failed(status, rest())),
        Err(Fault::Later(answer)) => Err(Stop::Later(answer)),
    }
}

impl<'a> Turn<'a> {
    /// As [`Turn::answer`], for what must not be done twice.
    fn answer_once<'b, A: Xdr<'a>, R: Xdr<'b>>(
        &mut self,
        procedure: impl FnOnce(&Self, A) -> Result<R, Stop>,
    ) -> Result<(), Stop> {
        let arguments = self.take()?;
        self.once(|turn| {
            let mut bytes = Vec::new();
            procedure(turn, arguments)?.put(&mut bytes);
            if let Some(status) = bytes.first_chunk() {
                turn.call.note_fault(u32::from_be_bytes(*status) as u16);
            }
            turn.out.bytes(&bytes);
            Ok(Some(bytes.into()))
        })
    }

    /// The context for what follows a change: it has to be told, whatever it takes.
    fn patient(&self) -> Cx<'_> {
        Cx {
            patience: Patience::Full,
            ..self.cx()
        }
    }

    /// The node that a client's handle names.
    fn object(&self, handle: &Handle) -> Tried<Arc<dyn Node>> {
        let handle = FileHandle::read(handle.bytes()).ok_or(Status::Badhandle)?;
        Ok(self.server.node(&self.cx(), &handle)?)
    }

    /// The directory that a client's handle names.
    fn directory(&self, handle: &Handle) -> Tried<Arc<dyn Node>> {
        let node = self.object(handle)?;
        if node.kind() != Kind::Directory {
            return Err(Status::Notdir.into());
        }
        Ok(node)
    }

    /// What to call `node` to a client.
    fn handle_of(&self, cx: &Cx<'_>, node: &Arc<dyn Node>) -> Tried<Handle> {
        let handle = self.server.handle(cx, node)?;
        Ok(Handle::new(&handle.bytes()).ok_or(Status::Serverfault)?)
    }

    /// A node's attributes as of now, where there are any to be had quickly.
    fn attributes(&self, node: &Arc<dyn Node>) -> Option<Attributes> {
        let attr = node.attr(&self.cx(), Want::STAT).ok()?;
        Some((&attr).into())
    }

    /// Does `what` with what `found` is, if it is anything; its attributes are told if that fails.
    fn with<T>(
        &self,
        found: Tried<Arc<dyn Node>>,
        what: impl FnOnce(&Arc<dyn Node>) -> Tried<T>,
    ) -> Answered<T, Option<Attributes>> {
        match found {
            Ok(node) => outcome(what(&node), || self.attributes(&node)),
            Err(fault) => outcome(Err(fault), || None),
        }
    }

    /// Has `fill` write results of `found` into the reply, of which nothing is left if that fails: then its attributes are
    /// told.
    fn fill(
        &mut self,
        found: Tried<Arc<dyn Node>>,
        fill: impl FnOnce(&mut Self, &Arc<dyn Node>) -> Tried<()>,
    ) -> Result<(), Stop> {
        let begin = self.out.len();
        let (node, fault) = match found {
            Err(fault) => (None, fault),
            Ok(node) => match fill(self, &node) {
                Err(fault) => (Some(node), fault),
                Ok(()) => return Ok(()),
            },
        };
        self.out.truncate(begin);
        let failed: Outcome<(), _> = outcome(Err(fault), || self.attributes(node.as_ref()?))?;
        self.reply(&failed);
        Ok(())
    }

    /// Does `what` with what `found` is, if it is anything, and says what it was before and is behind it.
    fn change<T>(
        &self,
        found: Tried<Arc<dyn Node>>,
        what: impl FnOnce(&Arc<dyn Node>, &Attr) -> Tried<T>,
    ) -> Result<(Result<T, Status>, Wcc), Stop> {
        let mut wcc = Wcc::default();
        let tried = found.and_then(|node| {
            let before = node.attr(&self.cx(), Want::STAT)?;
            let tried = what(&node, &before);
            if !matches!(tried, Err(Fault::Later(_))) {
                wcc = self.wcc(&before, &node);
            }
            tried
        });
        match tried {
            Ok(value) => Ok((Ok(value), wcc)),
            Err(Fault::Status(status)) => Ok((Err(status), wcc)),
            Err(Fault::Later(answer)) => Err(Stop::Later(answer)),
        }
    }

    /// What a change may have made of `node`, which was `before`.
    fn wcc(&self, before: &Attr, node: &Arc<dyn Node>) -> Wcc {
        let after = node.attr(&self.patient(), Want::STAT).ok();
        Wcc {
            before: Some(before.into()),
            after: after.as_ref().map(Attributes::from),
        }
    }
}
