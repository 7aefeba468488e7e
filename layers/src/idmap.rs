//! Clients know other ids than the host: callers and requests are mapped on their way in, owners on
//! their way out, by ranges, as idmapped mounts of Linux do (`Documentation/filesystems/
//! idmappings.rst`).
//!
//! An owner that no range has is shown as [`NOBODY`]. A caller whom no range has acts as
//! [`NOBODY`], and can make nothing: `EOVERFLOW`. Nor can anything be given to an id that no range
//! has. The ids in POSIX ACLs are mapped, too; the root id in file capabilities (`security.
//! capability`, version 3) is not.

use std::str::FromStr;
use std::sync::Arc;

use vfs::{
    Attr, Caller, Capabilities, Cx, DirEntry, DirSink, Entry, Errno, File, Groups, Make, Mode,
    Name, Node, OpenFlags, Plus, Result, SetAttr, Want, XattrFlags,
};

use crate::squash::NOBODY;
use crate::{BadMap, Layer, Opened, existing, forward};

/// `count` ids from `client` on are those from `host` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct IdRange {
    pub client: u32,
    pub host: u32,
    pub count: u32,
}

/// Ranges that do not overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMap(Vec<IdRange>);

impl FromStr for IdRange {
    type Err = BadMap;

    /// `CLIENT:HOST:COUNT`.
    fn from_str(text: &str) -> std::result::Result<IdRange, BadMap> {
        let bad = || BadMap(format!("expected CLIENT:HOST:COUNT, got {text:?}"));
        let mut numbers = text.split(':').map(str::parse);
        let mut number = || {
            numbers
                .next()
                .and_then(|number| number.ok())
                .ok_or_else(bad)
        };
        let range = IdRange {
            client: number()?,
            host: number()?,
            count: number()?,
        };
        if numbers.next().is_some() {
            return Err(bad());
        }
        Ok(range)
    }
}

impl IdMap {
    /// Every id is itself.
    pub fn identity() -> IdMap {
        IdMap(vec![IdRange {
            client: 0,
            host: 0,
            count: u32::MAX,
        }])
    }

    /// These ranges: each of at least one id, all below 2^32 - 1 (which is no id), none in two.
    pub fn new(ranges: Vec<IdRange>) -> std::result::Result<IdMap, BadMap> {
        for (i, range) in ranges.iter().enumerate() {
            let IdRange {
                client,
                host,
                count,
            } = *range;
            let end = client.max(host).checked_add(count);
            if count == 0 || end.is_none() {
                return Err(BadMap(format!(
                    "expected at least one id, below 4294967295, got {client}:{host}:{count}"
                )));
            }
            let overlaps = |a: u32, b: u32, count_b: u32| a < b + count_b && b < a + count;
            for other in &ranges[..i] {
                if overlaps(client, other.client, other.count)
                    || overlaps(host, other.host, other.count)
                {
                    return Err(BadMap(format!(
                        "expected ranges that do not overlap, got {client}:{host}:{count} and \
                         {}:{}:{}",
                        other.client, other.host, other.count
                    )));
                }
            }
        }
        Ok(IdMap(ranges))
    }

    fn to_host(&self, id: u32) -> Option<u32> {
        self.0
            .iter()
            .find(|range| id.wrapping_sub(range.client) < range.count)
            .map(|range| range.host + (id - range.client))
    }

    fn to_client(&self, id: u32) -> Option<u32> {
        self.0
            .iter()
            .find(|range| id.wrapping_sub(range.host) < range.count)
            .map(|range| range.client + (id - range.host))
    }
}

/// The layer.
#[derive(Clone, Debug)]
pub struct MapIds {
    /// Of users.
    pub uids: IdMap,
    /// Of groups.
    pub gids: IdMap,
}

impl MapIds {
    fn caller(&self, caller: &Caller) -> Caller {
        let group = |gid: &u32| self.gids.to_host(*gid);
        Caller {
            uid: self.uids.to_host(caller.uid).unwrap_or(NOBODY),
            gid: self.gids.to_host(caller.gid).unwrap_or(NOBODY),
            groups: match &caller.groups {
                Groups::Unknown => Groups::Unknown,
                Groups::Known(groups) => Groups::Known(groups.iter().filter_map(group).collect()),
            },
        }
    }

