//! The NFS_ACL program (100227, version 3), with which v3 clients read and set POSIX ACLs. It comes
//! from Solaris and is in no RFC; this implementation follows Linux (`fs/nfs_common/nfsacl.c`,
//! `fs/nfsd/nfs3acl.c`).

use vfs::{Access, Acl, AclEntry, AclSubject, Attr};
use wire::{xdr_enum, xdr_struct};

use super::{Attributes, Handle};

xdr_enum! {
    /// The procedures, with their arguments and results.
    pub enum AclProcedure {
        /// No operation.
        Null = 0,
        /// Takes [`GetAclArgs`], returns [`GetAclOk`]; attributes on failure.
        GetAcl = 1,
        /// Takes [`SetAclArgs`], returns attributes on success and failure.
        SetAcl = 2,
    }
}

xdr_struct! {
    /// The arguments of GETACL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GetAclArgs {
        /// The node's handle.
        pub object: Handle,
        /// The bits of [`acl_mask`] that are requested.
        pub mask: u32,
    }

    /// The results of GETACL.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct GetAclOk {
        /// The node's attributes.
        pub attributes: Option<Attributes>,
        /// The bits of [`acl_mask`] that are present.
        pub mask: u32,
        /// The access ACL.
        pub access: AclList,
        /// The default ACL.
        pub default: AclList,
    }

    /// The arguments of SETACL.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SetAclArgs {
        /// The node's handle.
        pub object: Handle,
        /// The bits of [`acl_mask`] that are present.
        pub mask: u32,
        /// The access ACL.
        pub access: AclList,
        /// The default ACL.
        pub default: AclList,
    }

    /// An ACL, or the number of its entries.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct AclList {
        /// The number of entries; 0 if there is no ACL.
        pub count: u32,
        /// The entries; empty if only their number is reported.
        pub entries: Vec<AclItem>,
    }

    /// An entry of an ACL (`aclent`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AclItem {
        /// The tag, with [`AclItem::DEFAULT`] added in a default ACL.
        pub tag: u32,
        /// The user or group id; also set for the owner and the owning group.
        pub id: u32,
        /// The permissions: the lowest three bits of a mode.
        pub permissions: u32,
    }
}

/// The parts of the ACLs that are requested or present.
pub mod acl_mask {
    /// The access ACL.
    pub const ACCESS: u32 = 1;
    /// The number of its entries.
    pub const ACCESS_COUNT: u32 = 2;
    /// The default ACL of a directory.
    pub const DEFAULT: u32 = 4;
    /// The number of its entries.
    pub const DEFAULT_COUNT: u32 = 8;
    /// All of the above.
    pub const ALL: u32 = ACCESS | ACCESS_COUNT | DEFAULT | DEFAULT_COUNT;
}

impl AclItem {
    /// The flag of tags in a default ACL.
    pub const DEFAULT: u32 = 0x1000;
}

impl AclList {
    /// The maximum number of entries of an ACL (`NFS_ACL_MAX_ENTRIES`).
    pub const MAX_ENTRIES: usize = 1024;

    /// Encodes the ACL of a node with attributes `attr`; only the number of its entries unless
    /// `with_entries`. An ACL of three entries gets a mask, because every ACL in this protocol has
    /// one.
    pub fn new(acl: &Acl, attr: &Attr, with_entries: bool, flag: u32) -> AclList {
        let mut entries: Vec<_> = acl
            .0
            .iter()
            .map(|entry| {
                let (tag, id) = entry.subject.tag();
                AclItem {
                    tag: tag | flag,
                    id: match entry.subject {
                        AclSubject::Owner => attr.uid,
                        AclSubject::OwningGroup => attr.gid,
                        _ => id.unwrap_or_default(),
                    },
                    permissions: entry.permissions.bits(),
                }
            })
            .collect();
        if let [_, group, _] = entries[..] {
            let mask = AclItem {
                tag: AclSubject::Mask.tag().0 | flag,
                id: 0,
                ..group
            };
            entries.insert(2, mask);
        }
        AclList {
            count: entries.len() as u32,
            entries: if with_entries { entries } else { Vec::new() },
        }
    }

