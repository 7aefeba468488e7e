//! Conversion between NFSv4 ACLs (RFC 8881 section 6) and POSIX ACLs, as in Linux's server
//! (`fs/nfsd/nfs4acl.c`, after draft-ietf-nfsv4-acl-mapping).
//!
//! A POSIX ACL survives the round trip except for permissions that its mask removes. A v4 ACL loses
//! distinctions finer than read, write and execute; entry types and inheritance flags that POSIX
//! lacks are rejected.

#[cfg(test)]
mod tests;

use vfs::{Access, Acl, AclEntry, AclSubject};

use super::Status;
use super::attr::{Ace, Who};

/// `ACL4_SUPPORT_ALLOW_ACL` and `ACL4_SUPPORT_DENY_ACL`.
pub(crate) const SUPPORT: u32 = 1 | 2;

/// The maximum number of entries accepted: more than fit into the 64 KiB that Linux allows for an
/// ACL.
const MAX_ENTRIES: usize = 4096;

/// The types of entries.
const ALLOW: u32 = 0;
const DENY: u32 = 1;

/// The flags of entries.
mod flag {
    pub(super) const FILE_INHERIT: u32 = 0x01;
    pub(super) const DIRECTORY_INHERIT: u32 = 0x02;
    pub(super) const INHERIT_ONLY: u32 = 0x08;
    /// `who` is a group.
    pub(super) const GROUP: u32 = 0x40;
    /// All inheritance flags that have a POSIX equivalent.
    pub(super) const INHERITED: u32 = FILE_INHERIT | DIRECTORY_INHERIT | INHERIT_ONLY;
}

/// The permission bits of entries.
mod mask {
    pub(super) const READ: u32 = 0x1;
    pub(super) const WRITE: u32 = 0x2 | 0x4;
    pub(super) const EXECUTE: u32 = 0x20;
    pub(super) const DELETE_CHILD: u32 = 0x40;
    /// Always granted: read attributes and ACL, and synchronize.
    pub(super) const ALWAYS: u32 = 0x80 | 0x2_0000 | 0x10_0000;
    /// Also granted to the owner: write attributes and ACL.
    pub(super) const OWNER: u32 = 0x100 | 0x4_0000;
}

const OWNER: Who<'static> = Who::Name(b"OWNER@");
const GROUP: Who<'static> = Who::Name(b"GROUP@");
const EVERYONE: Who<'static> = Who::Name(b"EVERYONE@");

/// A node's ACLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAcls {
    /// The access ACL.
    pub(crate) access: Acl,
    /// The default ACL of a directory, if it has one.
    pub(crate) default: Option<Acl>,
}

impl NodeAcls {
    /// Converts to a v4 ACL.
    pub(crate) fn to_v4(&self, directory: bool) -> Vec<Ace<'static>> {
        let mut aces = Vec::new();
        put_entries(&self.access, 0, directory, &mut aces);
        if let Some(default) = &self.default {
            put_entries(default, flag::INHERITED, directory, &mut aces);
        }
        aces
    }

    /// Converts a v4 ACL. Returns `ATTRNOTSUPP` if it has no POSIX equivalent, `BADOWNER` for users
    /// and groups without numeric ids, and `FBIG` if it has too many entries.
    pub(crate) fn from_v4(aces: &[Ace<'_>], directory: bool) -> Result<NodeAcls, Status> {
        if aces.len() > MAX_ENTRIES {
            return Err(Status::Fbig);
        }
        let (mut access, mut default) = (Collected::default(), Collected::default());
        for ace in aces {
            if !matches!(ace.kind, ALLOW | DENY) || ace.flag & !(flag::INHERITED | flag::GROUP) != 0
            {
                return Err(Status::Attrnotsupp);
            }
            let inherited = ace.flag & flag::INHERITED;
            if inherited != 0 && !directory {
                return Err(Status::Attrnotsupp);
            }
            if inherited != 0 {
                default.take(ace)?;
            }
            if inherited & flag::INHERIT_ONLY == 0 {
                access.take(ace)?;
            }
        }
        // As setfacl(1) completes a default ACL.
        default.complete_from(&access);
        Ok(NodeAcls {
            access: access.acl(directory),
            default: default.mentioned.any().then(|| default.acl(directory)),
        })
    }
}

