//! Access control that may change, or end, while a tree is served.
//!
//! Equivalent to [`Squash`], [`ReadOnly`] and [`Clients`] in this order, with terms that are
//! replaced as a whole. New terms apply to all later operations, also on files that are open
//! already. Once the gate is closed, every operation returns `ESTALE`, except for releasing locks.
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

use crate::{Clients, Layer, Noop, Opened, ReadOnly, Squash, forward};

/// The layer.
pub struct Gate {
    /// `None`: it is closed.
    policy: ArcSwapOption<AccessPolicy>,
}

/// The terms of access to a tree.
#[derive(Clone, Debug)]
pub struct AccessPolicy {
    /// The users to make anonymous.
    pub squash: Squash,
    /// Whether all changes are refused.
    pub read_only: bool,
    /// The admitted clients; all, if there is no list.
    pub clients: Option<Arc<Clients>>,
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
        // The choices that connections cache belong to the list.
        if let (Some(old), Some(new)) = (
            now.as_ref().and_then(|now| now.clients.as_ref()),
            &terms.clients,
        ) && old.entries() == new.entries()
        {
            terms.clients = Some(old.clone());
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
        let (layer, caller) = match &self.clients {
            Some(clients) => clients.choose(cx)?,
            None => (&Noop as &dyn Layer, Cow::Borrowed(cx.caller)),
        };
        let layer = if self.read_only { &ReadOnly } else { layer };
        Ok((layer, self.squash.of(cx, caller)))
    }

    /// Maps the owners in a request.
    fn request(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<SetAttr> {
        let set = match &self.clients {
            Some(clients) => clients.request(cx, set)?,
            None => *set,
        };
        Ok(self.squash.request(&set))
    }
}

impl Layer for Gate {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let Some(terms) = self.policy.load_full() else {
            return inner;
        };
        let inner = match terms.read_only {
            true => ReadOnly.capabilities(inner),
            false => inner,
        };
        match &terms.clients {
            Some(clients) => clients.capabilities(inner),
            None => inner,
        }
    }

    /// A backing file that was passed to the host stays usable there, whatever the terms are later.
    fn allows_passthrough(&self) -> bool {
        let terms = self.policy.load();
        (terms.as_ref()).is_some_and(|terms| !terms.read_only && terms.clients.is_none())
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let terms = self.policy.load();
        let terms = of(&terms)?;
        let (layer, caller) = terms.choose(cx)?;
        layer.setattr(inner, &cx.on_behalf_of(&caller), &terms.request(cx, set)?)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let terms = self.policy.load();
        let terms = of(&terms)?;
        let (layer, caller) = terms.choose(cx)?;
        layer.file_setattr(inner, &cx.on_behalf_of(&caller), &terms.request(cx, set)?)
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

    forward! { to choose:
        root resolve sync
        handle attr access statfs open readlink lookup parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr host_lock_holder
        file_attr read write readdir fsync flush allocate seek extents copy lease
    }
}
