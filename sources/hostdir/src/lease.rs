//! Leases: notification of a holder when others want the file.
//!
//! The host's kernel blocks processes that open or truncate a leased file, be they programs of the
//! host or other clients of this export, and notifies the holder with a signal. It does not cover
//! names and attributes: for changes through this export [`Leases::clear`] does; for programs of
//! the host inotify reports a change directly afterwards. A thread of the export waits for both. It
//! starts with the first lease.
//!
//! Lock order: the start of the watcher; then the registrations. Holders are not notified under
//! either.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno as Raw;
use sys::errno;
use sys::lease::{BreakListener, BreakTarget, Kind, LeaseBreak};
use vfs::{BreakCallback, Cx, Errno, Lease, LeaseKind, Name, NodeId, Patience, Result};

use crate::descriptors::Fd;
use crate::device::Device;
use crate::identity;
use crate::proc_fd::ProcPath;
use crate::stat::{dev_of, stat_child};

/// The leases of a tree.
#[derive(Default)]
pub(crate) struct Leases {
    /// Started with the first lease.
    watcher: OnceLock<Arc<LeaseWatcher>>,
    /// Held while it starts.
    starting: Mutex<()>,
}

/// The sources of events that the thread waits for.
struct LeaseWatcher {
    /// The number of leases: while it is 0, no further check is made.
    count: AtomicUsize,
    notified_thread: BreakTarget,
    inotify: OwnedFd,
    /// Readable when the thread is to end.
    end: OwnedFd,
    registrations: Mutex<Registrations>,
}

/// The leases by descriptor, node and inotify watch.
#[derive(Default)]
struct Registrations {
    by_fd: HashMap<RawFd, Arc<Registration>>,
    by_node: HashMap<NodeId, Vec<RawFd>>,
    by_watch_descriptor: HashMap<i32, NodeId>,
}

/// A lease as the thread sees it.
struct Registration {
    fd: Arc<Fd>,
    kind: Kind,
    node: NodeId,
    watch_descriptor: i32,
    is_broken: AtomicBool,
    broken: BreakCallback,
}

/// A lease as its holder sees it.
struct HostLease {
    watcher: Arc<LeaseWatcher>,
    registration: Arc<Registration>,
}

