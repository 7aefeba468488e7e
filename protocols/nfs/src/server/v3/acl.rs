//! The NFS_ACL program: ACLs for v3 clients. Unavailable if the source has no ACLs.

use vfs::{AttrMask, Support};

use super::ProcedureResult;
use crate::rpc::CallRejection;
use crate::server::acl::{AclChange, access, default};
use crate::server::{CallError, RequestContext};
use crate::v3::{
    AclItem, AclList, AclProcedure, Attributes, GetAclArgs, GetAclOk, SetAclArgs, Status, acl_mask,
};

/// Serves an NFS_ACL call.
pub(crate) fn serve(request: &mut RequestContext<'_>, procedure: u32) -> Result<(), CallError> {
    if request.server.capabilities.acl == Support::None {
        return Err(CallRejection::ProgramUnavailable.into());
    }
    let procedure =
        AclProcedure::from_number(procedure).ok_or(CallRejection::ProcedureUnavailable)?;
    match procedure {
        AclProcedure::Null => Ok(()),
        AclProcedure::GetAcl => request.serve(RequestContext::get_acl),
        AclProcedure::SetAcl => request.serve(RequestContext::set_acl),
    }
}

impl RequestContext<'_> {
    fn get_acl(&self, args: GetAclArgs) -> ProcedureResult<GetAclOk, Option<Attributes>> {
        self.with_node(self.object(&args.object), |node| {
            if args.mask & !acl_mask::ALL != 0 {
                return Err(Status::Inval.into());
            }
            let cx = self.cx();
            let attr = node.attr(&cx, AttrMask::STAT)?;
            let wants = |bits| args.mask & bits != 0;
            let mut found = GetAclOk {
                attributes: Some((&attr).into()),
                mask: args.mask,
                access: AclList::default(),
                default: AclList::default(),
            };
            if wants(acl_mask::ACCESS | acl_mask::ACCESS_COUNT) {
                let acl = access(&cx, node, &attr)?;
                found.access = AclList::new(&acl, &attr, wants(acl_mask::ACCESS), 0);
            }
            if wants(acl_mask::DEFAULT | acl_mask::DEFAULT_COUNT)
                && let Some(acl) = default(&cx, node)?
            {
                let with_entries = wants(acl_mask::DEFAULT);
                found.default = AclList::new(&acl, &attr, with_entries, AclItem::DEFAULT);
            }
            Ok(found)
        })
    }

    fn set_acl(&self, args: SetAclArgs) -> ProcedureResult<Option<Attributes>, Option<Attributes>> {
        self.with_node(self.object(&args.object), |node| {
            let given = |bit, list: &AclList| match args.mask & bit {
                0 => Ok(None),
                _ => list.acl().map(Some).ok_or(Status::Inval),
            };
            let access = given(acl_mask::ACCESS, &args.access)?;
            let default = given(acl_mask::DEFAULT, &args.default)?;
            let change = |acl| match acl {
                &None => AclChange::Keep,
                Some(acl) => AclChange::Set(Option::as_ref(acl)),
            };
            let (access, default) = (change(&access), change(&default));
            self.server.set_acls(&self.cx(), node, access, default)?;
            Ok(self.attributes(node))
        })
    }
}
