//! Which contents of a file they are: what a source tells of it, and when that can be believed.

use std::time::Duration;

use vfs::{Attr, Time};

/// All that tells one state of a file's contents from another. It goes by and never comes again: once a file has changed,
/// its time of last change is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    generation: u64,
    device: u64,
    change: u64,
    /// Bytes.
    pub(super) size: u64,
    mtime: Time,
    ctime: Time,
}

impl Version {
    /// Bytes of one that is encoded.
    pub(super) const LEN: usize = 4 * 8 + 2 * 12;

    /// For how long a file has to be as it is. Times of change come by ticks, of 4 ms on most file systems and of 2 s on some: what is
    /// changed twice in one has the same time. The rest is for a server's clock that is behind this host's.
    const SETTLED: Duration = Duration::from_secs(10);

    /// That of a file of which all of [`vfs::Want::STAT`] and the generation were asked for.
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

    /// Whether `attr`, of which [`vfs::Want::STAT`] was asked for, says nothing else.
    pub(super) fn is_of(&self, attr: &Attr) -> bool {
        // Not every way to attributes has the generation.
        let generation = self.generation;
        *self
            == Version {
                generation,
                ..Version::of(attr)
            }
    }

    /// Whether no change can come that leaves it as it is, `now` after the Unix epoch.
    pub(super) fn is_settled(&self, now: Duration) -> bool {
        let now = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX);
        let changed = i128::from(self.ctime.sec) * 1_000_000_000 + i128::from(self.ctime.nsec);
        now - changed >= Version::SETTLED.as_nanos() as i128
    }

    /// Its bytes, by which it is written down.
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
        let plain = vfs_testkit::script::plain_attr(7, vfs::Kind::File);
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
            assert!(!version.is_of(&changed));
        }
        let generation = Attr {
            generation: 9,
            ..plain
        };
        assert_ne!(Version::of(&generation), version);
        assert_ne!(Version::of(&generation).encode(), version.encode());
        assert!(version.is_of(&generation));
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
        let attr = vfs_testkit::script::plain_attr(7, vfs::Kind::File);
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
