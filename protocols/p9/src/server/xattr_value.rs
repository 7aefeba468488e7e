//! Values of extended attributes that fids hold while clients read and write them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use vfs::{Cx, Errno, Node, Payload, Portion, Result, XattrFlags, acl};

use super::step::Attach;

/// The estimated size in bytes of a [`XattrRead`] or a [`XattrWrite`] without its contents.
const XATTR_BYTES: usize = 192;

/// The remaining bytes for the values that a connection's fids hold.
pub(super) struct XattrSpace(AtomicUsize);

/// A reservation of a connection's [`XattrSpace`], released when dropped.
struct ReservedSpace {
    space: Arc<XattrSpace>,
    bytes: usize,
}

impl XattrSpace {
    pub(super) fn new(bytes: usize) -> XattrSpace {
        XattrSpace(AtomicUsize::new(bytes))
    }

    /// Reserves `bytes`. Returns `ENOBUFS` if fewer are left.
    fn reserve(self: &Arc<XattrSpace>, bytes: usize) -> Result<ReservedSpace> {
        let take = |left: usize| left.checked_sub(bytes);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| Errno::ENOBUFS)?;
        Ok(ReservedSpace {
            space: self.clone(),
            bytes,
        })
    }
}

impl Drop for ReservedSpace {
    fn drop(&mut self) {
        self.space.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// A value, or the list of names, at the time of the Txattrwalk.
pub(super) struct XattrRead {
    pub(super) bytes: Vec<u8>,
    _reserved: ReservedSpace,
    _room: Portion,
}

/// A value being written.
pub(super) struct XattrWrite {
    name: Box<[u8]>,
    /// Its announced size in bytes.
    size: usize,
    flags: XattrFlags,
    bytes: Mutex<Vec<u8>>,
    _reserved: ReservedSpace,
    _room: Portion,
}

impl XattrRead {
    /// Returns a fid's copy of `bytes`, which takes part of `space`. Returns `ENOBUFS` if too
    /// little is left.
    pub(super) fn new(
        bytes: Vec<u8>,
        space: &Arc<XattrSpace>,
        attach: &Attach,
    ) -> Result<XattrRead> {
        Ok(XattrRead {
            _reserved: space.reserve(bytes.len())?,
            _room: attach.reserve_memory(XATTR_BYTES + bytes.len())?,
            bytes,
        })
    }
}

impl XattrWrite {
    /// Returns the new value of the attribute `name`, of which `size` bytes, taken from `space`,
    /// are to be written. Returns `ENOBUFS` if too few are left.
    pub(super) fn new(
        name: &[u8],
        size: usize,
        flags: XattrFlags,
        space: &Arc<XattrSpace>,
        attach: &Attach,
    ) -> Result<XattrWrite> {
        Ok(XattrWrite {
            name: name.into(),
            size,
            flags,
            bytes: Mutex::default(),
            _reserved: space.reserve(size)?,
            _room: attach.reserve_memory(XATTR_BYTES + name.len() + size)?,
        })
    }

    /// Returns its name, its announced size in bytes, its flags, and a copy of the part that is
    /// written.
    pub(super) fn snapshot(&self) -> (&[u8], usize, XattrFlags, Vec<u8>) {
        (&self.name, self.size, self.flags, self.bytes.lock().clone())
    }

    /// Continues with `bytes` as the part that is written. Returns `ENOSPC` if they are more than
    /// the announced size.
    pub(super) fn restore(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.size {
            return Err(Errno::ENOSPC);
        }
        *self.bytes.lock() = bytes.to_vec();
        Ok(())
    }

    /// Writes a part of the value. Returns `ENOSPC` beyond the announced size.
    pub(super) fn write(&self, offset: u64, payload: &mut dyn Payload) -> Result<usize> {
        let (offset, len) = (usize::try_from(offset), payload.len());
        let offset = offset.map_err(|_| Errno::ENOSPC)?;
        let end = offset.checked_add(len).ok_or(Errno::ENOSPC)?;
        if end > self.size {
            return Err(Errno::ENOSPC);
        }
        let mut bytes = self.bytes.lock();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        let mut rest = &mut bytes[offset..end];
        payload.bytes(&mut |some| {
            let (destination, behind) = std::mem::take(&mut rest).split_at_mut(some.len());
            destination.copy_from_slice(some);
            rest = behind;
            Ok(())
        })?;
        Ok(len)
    }

    /// Sets the attribute. Returns `EINVAL` if the value is incomplete.
    ///
    /// 9P2000.L has no request that removes one. Linux's `v9fs_xattr_set` sends a size of 0 with
    /// `XATTR_REPLACE` for removexattr(2), and a size of 0 without flags for setxattr(2) of an
    /// empty value (`setfattr -n user.a`), which must be kept (`__vfs_setxattr`: "empty EA, do not
    /// remove"). So a size of 0 removes only with `REPLACE`, while diod and QEMU remove in any
    /// case. ACLs are never empty: Linux removes them with a size of 0 and no flags
    /// (`v9fs_iop_set_acl`), whether or not there are any.
    pub(super) fn commit(&self, cx: &Cx<'_>, node: &dyn Node) -> Result<()> {
        let bytes = self.bytes.lock();
        if bytes.len() != self.size {
            return Err(Errno::EINVAL);
        }
        if bytes.is_empty() && [acl::ACCESS, acl::DEFAULT].contains(&&*self.name) {
            return match node.remove_xattr(cx, &self.name) {
                Err(Errno::ENODATA) => Ok(()),
                done => done,
            };
        }
        if bytes.is_empty() && self.flags.contains(XattrFlags::REPLACE) {
            return node.remove_xattr(cx, &self.name);
        }
        node.set_xattr(cx, &self.name, &bytes, self.flags)
    }
}
