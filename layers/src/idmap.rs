//! Maps user and group ids between clients and the host: those of callers and requests on the way
//! in, those of owners on the way out, by ranges, as idmapped mounts of Linux do
//! (`Documentation/filesystems/idmappings.rst`), or by rules for each direction, as virtiofsd does.
//!
//! An owner outside all ranges is shown as [`NOBODY`]. A caller outside all ranges acts as
//! [`NOBODY`], and gets `EOVERFLOW` when it creates a file; so does a change of the owner to an id
//! outside all ranges. Ids that a rule forbids are treated alike, but with `EPERM`. The ids in
//! POSIX ACLs are mapped, too; the root id in file capabilities (`security.capability`, version 3)
//! is not.

use std::sync::Arc;

use vfs::acl::is_acl;
use vfs::{
    Acl, AclSubject, Attr, Caller, Cx, DirSink, Entry, File, Groups, Mode, Name, NewNode, Node,
    OpenFlags, ReaddirMode, RelaySink, Result, SetAttr, XattrFlags,
};

use crate::squash::NOBODY;
use crate::{Layer, Opened, WithAttr, forward, refuse_create};

mod map;

pub use self::map::{IdMap, IdRange, Translation};

/// The layer.
#[derive(Clone, Debug)]
pub struct MapIds {
    /// The map of user ids.
    pub uids: IdMap,
    /// The map of group ids.
    pub gids: IdMap,
}

impl MapIds {
    fn caller(&self, cx: &Cx<'_>) -> Caller {
        let caller = cx.caller;
        if cx.call.is_internal() {
            return caller.clone();
        }
        let group = |gid: &u32| self.gids.to_host(*gid);
        Caller {
            uid: self.uids.to_host(caller.uid).unwrap_or(NOBODY),
            gid: self.gids.to_host(caller.gid).unwrap_or(NOBODY),
            groups: match &caller.groups {
                Groups::Unknown => Groups::Unknown,
                Groups::Known(groups) => Groups::Known(groups.iter().flat_map(group).collect()),
            },
        }
    }

    /// Returns an error unless the ids of `caller` can own a new file.
    fn check_can_own(&self, caller: &Caller) -> Result<()> {
        self.uids.to_host(caller.uid)?;
        self.gids.to_host(caller.gid).map(drop)
    }

    fn request(&self, set: &SetAttr) -> Result<SetAttr> {
        let map = |map: &IdMap, id: Option<u32>| id.map(|id| map.to_host(id)).transpose();
        Ok(SetAttr {
            uid: map(&self.uids, set.uid)?,
            gid: map(&self.gids, set.gid)?,
            ..*set
        })
    }

    fn attr_out(&self, attr: Attr) -> Attr {
        Attr {
            uid: self.uids.to_client(attr.uid).unwrap_or(NOBODY),
            gid: self.gids.to_client(attr.gid).unwrap_or(NOBODY),
            ..attr
        }
    }

    /// Runs an operation below as the mapped caller, and maps the owners in its value.
    fn mapped<T: WithAttr>(
        &self,
        cx: &Cx<'_>,
        run: impl FnOnce(&Cx<'_>) -> Result<T>,
    ) -> Result<T> {
        let caller = self.caller(cx);
        Ok(run(&cx.on_behalf_of(&caller))?.map_attr(|attr| self.attr_out(attr)))
    }
}

impl Layer for MapIds {
    fn allows_passthrough(&self) -> bool {
        true
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.mapped(cx, |cx| inner.setattr(cx, &self.request(set)?))
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.mapped(cx, |inside| match self.check_can_own(cx.caller) {
            Ok(()) => inner.create(inside, name, flags, mode),
            Err(refused) => {
                let entry = refuse_create::find_existing(inner, inside, name, flags, refused)?;
                let file = entry.node.open(inside, flags)?;
                Ok((entry, file))
            }
        })
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        self.mapped(cx, |inside| match self.check_can_own(cx.caller) {
            Ok(()) => inner.make(inside, name, what, mode),
            Err(refused) => Err(refuse_create::creation_error(inner, inside, name, refused)),
        })
    }

    fn tmpfile(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.check_can_own(cx.caller)?;
        self.mapped(cx, |cx| inner.tmpfile(cx, flags, mode))
    }

    fn xattr(&self, inner: &dyn Node, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let caller = self.caller(cx);
        let value = inner.xattr(&cx.on_behalf_of(&caller), name)?;
        if !is_acl(name) {
            return Ok(value);
        }
        map_acl(
            &value,
            |uid| Ok(self.uids.to_client(uid).unwrap_or(NOBODY)),
            |gid| Ok(self.gids.to_client(gid).unwrap_or(NOBODY)),
        )
    }

    fn set_xattr(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let caller = self.caller(cx);
        let inside = cx.on_behalf_of(&caller);
        if !is_acl(name) {
            return inner.set_xattr(&inside, name, value, flags);
        }
        let value = map_acl(
            value,
            |uid| self.uids.to_host(uid),
            |gid| self.gids.to_host(gid),
        )?;
        inner.set_xattr(&inside, name, &value, flags)
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.mapped(cx, |cx| inner.setattr(cx, &self.request(set)?))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let caller = self.caller(cx);
        let mapped = |entry: Entry| entry.map_attr(|attr| self.attr_out(attr));
        let mut mapping = RelaySink::new(sink, |sink, entry| sink.entry(entry.map_entry(mapped)));
        inner.readdir(&cx.on_behalf_of(&caller), cookie, plus, &mut mapping)
    }

    forward! { capabilities id above }

    forward! { showing mapped: attr lookup parent link file_attr }

    forward! { by caller:
        root resolve sync
        handle access statfs open readlink unlink rename xattrs remove_xattr host_lock
        host_lock_holder
        read write fsync flush allocate seek extents copy lease
    }
}

/// Maps the ids of named users and groups in a POSIX ACL. Returns `EINVAL` if `value` is not an
/// ACL.
fn map_acl(
    value: &[u8],
    uid: impl Fn(u32) -> Result<u32>,
    gid: impl Fn(u32) -> Result<u32>,
) -> Result<Vec<u8>> {
    let mut acl = Acl::read(value)?;
    for entry in &mut acl.0 {
        match &mut entry.subject {
            AclSubject::User(id) => *id = uid(*id)?,
            AclSubject::Group(id) => *id = gid(*id)?,
            AclSubject::Owner | AclSubject::OwningGroup | AclSubject::Mask | AclSubject::Others => {
            }
        }
    }
    Ok(acl.value())
}

#[cfg(test)]
mod tests {
    use vfs::Errno;

    use super::*;

    #[test]
    fn only_named_entries_of_an_acl_are_mapped() {
        let entry = |tag: u16, id: u32| {
            let mut bytes = tag.to_le_bytes().to_vec();
            bytes.extend(6u16.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes
        };
        let acl = |uid, gid| {
            let mut acl = 2u32.to_le_bytes().to_vec();
            for (tag, id) in [
                (1, u32::MAX),
                (2, uid),
                (4, u32::MAX),
                (8, gid),
                (32, u32::MAX),
            ] {
                acl.extend(entry(tag, id));
            }
            acl
        };
        let mapped = map_acl(&acl(5, 6), |uid| Ok(uid + 100), |gid| Ok(gid + 200));
        assert_eq!(mapped, Ok(acl(105, 206)));
        for len in [0, 3, 5, 11] {
            let answer = map_acl(&vec![0; len], Ok, Ok);
            assert_eq!(answer, Err(Errno::EINVAL), "{len} bytes");
        }
    }
}