    /// Whether what `caller` makes could say whose it is.
    fn may_make(&self, caller: &Caller) -> bool {
        self.uids.to_host(caller.uid).is_some() && self.gids.to_host(caller.gid).is_some()
    }

    fn request(&self, set: &SetAttr) -> Result<SetAttr> {
        let map = |map: &IdMap, id: Option<u32>| match id {
            None => Ok(None),
            Some(id) => map.to_host(id).map(Some).ok_or(Errno::EOVERFLOW),
        };
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

    fn entry_out(&self, entry: Entry) -> Entry {
        Entry {
            attr: self.attr_out(entry.attr),
            ..entry
        }
    }

    fn both_out(&self, (entry, file): (Entry, Arc<dyn File>)) -> (Entry, Arc<dyn File>) {
        (self.entry_out(entry), file)
    }
}

impl Layer for MapIds {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn attr(&self, inner: &dyn Node, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        let who = self.caller(cx.caller);
        Ok(self.attr_out(inner.attr(&cx.on_behalf_of(&who), want)?))
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let who = self.caller(cx.caller);
        let set = self.request(set)?;
        Ok(self.attr_out(inner.setattr(&cx.on_behalf_of(&who), &set)?))
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let who = self.caller(cx.caller);
        Ok(self.entry_out(inner.lookup(&cx.on_behalf_of(&who), name)?))
    }

    fn parent(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Entry> {
        let who = self.caller(cx.caller);
        Ok(self.entry_out(inner.parent(&cx.on_behalf_of(&who))?))
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let who = self.caller(cx.caller);
        let inside = cx.on_behalf_of(&who);
        let opened = if self.may_make(cx.caller) {
            inner.create(&inside, name, flags, mode)?
        } else {
            let entry = existing::find(inner, &inside, name, flags, Errno::EOVERFLOW)?;
            let file = entry.node.open(&inside, flags)?;
            (entry, file)
        };
        Ok(self.both_out(opened))
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: Make<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        let who = self.caller(cx.caller);
        let inside = cx.on_behalf_of(&who);
        if !self.may_make(cx.caller) {
            return Err(existing::refuse(inner, &inside, name, Errno::EOVERFLOW));
        }
        Ok(self.entry_out(inner.make(&inside, name, what, mode)?))
    }

    fn tmpfile(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        if !self.may_make(cx.caller) {
            return Err(Errno::EOVERFLOW);
        }
        let who = self.caller(cx.caller);
        Ok(self.both_out(inner.tmpfile(&cx.on_behalf_of(&who), flags, mode)?))
    }

    fn link(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &dyn Node,
    ) -> Result<Entry> {
        let who = self.caller(cx.caller);
        Ok(self.entry_out(inner.link(&cx.on_behalf_of(&who), name, target)?))
    }

    fn xattr(&self, inner: &dyn Node, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let who = self.caller(cx.caller);
        let mut value = inner.xattr(&cx.on_behalf_of(&who), name)?;
        if is_acl(name) {
            map_acl(
                &mut value,
                |uid| Ok(self.uids.to_client(uid).unwrap_or(NOBODY)),
                |gid| Ok(self.gids.to_client(gid).unwrap_or(NOBODY)),
            )?;
        }
        Ok(value)
    }

    fn set_xattr(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let who = self.caller(cx.caller);
        let inside = cx.on_behalf_of(&who);
        if !is_acl(name) {
            return inner.set_xattr(&inside, name, value, flags);
        }
        let mut value = value.to_vec();
        map_acl(
            &mut value,
            |uid| self.uids.to_host(uid).ok_or(Errno::EOVERFLOW),
            |gid| self.gids.to_host(gid).ok_or(Errno::EOVERFLOW),
        )?;
        inner.set_xattr(&inside, name, &value, flags)
    }

    fn file_attr(&self, inner: Opened<'_>, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        let who = self.caller(cx.caller);
        Ok(self.attr_out(inner.attr(&cx.on_behalf_of(&who), want)?))
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let who = self.caller(cx.caller);
        let set = self.request(set)?;
        Ok(self.attr_out(inner.setattr(&cx.on_behalf_of(&who), &set)?))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let who = self.caller(cx.caller);
        let mut mapping = Mapping { sink, map: self };
        inner.readdir(&cx.on_behalf_of(&who), cookie, plus, &mut mapping)
    }

    forward! { by caller:
        root resolve sync
        handle access statfs open readlink unlink rename xattrs remove_xattr host_lock
        host_lock_holder
        read write fsync flush allocate seek extents copy
    }
}

/// Maps the owners that come with entries.
struct Mapping<'a> {
    sink: &'a mut dyn DirSink,
    map: &'a MapIds,
}

impl DirSink for Mapping<'_> {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        self.sink.entry(DirEntry {
            entry: entry.entry.map(|entry| self.map.entry_out(entry)),
            ..entry
        })
    }
}

