//! The extended attributes of a node: permissions and limits (xattr(7)).

use std::collections::BTreeMap;
use std::sync::Arc;

use vfs::{Access, Caller, Errno, Kind, Result, XattrFlags};

use crate::budget::{Budget, Charge};
use crate::meta::Meta;
use crate::perm;

/// File capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// Linux's limits (`include/uapi/linux/limits.h`): a name, a value, a list of names.
const NAME_MAX: usize = 255;
const SIZE_MAX: usize = 65536;
const LIST_MAX: usize = 65536;

/// The memory in bytes of an attribute in addition to its name and value.
const ENTRY: u64 = 128;

/// The extended attributes of a node.
pub(crate) struct Xattrs {
    values: BTreeMap<Box<[u8]>, Box<[u8]>>,
    list_len: usize,
    charge: Charge,
}

impl Xattrs {
    pub(crate) fn new(budget: &Arc<Budget>) -> Result<Xattrs> {
        Ok(Xattrs {
            values: BTreeMap::new(),
            list_len: 0,
            charge: Charge::new(budget, 0)?,
        })
    }

    /// Returns the value of an attribute of the node with `meta`.
    pub(crate) fn get(
        &self,
        meta: &Meta,
        kind: Kind,
        caller: &Caller,
        name: &[u8],
    ) -> Result<Vec<u8>> {
        check(meta, kind, caller, name, Access::READ)?;
        match self.values.get(name) {
            Some(value) => Ok(value.to_vec()),
            None => Err(Errno::ENODATA),
        }
    }

    /// Returns the names of the attributes, each followed by a NUL.
    pub(crate) fn list(&self, caller: &Caller) -> Vec<u8> {
        let mut list = Vec::with_capacity(self.list_len);
        for name in self.values.keys() {
            if perm::is_root(caller) || !name.starts_with(b"trusted.") {
                list.extend_from_slice(name);
                list.push(0);
            }
        }
        list
    }

    pub(crate) fn set(
        &mut self,
        meta: &Meta,
        kind: Kind,
        caller: &Caller,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        if value.len() > SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        check(meta, kind, caller, name, Access::WRITE)?;
        self.insert(name, value, flags)
    }

    pub(crate) fn remove(
        &mut self,
        meta: &Meta,
        kind: Kind,
        caller: &Caller,
        name: &[u8],
    ) -> Result<()> {
        check(meta, kind, caller, name, Access::WRITE)?;
        if self.discard(name) {
            Ok(())
        } else {
            Err(Errno::ENODATA)
        }
    }

    /// Removes file capabilities, as a change of contents or owner does.
    pub(crate) fn drop_capabilities(&mut self) {
        self.discard(CAPABILITY);
    }

    fn insert(&mut self, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let old = self.values.get(name).map(|old| old.len() as u64);
        match old {
            Some(_) if flags.contains(XattrFlags::CREATE) => return Err(Errno::EEXIST),
            None if flags.contains(XattrFlags::REPLACE) => return Err(Errno::ENODATA),
            None if self.list_len + name.len() + 1 > LIST_MAX => return Err(Errno::ENOSPC),
            _ => {}
        }
        self.charge.grow(value.len() as u64)?;
        match old {
            Some(old) => self.charge.shrink(old),
            None => {
                if let Err(errno) = self.charge.grow(ENTRY + name.len() as u64) {
                    self.charge.shrink(value.len() as u64);
                    return Err(errno);
                }
                self.list_len += name.len() + 1;
            }
        }
        self.values.insert(name.into(), value.into());
        Ok(())
    }

    /// Removes an attribute, and returns whether it existed.
    fn discard(&mut self, name: &[u8]) -> bool {
        let Some(value) = self.values.remove(name) else {
            return false;
        };
        self.list_len -= name.len() + 1;
        self.charge
            .shrink(ENTRY + (name.len() + value.len()) as u64);
        true
    }
}

/// Checks whether the caller may read or write the attribute `name`, as Linux's `xattr_permission`
/// and `cap_inode_setxattr` do.
fn check(meta: &Meta, kind: Kind, caller: &Caller, name: &[u8], want: Access) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::ERANGE);
    }
    let writes = want == Access::WRITE;
    let refused = if writes { Errno::EPERM } else { Errno::ENODATA };
    let dot = name.iter().position(|byte| *byte == b'.');
    let (space, rest) = name.split_at(dot.map_or(name.len(), |dot| dot + 1));
    match space {
        b"user." | b"trusted." | b"security." if rest.is_empty() => Err(Errno::EINVAL),
        b"user." if !matches!(kind, Kind::File | Kind::Directory) => Err(refused),
        b"user." => {
            let sticky = kind == Kind::Directory && meta.mode & 0o1000 != 0;
            if writes && sticky && !perm::owns(meta, caller) {
                return Err(Errno::EPERM);
            }
            perm::check(meta, kind, caller, want)
        }
        b"trusted." if !perm::is_root(caller) => Err(refused),
        b"security." if writes && !perm::is_root(caller) => Err(Errno::EPERM),
        b"trusted." | b"security." => Ok(()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
