//! Shows everything as somebody's, whoever it belongs to: `uid=` and `gid=` of a mount (mount.fuse(8)).
//!
//! Callers act as themselves, so what they may do is the source's to say, who knows the owners. Giving a file to whom it is shown
//! to belong changes nothing; to somebody else: `EPERM`. The ids in POSIX ACLs are left alone.

use std::sync::Arc;

use vfs::{
    Attr, Capabilities, Cx, DirEntry, DirSink, Entry, Errno, File, Make, Mode, Name, Node,
    OpenFlags, Plus, Result, SetAttr, Want,
};

use crate::{Layer, Opened, forward};

/// The layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Whose; without it, whose it is.
    pub uid: Option<u32>,
    /// Which group's; likewise.
    pub gid: Option<u32>,
}

impl Owned {
    fn attr_out(&self, attr: Attr) -> Attr {
        Attr {
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            ..attr
        }
    }

    fn entry_out(&self, entry: Entry) -> Entry {
        Entry {
            attr: self.attr_out(entry.attr),
            ..entry
        }
    }

    /// What is left to be asked for.
    fn request(&self, set: &SetAttr) -> Result<SetAttr> {
        let asked = |asked: Option<u32>, shown: Option<u32>| match shown {
            None => Ok(asked),
            Some(shown) if asked.is_none_or(|asked| asked == shown) => Ok(None),
            Some(_) => Err(Errno::EPERM),
        };
        Ok(SetAttr {
            uid: asked(set.uid, self.uid)?,
            gid: asked(set.gid, self.gid)?,
            ..*set
        })
    }
}

impl Layer for Owned {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn leaves_contents(&self) -> bool {
        true
    }

    fn attr(&self, inner: &dyn Node, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        Ok(self.attr_out(inner.attr(cx, want)?))
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        Ok(self.attr_out(inner.setattr(cx, &self.request(set)?)?))
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        Ok(self.entry_out(inner.lookup(cx, name)?))
    }

    fn parent(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Entry> {
        Ok(self.entry_out(inner.parent(cx)?))
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let (entry, file) = inner.create(cx, name, flags, mode)?;
        Ok((self.entry_out(entry), file))
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: Make<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        Ok(self.entry_out(inner.make(cx, name, what, mode)?))
    }

    fn tmpfile(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let (entry, file) = inner.tmpfile(cx, flags, mode)?;
        Ok((self.entry_out(entry), file))
    }

    fn link(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &dyn Node,
    ) -> Result<Entry> {
        Ok(self.entry_out(inner.link(cx, name, target)?))
    }

    fn file_attr(&self, inner: Opened<'_>, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        Ok(self.attr_out(inner.attr(cx, want)?))
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        Ok(self.attr_out(inner.setattr(cx, &self.request(set)?)?))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        inner.readdir(cx, cookie, plus, &mut Showing { owned: self, sink })
    }

    forward! {
        id above
        root resolve sync
        handle access statfs open readlink unlink rename xattr xattrs set_xattr remove_xattr host_lock
        host_lock_holder
        read write fsync flush allocate seek extents copy lease
    }
}

/// Entries as they are shown.
struct Showing<'a> {
    owned: &'a Owned,
    sink: &'a mut dyn DirSink,
}

impl DirSink for Showing<'_> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        self.sink.entry(DirEntry {
            entry: entry.entry.map(|entry| self.owned.entry_out(entry)),
            ..entry
        })
    }

    fn room(&self, name: usize) -> usize {
        self.sink.room(name)
    }
}
