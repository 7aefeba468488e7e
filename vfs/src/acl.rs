//! POSIX ACLs (acl(5)) and the extended attributes that store them, [`ACCESS`] and [`DEFAULT`].

use crate::{Access, Errno, Result};

/// The extended attribute of the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";

/// The extended attribute of a directory's default ACL, which new children inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Returns whether an extended attribute of this name is an ACL.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// The subject of an ACL entry, in the order in which entries are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum AclSubject {
    Owner,
    /// A user, by number.
    User(u32),
    OwningGroup,
    /// A group, by number.
    Group(u32),
    /// The upper bound on the permissions of users, owning group and groups. Present if there are
    /// users or groups.
    Mask,
    Others,
}

/// An entry of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// The subject of the entry.
    pub subject: AclSubject,
    /// The permissions of the subject.
    pub permissions: Access,
}

/// An ACL. The source checks that the entries are consistent when the ACL is set: `EINVAL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(pub Vec<AclEntry>);

/// The version in the header (`POSIX_ACL_XATTR_VERSION`).
const VERSION: u32 = 2;

/// The id of an entry without a user or group id (`ACL_UNDEFINED_ID`).
const NO_ID: u32 = u32::MAX;

impl Acl {
    /// Creates the ACL that is equivalent to a mode's lowest nine bits.
    pub fn of_mode(mode: u32) -> Acl {
        let entry = |whose, shift: u32| AclEntry {
            subject: whose,
            permissions: Access::from_bits_truncate(mode >> shift),
        };
        Acl(vec![
            entry(AclSubject::Owner, 6),
            entry(AclSubject::OwningGroup, 3),
            entry(AclSubject::Others, 0),
        ])
    }

    /// Parses an attribute's value (`include/uapi/linux/posix_acl_xattr.h`): 4 bytes of version,
    /// then entries of 2 bytes tag, 2 bytes permissions and 4 bytes id, all little-endian. Returns
    /// `EINVAL` if the value is malformed.
    pub fn read(value: &[u8]) -> Result<Acl> {
        let (version, entries) = value.split_first_chunk().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
            return Err(Errno::EINVAL);
        }
        let entries = entries.chunks_exact(8).map(|entry| {
            let word = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let id = u32::from(word(6)) << 16 | u32::from(word(4));
            let whose = AclSubject::of_tag(word(0).into(), id).ok_or(Errno::EINVAL)?;
            let may = Access::from_bits(word(2).into()).ok_or(Errno::EINVAL)?;
            Ok(AclEntry {
                subject: whose,
                permissions: may,
            })
        });
        Ok(Acl(entries.collect::<Result<_>>()?))
    }

    /// Encodes the attribute's value.
    pub fn value(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(4 + 8 * self.0.len());
        value.extend(VERSION.to_le_bytes());
        for entry in &self.0 {
            let (tag, id) = entry.subject.tag();
            value.extend((tag as u16).to_le_bytes());
            value.extend((entry.permissions.bits() as u16).to_le_bytes());
            value.extend(id.unwrap_or(NO_ID).to_le_bytes());
        }
        value
    }
}

impl AclSubject {
    /// Returns the subject of an entry with this tag (`include/uapi/linux/posix_acl.h`), with `id`
    /// if that is a user or a group; `None` for an unknown tag.
    pub const fn of_tag(tag: u32, id: u32) -> Option<AclSubject> {
        Some(match tag {
            0x01 => AclSubject::Owner,
            0x02 => AclSubject::User(id),
            0x04 => AclSubject::OwningGroup,
            0x08 => AclSubject::Group(id),
            0x10 => AclSubject::Mask,
            0x20 => AclSubject::Others,
            _ => return None,
        })
    }

    /// Returns the tag, and the user's or group's id.
    pub const fn tag(self) -> (u32, Option<u32>) {
        match self {
            AclSubject::Owner => (0x01, None),
            AclSubject::User(id) => (0x02, Some(id)),
            AclSubject::OwningGroup => (0x04, None),
            AclSubject::Group(id) => (0x08, Some(id)),
            AclSubject::Mask => (0x10, None),
            AclSubject::Others => (0x20, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acl_is_read_as_it_is_written() {
        let entry = |whose, may| AclEntry {
            subject: whose,
            permissions: may,
        };
        let acl = Acl(vec![
            entry(AclSubject::Owner, Access::all()),
            entry(AclSubject::User(0x0102_0304), Access::READ),
            entry(AclSubject::OwningGroup, Access::empty()),
            entry(AclSubject::Group(7), Access::WRITE),
            entry(AclSubject::Mask, Access::READ | Access::EXEC),
            entry(AclSubject::Others, Access::EXEC),
        ]);
        let value = acl.value();
        let want = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x04\0\x04\x03\x02\x01";
        assert_eq!(value[..want.len()], want[..]);
        assert_eq!(Acl::read(&value), Ok(acl));
        for len in (0..value.len()).filter(|len| len % 8 != 4) {
            assert_eq!(Acl::read(&value[..len]), Err(Errno::EINVAL), "{len} bytes");
        }
        for (at, byte) in [(0, 3), (4, 3), (6, 8)] {
            let mut value = value.clone();
            value[at] = byte;
            assert_eq!(Acl::read(&value), Err(Errno::EINVAL), "{byte} at {at}");
        }
    }

    #[test]
    fn a_mode_is_an_acl_of_three() {
        let may: Vec<_> = Acl::of_mode(0o4751)
            .0
            .iter()
            .map(|e| e.permissions)
            .collect();
        assert_eq!(
            may,
            [Access::all(), Access::READ | Access::EXEC, Access::EXEC]
        );
    }
}
