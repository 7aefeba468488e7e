//! Leases: notification of a holder when others want the file.
//!
//! The host's kernel blocks processes that open or truncate a leased file, be they programs of the
//! host or other clients of this export, and notifies the holder with a signal. It does not cover
//! names and attributes: for changes through this export [`Leases::clear`] does; for programs of
//! the host inotify reports a change directly afterwards. A thread of the export waits for both. It
//! starts with the first lease.
//!
//! Lock order: the start of the watch; then the posts. Holders are not notified under either.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno as Raw;
use sys::errno;
use sys::lease::{Kind, Listener, Told, Wanted};
use vfs::{Broken, Cx, Errno, Lease, LeaseKind, Name, NodeId, Patience, Result};

use crate::descriptors::Fd;
use crate::device::Device;
use crate::identity;
use crate::proc_fd::ProcPath;
use crate::stat::{dev_of, stat_child};

/// The leases of a tree.
#[derive(Default)]
pub(crate) struct Leases {
    /// Started with the first lease.
    watch: OnceLock<Arc<Watch>>,
    /// Held while it starts.
    starting: Mutex<()>,
}

/// The sources of events that the thread waits for.
struct Watch {
    /// The number of leases: while it is 0, no further check is made.
    count: AtomicUsize,
    told: Told,
    inotify: OwnedFd,
    /// Readable when the thread is to end.
    end: OwnedFd,
    posts: Mutex<Posts>,
}

/// The leases, by descriptor, node and watch.
#[derive(Default)]
struct Posts {
    by_fd: HashMap<RawFd, Arc<Post>>,
    by_node: HashMap<NodeId, Vec<RawFd>>,
    by_watch: HashMap<i32, NodeId>,
}

/// A lease as the thread sees it.
struct Post {
    fd: Arc<Fd>,
    kind: Kind,
    node: NodeId,
    watched: i32,
    is_broken: AtomicBool,
    broken: Broken,
}

/// A lease as its holder sees it.
struct HostLease {
    watch: Arc<Watch>,
    post: Arc<Post>,
}

/// The most leases of an export, and no more than a quarter of its descriptors, because each holds
/// one. inotify has a limit of its own.
const MOST: usize = 1 << 14;

/// The minimum of `lease-break-time`, after which the kernel revokes a lease that is not released,
/// in seconds: enough for a client to be given up. It is Linux's default.
const BREAK_TIME: u64 = 45;

/// The interval at which a waiter checks a lease again.
const RETRY: Duration = Duration::from_millis(10);

/// The most checks by a waiter without a waker.
const RETRIES: u32 = 100;

/// Changes that the kernel's leases do not cover.
const CHANGES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::DELETE_SELF);

impl Leases {
    /// Takes a lease on the regular file `node` on `device`, which `fd` is open on. Returns
    /// `EAGAIN` if that has a lease already, and `ENFILE` if the export has the most leases.
    pub(crate) fn take(
        &self,
        device: &Device,
        node: NodeId,
        fd: Arc<Fd>,
        kind: LeaseKind,
        broken: &Broken,
    ) -> Result<Box<dyn Lease>> {
        let kind = match kind {
            LeaseKind::Read => Kind::Read,
            LeaseKind::Write => Kind::Write,
        };
        identity::become_server()?;
        let watch = self.watch()?;
        let mut posts = watch.posts();
        let number = fd.as_fd().as_raw_fd();
        // One per open file: a second would be released with the first.
        let most = MOST.min(device.host.budget.most() / 4);
        if posts.by_fd.contains_key(&number) {
            return Err(Errno::EAGAIN);
        }
        if posts.by_fd.len() >= most {
            return Err(Errno::ENFILE);
        }
        // Before the lease, so that a process that comes from now on either blocks or is reported.
        let path = ProcPath::of(fd.as_fd());
        let watched = inotify::add_watch(&watch.inotify, path.as_c_str(), CHANGES);
        let watched = watched.map_err(|raw| match raw {
            Raw::NOSPC => Errno::ENFILE,
            raw => errno(raw),
        })?;
        watch.count.fetch_add(1, Ordering::SeqCst);
        let post = Arc::new(Post {
            fd,
            kind,
            node,
            watched,
            is_broken: AtomicBool::new(false),
            broken: broken.clone(),
        });
        posts.by_fd.insert(number, post.clone());
        posts.by_node.entry(node).or_default().push(number);
        posts.by_watch.insert(watched, node);
        let taken = sys::lease::take(post.fd.as_fd(), kind, watch.told);
        drop(posts);
        let lease = HostLease {
            watch: watch.clone(),
            post,
        };
        taken.map_err(errno)?;
        Ok(Box::new(lease))
    }

