//! GETATTR, SETATTR, ACCESS.

use std::sync::Arc;

use vfs::{Access, Attr, AttrMask, Errno, Kind, Node, OpenFlags, SetAttr};

use super::{ProcedureResult, StepResult, outcome};
use crate::server::{CallError, RequestContext};
use crate::v3::{
    AccessArgs, AccessOk, Attributes, Handle, Outcome, SetAttrArgs, Status, Time, Wcc, access,
};

impl RequestContext<'_> {
    pub(super) fn getattr(&self, object: Handle) -> ProcedureResult<Attributes, ()> {
        let result = self.object(&object).and_then(|node| {
            let attr = node.attr(&self.cx(), AttrMask::STAT)?;
            self.server.check_exists(&self.cx(), &node, &attr)?;
            Ok((&attr).into())
        });
        outcome(result, || ())
    }

    pub(super) fn setattr(&self, args: SetAttrArgs) -> Result<Outcome<Wcc, Wcc>, CallError> {
        let (result, wcc) = self.change(self.object(&args.object), |node, before| {
            if args
                .guard
                .is_some_and(|ctime| ctime != Time::from(before.ctime))
            {
                return Err(Status::NotSync.into());
            }
            self.set(node, before, &(&args.attributes).into())
        })?;
        Ok(match result {
            Ok(()) => Outcome::Done(wcc),
            Err(status) => Outcome::Failed(status, wcc),
        })
    }

    fn set(&self, node: &Arc<dyn Node>, before: &Attr, set: &SetAttr) -> StepResult<()> {
        if set.size.is_some() && node.kind() != Kind::File {
            return Err(match node.kind() {
                Kind::Directory => Status::Isdir.into(),
                _ => Status::Inval.into(),
            });
        }
        let done = match node.setattr(&self.cx(), set) {
            // The file may be open for writing, as for WRITE.
            Err(Errno::EACCES) if set.size.is_some() => {
                let file = self.server.file(&self.cx(), node, OpenFlags::WRITE)?;
                file.setattr(&self.cx(), set)
            }
            done => done,
        };
        done?;
        if set.changes_access() {
            self.server.files.forget_other_users(node.id(), before.uid);
        }
        Ok(())
    }

    pub(super) fn access(&self, args: AccessArgs) -> ProcedureResult<AccessOk, Option<Attributes>> {
        self.with_node(self.object(&args.object), |node| {
            let cx = self.cx();
            let attr = node.attr(&cx, AttrMask::STAT)?;
            let all = Access::READ | Access::WRITE | Access::EXEC;
            let may = node.access(&cx, all)?;
            Ok(AccessOk {
                attributes: Some((&attr).into()),
                access: args.access & granted(may, node.kind()),
            })
        })
    }
}

/// Returns the ACCESS bits that correspond to `may`.
fn granted(may: Access, kind: Kind) -> u32 {
    let mut granted = 0;
    let mut grant = |when: bool, bits: u32| {
        if when {
            granted |= bits;
        }
    };
    grant(may.contains(Access::READ), access::READ);
    if kind == Kind::Directory {
        grant(may.contains(Access::EXEC), access::LOOKUP);
        let entries = access::MODIFY | access::EXTEND | access::DELETE;
        grant(may.contains(Access::WRITE | Access::EXEC), entries);
    } else {
        grant(may.contains(Access::WRITE), access::MODIFY | access::EXTEND);
        grant(may.contains(Access::EXEC), access::EXECUTE);
    }
    granted
}