    /// Decodes the ACL and sorts its entries; `Some(None)` if there is none. Returns `None` if it
    /// is invalid: an unknown tag, an unknown permission, a count that differs from the number of
    /// entries, or more than [`AclList::MAX_ENTRIES`] entries.
    pub fn acl(&self) -> Option<Option<Acl>> {
        if self.count as usize != self.entries.len() || self.entries.len() > AclList::MAX_ENTRIES {
            return None;
        }
        let mut entries = Vec::with_capacity(self.entries.len());
        for item in &self.entries {
            let whose = AclSubject::of_tag(item.tag & !AclItem::DEFAULT, item.id)?;
            let may = match whose {
                // Solaris may set further bits here.
                AclSubject::Mask => Access::from_bits_truncate(item.permissions),
                _ => Access::from_bits(item.permissions)?,
            };
            entries.push(AclEntry {
                subject: whose,
                permissions: may,
            });
        }
        entries.sort_by_key(|entry| entry.subject);
        // The mask that was added to an ACL of three entries.
        if let [_, group, mask, _] = entries[..]
            && (group.subject, mask.subject) == (AclSubject::OwningGroup, AclSubject::Mask)
            && group.permissions == mask.permissions
        {
            entries.remove(2);
        }
        Some((!entries.is_empty()).then_some(Acl(entries)))
    }
}

#[cfg(test)]
mod tests {
    use vfs::{Device, Kind, Time};

    use super::*;

    const ATTR: Attr = Attr {
        id: 1,
        generation: 0,
        kind: Kind::File,
        mode: 0o640,
        nlink: 1,
        uid: 12,
        gid: 34,
        rdev: Device { major: 0, minor: 0 },
        size: 0,
        blksize: 0,
        blocks: 0,
        atime: Time { sec: 0, nsec: 0 },
        mtime: Time { sec: 0, nsec: 0 },
        ctime: Time { sec: 0, nsec: 0 },
        btime: None,
        change: 0,
        device: 0,
    };

    fn item(tag: u32, id: u32, may: u32) -> AclItem {
        AclItem {
            tag,
            id,
            permissions: may,
        }
    }

    fn list(entries: &[AclItem]) -> AclList {
        AclList {
            count: entries.len() as u32,
            entries: entries.to_vec(),
        }
    }

    #[test]
    fn an_acl_of_three_travels_with_a_mask() {
        let acl = Acl::of_mode(ATTR.mode);
        let sent = AclList::new(&acl, &ATTR, true, 0);
        let four = [(1, 12, 6), (4, 34, 4), (0x10, 0, 4), (0x20, 0, 0)];
        assert_eq!(sent, list(&four.map(|(tag, id, may)| item(tag, id, may))));
        assert_eq!(sent.acl(), Some(Some(acl.clone())));
        let counted = AclList::new(&acl, &ATTR, false, AclItem::DEFAULT);
        assert_eq!((counted.count, counted.entries.len()), (4, 0));
    }

    #[test]
    fn entries_are_put_in_order_and_a_mask_of_its_own_stays() {
        let sent = list(&[
            item(0x1020, 0, 1),
            item(0x1010, 0, 0o77),
            item(0x1008, 7, 5),
            item(0x1002, 9, 4),
            item(0x1002, 8, 6),
            item(0x1004, 34, 4),
            item(0x1001, 12, 7),
        ]);
        let acl = sent.acl().expect("an ACL").expect("entries");
        let whose: Vec<_> = acl.0.iter().map(|entry| entry.subject).collect();
        let want = [
            AclSubject::Owner,
            AclSubject::User(8),
            AclSubject::User(9),
            AclSubject::OwningGroup,
            AclSubject::Group(7),
            AclSubject::Mask,
            AclSubject::Others,
        ];
        assert_eq!(whose, want);
        assert_eq!(acl.0[5].permissions, Access::all());
        let back = AclList::new(&acl, &ATTR, true, AclItem::DEFAULT);
        assert_eq!(back.acl(), Some(Some(acl)));
    }

    #[test]
    fn what_is_no_acl_is_none() {
        assert_eq!(AclList::default().acl(), Some(None));
        let bad = [item(3, 0, 0), item(1, 0, 8), item(0x2001, 0, 0)];
        for item in bad {
            assert_eq!(list(&[item]).acl(), None, "{item:?}");
        }
        let mut short = list(&[item(1, 0, 7)]);
        short.count = 2;
        assert_eq!(short.acl(), None);
        assert_eq!(list(&[item(2, 0, 7); 1025]).acl(), None);
    }
}
