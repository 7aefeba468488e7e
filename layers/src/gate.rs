//! Access control that may change, or end, while a tree is served.
//!
//! [`AccessPolicy`] is equivalent to [`Squash`], [`ReadOnly`] and [`Admission`] in this order.
//! [`Gate`] has terms that are replaced as a whole. New terms apply to all later operations, also
//! on files that are open already. Once the gate is closed, every operation returns `ESTALE`,
//! except for releasing locks.
//!
//! Deliberately absent: terms that change the identity of nodes (ids, names of attributes).
//! Changing those takes a new tree.
//!
//! Lock order: none. Terms are read without a lock.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use vfs::lock::{HostLock, LockRange};
use vfs::{Attr, Caller, Capabilities, Cx, Errno, Node, Result, SetAttr};

use crate::{Admission, Layer, Opened, ReadOnly, Squash, forward};

/// The layer.
pub struct Gate {
    /// `None`: it is closed.
    policy: ArcSwapOption<AccessPolicy>,
}

/// The terms of access to a tree, and the layer of terms that do not change.
#[derive(Clone, Debug)]
pub struct AccessPolicy {
    /// The users to make anonymous.
    pub squash: Squash,
    /// Whether all changes are refused.
    pub read_only: bool,
    /// The admitted clients.
    pub admission: Arc<Admission>,
}

impl Gate {
    /// Creates a gate that is open on these terms.
    pub fn new(terms: AccessPolicy) -> Gate {
        Gate {
            policy: ArcSwapOption::from_pointee(terms),
        }
    }

    /// Replaces the terms for all later operations. Operations in flight finish on the old ones.
    pub fn set(&self, mut terms: AccessPolicy) {
        let now = self.policy.load();
        // The choices that connections cache belong to the layer.
        if let Some(old) = now.as_ref().map(|now| &now.admission)
            && *old == terms.admission
        {
            terms.admission = old.clone();
        }
        self.policy.store(Some(Arc::new(terms)));
    }

    /// Closes it for all later operations.
    pub fn close(&self) {
        self.policy.store(None);
    }

    fn choose<'a>(&self, cx: &Cx<'a>) -> Result<(&'static dyn Layer, Cow<'a, Caller>)> {
        of(&self.policy.load())?.choose(cx)
    }
}

fn of(terms: &Option<Arc<AccessPolicy>>) -> Result<&AccessPolicy> {
    terms.as_deref().ok_or(Errno::ESTALE)
}

impl AccessPolicy {
    fn choose<'a>(&self, cx: &Cx<'a>) -> Result<(&'static dyn Layer, Cow<'a, Caller>)> {
        let (layer, caller) = self.admission.choose(cx)?;
        let layer = if self.read_only { &ReadOnly } else { layer };
        Ok((layer, self.squash.of(cx, caller)))
    }

    /// Maps the owners in a request.
    fn request(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<SetAttr> {
        Ok(self.squash.request(&self.admission.request(cx, set)?))
    }
}

impl Layer for AccessPolicy {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let inner = if self.read_only {
            ReadOnly.capabilities(inner)
        } else {
            inner
        };
        self.admission.capabilities(inner)
    }

    /// A backing file that was passed to the host stays usable there, whatever a list says of
    /// another client.
    fn allows_passthrough(&self) -> bool {
        !self.read_only && self.admission.list().is_none()
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let (layer, caller) = self.choose(cx)?;
        layer.setattr(inner, &cx.on_behalf_of(&caller), &self.request(cx, set)?)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let (layer, caller) = self.choose(cx)?;
        layer.file_setattr(inner, &cx.on_behalf_of(&caller), &self.request(cx, set)?)
    }

    forward! { id above }

    forward! { to choose: all but setattr file_setattr }
}

impl Layer for Gate {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let Some(terms) = self.policy.load_full() else {
            return inner;
        };
        terms.capabilities(inner)
    }

    /// A backing file that was passed to the host stays usable there, whatever the terms are later.
    fn allows_passthrough(&self) -> bool {
        let terms = self.policy.load();
        (terms.as_ref()).is_some_and(|terms| terms.allows_passthrough())
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        of(&self.policy.load())?.setattr(inner, cx, set)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        of(&self.policy.load())?.file_setattr(inner, cx, set)
    }

    fn host_lock(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        match (self.choose(cx), state) {
            (Ok((layer, caller)), _) => {
                layer.host_lock(inner, &cx.on_behalf_of(&caller), range, state)
            }
            (Err(_), HostLock::Unlocked) => inner.host_lock(cx, range, state),
            (Err(errno), _) => Err(errno),
        }
    }

    forward! { id above }

    forward! { to choose: all but setattr host_lock file_setattr }
}
