//! Twalk: new fids from old ones.

use std::sync::Arc;

use vfs::{AttrMask, Cx, Errno, Name, Node, Result};

use super::fid::FidState;
use super::qid::qid_of;
use super::request::RequestContext;
use super::step::{STEP_BYTES, Step};
use crate::{Fid, Names, Qid, QidType, Qids, Rmessage};

impl RequestContext<'_> {
    pub(super) fn walk(&mut self, fid: Fid, newfid: Fid, names: Names<'_>) -> Result<()> {
        if names.len() > Names::MAX {
            return Err(Errno::EINVAL);
        }
        let from = self.fid(fid)?;
        from.check_file()?;
        if newfid != fid {
            self.connection.fids.check_free(newfid)?;
        } else if !names.is_empty() {
            // An open fid cannot be moved: walk(5).
            from.check_walked()?;
        }
        let mut qids = [NO_QID; Names::MAX];
        let mut walked = 0;
        let mut step = from.step().clone();
        {
            let cx = self.cx(&from.attach().caller);
            for name in names.iter() {
                self.call.begin_step(walked as u32);
                match walk_one(&cx, &step, name) {
                    Ok((next, qid)) => {
                        step = next;
                        qids[walked] = qid;
                        walked += 1;
                    }
                    Err(errno) if walked == 0 || errno.is_signal() => return Err(errno),
                    // A partial walk leaves the fids unchanged.
                    Err(_) => break,
                }
            }
        }
        if walked == names.len() && !(newfid == fid && names.is_empty()) {
            let state = FidState::Walked(step);
            if newfid == fid {
                self.connection.fids.replace(fid, &from, state)?;
            } else {
                self.connection.fids.insert(newfid, state)?;
            }
        }
        self.reply(&Rmessage::Walk {
            qids: Qids::new(&qids[..walked]),
        })
    }
}

const NO_QID: Qid = Qid {
    kind: QidType::empty(),
    version: 0,
    path: 0,
};

/// Walks one name.
fn walk_one(cx: &Cx<'_>, step: &Arc<Step>, name: &[u8]) -> Result<(Arc<Step>, Qid)> {
    if step.node.kind() != vfs::Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let (next, attr) = match name {
        b"." => (step.clone(), None),
        b".." => parent(cx, step)?,
        _ => {
            let name = Name::new(name)?;
            let entry = step.node.lookup(cx, name)?;
            let charge = step.attach.reserve_memory(STEP_BYTES)?;
            (Step::new(step, name, entry.node, charge), Some(entry.attr))
        }
    };
    let attr = match attr {
        Some(attr) => attr,
        None => next.node.attr(cx, AttrMask::BASIC | AttrMask::TIMES)?,
    };
    Ok((next, qid_of(&attr)))
}

/// Returns the parent directory; the root of an attach is its own.
pub(super) fn parent(cx: &Cx<'_>, step: &Arc<Step>) -> Result<(Arc<Step>, Option<vfs::Attr>)> {
    let attach = &step.attach;
    let root = attach.root.id();
    if step.node.id() == root {
        return Ok((step.clone(), None));
    }
    let parent = step.node.parent(cx)?;
    let known = step
        .name_in_parent
        .as_ref()
        .map(|location| &location.parent);
    let up = match known {
        // The client came from there and still has access to it.
        Some(up) if up.node.id() == parent.node.id() => up.clone(),
        _ => {
            if attach.below {
                check_below(cx, &parent.node, root)?;
            }
            Step::unnamed(attach, parent.node)?
        }
    };
    Ok((up, Some(parent.attr)))
}

/// The most levels above a moved directory in which to look for the root of the attach: each may
/// cost the source a look at all directories above.
const MAX_ANCESTORS: usize = 64;

/// Returns `ENOENT` if `node` is not found to be below `root`: another client may have moved it
/// out.
fn check_below(cx: &Cx<'_>, node: &Arc<dyn Node>, root: vfs::NodeId) -> Result<()> {
    let mut at = node.clone();
    for _ in 0..MAX_ANCESTORS {
        if at.id() == root {
            return Ok(());
        }
        let parent = at.parent(cx)?.node;
        if parent.id() == at.id() {
            break;
        }
        at = parent;
    }
    Err(Errno::ENOENT)
}
