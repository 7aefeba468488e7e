//! The limits of a quota, and what is used of it.

use parking_lot::Mutex;
use vfs::StatFs;

/// An amount of disk space and of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Space in bytes.
    pub bytes: u64,
    /// Files, directories and other objects.
    pub inodes: u64,
}

impl Amount {
    /// Returns an amount of space.
    pub const fn bytes(bytes: u64) -> Amount {
        Amount { bytes, inodes: 0 }
    }
}

/// The limits of a tree; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// Space in bytes.
    pub bytes: Option<u64>,
    /// Files, directories and other objects, the root directory included.
    pub inodes: Option<u64>,
}

impl DiskLimits {
    /// Returns the statistics `stat` of a file system as clients of a tree that uses `used` see
    /// them: not larger than these limits.
    pub(super) fn shown(self, mut stat: StatFs, used: Amount) -> StatFs {
        if let Some(limit) = self.bytes {
            let size = u64::from(stat.bsize).max(1);
            let free = limit.saturating_sub(used.bytes) / size;
            stat.quota.blocks |= limit / size <= stat.blocks;
            stat.blocks = stat.blocks.min(limit / size);
            stat.bfree = stat.bfree.min(free);
            stat.bavail = stat.bavail.min(free);
        }
        if let Some(limit) = self.inodes {
            // A file system without a number of its own reports 0.
            let bounded = |number: u64, bound: u64| match stat.files {
                0 => bound,
                _ => number.min(bound),
            };
            stat.quota.files |= bounded(stat.files, limit) == limit;
            let free = bounded(stat.ffree, limit.saturating_sub(used.inodes));
            (stat.files, stat.ffree) = (bounded(stat.files, limit), free);
        }
        stat
    }

    fn allow(self, total: Amount, wanted: Amount) -> bool {
        let fits = |limit: Option<u64>, total: u64, wanted: u64| {
            wanted == 0 || limit.is_none_or(|limit| total <= limit)
        };
        fits(self.bytes, total.bytes, wanted.bytes)
            && fits(self.inodes, total.inodes, wanted.inodes)
    }
}

/// The usage of a tree.
pub(super) struct Usage(Mutex<State>);

struct State {
    limits: DiskLimits,
    used: Amount,
    reserved: Amount,
}

/// A part of the quota that an operation in progress may use. Dropping it returns the part.
pub(super) struct Reservation<'a> {
    usage: &'a Usage,
    amount: Amount,
}

impl Usage {
    pub(super) fn new(limits: DiskLimits, used: Amount) -> Usage {
        Usage(Mutex::new(State {
            limits,
            used,
            reserved: Amount::default(),
        }))
    }

    pub(super) fn limits(&self) -> DiskLimits {
        self.0.lock().limits
    }

    pub(super) fn used(&self) -> Amount {
        self.0.lock().used
    }

    /// Reserves `wanted`, or returns `None` if there is no room. No room is needed for an amount of
    /// zero.
    pub(super) fn reserve(&self, wanted: Amount) -> Option<Reservation<'_>> {
        let mut state = self.0.lock();
        let sum = |used: u64, reserved: u64, wanted: u64| {
            used.saturating_add(reserved).saturating_add(wanted)
        };
        let (used, reserved) = (state.used, state.reserved);
        let total = Amount {
            bytes: sum(used.bytes, reserved.bytes, wanted.bytes),
            inodes: sum(used.inodes, reserved.inodes, wanted.inodes),
        };
        if !state.limits.allow(total, wanted) {
            return None;
        }
        state.reserved = reserved.plus(wanted);
        Some(Reservation {
            usage: self,
            amount: wanted,
        })
    }

    pub(super) fn add(&self, amount: Amount) {
        let mut state = self.0.lock();
        state.used = state.used.plus(amount);
    }

    pub(super) fn subtract(&self, amount: Amount) {
        let mut state = self.0.lock();
        state.used = state.used.minus(amount);
    }

    /// Counts `now` in place of `before` bytes.
    pub(super) fn replace(&self, before: u64, now: u64) {
        let mut state = self.0.lock();
        state.used = state
            .used
            .plus(Amount::bytes(now))
            .minus(Amount::bytes(before));
    }
}

impl Amount {
    fn plus(self, other: Amount) -> Amount {
        Amount {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    /// Other programs of the host may have made objects smaller or larger that were counted.
    fn minus(self, other: Amount) -> Amount {
        Amount {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }
}

impl Reservation<'_> {
    pub(super) fn amount(&self) -> Amount {
        self.amount
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.usage.0.lock();
        state.reserved = state.reserved.minus(self.amount);
    }
}