fn is_acl(name: &[u8]) -> bool {
    matches!(
        name,
        b"system.posix_acl_access" | b"system.posix_acl_default"
    )
}

/// Maps the ids of named users and groups in a POSIX ACL (`include/uapi/linux/
/// posix_acl_xattr.h`): 4 bytes of version, then entries of 2 bytes tag, 2 bytes permissions and 4
/// bytes id, all little-endian. `EINVAL` for what is none.
fn map_acl(
    acl: &mut [u8],
    uid: impl Fn(u32) -> Result<u32>,
    gid: impl Fn(u32) -> Result<u32>,
) -> Result<()> {
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    let entries = acl.get_mut(4..).ok_or(Errno::EINVAL)?;
    if entries.len() % 8 != 0 {
        return Err(Errno::EINVAL);
    }
    for entry in entries.chunks_exact_mut(8) {
        let (tag, id) = entry.split_at_mut(4);
        let id: &mut [u8; 4] = id.try_into().expect("half of eight bytes");
        let old = u32::from_le_bytes(*id);
        let new = match u16::from_le_bytes([tag[0], tag[1]]) {
            USER => uid(old)?,
            GROUP => gid(old)?,
            _ => continue,
        };
        *id = new.to_le_bytes();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> std::result::Result<IdRange, String> {
        text.parse().map_err(|bad: BadMap| bad.to_string())
    }

    #[test]
    fn a_range_is_three_numbers() {
        let range = IdRange {
            client: 0,
            host: 100_000,
            count: 65_536,
        };
        assert_eq!(parse("0:100000:65536"), Ok(range));
        for text in ["", "1:2", "1:2:3:4", "a:b:c", "1:2:-3", "1:2:4294967296"] {
            let told = parse(text).expect_err("no range");
            assert_eq!(told, format!("expected CLIENT:HOST:COUNT, got {text:?}"));
        }
    }

    #[test]
    fn ranges_do_not_overlap_or_overflow() {
        let map = |texts: &[&str]| {
            IdMap::new(
                texts
                    .iter()
                    .map(|text| parse(text).expect("a range"))
                    .collect(),
            )
        };
        assert!(map(&["0:0:1", "1:100001:65535"]).is_ok());
        assert!(map(&["0:0:4294967295"]).is_ok());
        for bad in [
            &["0:0:0"][..],
            &["1:0:4294967295"],
            &["0:1:4294967295"],
            &["0:0:10", "9:100:1"],
            &["0:0:10", "100:9:1"],
        ] {
            assert!(map(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_outside_all_ranges_have_no_image() {
        let map = IdMap::new(vec![parse("10:1000:5").expect("a range")]).expect("a map");
        assert_eq!(map.to_host(10), Some(1000));
        assert_eq!(map.to_host(14), Some(1004));
        assert_eq!((map.to_host(9), map.to_host(15)), (None, None));
        assert_eq!(map.to_client(1004), Some(14));
        assert_eq!((map.to_client(999), map.to_client(1005)), (None, None));
        assert_eq!(IdMap::identity().to_host(u32::MAX), None, "no id at all");
    }

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
            for (tag, id) in [(1, u32::MAX), (2, uid), (4, u32::MAX), (8, gid), (32, 7)] {
                acl.extend(entry(tag, id));
            }
            acl
        };
        let mut mapped = acl(5, 6);
        assert_eq!(
            map_acl(&mut mapped, |uid| Ok(uid + 100), |gid| Ok(gid + 200)),
            Ok(())
        );
        assert_eq!(mapped, acl(105, 206));
        for len in [0, 3, 5, 11] {
            let answer = map_acl(&mut vec![0; len], Ok, Ok);
            assert_eq!(answer, Err(Errno::EINVAL), "{len} bytes");
        }
    }
}
