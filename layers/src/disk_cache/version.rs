//! The version of a file's contents: the attributes that define it, and when they are reliable.

use std::time::Duration;

use vfs::{Attr, Time};

/// The attributes that distinguish one state of a file's contents from another. A version does not
/// recur: each change gives the file a new change time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    generation: u64,
    device: u64,
    change: u64,
    /// In bytes.
    pub(super) size: u64,
    mtime: Time,
    ctime: Time,
}

impl Version {
    /// The size in bytes of its encoding.
    pub(super) const LEN: usize = 4 * 8 + 2 * 12;

    /// The minimum age of a change. Change times have a granularity, 4 ms on most file systems and
    /// 2 s on some: two changes within one tick have the same time. The rest allows for a server's
    /// clock that is behind this host's.
    const SETTLE_TIME: Duration = Duration::from_secs(10);

    /// Returns the version from attributes requested with all of [`vfs::AttrMask::STAT`] and the
    /// generation.
    pub(super) fn of(attr: &Attr) -> Version {
        Version {
            generation: attr.generation,
            device: attr.device,
            change: attr.change,
            size: attr.size,
            mtime: attr.mtime,
            ctime: attr.ctime,
        }
    }

    /// Returns whether `attr`, requested with [`vfs::AttrMask::STAT`], is consistent with this
    /// version.
    pub(super) fn matches(&self, attr: &Attr) -> bool {
        // Not every source of attributes includes the generation.
        let generation = self.generation;
        *self
            == Version {
                generation,
                ..Version::of(attr)
            }
    }

    /// Returns whether every later change gives another version, at `now` after the Unix epoch.
    pub(super) fn is_settled(&self, now: Duration) -> bool {
        let now = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX);
        let changed = i128::from(self.ctime.sec) * 1_000_000_000 + i128::from(self.ctime.nsec);
        now - changed >= Version::SETTLE_TIME.as_nanos() as i128
    }

    /// Returns its encoding.
    pub(super) fn encode(&self) -> [u8; Version::LEN] {
        let mut bytes = [0; Version::LEN];
        let numbers = [self.generation, self.device, self.change, self.size];
        let (words, times) = bytes.split_at_mut(32);
        for (word, number) in words.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *word = number.to_le_bytes();
        }
        for (at, time) in times
            .as_chunks_mut::<12>()
            .0
            .iter_mut()
            .zip([self.mtime, self.ctime])
        {
            at[..8].copy_from_slice(&time.sec.to_le_bytes());
            at[8..].copy_from_slice(&time.nsec.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_a_source_tells_is_of_a_version() {
        let plain = vfs_testkit::script::default_attr(7, vfs::Kind::File);
        let version = Version::of(&plain);
        let other = Time { sec: 9, nsec: 9 };
        for changed in [
            Attr { size: 9, ..plain },
            Attr { change: 9, ..plain },
            Attr { device: 9, ..plain },
            Attr {
                mtime: other,
                ..plain
            },
            Attr {
                ctime: other,
                ..plain
            },
        ] {
            assert_ne!(Version::of(&changed), version);
            assert_ne!(Version::of(&changed).encode(), version.encode());
            assert!(!version.matches(&changed));
        }
        let generation = Attr {
            generation: 9,
            ..plain
        };
        assert_ne!(Version::of(&generation), version);
        assert_ne!(Version::of(&generation).encode(), version.encode());
        assert!(version.matches(&generation));
        let read = Attr {
            atime: other,
            ..plain
        };
        assert_eq!(Version::of(&read), version);
    }

    #[test]
    fn what_has_just_changed_may_change_again_unnoticed() {
        let ctime = Time {
            sec: 100,
            nsec: 500_000_000,
        };
        let attr = vfs_testkit::script::default_attr(7, vfs::Kind::File);
        let version = Version::of(&Attr { ctime, ..attr });
        for (now, settled) in [
            (0, false),
            (105_000, false),
            (110_499, false),
            (110_500, true),
        ] {
            assert_eq!(version.is_settled(Duration::from_millis(now)), settled);
        }
        let before = Time { sec: -5, nsec: 0 };
        assert!(
            Version::of(&Attr {
                ctime: before,
                ..attr
            })
            .is_settled(Duration::from_secs(5))
        );
    }
}
