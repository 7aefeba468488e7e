//! GETXATTR, LISTXATTR, SETXATTR, REMOVEXATTR.

use vfs::{AttrMask, Caller, Errno, Node, Result, SetAttr, XattrFlags};

use super::RequestContext;
use super::privileges::CAPABILITY;
use crate::layout::GetxattrOut;
use crate::message::SetxattrIn;
use crate::numbers::{InitFlags, SETXATTR_ACL_KILL_SGID};

/// The longest name (`XATTR_NAME_MAX`).
const MAX_NAME: usize = 255;

/// The largest value (`XATTR_SIZE_MAX`).
const MAX_VALUE: usize = 64 << 10;

/// The prefix of the names of ACLs.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

impl RequestContext<'_> {
    pub(super) fn getxattr(&mut self, name: &[u8], size: u32) -> Result<()> {
        self.check_name(name)?;
        if name == CAPABILITY {
            self.forget_restored();
        }
        let value = match self.node()?.node.xattr(&self.cx, name) {
            // After `ENOSYS` the client would send no more GETXATTR for any file.
            Err(Errno::ENOSYS) => return Err(Errno::EOPNOTSUPP),
            value => value?,
        };
        self.reply_sized(&value, size)
    }

    pub(super) fn listxattr(&mut self, size: u32) -> Result<()> {
        self.check_xattr()?;
        let mut names = self.node()?.node.xattrs(&self.cx)?;
        if !self.negotiated.has(InitFlags::POSIX_ACL) {
            let shown = names.split_inclusive(|&byte| byte == 0);
            names = shown
                .filter(|name| !name.starts_with(ACL_PREFIX))
                .flatten()
                .copied()
                .collect();
        }
        self.reply_sized(&names, size)
    }

    /// Replies with the bytes, or with their number if `size` is 0.
    fn reply_sized(&mut self, bytes: &[u8], size: u32) -> Result<()> {
        if size == 0 {
            let size = bytes.len() as u32;
            return self.reply(&[&GetxattrOut { size }.encode()]);
        }
        if bytes.len() > self.reply_room(size) {
            return Err(Errno::ERANGE);
        }
        self.reply(&[bytes])
    }

    pub(super) fn setxattr(&mut self, args: &SetxattrIn, name: &[u8], value: &[u8]) -> Result<()> {
        self.check_name(name)?;
        let size = args.size as usize;
        if size > MAX_VALUE {
            return Err(Errno::E2BIG);
        }
        let value = value.get(..size).ok_or(Errno::EINVAL)?;
        let flags = XattrFlags::from_bits(args.flags).ok_or(Errno::EINVAL)?;
        let node = self.node()?.node;
        let kill = args.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0;
        if kill {
            // Two changes: an operation that would block must leave neither as a trace.
            self.cx.check_may_block()?;
        }
        match node.set_xattr(&self.cx, name, value, flags) {
            // It was set before the reply was lost.
            Err(Errno::EEXIST)
                if self.attempt.is_some()
                    && node.xattr(&self.cx, name).is_ok_and(|now| now == value) => {}
            set => set?,
        }
        if kill {
            self.kill_set_gid(&*node)?;
        }
        if name == CAPABILITY {
            self.note_restored();
        }
        self.reply(&[])
    }

    fn kill_set_gid(&self, node: &dyn Node) -> Result<()> {
        const SET_GID: u32 = 0o2000;
        let attr = node.attr(&self.cx, AttrMask::BASIC)?;
        if attr.mode & SET_GID == 0 {
            return Ok(());
        }
        let set = SetAttr {
            mode: Some(attr.mode & !SET_GID),
            ..SetAttr::default()
        };
        node.setattr(&self.cx, &set).map(drop)
    }

    /// Removes an attribute. The client's kernel also removes file capabilities when any process
    /// writes to the file; for a program's own removexattr(2) it has checked permissions itself.
    pub(super) fn removexattr(&mut self, name: &[u8]) -> Result<()> {
        self.check_name(name)?;
        if name == CAPABILITY {
            self.forget_restored();
        }
        let node = self.node()?.node;
        match node.remove_xattr(&self.cx, name) {
            Err(Errno::EPERM | Errno::EACCES) if name == CAPABILITY => {
                let kernel = Caller::ROOT;
                node.remove_xattr(&self.cx.on_behalf_of(&kernel), name)?;
            }
            // It was removed before the reply was lost.
            Err(Errno::ENODATA) if self.attempt.is_some() => {}
            removed => removed?,
        }
        self.reply(&[])
    }

    /// Checks an attribute's name. ACLs that the client does not enforce are hidden from it.
    pub(super) fn check_name(&self, name: &[u8]) -> Result<()> {
        self.check_xattr()?;
        match name {
            b"" => Err(Errno::EINVAL),
            _ if name.len() > MAX_NAME => Err(Errno::ERANGE),
            _ if name.starts_with(ACL_PREFIX) && !self.negotiated.has(InitFlags::POSIX_ACL) => {
                Err(Errno::EOPNOTSUPP)
            }
            _ => Ok(()),
        }
    }

    /// After `ENOSYS` the client does not ask again.
    fn check_xattr(&self) -> Result<()> {
        match self.session.options.xattr {
            true => Ok(()),
            false => Err(Errno::ENOSYS),
        }
    }
}