/// The most leases of an export, and no more than a quarter of its descriptors, because each holds
/// one. inotify has a limit of its own.
const MAX_LEASES: usize = 1 << 14;

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
        broken: &BreakCallback,
    ) -> Result<Box<dyn Lease>> {
        let kind = match kind {
            LeaseKind::Read => Kind::Read,
            LeaseKind::Write => Kind::Write,
        };
        identity::assume_server()?;
        let watcher = self.watcher()?;
        let mut registrations = watcher.registrations();
        let number = fd.as_fd().as_raw_fd();
        // One per open file: a second would be released with the first.
        let most = MAX_LEASES.min(device.host.budget.limit() / 4);
        if registrations.by_fd.contains_key(&number) {
            return Err(Errno::EAGAIN);
        }
        if registrations.by_fd.len() >= most {
            return Err(Errno::ENFILE);
        }
        // Before the lease, so that a process that comes from now on either blocks or is reported.
        let path = ProcPath::of(fd.as_fd());
        let watch_descriptor = inotify::add_watch(&watcher.inotify, path.as_c_str(), CHANGES);
        let watch_descriptor = watch_descriptor.map_err(|raw| match raw {
            Raw::NOSPC => Errno::ENFILE,
            raw => errno(raw),
        })?;
        watcher.count.fetch_add(1, Ordering::SeqCst);
        let registration = Arc::new(Registration {
            fd,
            kind,
            node,
            watch_descriptor,
            is_broken: AtomicBool::new(false),
            broken: broken.clone(),
        });
        registrations.by_fd.insert(number, registration.clone());
        registrations.by_node.entry(node).or_default().push(number);
        registrations
            .by_watch_descriptor
            .insert(watch_descriptor, node);
        let taken = sys::lease::take(registration.fd.as_fd(), kind, watcher.notified_thread);
        drop(registrations);
        let lease = HostLease {
            watcher: watcher.clone(),
            registration,
        };
        taken.map_err(errno)?;
        Ok(Box::new(lease))
    }

    /// Breaks the leases of `node` before its names or attributes change: notifies their holders,
    /// and returns `WOULD_BLOCK`, or `PARKED` with more patience, as long as there are any. `own`
    /// is the descriptor with the lease of the changing client itself.
    pub(crate) fn clear(&self, cx: &Cx<'_>, node: NodeId, own: Option<&Fd>) -> Result<()> {
        let Some(watcher) = self.in_use() else {
            return Ok(());
        };
        let own = own.map(|fd| fd.as_fd().as_raw_fd());
        let is_clear = || {
            let registrations = watcher.of(node);
            let others: Vec<_> = registrations
                .iter()
                .filter(|registration| Some(registration.number()) != own)
                .collect();
            others
                .iter()
                .for_each(|registration| registration.notify_holder());
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
    pub(crate) fn find(&self, node: NodeId) -> Option<(Kind, Arc<Fd>)> {
        let registrations = self.in_use()?.of(node);
        registrations
            .first()
            .map(|registration| (registration.kind, registration.fd.clone()))
    }

    /// Returns the watcher if there are leases.
    fn in_use(&self) -> Option<&Arc<LeaseWatcher>> {
        let watcher = self.watcher.get()?;
        (watcher.count.load(Ordering::SeqCst) > 0).then_some(watcher)
    }

    /// Returns the watcher, starting it if necessary. Returns `EOPNOTSUPP` if the kernel would
    /// revoke leases too early.
    fn watcher(&self) -> Result<&Arc<LeaseWatcher>> {
        let _starting = self.starting.lock();
        if let Some(watcher) = self.watcher.get() {
            return Ok(watcher);
        }
        if sys::usage::lease_break_time().is_none_or(|time| time < BREAK_TIME) {
            return Err(Errno::EOPNOTSUPP);
        }
        let watcher = LeaseWatcher::start()?;
        Ok(self.watcher.get_or_init(|| watcher))
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.get() {
            // Cannot fail: there is no other writer.
            let _ = rustix::io::write(&watcher.end, &1u64.to_ne_bytes());
        }
    }
}

/// Repeats `again` until it returns a value, as far as the caller's patience permits.
pub(crate) fn wait<T>(cx: &Cx<'_>, again: impl Fn() -> Result<Option<T>>) -> Result<T> {
    cx.check_may_block()?;
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

impl LeaseWatcher {
    fn start() -> Result<Arc<LeaseWatcher>> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(errno)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(errno)?;
        let (tell, reported) = std::sync::mpsc::channel();
        let (ready, started) = std::sync::mpsc::channel::<Arc<LeaseWatcher>>();
        let thread = std::thread::Builder::new().name("barge-leases".into());
        let spawned = thread.spawn(move || {
            let listener = match BreakListener::on_this_thread() {
                Ok((listener, thread)) => {
                    let _ = tell.send(Ok(thread));
                    listener
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            if let Ok(watcher) = started.recv() {
                watcher.listen(&listener);
            }
        });
        spawned.map_err(|_| Errno::EAGAIN)?;
        let notified_thread = reported.recv().map_err(|_| Errno::EIO)?.map_err(errno)?;
        let watcher = Arc::new(LeaseWatcher {
            count: AtomicUsize::new(0),
            notified_thread,
            inotify,
            end,
            registrations: Mutex::default(),
        });
        let _ = ready.send(watcher.clone());
        Ok(watcher)
    }

    fn listen(&self, listener: &BreakListener) {
        loop {
            let mut fds = [
                PollFd::new(listener, PollFlags::IN),
                PollFd::new(&self.inotify, PollFlags::IN),
                PollFd::new(&self.end, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Raw::INTR) => {}
                Err(_) => return self.notify_all(),
            }
            if !fds[2].revents().is_empty() {
                return;
            }
            while let Ok(Some(wanted)) = listener.next() {
                match wanted {
                    LeaseBreak::Descriptor(fd) => {
                        let registration = self.registrations().by_fd.get(&fd).cloned();
                        registration
                            .iter()
                            .for_each(|registration| registration.notify_if_wanted());
                    }
                    LeaseBreak::Any => self
                        .all()
                        .iter()
                        .for_each(|registration| registration.notify_if_wanted()),
                }
            }
            self.read_changes();
        }
    }

    fn read_changes(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut changes = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let (watch_descriptor, events) = match changes.next() {
                Ok(change) => (change.wd(), change.events()),
                Err(Raw::INTR) => continue,
                Err(_) => return,
            };
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.notify_all();
            } else if !events.contains(ReadFlags::IGNORED) {
                let node = self
                    .registrations()
                    .by_watch_descriptor
                    .get(&watch_descriptor)
                    .copied();
                let registrations = node.map(|node| self.of(node)).unwrap_or_default();
                registrations
                    .iter()
                    .for_each(|registration| registration.notify_holder());
            }
        }
    }

    fn notify_all(&self) {
        self.all()
            .iter()
            .for_each(|registration| registration.notify_holder());
    }

    fn all(&self) -> Vec<Arc<Registration>> {
        self.registrations().by_fd.values().cloned().collect()
    }

    /// Returns the leases of a node.
    fn of(&self, node: NodeId) -> Vec<Arc<Registration>> {
        let registrations = self.registrations();
        let fds = registrations.by_node.get(&node).into_iter().flatten();
        fds.filter_map(|fd| registrations.by_fd.get(fd).cloned())
            .collect()
    }

    fn registrations(&self) -> MutexGuard<'_, Registrations> {
        self.registrations.lock()
    }
}

impl Registration {
    fn notify_if_wanted(&self) {
        if sys::lease::is_breaking(self.fd.as_fd(), self.kind) != Ok(false) {
            self.notify_holder();
        }
    }

    fn number(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }

    fn notify_holder(&self) {
        if !self.is_broken.swap(true, Ordering::SeqCst) {
            (self.broken)();
        }
    }
}

impl Lease for HostLease {
    fn is_broken(&self) -> bool {
        self.registration.is_broken.load(Ordering::SeqCst)
    }
}

impl Drop for HostLease {
    fn drop(&mut self) {
        let Registration {
            fd,
            node,
            watch_descriptor,
            ..
        } = &*self.registration;
        let number = self.registration.number();
        let mut registrations = self.watcher.registrations();
        // Fails only if the kernel has revoked it.
        let _ = sys::lease::release(fd.as_fd());
        registrations.by_fd.remove(&number);
        if let Some(fds) = registrations.by_node.get_mut(node) {
            fds.retain(|&one| one != number);
            if fds.is_empty() {
                registrations.by_node.remove(node);
                registrations.by_watch_descriptor.remove(watch_descriptor);
                // Fails only if the file no longer exists.
                let _ = inotify::remove_watch(&self.watcher.inotify, *watch_descriptor);
            }
        }
        drop(registrations);
        self.watcher.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns whether a call that waits for a lease is parked and woken, instead of blocking.
pub(crate) fn parks(cx: &Cx<'_>) -> bool {
    cx.patience == Patience::Full && cx.call.waker().is_some()
}
