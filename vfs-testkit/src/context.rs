//! The file system under test, and helpers to run and check cases.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use vfs::cx::{block_on_call, thread_waker};
use vfs::{
    Account, Call, Caller, Capabilities, Cx, Errno, FileSystem, Handle, Patience, PeerKey, Result,
    SetAttr, Time,
};

pub use crate::test_node::{AsName, ListedEntry, R, RW, TestFile, TestNode, W};

/// A file system to test: empty, and `caller` may write to its root.
pub struct TestSubject {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// The expectations.
    pub profile: Profile,
    /// An object to keep alive along with it: a temporary directory, a server.
    pub keep_alive: Box<dyn Any>,
    /// Called after a case has failed: returns a reason to ignore the failure, as when a foreign
    /// server has crashed.
    pub ignore_failure: Box<dyn Fn() -> Option<String>>,
}

impl TestSubject {
    /// Creates a subject that keeps nothing else alive.
    pub fn new(fs: Arc<dyn FileSystem>, profile: Profile) -> TestSubject {
        TestSubject {
            fs,
            profile,
            keep_alive: Box::new(()),
            ignore_failure: Box::new(|| None),
        }
    }
}

/// Expectations of a file system beyond its [`Capabilities`].
#[derive(Clone, Debug)]
pub struct Profile {
    /// The default caller: the owner of the root.
    pub caller: Caller,
    /// Callers are distinguished and their permissions checked (`caller` is the super-user then);
    /// otherwise every caller acts as `caller`.
    pub identity: bool,
    /// [`vfs::Groups::Known`] is honoured.
    pub groups: bool,
    /// `caller` has the powers of the super-user: chown, device nodes.
    pub root: bool,
    /// The granularity in nanoseconds of times that are set; 0 if times cannot be set.
    pub time_step: u32,
    /// Reading updates atime (at least as relatime does).
    pub atime: bool,
    /// The link count of a directory includes its subdirectories (it is 1 on btrfs and overlayfs).
    pub dir_links: bool,
    /// Names may be any bytes (else UTF-8 only).
    pub any_bytes: bool,
    /// [`vfs::RenameFlags`] work.
    pub rename_flags: bool,
    /// Open files remain usable after their last name is removed.
    pub open_unlinked: bool,
    /// Cases that do not apply, each as `area::case` with the reason.
    pub skip: Vec<(&'static str, &'static str)>,
}

impl Profile {
    /// Returns the profile of a local POSIX file system that checks permissions, served to the
    /// super-user.
    pub fn posix() -> Profile {
        Profile {
            caller: Caller::ROOT,
            identity: true,
            groups: true,
            root: true,
            time_step: 1,
            atime: true,
            dir_links: true,
            any_bytes: true,
            rename_flags: true,
            open_unlinked: true,
            skip: Vec::new(),
        }
    }
}

/// A subject with a case running on it.
pub struct TestContext {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// The expectations.
    pub profile: Profile,
    /// Its capabilities.
    pub caps: Capabilities,
    _keep_alive: Box<dyn Any>,
}

impl TestContext {
    /// Runs the case `name` on `subject`, unless its profile skips it.
    pub fn run(name: &str, case: fn(&TestContext), subject: TestSubject) {
        if let Some((_, why)) = subject.profile.skip.iter().find(|(skip, _)| *skip == name) {
            eprintln!("skipped {name}: {why}");
            return;
        }
        let caps = subject.fs.capabilities();
        let test = TestContext {
            fs: subject.fs,
            profile: subject.profile,
            caps,
            _keep_alive: subject.keep_alive,
        };
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&test))) else {
            return;
        };
        match (subject.ignore_failure)() {
            Some(why) => eprintln!("skipped {name}: {why}"),
            None => resume_unwind(panic),
        }
    }

    /// Returns the root directory as the profile's caller sees it.
    pub fn root(&self) -> TestNode {
        self.root_for(&self.profile.caller)
    }

    /// Returns the root directory as `caller` sees it.
    pub fn root_for(&self, caller: &Caller) -> TestNode {
        TestNode {
            node: ok(run(caller, |cx| self.fs.root(cx))),
            caller: caller.clone(),
        }
    }

    /// Creates a directory in the root that is writable for all.
    pub fn world_writable_dir(&self) -> TestNode {
        let dir = ok(self.root().mkdir("commons", 0o777));
        ok(dir.set(SetAttr {
            mode: Some(0o777),
            ..SetAttr::default()
        }));
        dir
    }

    /// Waits until a change gets a change counter that no earlier one has: before Linux 6.13, all
    /// changes within a tick of the clock, a few milliseconds, have the same. Creates the file
    /// `clock` in the root.
    pub fn wait_for_clock(&self) {
        let root = self.root();
        let clock = root.lookup("clock").or_else(|_| root.file("clock", b""));
        let clock = ok(clock);
        ok(clock.chmod(0o600));
        let now = clock.attr().change;
        let mut modes = [0o644, 0o600].into_iter().cycle();
        while clock.attr().change == now {
            ok(clock.chmod(modes.next().expect("endless")));
        }
    }

    /// Resolves `handle`.
    pub fn resolve(&self, handle: &Handle) -> Result<TestNode> {
        let caller = self.profile.caller.clone();
        let node = run(&caller, |cx| self.fs.resolve(cx, handle))?;
        Ok(TestNode { node, caller })
    }
}

