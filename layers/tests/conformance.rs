//! The shared suite over each layer, on a tree in memory; and on a member of a bundle.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use layers::disk_quota::DiskLimits;
use layers::fault::{Fault, FaultKind, Trigger};
use layers::gate::AccessPolicy;
use layers::hide::Rules;
use layers::limit::{Limits, Timer};
use layers::pagecache::{self, Mode};
use layers::squash::{NOBODY, Squash, SquashMode};
use layers::{
    Admission, Bundle, CallLog, DiskCache, DiskQuota, Gate, Hide, IdMap, IdRange, Latency, Layer,
    Limiter, MapIds, Noop, PageCache, Pokes, ReadTrace, Trace, XattrMap, disk_cache, stack,
};
use memory::{Memory, Options};
use vfs::{Caller, Capabilities, Cx, Export, FileSystem, Groups, Handle, Name, Node, Result, Time};
use vfs_testkit::{Profile, TestSubject, clock};

fn still() -> layers::Clock {
    Arc::new(|| Duration::ZERO)
}

fn over(layer: impl Layer) -> TestSubject {
    TestSubject::new(stack(Memory::new(clock()), layer), Profile::posix())
}

/// A layer that passes everything on.
mod empty {
    use super::*;

    fn subject() -> TestSubject {
        let fs = stack(Memory::new(clock()), Noop);
        TestSubject::new(stack(fs, Arc::new(Noop)), Profile::posix())
    }

    vfs_testkit::conformance!(subject);
}

/// All ids except that of the super-user are mapped.
mod idmap {
    use super::*;

    fn subject() -> TestSubject {
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

    fn subject() -> TestSubject {
        over(Squash::new(SquashMode::None))
    }

    vfs_testkit::conformance!(subject);
}

/// All users are the anonymous user, who owns the root.
mod squash_all {
    use super::*;

    fn subject() -> TestSubject {
        let options = Options {
            uid: NOBODY,
            gid: NOBODY,
            ..Options::default()
        };
        let fs = Memory::with_options(clock(), options);
        let profile = Profile {
            identity: false,
            root: false,
            ..Profile::posix()
        };
        TestSubject::new(stack(fs, Squash::new(SquashMode::All)), profile)
    }

    vfs_testkit::conformance!(subject);
}

/// Attributes of the super-user are stored as `user.` attributes.
mod xattrmap {
    use super::*;

    fn subject() -> TestSubject {
        over(
            "/map/trusted./user.virtiofs./"
                .parse::<XattrMap>()
                .expect("a map"),
        )
    }

    vfs_testkit::conformance!(subject);
}

/// A quota that is not reached.
mod disk_quota {
    use super::*;

    fn subject() -> TestSubject {
        let fs: Arc<dyn FileSystem> = Memory::new(clock());
        let limits = DiskLimits {
            bytes: Some(1 << 40),
            inodes: Some(1 << 20),
        };
        let quota = DiskQuota::new(&*fs, limits).expect("counted");
        TestSubject::new(stack(fs, quota), Profile::posix())
    }

    vfs_testkit::conformance!(subject);
}

/// No caller is an agent.
mod poke {
    use super::*;

    fn subject() -> TestSubject {
        over(Pokes::new([7; 16]))
    }

    vfs_testkit::conformance!(subject);
}

/// Names that the suite does not use are hidden.
mod hide_names {
    use super::*;

    fn subject() -> TestSubject {
        let pattern = "*.hidden".parse().expect("a pattern");
        over(Hide::new(Rules::new(vec![pattern], None)))
    }

    vfs_testkit::conformance!(subject);
}

/// The place of every directory matters.
mod hide_paths {
    use super::*;

    fn subject() -> TestSubject {
        let patterns = ["/**/no/such/path", "**/*.hidden"];
        let patterns = patterns.map(|text| text.parse().expect("a pattern"));
        over(Hide::new(Rules::new(patterns.to_vec(), None)))
    }

    vfs_testkit::conformance!(subject);
}

mod trace {
    use super::*;

    fn subject() -> TestSubject {
        over(Trace::new(still()))
    }

    vfs_testkit::conformance!(subject);
}

mod latency {
    use super::*;

    fn subject() -> TestSubject {
        over(Latency::new(still(), Arc::default()))
    }

