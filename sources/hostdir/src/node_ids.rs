//! A common number space for the nodes of all devices below one root.
//!
//! The root's own device keeps its inode numbers. Another device's are prefixed by 15 bits that
//! derive from the device, so that they are the same after a restart. Inode numbers of 2^48 and
//! more (common on FUSE, NFS, CIFS) become a keyed hash of 63 bits with the highest bit set: the
//! probability that any two of a million such files share a number is 1 in 18 million, and a peer
//! cannot provoke it without the key. A table of them instead would grow with every file ever seen.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use rustix::fs::Statx;
use sys::errno;
use vfs::siphash::{self, Key};
use vfs::{Errno, NodeId, Result};

use crate::stat::dev_of;

/// The prefix of a device's node numbers. 0 is the root's device.
pub(crate) type Prefix = u16;

/// 15 bits: the 16th marks hashed numbers.
const PREFIXES: u64 = 0x7fff;

/// Returns the node number of inode `ino` on the device with `prefix`.
pub(crate) fn compose(key: &Key, prefix: Prefix, ino: u64) -> NodeId {
    if ino != 0 && ino >> 48 == 0 {
        return u64::from(prefix) << 48 | ino;
    }
    let mut data = [0; 10];
    data[..2].copy_from_slice(&prefix.to_le_bytes());
    data[2..].copy_from_slice(&ino.to_le_bytes());
    1 << 63 | siphash::hash(key, &data)
}

/// Returns the prefix of a number that is not hashed.
pub(crate) fn prefix_of(id: NodeId) -> Option<Prefix> {
    (id >> 63 == 0).then_some((id >> 48) as Prefix)
}

/// The identity of a device across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceKey {
    /// `st_dev`: unique as long as it is mounted.
    pub(crate) dev: u64,
    /// `f_fsid`: often derived from data on the disk, and then stable where device numbers are not;
    /// 0 if unavailable.
    pub(crate) fsid: u64,
}

impl DeviceKey {
    /// Returns the key of the device of `fd`, whose attributes are `stx`.
    pub(crate) fn of(fd: BorrowedFd<'_>, stx: &Statx) -> Result<DeviceKey> {
        Ok(DeviceKey {
            dev: dev_of(stx),
            fsid: rustix::fs::fstatvfs(fd).map_err(errno)?.f_fsid,
        })
    }
}

/// The prefixes of devices. It only grows, by a few bytes per device.
#[derive(Default)]
pub(crate) struct Prefixes {
    by_device: HashMap<DeviceKey, Prefix>,
    taken: HashMap<Prefix, DeviceKey>,
}

impl Prefixes {
    /// Returns the prefix of `device`, derived from it, or the next free one if another device has
    /// that prefix. Returns `ENFILE` if there are more devices than prefixes.
    pub(crate) fn of(&mut self, device: DeviceKey) -> Result<Prefix> {
        if let Some(&prefix) = self.by_device.get(&device) {
            return Ok(prefix);
        }
        let stable = if device.fsid != 0 {
            device.fsid
        } else {
            device.dev
        };
        let first = siphash::hash(&[0; 16], &stable.to_le_bytes());
        let prefix = (0..PREFIXES)
            .map(|probe| (first.wrapping_add(probe) % PREFIXES) as Prefix + 1)
            .find(|prefix| !self.taken.contains_key(prefix))
            .ok_or(Errno::ENFILE)?;
        self.by_device.insert(device, prefix);
        self.taken.insert(prefix, device);
        Ok(prefix)
    }

    /// Makes `device` the root's.
    pub(crate) fn root(&mut self, device: DeviceKey) {
        self.by_device.insert(device, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_of_all_devices_differ_and_none_is_zero() {
        let key = [7; 16];
        let mut seen = HashSet::new();
        for prefix in [0, 1, 2, 0x7fff] {
            for ino in [0, 1, 2, (1 << 48) - 1, 1 << 48, 1 << 63, u64::MAX] {
                let id = compose(&key, prefix, ino);
                assert!(id != 0 && seen.insert(id), "{prefix} {ino}");
                assert_eq!(id, compose(&key, prefix, ino));
            }
        }
        assert_eq!(compose(&key, 0, 12345), 12345);
        assert_eq!(prefix_of(compose(&key, 7, 12345)), Some(7));
        assert_eq!(prefix_of(compose(&key, 7, 1 << 48)), None);
    }

    #[test]
    fn prefixes_are_stable_and_collisions_are_probed() {
        let device = |n| DeviceKey { dev: n, fsid: 0 };
        let mut prefixes = Prefixes::default();
        prefixes.root(device(0));
        assert_eq!(prefixes.of(device(0)), Ok(0));
        let first = prefixes.of(device(1));
        assert_eq!(Prefixes::default().of(device(1)), first);
        for n in 2..=PREFIXES {
            assert!(prefixes.of(device(n)).is_ok_and(|p| p != 0 && p < 0x8000));
        }
        assert_eq!(prefixes.of(device(1)), first);
        assert_eq!(prefixes.of(device(PREFIXES + 1)), Err(Errno::ENFILE));
    }
}
