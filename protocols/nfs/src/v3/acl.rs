//! The NFS_ACL program (100227, version 3), by which clients of v3 read and set POSIX ACLs. No RFC has it: it is Solaris's, and as
//! here it stands in Linux (`fs/nfs_common/nfsacl.c`, `fs/nfsd/nfs3acl.c`).

use vfs::{Access, Acl, AclEntry, Attr, Whose};
use wire::{xdr_enum, xdr_struct};

use super::{Attributes, Handle};

xdr_enum! {
    /// The procedures, with what each takes and answers.
    pub enum AclProcedure {
        /// Nothing.
        Null = 0,
        /// [`GetAclArgs`] to [`GetAclOk`], or attributes.
        GetAcl = 1,
        /// [`SetAclArgs`] to attributes, be it done or not.
        SetAcl = 2,
    }
}

xdr_struct! {
    /// GETACL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GetAclArgs {
        /// Of what.
        pub object: Handle,
        /// Which of [`acl_mask`].
        pub mask: u32,
    }

    /// What GETACL answers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct GetAclOk {
        /// The object's.
        pub attributes: Option<Attributes>,
        /// Which of [`acl_mask`] follow.
        pub mask: u32,
        /// Who may do what with it.
        pub access: AclList,
        /// Who may do what with what is made in it.
        pub default: AclList,
    }

    /// SETACL.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SetAclArgs {
        /// Of what.
        pub object: Handle,
        /// Which of [`acl_mask`] follow.
        pub mask: u32,
        /// Who may do what with it.
        pub access: AclList,
        /// Who may do what with what is made in it.
        pub default: AclList,
    }

    /// An ACL, or how long one is.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct AclList {
        /// How many entries there are; 0 if there is no ACL.
        pub count: u32,
        /// The entries: all of them, or none if only their count is told.
        pub entries: Vec<AclItem>,
    }

    /// An entry of an ACL (`aclent`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AclItem {
        /// Its tag, with [`AclItem::DEFAULT`] in a default ACL.
        pub tag: u32,
        /// Whom it is about: the owner and the owning group are named here as well.
        pub id: u32,
        /// What those may do: the lowest three bits of a mode.
        pub may: u32,
    }
}

/// Which ACLs are asked for, or follow.
pub mod acl_mask {
    /// The ACL itself.
    pub const ACCESS: u32 = 1;
    /// How long it is.
    pub const ACCESS_COUNT: u32 = 2;
    /// A directory's default ACL.
    pub const DEFAULT: u32 = 4;
    /// How long that is.
    pub const DEFAULT_COUNT: u32 = 8;
    /// All of these.
    pub const ALL: u32 = ACCESS | ACCESS_COUNT | DEFAULT | DEFAULT_COUNT;
}

impl AclItem {
    /// Stands beside the tags of a default ACL.
    pub const DEFAULT: u32 = 0x1000;
}

impl AclList {
    /// The most entries of an ACL (`NFS_ACL_MAX_ENTRIES`).
    pub const MOST: usize = 1024;

    /// The ACL of a node with these attributes, and of its entries only how many there are unless they are `told`. An ACL of
    /// three gets a mask: here every ACL has one.
    pub fn new(acl: &Acl, attr: &Attr, told: bool, flag: u32) -> AclList {
        let mut entries: Vec<_> = acl
            .0
            .iter()
            .map(|entry| {
                let (tag, id) = entry.whose.tag();
                AclItem {
                    tag: tag | flag,
                    id: match entry.whose {
                        Whose::Owner => attr.uid,
                        Whose::OwningGroup => attr.gid,
                        _ => id.unwrap_or_default(),
                    },
                    may: entry.may.bits(),
                }
            })
            .collect();
        if let [_, group, _] = entries[..] {
            let mask = AclItem {
                tag: Whose::Mask.tag().0 | flag,
                id: 0,
                ..group
            };
            entries.insert(2, mask);
        }
        AclList {
            count: entries.len() as u32,
            entries: if told { entries } else { Vec::new() },
        }
    }

    /// The ACL, its entries in order; nothing inside if there is none. No answer if that is none: an unknown tag, an unknown
    /// permission, another count than there are entries, or more than [`AclList::MOST`].
    pub fn acl(&self) -> Option<Option<Acl>> {
        if self.count as usize != self.entries.len() || self.entries.len() > AclList::MOST {
            return None;
        }
        let mut entries = Vec::with_capacity(self.entries.len());
        for item in &self.entries {
            let whose = Whose::of_tag(item.tag & !AclItem::DEFAULT, item.id)?;
            let may = match whose {
                // Solaris is said to have further bits there.
                Whose::Mask => Access::from_bits_truncate(item.may),
                _ => Access::from_bits(item.may)?,
            };
            entries.push(AclEntry { whose, may });
        }
        entries.sort_by_key(|entry| entry.whose);
        // The mask that an ACL of three gets on its way.
        if let [_, group, mask, _] = entries[..]
            && (group.whose, mask.whose) == (Whose::OwningGroup, Whose::Mask)
            && group.may == mask.may
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
        AclItem { tag, id, may }
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
        let whose: Vec<_> = acl.0.iter().map(|entry| entry.whose).collect();
        let want = [
            Whose::Owner,
            Whose::User(8),
            Whose::User(9),
            Whose::OwningGroup,
            Whose::Group(7),
            Whose::Mask,
            Whose::Others,
        ];
        assert_eq!(whose, want);
        assert_eq!(acl.0[5].may, Access::all());
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
