//! Who is let in, as whom and to do what, where that may change while it is served, and may end.
//!
//! It is what [`Squash`], [`ReadOnly`] and [`Clients`] in this order would make of a tree, by terms that are replaced as a whole. New
//! terms hold for whatever is asked from then on, of files that are open too. Behind a gate that is closed everything answers `ESTALE`,
//! but for locks that are given back.
//!
//! What it lacks on purpose: terms that change what nodes are known by (ids, names of attributes). Who changes those makes another tree.
//!
//! Lock order: none. Terms are read without a lock.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use vfs::lock::{HostLock, LockRange};
use vfs::{Attr, Caller, Capabilities, Cx, Errno, Node, Result, SetAttr};

use crate::{Clients, Layer, Opened, ReadOnly, Squash, Through, forward};

/// The layer.
pub struct Gate {
    /// Nothing: it is closed.
    terms: ArcSwapOption<Terms>,
}

/// On which terms something is served.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Whom callers become.
    pub squash: Squash,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Who is let in; everybody, if there is no list.
    pub clients: Option<Arc<Clients>>,
}

impl Gate {
    /// A gate that is open on these terms.
    pub fn new(terms: Terms) -> Gate {
        Gate {
            terms: ArcSwapOption::from_pointee(terms),
        }
    }

    /// Opens it on other terms, from the next operation on. Those under way end as they have begun.
    pub fn set(&self, mut terms: Terms) {
        let now = self.terms.load();
        // The choices that connections keep are the list's.
        if let (Some(old), Some(new)) = (
            now.as_ref().and_then(|now| now.clients.as_ref()),
            &terms.clients,
        ) && old.entries() == new.entries()
        {
            terms.clients = Some(old.clone());
        }
        self.terms.store(Some(Arc::new(terms)));
    }

    /// Closes it, from the next operation on.
    pub fn close(&self) {
        self.terms.store(None);
    }

    fn choose<'a>(&self, cx: &Cx<'a>) -> Result<(&'static dyn Layer, Cow<'a, Caller>)> {
        of(&self.terms.load())?.choose(cx)
    }
}

fn of(terms: &Option<Arc<Terms>>) -> Result<&Terms> {
    terms.as_deref().ok_or(Errno::ESTALE)
}

impl Terms {
    fn choose<'a>(&self, cx: &Cx<'a>) -> Result<(&'static dyn Layer, Cow<'a, Caller>)> {
        let (layer, who) = match &self.clients {
            Some(clients) => clients.choose(cx)?,
            None => (&Through as &dyn Layer, Cow::Borrowed(cx.caller)),
        };
        let layer = if self.read_only { &ReadOnly } else { layer };
        Ok((layer, self.squash.of(cx, who)))
    }

    /// The owners that a request asks for.
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
        let Some(terms) = self.terms.load_full() else {
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

    /// Who has a file by then keeps it, whatever the terms are later.
    fn leaves_contents(&self) -> bool {
        let terms = self.terms.load();
        (terms.as_ref()).is_some_and(|terms| !terms.read_only && terms.clients.is_none())
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let terms = self.terms.load();
        let terms = of(&terms)?;
        let (layer, who) = terms.choose(cx)?;
        layer.setattr(inner, &cx.on_behalf_of(&who), &terms.request(cx, set)?)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let terms = self.terms.load();
        let terms = of(&terms)?;
        let (layer, who) = terms.choose(cx)?;
        layer.file_setattr(inner, &cx.on_behalf_of(&who), &terms.request(cx, set)?)
    }

    fn host_lock(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        match (self.choose(cx), state) {
            (Ok((layer, who)), _) => layer.host_lock(inner, &cx.on_behalf_of(&who), range, state),
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