    vfs_testkit::conformance!(subject);
}

mod record {
    use super::*;

    fn subject() -> TestSubject {
        over(CallLog::new(still(), Box::new(|_| ())))
    }

    vfs_testkit::conformance!(subject);
}

mod touched {
    use super::*;

    fn subject() -> TestSubject {
        over(ReadTrace::new(Box::new(|_, _| ())))
    }

    vfs_testkit::conformance!(subject);
}

mod clients {
    use super::*;

    fn subject() -> TestSubject {
        over("10.0.0.1(ro)".parse::<Admission>().expect("a list"))
    }

    vfs_testkit::conformance!(subject);
}

/// Stacks a page cache over `fs`, small enough for evictions. Reads from the cache do not change
/// atime.
fn cached(fs: Arc<dyn FileSystem>, mode: Mode, profile: Profile) -> TestSubject {
    let options = pagecache::Options {
        mode,
        memory: 1 << 20,
        threads: 2,
        ..pagecache::Options::default()
    };
    let cache = PageCache::new(options).expect("a thread");
    let profile = Profile {
        atime: false,
        ..profile
    };
    TestSubject::new(stack(fs, cache), profile)
}

mod pagecache_readahead {
    use super::*;

    fn subject() -> TestSubject {
        cached(Memory::new(clock()), Mode::ReadAhead, Profile::posix())
    }

    vfs_testkit::conformance!(subject);
}

mod pagecache_loose {
    use super::*;

    fn subject() -> TestSubject {
        cached(Memory::new(clock()), Mode::Loose, Profile::posix())
    }

    vfs_testkit::conformance!(subject);
}

mod pagecache_mmap {
    use super::*;

    fn subject() -> TestSubject {
        cached(Memory::new(clock()), Mode::Mmap, Profile::posix())
    }

    vfs_testkit::conformance!(subject);
}

/// Stacks a small disk cache in `dir` over `fs`. Reads from a copy do not change atime.
fn over_disk_cache(
    fs: Arc<dyn FileSystem>,
    dir: Arc<dyn FileSystem>,
    profile: Profile,
) -> TestSubject {
    let options = disk_cache::Options {
        dir,
        size: 4 << 20,
        source: [1; 32],
        process: 1,
        // No change is too recent to be cached.
        now: Arc::new(|| Duration::from_secs(1 << 40)),
    };
    let cache = DiskCache::new(options).expect("threads");
    let profile = Profile {
        atime: false,
        ..profile
    };
    TestSubject::new(stack(fs, cache), profile)
}

mod disk_cache_memory {
    use super::*;

    fn subject() -> TestSubject {
        let (fs, dir) = (Memory::new(clock()), Memory::new(clock()));
        over_disk_cache(fs, dir, Profile::posix())
    }

    vfs_testkit::conformance!(subject);
}

mod disk_cache_hostdir {
    use super::*;

    fn subject() -> TestSubject {
        let (dir, fs, profile) = host_directory();
        let (copies, into, _) = host_directory();
        let mut subject = over_disk_cache(fs, into, profile);
        subject.keep_alive = Box::new((dir, copies));
        subject
    }

    vfs_testkit::conformance!(subject);
}

/// Below a page cache, as in a mount.
mod disk_cache_and_pagecache {
    use super::*;

    fn subject() -> TestSubject {
        let (fs, dir) = (Memory::new(clock()), Memory::new(clock()));
        let cache = over_disk_cache(fs, dir, Profile::posix());
        cached(cache.fs, Mode::Mmap, cache.profile)
    }

    vfs_testkit::conformance!(subject);
}

/// Terms that admit all clients without squashing.
mod gate {
    use super::*;

    fn subject() -> TestSubject {
        over(Gate::new(AccessPolicy {
            squash: Squash::new(SquashMode::None),
            read_only: false,
            admission: Arc::new("*(rw,no_root_squash)".parse::<Admission>().expect("a list")),
        }))
    }

    vfs_testkit::conformance!(subject);
}

/// A limit that makes most requests wait, though not for long.
mod limit {
    use super::*;