/// Appends the v4 entries of `acl` to `aces`. If a subject has fewer permissions than later entries
/// grant, the difference is denied first.
fn put_entries(acl: &Acl, flags: u32, directory: bool, aces: &mut Vec<Ace<'static>>) {
    let all = |is: fn(AclSubject) -> bool| {
        let entries = acl.0.iter().filter(move |entry| is(entry.subject));
        entries.fold(Access::empty(), |all, entry| all | entry.permissions)
    };
    let limit = match acl.0.iter().find(|entry| entry.subject == AclSubject::Mask) {
        Some(mask) => mask.permissions,
        None => Access::all(),
    };
    let owner = all(|whose| whose == AclSubject::Owner);
    let users = limit & all(|whose| matches!(whose, AclSubject::User(_)));
    let group = limit & all(|whose| whose == AclSubject::OwningGroup);
    let groups = limit & all(|whose| matches!(whose, AclSubject::Group(_)));
    let others = all(|whose| whose == AclSubject::Others);

    let mut put = |kind, flag, may, always, who| {
        aces.push(Ace {
            kind,
            flag: flags | flag,
            mask: mask_of(may, directory) | always,
            who,
        });
    };
    let deny = |may: Access, later: Access| Some(later - may).filter(|deny| !deny.is_empty());

    if let Some(deny) = deny(owner, users | group | groups | others) {
        put(DENY, 0, deny, 0, OWNER);
    }
    put(ALLOW, 0, owner, mask::ALWAYS | mask::OWNER, OWNER);
    for entry in &acl.0 {
        let AclSubject::User(id) = entry.subject else {
            continue;
        };
        let may = entry.permissions & limit;
        if let Some(deny) = deny(may, group | groups | others) {
            put(DENY, 0, deny, 0, Who::Number(id));
        }
        put(ALLOW, 0, may, mask::ALWAYS, Who::Number(id));
    }
    // A member of several groups has the permissions of any of them: all ALLOW entries of groups
    // precede their DENY entries.
    let of_groups: Vec<_> = acl
        .0
        .iter()
        .filter_map(|entry| match entry.subject {
            AclSubject::OwningGroup => Some((0, GROUP, entry.permissions & limit)),
            AclSubject::Group(id) => {
                Some((flag::GROUP, Who::Number(id), entry.permissions & limit))
            }
            _ => None,
        })
        .collect();
    for &(flag, who, may) in &of_groups {
        put(ALLOW, flag, may, mask::ALWAYS, who);
    }
    for &(flag, who, may) in &of_groups {
        if let Some(deny) = deny(may, others) {
            put(DENY, flag, deny, 0, who);
        }
    }
    put(ALLOW, 0, others, mask::ALWAYS, EVERYONE);
}

fn mask_of(may: Access, directory: bool) -> u32 {
    let bits = [
        (Access::READ, mask::READ),
        (Access::WRITE, write_mask(directory)),
        (Access::EXEC, mask::EXECUTE),
    ];
    let bits = bits.into_iter().filter(|(access, _)| may.contains(*access));
    bits.fold(0, |all, (_, bit)| all | bit)
}

fn access_of(mask: u32, directory: bool) -> Access {
    let bits = [
        (Access::READ, mask::READ),
        (Access::WRITE, write_mask(directory)),
        (Access::EXEC, mask::EXECUTE),
    ];
    let bits = bits.into_iter().filter(|(_, bits)| mask & bits == *bits);
    bits.fold(Access::empty(), |all, (access, _)| all | access)
}

/// Returns the bits of write permission; in a directory they include removing entries.
fn write_mask(directory: bool) -> u32 {
    match directory {
        true => mask::WRITE | mask::DELETE_CHILD,
        false => mask::WRITE,
    }
}

/// The bits that entries have allowed and denied a subject so far: the first entry for a bit
/// decides.
#[derive(Clone, Copy, Debug, Default)]
struct Bits {
    allow: u32,
    deny: u32,
}

impl Bits {
    fn allow(&mut self, mask: u32) {
        self.allow |= mask & !self.deny;
    }

    fn deny(&mut self, mask: u32) {
        self.deny |= mask & !self.allow;
    }
}

/// The subjects that entries have mentioned: the three that every POSIX ACL has, and any named one.
#[derive(Clone, Copy, Debug, Default)]
struct Mentioned {
    owner: bool,
    group: bool,
    others: bool,
    named: bool,
}

impl Mentioned {
    fn any(self) -> bool {
        self.owner || self.group || self.others || self.named
    }
}

