//! A trace of first accesses: nodes that are looked up, directories that are listed, ranges of
//! files that are read, each reported once. It records which parts of a tree a program needs, and
//! in which order.
//!
//! A path is the one from the root under which the node was found last. Nodes that are resolved
//! from handles issued before this layer existed have none, and are not reported.
//!
//! Lock order: its only lock is held during the callback.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use vfs::{
    AttrMask, Cx, DirSink, Entry, FileSystem, Name, Node, NodeId, ReaddirMode, RelaySink, Result,
    Sink,
};

use crate::{Layer, Opened, forward};

/// The maximum number of reports, and of nodes with known names: some 100 MB of memory.
const MAX_REPORTS: usize = 1 << 20;

/// A callback for a path from the root, without a leading slash, and the range of bytes that was
/// accessed: empty for a look-up, all of a directory that was listed.
pub type TraceSink = Box<dyn Fn(&[u8], Range<u64>) + Send + Sync>;

/// The layer.
pub struct ReadTrace {
    sink: TraceSink,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    root: Option<NodeId>,
    /// The directory and the name in which each node was found.
    names: HashMap<NodeId, (NodeId, Box<[u8]>)>,
    /// The ranges read of each accessed node, start to end, none overlapping or adjacent to
    /// another.
    read: HashMap<NodeId, BTreeMap<u64, u64>>,
    reported: usize,
}

impl ReadTrace {
    /// Creates the layer, which calls `touched` for each first access.
    pub fn new(touched: TraceSink) -> ReadTrace {
        ReadTrace {
            sink: touched,
            state: Mutex::default(),
        }
    }

    /// Records that `node` was found as `name` in `dir`.
    fn record_name(&self, dir: NodeId, name: &[u8], node: NodeId) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        if Some(node) != state.root
            && (state.names.len() < MAX_REPORTS || state.names.contains_key(&node))
        {
            state.names.insert(node, (dir, name.into()));
        }
        state
    }

    /// Reports the parts of `range` of `node` that are new.
    fn record_locked(&self, state: &mut State, node: NodeId, range: Range<u64>) {
        if state.reported >= MAX_REPORTS {
            return;
        }
        let Some(path) = state.path(node) else {
            return;
        };
        let known = state.read.contains_key(&node);
        let new = add(state.read.entry(node).or_default(), range);
        if !known && new.is_empty() {
            state.reported += 1;
            (self.sink)(&path, 0..0);
        }
        for range in new {
            state.reported += 1;
            (self.sink)(&path, range);
        }
        if state.reported >= MAX_REPORTS {
            tracing::warn!("the read trace is full: no more accesses are recorded");
        }
    }

    fn record_access(&self, node: NodeId, range: Range<u64>) {
        let mut state = self.state.lock();
        self.record_locked(&mut state, node, range);
    }
}

impl State {
    /// Returns the path of a node.
    fn path(&self, node: NodeId) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = node;
        while Some(at) != self.root {
            let (dir, name) = self.names.get(&at)?;
            names.push(&name[..]);
            // After renames, names found at different times can form a cycle.
            if names.len() > self.names.len() {
                return None;
            }
            at = *dir;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }
}

/// Adds a range, and returns the parts of it that are new.
fn add(known: &mut BTreeMap<u64, u64>, range: Range<u64>) -> Vec<Range<u64>> {
    let mut new = Vec::new();
    let Range { mut start, mut end } = range;
    let mut at = start;
    if start >= end {
        return new;
    }
    let touching = known.range(..=end).rev();
    let mut touching: Vec<_> = (touching.take_while(|(_, there)| **there >= start))
        .map(|(from, to)| (*from, *to))
        .collect();
    touching.reverse();
    for (from, to) in touching {
        if at < from.min(end) {
            new.push(at..from.min(end));
        }
        at = at.max(to);
        known.remove(&from);
        (start, end) = (start.min(from), end.max(to));
    }
    if at < range.end {
        new.push(at..range.end);
    }
    known.insert(start, end);
    new
}

impl Layer for ReadTrace {
    fn root(&self, inner: &dyn FileSystem, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        let root = inner.root(cx)?;
        self.state.lock().root = Some(root.id());
        Ok(root)
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let entry = inner.lookup(cx, name)?;
        let id = entry.node.id();
        let mut state = self.record_name(inner.id(), name.bytes(), id);
        self.record_locked(&mut state, id, 0..0);
        drop(state);
        Ok(entry)
    }

    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let read = inner.read(cx, offset, len, sink)?;
        self.record_access(inner.node.id(), offset..offset + read as u64);
        Ok(read)
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let dir = inner.node.id();
        let mut finding = RelaySink::new(sink, |sink, entry| {
            let node = entry.entry.as_ref().map(|entry| entry.node.id());
            let name = entry.name;
            let taken = sink.entry(entry);
            if let (true, Some(node)) = (taken, node) {
                drop(self.record_name(dir, name, node));
            }
            taken
        });
        // Listed nodes can be used without a look-up, so they are found now.
        inner.readdir(cx, cookie, plus, &mut finding)?;
        if let Ok(attr) = inner.attr(cx, AttrMask::SIZE) {
            self.record_access(dir, 0..attr.size);
        }
        Ok(())
    }

    forward! { capabilities id above }

    forward! { all but root lookup read readdir }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_before_is_not_new() {
        let mut known = BTreeMap::new();
        for (range, new) in [
            (10..20, &[(10, 20)][..]),
            (12..18, &[]),
            (30..40, &[(30, 40)]),
            (20..25, &[(20, 25)]),
            (0..50, &[(0, 10), (25, 30), (40, 50)]),
            (5..5, &[]),
            (40..60, &[(50, 60)]),
            (59..61, &[(60, 61)]),
        ] {
            let added = add(&mut known, range.clone());
            let added: Vec<_> = added.iter().map(|new| (new.start, new.end)).collect();
            assert_eq!(added, new, "{range:?}");
        }
        assert_eq!(known, BTreeMap::from([(0, 61)]));
    }
}
