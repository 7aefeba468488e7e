//! Shows a fixed owner and group for all files: `uid=` and `gid=` of a mount (mount.fuse(8)).
//!
//! Callers act as themselves: the source decides about permissions by the real owners. Changing the
//! owner to the one shown does nothing; to another one, `EPERM`. The ids in POSIX ACLs are left
//! unchanged.

use vfs::{Attr, Cx, DirSink, Entry, Errno, Node, ReaddirMode, RelaySink, Result, SetAttr};

use crate::{Layer, Opened, WithAttr, forward};

/// The layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerOverride {
    /// The owner to show; `None` shows the real one.
    pub uid: Option<u32>,
    /// The group to show; `None` shows the real one.
    pub gid: Option<u32>,
}

impl OwnerOverride {
    fn attr_out(&self, attr: Attr) -> Attr {
        Attr {
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            ..attr
        }
    }

    /// Runs an operation, and replaces the owners in its value.
    fn with_owners<T: WithAttr>(
        &self,
        cx: &Cx<'_>,
        run: impl FnOnce(&Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        Ok(run(cx)?.map_attr(|attr| self.attr_out(attr)))
    }

    /// Returns the changes to request from the source. Returns `EPERM` for an owner other than the
    /// one shown.
    fn request(&self, set: &SetAttr) -> Result<SetAttr> {
        let change = |requested: Option<u32>, shown: Option<u32>| match shown {
            None => Ok(requested),
            Some(shown) if requested.is_none_or(|requested| requested == shown) => Ok(None),
            Some(_) => Err(Errno::EPERM),
        };
        Ok(SetAttr {
            uid: change(set.uid, self.uid)?,
            gid: change(set.gid, self.gid)?,
            ..*set
        })
    }
}

impl Layer for OwnerOverride {
    fn allows_passthrough(&self) -> bool {
        true
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        Ok(self.attr_out(inner.setattr(cx, &self.request(set)?)?))
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        Ok(self.attr_out(inner.setattr(cx, &self.request(set)?)?))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let shown = |entry: Entry| entry.map_attr(|attr| self.attr_out(attr));
        let mut showing = RelaySink::new(sink, |sink, entry| sink.entry(entry.map_entry(shown)));
        inner.readdir(cx, cookie, plus, &mut showing)
    }

    forward! { showing with_owners: attr lookup parent create make tmpfile link file_attr }

    forward! {
        capabilities id above
        root resolve sync
        handle access statfs open readlink unlink rename xattr xattrs set_xattr remove_xattr host_lock
        host_lock_holder
        read write fsync flush allocate seek extents copy lease
    }
}
