//! Agents in guests, which repeat changes of a share so that the guest's kernel raises inotify(7)
//! events for them (`--agent`).
//!
//! The layer [`layers::Pokes`] answers their requests, [`watcher`] passes the changes of a share to
//! the queue of each of its agents ([`queue`]), and [`session`] tells an agent what to repeat. An
//! agent learns changes only after a request through the share's layers has shown that it is a
//! client of it.
//!
//! Lock order: the shares, then the watcher of a share, then a queue. Each is held for short times
//! only, except that a watcher is held while a stream of changes begins.

mod actions;
mod queue;
mod server;
mod session;
mod watcher;

use std::sync::{Arc, Weak};

use layers::Pokes;
use parking_lot::Mutex;
use vfs::FileSystem;

pub(super) use self::server::AgentServer;
use self::watcher::Watcher;

/// The shares whose changes agents may repeat, by name, in the order in which they were opened.
#[derive(Default)]
pub(crate) struct AgentShares {
    shares: Mutex<Vec<(String, Arc<NotifiedShare>)>>,
}

/// A share with agents.
struct NotifiedShare {
    /// The tree below the layer, which does not stay open for agents.
    tree: Weak<dyn FileSystem>,
    pokes: Arc<Pokes>,
    watcher: Mutex<Watcher>,
}

impl AgentShares {
    /// Adds the share `name`, with `tree` below the layer `pokes`. Agents find it instead of an
    /// older one of that name, which they find again if this one is closed first: a reload that
    /// fails opens shares that are not served.
    pub(crate) fn add(&self, name: &str, tree: &Arc<dyn FileSystem>, pokes: Arc<Pokes>) {
        let share = Arc::new(NotifiedShare {
            tree: Arc::downgrade(tree),
            pokes,
            watcher: Mutex::default(),
        });
        let mut shares = self.shares.lock();
        // Removed shares are gone with their clients.
        shares.retain(|(_, share)| share.tree.strong_count() > 0);
        shares.push((name.to_owned(), share));
    }

    fn get(&self, name: &str) -> Option<Arc<NotifiedShare>> {
        let shares = self.shares.lock();
        let mut newest = shares.iter().rev();
        let found = newest.find(|(its, share)| its == name && share.tree.strong_count() > 0);
        found.map(|(_, share)| share.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vfs::{Change, ChangeStream};

    use super::queue::Queue;
    use super::*;

    fn tree() -> Arc<dyn FileSystem> {
        memory::Memory::new(Arc::new(sources::now))
    }

    #[test]
    fn the_newest_share_that_exists_is_found() {
        let shares = AgentShares::default();
        let is_found = |tree: &Arc<dyn FileSystem>| {
            let found = shares.get("share").and_then(|share| share.tree.upgrade());
            found.is_some_and(|found| Arc::ptr_eq(&found, tree))
        };
        let (old, new) = (tree(), tree());
        shares.add("share", &old, Pokes::new([7; 16]));
        assert!(is_found(&old) && shares.get("other").is_none());
        shares.add("share", &new, Pokes::new([7; 16]));
        assert!(is_found(&new));
        drop(new);
        assert!(is_found(&old));
        drop(old);
        assert!(shares.get("share").is_none());
        shares.add("other", &tree(), Pokes::new([7; 16]));
        assert_eq!(shares.shares.lock().len(), 1, "those that are gone");
    }

    struct NoChanges;

    impl ChangeStream for NoChanges {
        fn next(&mut self, _: Duration, _: &mut dyn FnMut(&Change<'_>)) -> vfs::Result<()> {
            Ok(())
        }

        fn covers(&self, _: u64) -> bool {
            true
        }
    }

    #[test]
    fn queues_end_with_the_tree() {
        let shares = AgentShares::default();
        let tree = tree();
        shares.add("share", &tree, Pokes::new([7; 16]));
        let share = shares.get("share").expect("a share");
        let queue = Arc::new(Queue::new().expect("an eventfd"));
        assert!(share.subscribe(&queue, None).is_err(), "no changes");
        share.watcher.lock().add(&queue, None);
        drop(tree);
        share.pass_on(Box::new(NoChanges));
        assert!(queue.is_ended());
    }
}
