//! Trees whose sources are not open yet.
//!
//! Each source is opened on a thread of its own, so that one that hangs stops no other. A share
//! whose source cannot be opened, or not in time, is served without it: its clients get `EIO`,
//! health checks and `barge ctl list` say why, and the source is tried again until it opens.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use concurrency::ThreadPool;
use parking_lot::{Condvar, Mutex};
use vfs::source_stats::{Evicted, SourceStats};
use vfs::{Capabilities, ChangeStream, Cx, Errno, FileSystem, Handle, Node, Result, Support};

use crate::Failure;

/// Time for the sources of a server to open before it serves without them.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause before a source is tried again: the first, and the longest, each twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Number of sources that are opened, or tried again, at the same time.
const THREADS: usize = 64;

/// Opens a source. Called again after it has failed.
type Open = Box<dyn Fn() -> std::result::Result<Arc<dyn FileSystem>, Failure> + Send + Sync>;

/// Called when a source opens that was awaited.
type OnOpen = Box<dyn FnOnce() + Send>;

/// Opens sources on threads of their own.
pub(super) struct SourceOpener(Arc<ThreadPool>);

impl SourceOpener {
    pub(super) fn new() -> SourceOpener {
        SourceOpener(Arc::new(ThreadPool::new("barge-open", THREADS, usize::MAX)))
    }

    /// Begins to open the source of the share `name`.
    pub(super) fn begin(&self, name: &str, open: Open) -> Arc<AwaitedTree> {
        let tree = Arc::new(AwaitedTree {
            name: name.to_owned(),
            open,
            tree: OnceLock::new(),
            state: Mutex::new(State::Opening(Instant::now())),
            changed: Condvar::new(),
            on_open: Mutex::default(),
        });
        try_next(Arc::downgrade(&tree), &self.0, PAUSES.0);
        tree
    }
}

/// Queues an attempt to open the source of `tree`, after which there is a pause of `pause` if it
/// fails. A tree that has been dropped is not opened.
fn try_next(tree: Weak<AwaitedTree>, pool: &Arc<ThreadPool>, pause: Duration) {
    let own_pool = pool.clone();
    pool.run(move || {
        if tree.upgrade().is_none_or(|tree| tree.attempt()) {
            return;
        }
        // The pauses of shares that fail take threads from each other alone, once there are more
        // than threads.
        std::thread::sleep(pause);
        try_next(tree, &own_pool, (pause * 2).min(PAUSES.1));
    });
}

/// The tree of a share whose source is being opened. Until it is open, calls return `EIO`, and
/// `ESTALE` once the share has ended. The attempts end once nobody has it any more.
pub(super) struct AwaitedTree {
    name: String,
    open: Open,
    tree: OnceLock<Arc<dyn FileSystem>>,
    state: Mutex<State>,
    /// Notified when the state changes.
    changed: Condvar,
    on_open: Mutex<Option<OnOpen>>,
}

enum State {
    /// It is opened for the first time, since then.
    Opening(Instant),
    Failed(Failure),
    Open,
    /// Its share has ended.
    Ended,
}

impl AwaitedTree {
    /// Waits until `deadline` for the first attempt to open the source. Returns the tree, or the
    /// failure if there is one.
    pub(super) fn wait(
        &self,
        deadline: Instant,
    ) -> std::result::Result<Arc<dyn FileSystem>, Option<Failure>> {
        let mut state = self.state.lock();
        while let State::Opening(_) = &*state {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        match &*state {
            State::Failed(failure) => Err(Some(failure.clone())),
            State::Opening(_) | State::Open | State::Ended => self.tree.get().cloned().ok_or(None),
        }
    }

    /// Returns the reason why the source is not open, or `None` if it is.
    pub(super) fn problem(&self) -> Option<String> {
        match &*self.state.lock() {
            State::Opening(since) => {
                let seconds = since.elapsed().as_secs();
                Some(format!("the source has not opened for {seconds} s"))
            }
            State::Failed(failure) => Some(failure.message.clone()),
            State::Open | State::Ended => None,
        }
    }

    /// Returns whether the last attempt to open the source has failed.
    pub(super) fn has_failed(&self) -> bool {
        matches!(*self.state.lock(), State::Failed(_))
    }

    /// Logs that the share is not served.
    pub(super) fn report(&self, why: &str) {
        tracing::error!(share = self.name, "not served: {why}");
    }

    /// Calls `notify` once the source is open, at once if it is.
    pub(super) fn on_open(&self, notify: impl FnOnce() + Send + 'static) {
        let mut on_open = self.on_open.lock();
        match self.tree.get() {
            Some(_) => {
                drop(on_open);
                notify();
            }
            None => *on_open = Some(Box::new(notify)),
        }
    }

    /// Ends the attempts.
    pub(super) fn end(&self) {
        *self.state.lock() = State::Ended;
        self.changed.notify_all();
    }

    /// Tries to open the source. Returns whether no further attempt is needed.
    fn attempt(&self) -> bool {
        if matches!(*self.state.lock(), State::Ended) {
            return true;
        }
        let opened = (self.open)();
        let mut state = self.state.lock();
        match (opened, &*state) {
            (_, State::Ended) => return true,
            (Ok(tree), before) => {
                if !matches!(before, State::Opening(since) if since.elapsed() < TIMEOUT) {
                    tracing::info!(share = self.name, "its source is open");
                }
                self.tree.get_or_init(|| tree);
                *state = State::Open;
            }
            (Err(failure), before) => {
                // Each reason once, and the first one only if the share is served all the same.
                let is_known = match before {
                    State::Failed(other) => other.message == failure.message,
                    State::Opening(since) => since.elapsed() < TIMEOUT,
                    State::Open | State::Ended => true,
                };
                if !is_known {
                    self.report(&failure.message);
                }
                *state = State::Failed(failure);
            }
        }
        let is_open = matches!(*state, State::Open);
        drop(state);
        self.changed.notify_all();
        if is_open && let Some(notify) = self.on_open.lock().take() {
            notify();
        }
        is_open
    }

    fn tree(&self) -> Result<&Arc<dyn FileSystem>> {
        self.tree.get().ok_or_else(|| match &*self.state.lock() {
            State::Ended => Errno::ESTALE,
            State::Opening(_) | State::Failed(_) | State::Open => Errno::EIO,
        })
    }
}

impl FileSystem for AwaitedTree {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        self.tree()?.root(cx)
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        self.tree()?.resolve(cx, handle)
    }

