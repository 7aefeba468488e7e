//! The shared suite over each layer, over a tree in memory.

use std::sync::Arc;
use std::time::Duration;

use layers::fault::{Fault, What, When};
use layers::squash::{NOBODY, Squash, Whom};
use layers::{IdMap, IdRange, Layer, MapIds, Trace, XattrMap, stack};
use memory::{Memory, Options};
use vfs_testkit::{Profile, Subject, clock};

fn still() -> layers::Clock {
    Arc::new(|| Duration::ZERO)
}

fn over(layer: impl Layer) -> Subject {
    Subject::new(stack(Memory::new(clock()), layer), Profile::posix())
}

/// Operations done below as they are.
mod empty {
    use super::*;

    struct Empty;

    impl Layer for Empty {
        fn capabilities(&self, inner: vfs::Capabilities) -> vfs::Capabilities {
            inner
        }

        layers::forward! {
            id above
            root resolve sync
            handle attr setattr access statfs open readlink lookup parent create make tmpfile link
            unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
            file_attr file_setattr read write readdir fsync flush allocate seek extents copy
        }
    }

    fn subject() -> Subject {
        let fs = stack(Memory::new(clock()), Empty);
        Subject::new(stack(fs, Arc::new(Empty)), Profile::posix())
    }

    vfs_testkit::conformance!(subject);
}

/// Everyone but the super-user is somebody else on the host.
mod idmap {
    use super::*;

    fn subject() -> Subject {
        let ranges = [(0, 0, 1), (1, 100_001, 65_535)];
        let ranges = ranges.map(|(client, host, count)| IdRange {
            client,
            host,
            count,
        });
        let map = IdMap::new(ranges.to_vec()).expect("they do not overlap");
        over(MapIds {
            uids: map.clone(),
            gids: map,
        })
    }

    vfs_testkit::conformance!(subject);
}

mod squash_none {
    use super::*;

    fn subject() -> Subject {
        over(Squash::new(Whom::None))
    }

    vfs_testkit::conformance!(subject);
}

/// Everyone is nobody, who owns the root.
mod squash_all {
    use super::*;

    fn subject() -> Subject {
        let options = Options {
            uid: NOBODY,
            gid: NOBODY,
            ..Options::default()
        };
        let fs = Memory::with(clock(), options);
        let profile = Profile {
            identity: false,
            root: false,
            ..Profile::posix()
        };
        Subject::new(stack(fs, Squash::new(Whom::All)), profile)
    }

    vfs_testkit::conformance!(subject);
}

/// Attributes of the super-user are kept as those of users.
mod xattrmap {
    use super::*;

    fn subject() -> Subject {
        over(
            "/map/trusted./user.virtiofs./"
                .parse::<XattrMap>()
                .expect("a map"),
        )
    }

    vfs_testkit::conformance!(subject);
}

mod trace {
    use super::*;

    fn subject() -> Subject {
        over(Trace::new(still()))
    }

    vfs_testkit::conformance!(subject);
}

/// Half of all operations would block when they may not.
mod fault {
    use super::*;

    fn subject() -> Subject {
        let fault = Fault::new(7, still());
        fault.add(None, When::Chance(0.5), What::Block);
        over(fault)
    }

    vfs_testkit::conformance!(subject);
}