    fn subject() -> TestSubject {
        let start = Instant::now();
        let limits = Limits {
            share: "ops=2000,burst=10ms".parse().expect("rates"),
            client: "bytes=8M,burst=10ms".parse().expect("rates"),
        };
        let clock = Arc::new(move || start.elapsed());
        over(Limiter::new(limits, clock, Timer::new()))
    }

    vfs_testkit::conformance!(subject);
}

/// Half of all operations would block if the patience is not full.
mod fault {
    use super::*;

    fn subject() -> TestSubject {
        let fault = Fault::new(7, still());
        fault.add(None, Trigger::Chance(0.5), FaultKind::Block);
        over(fault)
    }

    vfs_testkit::conformance!(subject);
}

/// The file system of a bundle, with one of its members as the root.
struct Inside(Arc<Bundle>);

impl Inside {
    /// Creates a bundle of `fs` and another member.
    fn of(fs: Arc<dyn FileSystem>) -> Arc<Inside> {
        let members = [
            Export::new("srv/member", fs),
            Export::new("other", Memory::new(clock())),
        ];
        let members = members.map(Arc::new);
        Arc::new(Inside(
            Bundle::new(&members, Time::default()).expect("names of a tree"),
        ))
    }

    fn profile() -> Profile {
        let above = "above a member's root is the bundle's directory";
        Profile {
            skip: vec![("lookup::the_root_is_its_own_parent", above)],
            ..Profile::posix()
        }
    }
}

impl FileSystem for Inside {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        let srv = self.0.root(cx)?.lookup(cx, Name::new(b"srv")?)?;
        Ok(srv.node.lookup(cx, Name::new(b"member")?)?.node)
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        self.0.resolve(cx, handle)
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.0.sync(cx)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

mod bundled_memory {
    use super::*;

    fn subject() -> TestSubject {
        TestSubject::new(Inside::of(Memory::new(clock())), Inside::profile())
    }

    vfs_testkit::conformance!(subject);
}

/// Returns a host directory in /dev/shm, served as this process, and its profile.
fn host_directory() -> (tempfile::TempDir, Arc<dyn FileSystem>, Profile) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let options = hostdir::Options {
        identity: hostdir::Identity::Fixed,
        ..Default::default()
    };
    let fs = hostdir::HostDir::open(dir.path(), options).expect("exports");
    let profile = Profile {
        caller: Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Groups::Unknown,
        },
        identity: false,
        groups: false,
        root: rustix::process::geteuid().is_root(),
        ..Profile::posix()
    };
    (dir, fs, profile)
}

mod pagecache_hostdir {
    use super::*;

    fn subject() -> TestSubject {
        let (dir, fs, profile) = host_directory();
        let mut subject = cached(fs, Mode::Mmap, profile);
        subject.keep_alive = Box::new(dir);
        subject
    }

    vfs_testkit::conformance!(subject);
}

mod bundled_hostdir {
    use super::*;

    fn subject() -> TestSubject {
        let (dir, fs, profile) = host_directory();
        let skip = Inside::profile().skip;
        let mut subject = TestSubject::new(Inside::of(fs), Profile { skip, ..profile });
        subject.keep_alive = Box::new(dir);
        subject
    }

    vfs_testkit::conformance!(subject);
}

/// Returns an overlay of an empty tree: changes of lower files have tests of their own.
fn over_nothing(over: Arc<dyn FileSystem>, profile: Profile) -> TestSubject {
    let overlay = layers::Overlay::new(Memory::new(clock()), over).expect("an overlay");
    let mut skip = profile.skip;
    skip.extend([(
        "rename::whiteout_is_left_behind",
        "whiteouts are what an overlay is made of: none can be made in one, nor in the kernel's",
    )]);
    let profile = Profile {
        // The root is merged with the lower one.
        dir_links: false,
        skip,
        ..profile
    };
    TestSubject::new(overlay, profile)
}

mod overlay_memory {
    use super::*;

    fn subject() -> TestSubject {
        over_nothing(Memory::new(clock()), Profile::posix())
    }

    vfs_testkit::conformance!(subject);
}

mod overlay_hostdir {
    use super::*;

    fn subject() -> TestSubject {
        let (dir, fs, profile) = host_directory();
        let mut subject = over_nothing(fs, profile);
        subject.keep_alive = Box::new(dir);
        subject
    }

    vfs_testkit::conformance!(subject);
}