    fn adopt(&self, file: BorrowedFd<'_>) -> Result<Arc<dyn Node>> {
        self.tree()?.adopt(file)
    }

    fn below_layers(&self, node: &Arc<dyn Node>) -> Option<Arc<dyn Node>> {
        self.tree.get()?.below_layers(node)
    }

    fn with_layers(&self, node: Arc<dyn Node>) -> Arc<dyn Node> {
        match self.tree.get() {
            Some(tree) => tree.with_layers(node),
            None => node,
        }
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.tree()?.sync(cx)
    }

    /// Before the source is open, returns what most of them have: protocols ask once, and an
    /// operation that the source lacks fails by itself.
    fn capabilities(&self) -> Capabilities {
        const EXPECTED: Capabilities = Capabilities {
            read_only: false,
            xattr: Support::Native,
            acl: Support::Native,
            host_locks: Support::Native,
            handles: Support::Native,
            change: Support::Native,
            holes: Support::Native,
            copy: Support::Native,
            clone: Support::Native,
            tmpfile: Support::Native,
            devices: Support::Native,
            owners: Support::Native,
            changes: Support::None,
            stable_cookies: true,
            persistent: true,
            no_birth_times: false,
        };
        let tree = self.tree.get();
        tree.map_or(EXPECTED, |tree| tree.capabilities())
    }

    fn watch(&self, cx: &Cx<'_>) -> Result<Box<dyn ChangeStream>> {
        self.tree()?.watch(cx)
    }

    fn ping(&self) -> Result<()> {
        self.tree()?.ping()
    }

    fn source_stats(&self) -> SourceStats {
        let tree = self.tree.get();
        tree.map_or_else(SourceStats::default, |tree| tree.source_stats())
    }

    fn evict(&self) -> Evicted {
        let tree = self.tree.get();
        tree.map_or_else(Evicted::default, |tree| tree.evict())
    }

    fn share_name(&self, number: u64) -> Option<String> {
        self.tree.get()?.share_name(number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

    use vfs::{Call, Caller};

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn memory() -> Arc<dyn FileSystem> {
        memory::Memory::new(Arc::new(sources::now))
    }

    fn root_of(tree: &AwaitedTree) -> Option<Errno> {
        let call = Call::detached();
        tree.root(&Cx::new(&Caller::ROOT, &call)).err()
    }

    #[test]
    fn a_source_that_fails_is_tried_again_until_it_opens() {
        let attempts = AtomicUsize::new(0);
        let (opened, is_open) = channel();
        let tree = SourceOpener::new().begin(
            "a",
            Box::new(move || match attempts.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Failure::new("away")),
                _ => Ok(memory()),
            }),
        );
        let failed = tree.wait(soon()).err().flatten();
        assert_eq!(failed.map(|it| it.message).as_deref(), Some("away"));
        assert_eq!(root_of(&tree), Some(Errno::EIO));
        assert_eq!(tree.problem().as_deref(), Some("away"));
        tree.on_open(move || opened.send(()).expect("awaited"));
        assert_eq!(is_open.recv_timeout(Duration::from_secs(20)), Ok(()));
        assert_eq!((root_of(&tree), tree.problem()), (None, None));
    }

    #[test]
    fn sources_that_hang_stop_no_others() {
        let opener = SourceOpener::new();
        let (release, held) = channel::<()>();
        let held = Mutex::new(held);
        let hanging = opener.begin(
            "a",
            Box::new(move || {
                let _ = held.lock().recv();
                Ok(memory())
            }),
        );
        let other = opener.begin("b", Box::new(|| Ok(memory())));
        assert!(other.wait(soon()).is_ok());
        assert!(matches!(hanging.wait(Instant::now()), Err(None)));
        assert_eq!(root_of(&hanging), Some(Errno::EIO));
        let problem = hanging.problem().expect("it is not open");
        assert!(problem.contains("has not opened"), "{problem}");
        drop(release);
        assert!(hanging.wait(soon()).is_ok());
    }

    /// Lets the first attempt to open a tree fail. Returns the tree, and further attempts.
    fn failing() -> (Arc<AwaitedTree>, Receiver<()>) {
        let (tried, attempts) = channel();
        let tree = SourceOpener::new().begin(
            "a",
            Box::new(move || {
                tried.send(()).expect("counted");
                Err(Failure::new("away"))
            }),
        );
        assert!(tree.wait(soon()).is_err());
        attempts.recv().expect("the first attempt");
        (tree, attempts)
    }

    #[test]
    fn a_share_that_has_ended_is_not_opened_again() {
        let (tree, attempts) = failing();
        tree.end();
        assert_eq!(root_of(&tree), Some(Errno::ESTALE));
        assert!(attempts.recv_timeout(PAUSES.0 * 2).is_err());
    }

    #[test]
    fn a_share_that_nobody_has_any_more_is_not_opened_again() {
        let (tree, attempts) = failing();
        drop(tree);
        let end = attempts.recv_timeout(PAUSES.0 * 4);
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
    }
}