    /// Breaks the leases of `node` before its names or attributes change: notifies their holders,
    /// and returns `WOULD_BLOCK`, or `PARKED` with more patience, as long as there are any. `own`
    /// is the descriptor with the lease of the changing client itself.
    pub(crate) fn clear(&self, cx: &Cx<'_>, node: NodeId, own: Option<&Fd>) -> Result<()> {
        let Some(watch) = self.in_use() else {
            return Ok(());
        };
        let own = own.map(|fd| fd.as_fd().as_raw_fd());
        let is_clear = || {
            let posts = watch.of(node);
            let others: Vec<_> = posts
                .iter()
                .filter(|post| Some(post.number()) != own)
                .collect();
            others.iter().for_each(|post| post.break_it());
            others.is_empty()
        };
        match is_clear() {
            true => Ok(()),
            false => wait(cx, || Ok(is_clear().then_some(()))),
        }
    }

    /// Calls [`Leases::clear`] for `name` in `dir`, a directory on `device`.
    pub(crate) fn clear_named(
        &self,
        cx: &Cx<'_>,
        device: &Device,
        dir: &Fd,
        name: Name<'_>,
    ) -> Result<()> {
        if self.in_use().is_none() {
            return Ok(());
        }
        match stat_child(dir.as_fd(), name) {
            // A mount point cannot be renamed or removed.
            Ok(stx) if dev_of(&stx) == device.dev => self.clear(cx, device.id(stx.stx_ino), None),
            _ => Ok(()),
        }
    }

    /// Returns the type of a lease on `node`, if there is one, with its open file.
    pub(crate) fn leased(&self, node: NodeId) -> Option<(Kind, Arc<Fd>)> {
        let posts = self.in_use()?.of(node);
        posts.first().map(|post| (post.kind, post.fd.clone()))
    }

    /// Returns the watch if there are leases.
    fn in_use(&self) -> Option<&Arc<Watch>> {
        let watch = self.watch.get()?;
        (watch.count.load(Ordering::SeqCst) > 0).then_some(watch)
    }

    /// Returns the watch, starting it if necessary. Returns `EOPNOTSUPP` if the kernel would revoke
    /// leases too early.
    fn watch(&self) -> Result<&Arc<Watch>> {
        let _starting = self.starting.lock().expect("no panic holds it");
        if let Some(watch) = self.watch.get() {
            return Ok(watch);
        }
        let time = std::fs::read_to_string("/proc/sys/fs/lease-break-time");
        let time = time.ok().and_then(|time| time.trim().parse::<u64>().ok());
        if time.is_none_or(|time| time < BREAK_TIME) {
            return Err(Errno::EOPNOTSUPP);
        }
        let watch = Watch::start()?;
        Ok(self.watch.get_or_init(|| watch))
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.get() {
            // Cannot fail: there is no other writer.
            let _ = rustix::io::write(&watch.end, &1u64.to_ne_bytes());
        }
    }
}

/// Repeats `again` until it returns a value, as far as the caller's patience permits.
pub(crate) fn wait<T>(cx: &Cx<'_>, again: impl Fn() -> Result<Option<T>>) -> Result<T> {
    cx.may_wait()?;
    if cx.call.waker().is_some() {
        cx.call.wake_within(RETRY);
        return Err(Errno::PARKED);
    }
    for _ in 0..RETRIES {
        cx.call.check()?;
        std::thread::sleep(RETRY);
        if let Some(done) = again()? {
            return Ok(done);
        }
    }
    Err(Errno::EAGAIN)
}

