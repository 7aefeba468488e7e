//! Security labels (RFC 7862 sections 9 and 12.2.4): those of SELinux, stored as extended
//! attributes of the source.
//!
//! The server stores and returns the labels; clients enforce them, with format and policy 0, the
//! only ones that Linux's client supports. The kernel of a source lets only privileged processes
//! set them, so the server does that on behalf of a file's owner or the superuser.

use std::sync::Arc;

use vfs::{AttrMask, Caller, Cx, Errno, Node, XattrFlags};

use super::compound::Compound;
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::attr::SecLabel;

const NAME: &[u8] = b"security.selinux";

/// The maximum length of a label, as in Linux (`NFS4_MAXLABELLEN`).
const MAX_LABEL: usize = 2048;

/// The format and the policy of all labels.
const DEFAULT_FORMAT: u32 = 0;

/// Returns the attribute's value for a label.
pub(super) fn to_wire(label: &[u8]) -> SecLabel<'_> {
    SecLabel {
        format: DEFAULT_FORMAT,
        policy: DEFAULT_FORMAT,
        label,
    }
}

/// Returns the label in the attribute's value.
pub(super) fn from_wire<'a>(given: &SecLabel<'a>) -> Result<&'a [u8], Status> {
    match given.label {
        _ if given.format != DEFAULT_FORMAT => Err(Status::WrongLfs),
        label if label.is_empty() || label.len() > MAX_LABEL => Err(Status::Badlabel),
        label => Ok(label),
    }
}

/// Returns the label of `node`, if it has one.
pub(super) fn of(cx: &Cx<'_>, node: &Arc<dyn Node>) -> Result<Option<Vec<u8>>, Errno> {
    match node.xattr(&cx.on_behalf_of(&Caller::ROOT), NAME) {
        Ok(label) => Ok(Some(label)),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl RequestContext<'_, Compound> {
    /// Returns `EPERM` if the caller may not label `node`.
    pub(super) fn check_may_label(&self, node: &Arc<dyn Node>) -> Result<(), Errno> {
        let caller = self.caller.uid;
        match caller == Caller::ROOT.uid || caller == node.attr(&self.cx(), AttrMask::BASIC)?.uid {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    /// Sets the label of `node` with the server's own privileges.
    pub(super) fn set_label(&self, node: &Arc<dyn Node>, label: &[u8]) -> Result<(), Errno> {
        let cx = self.cx();
        let cx = cx.on_behalf_of(&Caller::ROOT);
        node.set_xattr(&cx, NAME, label, XattrFlags::empty())
    }
}
