//! The stream of changes of a share, which all of its agents have in common.

use std::sync::{Arc, Weak};
use std::time::Duration;

use layers::Pokes;
use vfs::peer::PeerKey;
use vfs::{
    Call, Caller, Change, ChangeKinds, ChangeStream, ChangedBy, Cx, Errno, FileSystem, Kind, Result,
};

use super::NotifiedShare;
use super::queue::{Queue, QueuedChange};

/// The interval at which a stream without agents ends.
const INTERVAL: Duration = Duration::from_secs(1);

/// The queues of the agents of a share. A thread passes changes to them while there are any.
#[derive(Default)]
pub(super) struct Watcher {
    agents: Vec<Subscription>,
    /// Whether there is a thread.
    runs: bool,
}

#[derive(Clone)]
struct Subscription {
    queue: Weak<Queue>,
    /// The client whose own changes the agent does not need.
    client: Option<PeerKey>,
}

impl NotifiedShare {
    /// Passes all changes from now on to `queue`, except those of `client`, until the queue is
    /// dropped. Returns the errors of [`vfs::FileSystem::watch`].
    pub(super) fn subscribe(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        client: Option<PeerKey>,
    ) -> Result<()> {
        let mut watcher = self.watcher.lock();
        watcher.add(queue, client);
        if watcher.runs {
            return Ok(());
        }
        let begun = self.begin();
        watcher.runs = begun.is_ok();
        if begun.is_err() {
            watcher.agents.clear();
        }
        begun
    }

    fn begin(self: &Arc<Self>) -> Result<()> {
        let tree = self.tree.upgrade().ok_or(Errno::ESTALE)?;
        let call = Call::detached();
        let changes = tree.watch(&Cx::new(&Caller::ROOT, &call))?;
        let share = self.clone();
        let thread = std::thread::Builder::new().name("barge-changes".into());
        let started = thread.spawn(move || share.pass_on(changes));
        started.map(drop).map_err(|_| Errno::EAGAIN)
    }

    pub(super) fn pass_on(&self, mut changes: Box<dyn ChangeStream>) {
        loop {
            let agents = {
                let mut watcher = self.watcher.lock();
                watcher
                    .agents
                    .retain(|agent| agent.queue.strong_count() > 0);
                if self.tree.strong_count() == 0 {
                    return watcher.end();
                }
                if watcher.agents.is_empty() {
                    watcher.runs = false;
                    return;
                }
                watcher.agents.clone()
            };
            let queues: Vec<_> = agents
                .iter()
                .filter_map(|agent| Some((agent.queue.upgrade()?, agent.client)))
                .collect();
            let read = changes.next(INTERVAL, &mut |change| {
                if let Some(tree) = self.tree.upgrade() {
                    pass(&*tree, &self.pokes, &queues, change);
                }
            });
            if let Err(errno) = read {
                if errno != Errno::ESTALE {
                    tracing::warn!("notification of agents has ended: {errno}");
                }
                return self.watcher.lock().end();
            }
        }
    }
}

impl Watcher {
    pub(super) fn add(&mut self, queue: &Arc<Queue>, client: Option<PeerKey>) {
        self.agents.push(Subscription {
            queue: Arc::downgrade(queue),
            client,
        });
    }

    /// Ends all queues, as the thread ends. Agents begin another conversation, and another stream
    /// with it.
    fn end(&mut self) {
        for agent in self.agents.drain(..) {
            if let Some(queue) = agent.queue.upgrade() {
                queue.end();
            }
        }
        self.runs = false;
    }
}

/// Passes a change to the queues of those that need it.
fn pass(
    tree: &dyn FileSystem,
    pokes: &Pokes,
    queues: &[(Arc<Queue>, Option<PeerKey>)],
    change: &Change<'_>,
) {
    // While the object exists, so that its number is not that of another one.
    let removed = change.kinds.contains(ChangeKinds::DELETED).then(|| {
        let kind = match change.is_dir {
            true => Kind::Directory,
            false => Kind::File,
        };
        pokes.removed(tree, change.node, kind)
    });
    for (queue, client) in queues {
        let kinds = match change.by {
            ChangedBy::ThisProcess => others_changes(pokes, *client, change),
            ChangedBy::Others | ChangedBy::Unknown => change.kinds,
        };
        if kinds.is_empty() {
            continue;
        }
        if let Some(queued) = QueuedChange::of(change, kinds, removed.clone()) {
            queue.push(queued);
        }
    }
}

/// Returns the kinds of a change by this process that `client` did not make itself.
fn others_changes(pokes: &Pokes, client: Option<PeerKey>, change: &Change<'_>) -> ChangeKinds {
    let mut kinds = change.kinds;
    let names = ChangeKinds::CREATED | ChangeKinds::RENAMED | ChangeKinds::DELETED;
    if let Some(name) = change.name
        && pokes.is_own(client, name.dir, Some(name.name))
    {
        kinds -= names;
    }
    if let Some(node) = change.node
        && pokes.is_own(client, node, None)
    {
        kinds -= ChangeKinds::CONTENTS | ChangeKinds::ATTRIBUTES;
    }
    kinds
}