impl Watch {
    fn start() -> Result<Arc<Watch>> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(errno)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(errno)?;
        let (tell, told) = std::sync::mpsc::channel();
        let (ready, started) = std::sync::mpsc::channel::<Arc<Watch>>();
        let thread = std::thread::Builder::new().name("barge-leases".into());
        let spawned = thread.spawn(move || {
            let listener = match Listener::here() {
                Ok((listener, thread)) => {
                    let _ = tell.send(Ok(thread));
                    listener
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            if let Ok(watch) = started.recv() {
                watch.listen(&listener);
            }
        });
        spawned.map_err(|_| Errno::EAGAIN)?;
        let told = told.recv().map_err(|_| Errno::EIO)?.map_err(errno)?;
        let watch = Arc::new(Watch {
            count: AtomicUsize::new(0),
            told,
            inotify,
            end,
            posts: Mutex::default(),
        });
        let _ = ready.send(watch.clone());
        Ok(watch)
    }

    fn listen(&self, listener: &Listener) {
        loop {
            let mut fds = [
                PollFd::new(listener, PollFlags::IN),
                PollFd::new(&self.inotify, PollFlags::IN),
                PollFd::new(&self.end, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Raw::INTR) => {}
                Err(_) => return self.break_all(),
            }
            if !fds[2].revents().is_empty() {
                return;
            }
            while let Ok(Some(wanted)) = listener.next() {
                match wanted {
                    Wanted::Of(fd) => {
                        let post = self.posts().by_fd.get(&fd).cloned();
                        post.iter().for_each(|post| post.break_if_wanted());
                    }
                    Wanted::Any => self.all().iter().for_each(|post| post.break_if_wanted()),
                }
            }
            self.read_changes();
        }
    }

    fn read_changes(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut changes = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let (watched, events) = match changes.next() {
                Ok(change) => (change.wd(), change.events()),
                Err(Raw::INTR) => continue,
                Err(_) => return,
            };
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.break_all();
            } else if !events.contains(ReadFlags::IGNORED) {
                let node = self.posts().by_watch.get(&watched).copied();
                let posts = node.map(|node| self.of(node)).unwrap_or_default();
                posts.iter().for_each(|post| post.break_it());
            }
        }
    }

    fn break_all(&self) {
        self.all().iter().for_each(|post| post.break_it());
    }

    fn all(&self) -> Vec<Arc<Post>> {
        self.posts().by_fd.values().cloned().collect()
    }

    /// Returns the leases of a node.
    fn of(&self, node: NodeId) -> Vec<Arc<Post>> {
        let posts = self.posts();
        let fds = posts.by_node.get(&node).into_iter().flatten();
        fds.filter_map(|fd| posts.by_fd.get(fd).cloned()).collect()
    }

    fn posts(&self) -> MutexGuard<'_, Posts> {
        self.posts.lock().expect("no panic holds it")
    }
}

impl Post {
    fn break_if_wanted(&self) {
        if sys::lease::is_wanted(self.fd.as_fd(), self.kind) != Ok(false) {
            self.break_it();
        }
    }

    fn number(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }

    fn break_it(&self) {
        if !self.is_broken.swap(true, Ordering::SeqCst) {
            (self.broken)();
        }
    }
}

impl Lease for HostLease {
    fn is_broken(&self) -> bool {
        self.post.is_broken.load(Ordering::SeqCst)
    }
}

impl Drop for HostLease {
    fn drop(&mut self) {
        let Post {
            fd, node, watched, ..
        } = &*self.post;
        let number = self.post.number();
        let mut posts = self.watch.posts();
        // Fails only if the kernel has revoked it.
        let _ = sys::lease::give_back(fd.as_fd());
        posts.by_fd.remove(&number);
        if let Some(fds) = posts.by_node.get_mut(node) {
            fds.retain(|&one| one != number);
            if fds.is_empty() {
                posts.by_node.remove(node);
                posts.by_watch.remove(watched);
                // Fails only if the file no longer exists.
                let _ = inotify::remove_watch(&self.watch.inotify, *watched);
            }
        }
        drop(posts);
        self.watch.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns whether a call that waits for a lease is parked and woken, instead of blocking.
pub(crate) fn parks(cx: &Cx<'_>) -> bool {
    cx.patience == Patience::Full && cx.call.waker().is_some()
}
