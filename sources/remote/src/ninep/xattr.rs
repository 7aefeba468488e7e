//! Extended attributes: fids that are read, or written and then clunked.

use p9::{Data, Fid, Rmessage, Tmessage};
use vfs::{Cx, Errno, Result, XattrFlags};

use super::fid::OwnedFid;
use super::node::RemoteNode;
use crate::xattr::{MAX_SIZE, check_name};

impl RemoteNode {
    pub(super) fn get_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        self.read_xattr(cx, name)
    }

    pub(super) fn list_xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let list = self.read_xattr(cx, b"")?;
        match list.last() {
            None | Some(0) => Ok(list),
            Some(_) => Err(Errno::EIO),
        }
    }

    pub(super) fn put_xattr(
        &self,
        cx: &Cx<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        check_name(name)?;
        if value.len() > MAX_SIZE {
            return Err(Errno::E2BIG);
        }
        let mut flags = flags;
        if value.is_empty() && flags.contains(XattrFlags::REPLACE) {
            // Replacing with an empty value is 9P's way to remove.
            self.read_xattr(cx, name)?;
            flags.remove(XattrFlags::REPLACE);
        }
        self.write_xattr(cx, name, value, flags)
    }

    pub(super) fn take_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.write_xattr(cx, name, b"", XattrFlags::REPLACE)
    }

    fn read_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let wire = self.session();
        if !wire.is_linux() {
            return Err(Errno::EOPNOTSUPP);
        }
        let node = self.fid(cx)?;
        let (newfid, reply) = wire.with_room(|| {
            let newfid = wire.connection.fid()?;
            let walk = Tmessage::Xattrwalk {
                fid: node.fid,
                newfid,
                name,
            };
            Ok((newfid, wire.connection.call_in(cx, &walk)?))
        })?;
        let value = wire.own_fid(newfid);
        let size = match reply.message()? {
            Rmessage::Xattrwalk { size } if size > MAX_SIZE as u64 => return Err(Errno::E2BIG),
            Rmessage::Xattrwalk { size } => size as usize,
            _ => return Err(Errno::EIO),
        };
        self.read_value(cx, &value, size)
    }

    fn read_value(&self, cx: &Cx<'_>, held: &OwnedFid, size: usize) -> Result<Vec<u8>> {
        let mut value = Vec::with_capacity(size);
        while value.len() < size {
            let missing = (size - value.len()) as u32;
            let request = Tmessage::Read {
                fid: held.fid,
                offset: value.len() as u64,
                count: missing.min(self.session().connection.payload()),
            };
            let reply = self.session().call(cx, &request)?;
            if reply.data().is_empty() {
                return Err(Errno::EIO);
            }
            value.extend_from_slice(reply.data());
        }
        Ok(value)
    }

    fn write_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let wire = self.session();
        if !wire.is_linux() {
            return Err(Errno::EOPNOTSUPP);
        }
        let node = self.fid(cx)?;
        let (draft, _) = wire.walk(cx, node.fid, &[])?;
        let create = Tmessage::Xattrcreate {
            fid: draft.fid,
            name,
            size: value.len() as u64,
            flags: flags.bits(),
        };
        wire.call(cx, &create)?;
        self.write_value(cx, draft.fid, value)?;
        // The server sets the attribute when the fid is clunked, and reports errors then.
        draft.clunk()
    }

    fn write_value(&self, cx: &Cx<'_>, fid: Fid, value: &[u8]) -> Result<()> {
        let wire = self.session();
        let mut written = 0;
        while written < value.len() {
            let rest = &value[written..];
            let piece = &rest[..rest.len().min(wire.connection.payload() as usize)];
            let write = Tmessage::Write {
                fid,
                offset: written as u64,
                data: Data(piece),
            };
            match wire.call(cx, &write)?.message()? {
                Rmessage::Write { count: 0 } => return Err(Errno::EIO),
                Rmessage::Write { count } => written += count as usize,
                _ => return Err(Errno::EIO),
            }
        }
        Ok(())
    }
}