/// The client whose requests [`run`] makes.
pub const CLIENT: PeerKey = PeerKey::User(1000);

/// Runs `operation` as `caller`, a request of [`CLIENT`], with increasing patience until it does
/// not return `WOULD_BLOCK`. With full patience it waits while the operation is parked.
#[track_caller]
pub fn run<T>(caller: &Caller, mut operation: impl FnMut(&Cx<'_>) -> Result<T>) -> Result<T> {
    for patience in [Patience::None, Patience::Brief] {
        let call = Call::detached().with_account(Account::of(CLIENT));
        let cx = Cx {
            patience,
            ..Cx::new(caller, &call)
        };
        match operation(&cx) {
            Err(Errno::WOULD_BLOCK) => {}
            Err(Errno::PARKED) => panic!("a call that cannot be parked was parked"),
            done => return done,
        }
    }
    let call = Call::parkable(thread_waker()).with_account(Account::of(CLIENT));
    match block_on_call(caller, &call, operation) {
        Err(Errno::WOULD_BLOCK) => panic!("WOULD_BLOCK at full patience"),
        done => done,
    }
}

/// Returns the value, or panics with the errno.
#[track_caller]
pub fn ok<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(errno) => panic!("expected success, got {errno:?}"),
    }
}

/// Panics unless the result is the error `expected`.
#[track_caller]
pub fn refused<T>(result: Result<T>, expected: Errno) {
    refused_as(result, &[expected]);
}

/// Panics unless the result is one of the errors `expected`.
#[track_caller]
pub fn refused_as<T>(result: Result<T>, expected: &[Errno]) {
    match result {
        Ok(_) => panic!("expected {expected:?}, got success"),
        Err(errno) if expected.contains(&errno) => {}
        Err(errno) => panic!("expected {expected:?}, got {errno:?}"),
    }
}

/// Errors for a directory that is not empty: POSIX permits both, and XFS returns the second for
/// rename.
pub const NOT_EMPTY: &[Errno] = &[Errno::ENOTEMPTY, Errno::EEXIST];

/// Returns from a case, with a message, unless the subject has the feature.
#[macro_export]
macro_rules! needs {
    ($has:expr, $what:literal) => {
        if !$has {
            eprintln!("skipped: needs {}", $what);
            return;
        }
    };
}

/// Returns a clock that advances by a nanosecond with each call.
pub fn clock() -> Arc<impl Fn() -> Time + Send + Sync + 'static> {
    const SECOND: i64 = 1_000_000_000;
    let ticks = AtomicI64::new(1_000_000_000 * SECOND);
    Arc::new(move || {
        let now = ticks.fetch_add(1, Ordering::Relaxed);
        Time {
            sec: now / SECOND,
            nsec: (now % SECOND) as u32,
        }
    })
}

/// A reproducible generator of pseudo-random numbers (splitmix64).
pub struct Random(u64);

impl Random {
    /// Creates a generator from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next number, reduced to below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }
}

/// Returns `len` pseudo-random bytes, which depend on `seed` only.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next_u64() as u8).collect()
}
