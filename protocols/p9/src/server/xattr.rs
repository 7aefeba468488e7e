//! Txattrwalk and Txattrcreate: extended attributes as fids to read and write.

use std::sync::Arc;

use vfs::{Errno, Result, XattrFlags};

use super::fid::State;
use super::request::RequestContext;
use super::xattr_value::{XattrRead, XattrWrite};
use crate::{Fid, Rmessage};

/// The largest value and the longest list of names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
pub(super) const MAX_VALUE: usize = 64 << 10;

/// The longest name (`XATTR_NAME_MAX`).
const MAX_NAME: usize = 255;

impl RequestContext<'_> {
    pub(super) fn xattrwalk(&mut self, fid: Fid, newfid: Fid, name: &[u8]) -> Result<()> {
        let from = self.fid(fid)?;
        from.check_file()?;
        self.connection.fids.check_free(newfid)?;
        let cx = self.cx(&from.attach().caller);
        let bytes = if name.is_empty() {
            from.node().xattrs(&cx)?
        } else {
            check_name(name)?;
            from.node().xattr(&cx, name)?
        };
        if bytes.len() > MAX_VALUE {
            return Err(Errno::E2BIG);
        }
        let size = bytes.len() as u64;
        let value = XattrRead::new(bytes, &self.connection.xattr_space, from.attach())?;
        let value = State::XattrRead(Arc::new(value));
        self.connection
            .fids
            .insert(newfid, from.with_state(value))?;
        self.reply(&Rmessage::Xattrwalk { size })
    }

    pub(super) fn xattrcreate(
        &mut self,
        fid: Fid,
        name: &[u8],
        size: u64,
        flags: u32,
    ) -> Result<()> {
        let state = self.fid(fid)?;
        state.check_walked()?;
        check_name(name)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size > MAX_VALUE {
            return Err(Errno::E2BIG);
        }
        let space = &self.connection.xattr_space;
        let draft = XattrWrite::new(name, size, flags, space, state.attach())?;
        let draft = State::XattrWrite(Arc::new(draft));
        self.connection
            .fids
            .replace(fid, &state, state.with_state(draft))?;
        self.reply(&Rmessage::Xattrcreate {})
    }
}

/// Returns an error for a name that no attribute has.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Errno::EINVAL),
        _ if name.len() > MAX_NAME => Err(Errno::ERANGE),
        _ if name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