/// The bits of all subjects that entries have mentioned.
#[derive(Debug, Default)]
struct Collected {
    owner: Bits,
    users: Vec<(u32, Bits)>,
    group: Bits,
    groups: Vec<(u32, Bits)>,
    others: Bits,
    /// The bits of subjects without entries so far.
    everyone: Bits,
    mentioned: Mentioned,
}

impl Collected {
    /// Adds an entry. An entry that denies bits to a group denies them to all its possible members.
    fn take(&mut self, ace: &Ace<'_>) -> Result<(), Status> {
        let allows = ace.kind == ALLOW;
        let everyone = self.everyone;
        match ace.who {
            OWNER => {
                self.mentioned.owner = true;
                match allows {
                    true => self.owner.allow(ace.mask),
                    false => self.owner.deny(ace.mask),
                }
            }
            GROUP => {
                self.mentioned.group = true;
                match allows {
                    true => self.group.allow(ace.mask),
                    false => {
                        self.group.deny(ace.mask);
                        let denied = self.group.deny;
                        self.deny_members(denied);
                    }
                }
            }
            EVERYONE => {
                self.mentioned.others = true;
                for bits in self.all() {
                    match allows {
                        true => bits.allow(ace.mask),
                        false => bits.deny(ace.mask),
                    }
                }
            }
            Who::Number(id) if ace.flag & flag::GROUP == 0 => {
                self.mentioned.named = true;
                let user = of(&mut self.users, id, everyone);
                match allows {
                    true => user.allow(ace.mask),
                    false => {
                        user.deny(ace.mask);
                        let denied = user.deny;
                        self.owner.deny(denied);
                    }
                }
            }
            Who::Number(id) => {
                self.mentioned.named = true;
                let group = of(&mut self.groups, id, everyone);
                match allows {
                    true => group.allow(ace.mask),
                    false => {
                        group.deny(ace.mask);
                        let denied = group.deny;
                        self.group.deny(denied);
                        self.deny_members(denied);
                    }
                }
            }
            Who::Name(_) => return Err(Status::Badowner),
        }
        Ok(())
    }

    /// Denies `mask` to all subjects that may be members of a group that it was denied to.
    fn deny_members(&mut self, mask: u32) {
        self.owner.deny(mask);
        self.everyone.deny(mask);
        for (_, bits) in self.users.iter_mut().chain(&mut self.groups) {
            bits.deny(mask);
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Bits> {
        let named = self.users.iter_mut().chain(&mut self.groups);
        [
            &mut self.owner,
            &mut self.group,
            &mut self.others,
            &mut self.everyone,
        ]
        .into_iter()
        .chain(named.map(|(_, bits)| bits))
    }

    /// Takes the subjects that have no entries from `other`, unless there are no entries at all.
    fn complete_from(&mut self, other: &Collected) {
        if !self.mentioned.any() {
            return;
        }
        if !self.mentioned.owner {
            self.owner = other.owner;
        }
        if !self.mentioned.group {
            self.group = other.group;
        }
        if !self.mentioned.others {
            self.others = other.others;
        }
    }

    fn acl(mut self, directory: bool) -> Acl {
        let entry = |whose, bits: Bits| AclEntry {
            subject: whose,
            permissions: access_of(bits.allow, directory),
        };
        self.users.sort_unstable_by_key(|(id, _)| *id);
        self.groups.sort_unstable_by_key(|(id, _)| *id);
        let users = self.users.iter();
        let groups = self.groups.iter();
        let mut entries = vec![entry(AclSubject::Owner, self.owner)];
        entries.extend(users.map(|&(id, bits)| entry(AclSubject::User(id), bits)));
        entries.push(entry(AclSubject::OwningGroup, self.group));
        entries.extend(groups.map(|&(id, bits)| entry(AclSubject::Group(id), bits)));
        if !self.users.is_empty() || !self.groups.is_empty() {
            let of_group = entries[1..].iter();
            entries.push(AclEntry {
                subject: AclSubject::Mask,
                permissions: of_group.fold(Access::empty(), |all, entry| all | entry.permissions),
            });
        }
        entries.push(entry(AclSubject::Others, self.others));
        Acl(entries)
    }
}

/// Returns the bits of `id` in `list`, with `bits` as their initial value.
fn of(list: &mut Vec<(u32, Bits)>, id: u32, bits: Bits) -> &mut Bits {
    let at = list.iter().position(|(known, _)| *known == id);
    let at = at.unwrap_or_else(|| {
        list.push((id, bits));
        list.len() - 1
    });
    &mut list[at].1
}
