//! The nodes that the client has looked up, each with its look-up count.
//!
//! A node's id is the source's inode number, so that hard links and repeated look-ups find the same
//! node. Only the root's id is 1; if the source numbers another node 1, that node gets the root's
//! number instead.
//!
//! A million of them have to fit: an entry is 40 bytes and has the node of the source, without the
//! layers over it, which are put on again for each request.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use vfs::{Call, Caller, Cx, Entry, Errno, FileSystem, Handle, Node, NodeId, Result};

use super::table::{Entries, Incarnation, Table};
use super::takeover::{NodeRecord, Place, Records};
use crate::numbers::ROOT_ID;

pub(super) struct Nodes {
    table: Table<NodeEntry>,
    fs: Arc<dyn FileSystem>,
    devices: Devices,
    /// The source's number of the root.
    root: AtomicU64,
    count: AtomicUsize,
    max: usize,
    generations: AtomicU32,
    /// The inode numbers that the client knows from the server it was migrated from.
    migrated: RwLock<MigratedNumbers>,
    /// Whether any of them differs from the source's here.
    has_migrated: AtomicBool,
    /// The records of the nodes, whose handles are found in `fs`.
    records: Option<Arc<Records>>,
}

pub(super) struct NodeEntry {
    /// The node, without the layers over it if `layered`.
    node: Arc<dyn Node>,
    /// The look-up count. At `u32::MAX` it is no longer decremented, and the node stays, as the
    /// root does.
    lookups: u32,
    /// Distinguishes successive uses of an id for the duration of the mount.
    generation: u32,
    /// The node's record, if it has one.
    record: Option<RecordPlace>,
    device: DeviceIndex,
    layered: bool,
    /// Whether the node of an earlier process was not found by its handle yet. `node` is another
    /// one then.
    unresolved: bool,
}

/// The place of a record, as a number that is not 0.
#[derive(Clone, Copy)]
struct RecordPlace(NonZeroU32);

impl RecordPlace {
    fn new(place: Place) -> Option<RecordPlace> {
        NonZeroU32::new(place.wrapping_add(1)).map(RecordPlace)
    }

    fn place(self) -> Place {
        self.0.get() - 1
    }
}

/// A node that the client has looked up.
#[derive(Clone)]
pub(super) struct NodeRef {
    pub(super) node: Arc<dyn Node>,
    /// The device that the node is on.
    pub(super) device: u64,
}

/// A node that the client has looked up at another server or process.
#[derive(Clone)]
pub(super) struct SavedNode {
    pub(super) nodeid: u64,
    pub(super) node: NodeRef,
    pub(super) lookups: u32,
    pub(super) generation: u32,
}

/// The devices of nodes, which are few: an entry has the index of its device.
#[derive(Default)]
struct Devices {
    /// The device of index 0, read without a lock.
    first: OnceLock<u64>,
    others: RwLock<Vec<u64>>,
}

type DeviceIndex = u16;

impl Devices {
    /// Returns the index of a device. Returns `ENFILE` after 65,536 devices.
    fn index(&self, device: u64) -> Result<DeviceIndex> {
        if *self.first.get_or_init(|| device) == device {
            return Ok(0);
        }
        let find = |others: &[u64]| others.iter().position(|&other| other == device);
        let known = find(&self.others.read());
        let index = known.unwrap_or_else(|| {
            let mut others = self.others.write();
            find(&others).unwrap_or_else(|| {
                if others.len() < usize::from(DeviceIndex::MAX) {
                    others.push(device);
                    return others.len() - 1;
                }
                others.len()
            })
        });
        DeviceIndex::try_from(index + 1).map_err(|_| Errno::ENFILE)
    }

    #[inline]
    fn get(&self, index: DeviceIndex) -> u64 {
        let device = match index {
            0 => self.first.get().copied(),
            index => self.others.read().get(usize::from(index) - 1).copied(),
        };
        device.unwrap_or_default()
    }
}

/// The inode numbers of migrated nodes that the source numbers differently here.
///
/// The numbers of all other nodes change places with them, so that numbers stay unique: the map
/// is completed to a permutation.
#[derive(Default)]
struct MigratedNumbers {
    /// The client's numbers, by the source's.
    clients: HashMap<NodeId, u64>,
    /// The source's numbers, by the client's.
    sources: HashMap<u64, NodeId>,
}

impl MigratedNumbers {
    /// Records a number. Returns false if either is recorded already.
    fn insert(&mut self, source: NodeId, client: u64) -> bool {
        if self.clients.contains_key(&source) || self.sources.contains_key(&client) {
            return false;
        }
        self.clients.insert(source, client);
        self.sources.insert(client, source);
        true
    }

    fn client_number(&self, id: NodeId) -> u64 {
        if let Some(&number) = self.clients.get(&id) {
            return number;
        }
        // The client's number `id` belongs to another node, whose own number may as well.
        let mut free = id;
        while let Some(&source) = self.sources.get(&free) {
            free = source;
        }
        free
    }
}

/// A node's id and generation, as sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub(super) nodeid: u64,
    pub(super) generation: u32,
}

impl Nodes {
    /// Returns an empty table of at most `most` nodes of `fs`.
    pub(super) fn new(fs: Arc<dyn FileSystem>, most: usize) -> Nodes {
        Nodes {
            table: Table::new(),
            fs,
            devices: Devices::default(),
            root: AtomicU64::new(ROOT_ID),
            count: AtomicUsize::new(0),
            max: most,
            generations: AtomicU32::new(1),
            migrated: RwLock::default(),
            has_migrated: AtomicBool::new(false),
            records: None,
        }
    }

    /// Records nodes from now on, which a successor finds by their handles.
    pub(super) fn set_records(&mut self, records: Arc<Records>) {
        self.records = Some(records);
    }

    /// Returns an entry without a record. Returns `ENFILE` if there are too many devices.
    fn entry(
        &self,
        (node, device): (&Arc<dyn Node>, u64),
        lookups: u32,
        generation: u32,
    ) -> Result<NodeEntry> {
        let below = self.fs.below_layers(node);
        Ok(NodeEntry {
            layered: below.is_some(),
            node: below.unwrap_or_else(|| node.clone()),
            lookups,
            generation,
            record: None,
            device: self.devices.index(device)?,
            unresolved: false,
        })
    }

    /// Returns the node of an entry, below its layers, and what [`Nodes::with_layers`] needs.
    #[inline]
    fn bare(&self, looked: &NodeEntry) -> (NodeRef, bool) {
        let node = NodeRef {
            node: looked.node.clone(),
            device: self.devices.get(looked.device),
        };
        (node, looked.layered)
    }

    /// Puts the layers on a node again. Not called under the lock of a shard.
    #[inline]
    fn with_layers(&self, (node, layered): (NodeRef, bool)) -> NodeRef {
        if !layered {
            return node;
        }
        NodeRef {
            node: self.fs.with_layers(node.node),
            device: node.device,
        }
    }

    /// Inserts a node of an earlier process, which is found by the handle in its record when it is
    /// first used. Until then `saved` has another node.
    pub(super) fn restore_recorded(
        &self,
        incarnation: Incarnation,
        place: Place,
        saved: SavedNode,
    ) {
        let Ok(entry) = self.entry(
            (&saved.node.node, saved.node.device),
            saved.lookups,
            saved.generation,
        ) else {
            return;
        };
        let Some(mut shard) = self.table.shard(incarnation, saved.nodeid) else {
            return;
        };
        let restored = NodeEntry {
            record: RecordPlace::new(place),
            unresolved: true,
            ..entry
        };
        if shard.entries.insert(saved.nodeid, restored).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the root, which stays however often it is forgotten. Returns `EIO` if its incarnation
    /// is over.
    pub(super) fn set_root(
        &self,
        incarnation: Incarnation,
        node: Arc<dyn Node>,
        device: u64,
    ) -> Result<()> {
        // Linux requires the generation 0. A successor finds the root without a record.
        let root_number = node.id();
        let root = self.entry((&node, device), 1, 0)?;
        let mut shard = self.table.shard(incarnation, ROOT_ID).ok_or(Errno::EIO)?;
        self.root.store(root_number, Ordering::Relaxed);
        if shard.entries.insert(ROOT_ID, root).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the node `nodeid`, or `ESTALE` if the client has not looked it up.
    #[inline]
    pub(super) fn get(&self, incarnation: Incarnation, nodeid: u64) -> Result<NodeRef> {
        let shard = self.table.shard(incarnation, nodeid).ok_or(Errno::ESTALE)?;
        let looked = shard.entries.get(nodeid).ok_or(Errno::ESTALE)?;
        if !looked.unresolved {
            let found = self.bare(looked);
            drop(shard);
            return Ok(self.with_layers(found));
        }
        let record = looked.record.ok_or(Errno::ESTALE)?;
        drop(shard);
        self.resolve(incarnation, nodeid, record)
    }

    /// Finds a node of an earlier process by its handle.
    #[cold]
    fn resolve(
        &self,
        incarnation: Incarnation,
        nodeid: u64,
        record: RecordPlace,
    ) -> Result<NodeRef> {
        let records = self.records.as_ref().ok_or(Errno::ESTALE)?;
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let node = self
            .fs
            .resolve(&cx, &records.node_handle(record.place())?)?;
        if self.nodeid_of(node.id()) != nodeid {
            return Err(Errno::ESTALE);
        }
        let below = self.fs.below_layers(&node);
        let layered = below.is_some();
        let below = below.unwrap_or(node);
        let mut shard = self.table.shard(incarnation, nodeid).ok_or(Errno::ESTALE)?;
        let looked = shard.entries.get_mut(nodeid).ok_or(Errno::ESTALE)?;
        // Another request may have found it meanwhile.
        if looked.unresolved {
            (looked.node, looked.layered, looked.unresolved) = (below, layered, false);
        }
        let found = self.bare(looked);
        drop(shard);
        Ok(self.with_layers(found))
    }

    /// Returns whether the client has looked up the node `nodeid`.
    pub(super) fn contains(&self, incarnation: Incarnation, nodeid: u64) -> bool {
        let shard = self.table.shard(incarnation, nodeid);
        shard.is_some_and(|shard| shard.entries.contains(nodeid))
    }

    /// Returns `ENFILE` if the table is full. Called before a node is made.
    pub(super) fn check_room(&self) -> Result<()> {
        match self.count.load(Ordering::Relaxed) < self.max {
            true => Ok(()),
            false => Err(Errno::ENFILE),
        }
    }

    /// Counts a look-up. Returns `ENFILE` if the table is full, `ESTALE` if its incarnation is
    /// over. `handle` returns the node's handle, for its record.
    pub(super) fn add_lookup(
        &self,
        incarnation: Incarnation,
        entry: &Entry,
        handle: impl Fn() -> Result<Handle>,
    ) -> Result<Id> {
        let nodeid = self.nodeid_of(entry.node.id());
        let mut known = self.entry((&entry.node, entry.attr.device), 1, 0)?;
        let mut shard = self.table.shard(incarnation, nodeid).ok_or(Errno::ESTALE)?;
        // A handle takes a system call: not under the shard's lock.
        let is_recorded = |looked: &NodeEntry| {
            nodeid == ROOT_ID
                || looked.record.is_some()
                    && !looked.unresolved
                    && Arc::ptr_eq(&looked.node, &known.node)
        };
        let looked = shard.entries.get(nodeid);
        let mut found = None;
        if self.records.is_some() && !looked.is_some_and(is_recorded) {
            let unresolved = looked.filter(|looked| looked.unresolved);
            let unresolved = unresolved.and_then(|looked| looked.record);
            drop(shard);
            if let Some(record) = unresolved {
                // If it fails, the number belongs to another object now.
                let _ = self.resolve(incarnation, nodeid, record);
            }
            found = Some(handle().ok());
            shard = self.table.shard(incarnation, nodeid).ok_or(Errno::ESTALE)?;
        }
        let (id, old) = match shard.entries.get_mut(nodeid) {
            Some(looked) => {
                looked.lookups = looked.lookups.saturating_add(1);
                // A source that has lost an object may reuse its number.
                let other = looked.unresolved || looked.node.kind() != known.node.kind();
                if other && nodeid != ROOT_ID {
                    looked.generation = self.new_generation();
                }
                looked.unresolved = false;
                let generation = looked.generation;
                // The newer one is at least as good.
                let old = std::mem::replace(&mut looked.node, known.node);
                (looked.device, looked.layered) = (known.device, known.layered);
                match found {
                    Some(handle) => self.record(nodeid, looked, handle),
                    None => self.count_recorded(looked),
                }
                (Id { nodeid, generation }, Some(old))
            }
            None => {
                if self.count.fetch_add(1, Ordering::Relaxed) >= self.max {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    return Err(Errno::ENFILE);
                }
                let generation = self.new_generation();
                known.generation = generation;
                if let Some(handle) = found {
                    self.record(nodeid, &mut known, handle);
                }
                shard.entries.insert(nodeid, known);
                (Id { nodeid, generation }, None)
            }
        };
        // Dropping a node may take time: not under the shard's lock.
        drop(shard);
        drop(old);
        Ok(id)
    }

    /// Writes the record of a node, in place of an older one. A node without a handle gets none: a
    /// successor returns `ESTALE` for it.
    fn record(&self, nodeid: u64, looked: &mut NodeEntry, handle: Option<Handle>) {
        let Some(records) = &self.records else {
            return;
        };
        let place = handle.and_then(|handle| {
            records.add_node(&NodeRecord {
                nodeid,
                lookups: looked.lookups,
                generation: looked.generation,
                device: self.devices.get(looked.device),
                handle,
            })
        });
        let older = std::mem::replace(&mut looked.record, place.and_then(RecordPlace::new));
        if let Some(older) = older {
            records.remove_node(older.place());
        }
    }

    /// Updates the counts in a node's record.
    fn count_recorded(&self, looked: &NodeEntry) {
        if let (Some(records), Some(record)) = (&self.records, looked.record) {
            records.count_node(record.place(), looked.lookups, looked.generation);
        }
    }

    /// Records that `node` was just made. If its id is in the table, the entry is of a removed node
    /// whose number the source has reused: a server behind the source need not keep an object that
    /// has neither a name nor an open file. The client must not take the new node for the old one:
    /// Linux would refuse to make files in a directory that was removed.
    pub(super) fn record_created(&self, incarnation: Incarnation, node: &dyn Node) {
        let nodeid = self.nodeid_of(node.id());
        if let Some(mut shard) = self.table.shard(incarnation, nodeid)
            && let Some(looked) = shard.entries.get_mut(nodeid)
        {
            looked.generation = self.new_generation();
            self.count_recorded(looked);
        }
    }

    /// Takes back `lookups` of a node's look-ups; the last one removes it from the table.
    pub(super) fn forget(&self, incarnation: Incarnation, nodeid: u64, lookups: u64) {
        if nodeid == ROOT_ID {
            return;
        }
        let Some(mut shard) = self.table.shard(incarnation, nodeid) else {
            return;
        };
        let Some(looked) = shard.entries.get_mut(nodeid) else {
            return;
        };
        if looked.lookups != u32::MAX {
            let fewer = u32::try_from(lookups).unwrap_or(u32::MAX);
            looked.lookups = looked.lookups.saturating_sub(fewer);
        }
        match (looked.lookups, &self.records, looked.record) {
            (0, Some(records), Some(record)) => records.remove_node(record.place()),
            _ => self.count_recorded(looked),
        }
        let is_last = looked.lookups == 0;
        let removed = is_last.then(|| shard.entries.remove(nodeid));
        drop(shard);
        if removed.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Begins an incarnation with an empty table, and returns the previous one's nodes to be
    /// dropped.
    pub(super) fn begin(&self, incarnation: Incarnation) -> Vec<Entries<NodeEntry>> {
        let past = self.table.begin(incarnation);
        let count = past.iter().map(Entries::len).sum();
        self.count.fetch_sub(count, Ordering::Relaxed);
        self.has_migrated.store(false, Ordering::Relaxed);
        *self.migrated.write() = MigratedNumbers::default();
        past
    }

    /// Returns all nodes. Those of an earlier process that cannot be found are not among them.
    pub(super) fn snapshot(&self, incarnation: Incarnation) -> Vec<SavedNode> {
        let nodes = self.table.snapshot(incarnation, |nodeid, looked| {
            let (node, layered) = self.bare(looked);
            let saved = SavedNode {
                nodeid,
                node,
                lookups: looked.lookups,
                generation: looked.generation,
            };
            (saved, layered, looked.record.filter(|_| looked.unresolved))
        });
        let resolved =
            |(mut saved, layered, unresolved): (SavedNode, bool, Option<RecordPlace>)| {
                saved.node = self.with_layers((saved.node, layered));
                if let Some(record) = unresolved {
                    saved.node = self.resolve(incarnation, saved.nodeid, record).ok()?;
                }
                Some(saved)
            };
        nodes.into_iter().filter_map(resolved).collect()
    }

    /// Adds a node that the client has looked up at another server, where the root had the number
    /// `root`. The root comes first. Returns `EEXIST` if the client has another id for it, `ENFILE`
    /// if the table is full, and `ESTALE` if its incarnation is over.
    pub(super) fn restore(
        &self,
        cx: &Cx<'_>,
        incarnation: Incarnation,
        root: u64,
        saved: SavedNode,
    ) -> Result<()> {
        let number = match saved.nodeid {
            ROOT_ID => root,
            nodeid if nodeid == root => ROOT_ID,
            nodeid => nodeid,
        };
        let id = saved.node.node.id();
        if !self.migrated.write().insert(id, number) {
            return Err(Errno::EEXIST);
        }
        if id != number {
            self.has_migrated.store(true, Ordering::Release);
            // The numbers of the other server are not in the records.
            if let Some(records) = &self.records {
                records.set_incomplete();
            }
        }
        if saved.nodeid == ROOT_ID {
            self.root.store(root, Ordering::Relaxed);
        }
        let nodeid = saved.nodeid;
        // A successor finds the root without a record.
        let recorded = self.records.as_ref().filter(|_| nodeid != ROOT_ID);
        let handle = recorded.and_then(|_| saved.node.node.handle(cx).ok());
        let mut entry = self.entry(
            (&saved.node.node, saved.node.device),
            saved.lookups,
            saved.generation,
        )?;
        let mut shard = self.table.shard(incarnation, nodeid).ok_or(Errno::ESTALE)?;
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::ENFILE);
        }
        self.record(nodeid, &mut entry, handle);
        shard.entries.insert(nodeid, entry);
        Ok(())
    }

    /// Returns the inode number of the root, as the client sees it.
    pub(super) fn root_number(&self) -> u64 {
        self.root.load(Ordering::Relaxed)
    }

    /// Returns the next generation.
    pub(super) fn next_generation(&self) -> u32 {
        match &self.records {
            Some(records) => records.peek_next_generation(),
            None => self.generations.load(Ordering::Relaxed),
        }
    }

    /// Ends a sequence of [`Nodes::restore`]. Generations continue at `next`.
    pub(super) fn end_restore(&self, next: u32) {
        match &self.records {
            Some(records) => records.continue_generations_at(next),
            None => self.generations.store(next, Ordering::Relaxed),
        }
        if !self.has_migrated.load(Ordering::Relaxed) {
            *self.migrated.write() = MigratedNumbers::default();
        }
    }

    /// Passes the id of each node to `each`, without a lock.
    pub(super) fn for_each_id(&self, incarnation: Incarnation, each: impl FnMut(u64)) {
        self.table.for_each_key(incarnation, each);
    }

    /// Returns the number of nodes.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the id for a node of this number.
    pub(super) fn nodeid_of(&self, id: NodeId) -> u64 {
        let id = self.inode_number(id);
        match self.root.load(Ordering::Relaxed) {
            root if id == root => ROOT_ID,
            root if id == ROOT_ID => root,
            _ => id,
        }
    }

    /// Returns the inode number that the client sees for the source's.
    pub(super) fn inode_number(&self, id: NodeId) -> u64 {
        match self.has_migrated.load(Ordering::Acquire) {
            true => self.migrated.read().client_number(id),
            false => id,
        }
    }

    fn new_generation(&self) -> u32 {
        match &self.records {
            Some(records) => records.next_generation(),
            None => self.generations.fetch_add(1, Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use vfs::Kind;
    use vfs_testkit::script::{Script, default_attr};

    use super::*;

    fn entry(script: &Script, id: NodeId) -> Entry {
        Entry {
            node: script.node(id, Kind::File),
            attr: default_attr(id, Kind::File),
        }
    }

    fn add(nodes: &Nodes, incarnation: Incarnation, entry: &Entry) -> Result<Id> {
        nodes.add_lookup(incarnation, entry, || Err(Errno::EOPNOTSUPP))
    }

    #[test]
    fn the_root_and_whatever_has_its_id_change_places() {
        let script = Script::new();
        let nodes = Nodes::new(script.clone(), 9);
        nodes
            .set_root(0, script.node(7, Kind::Directory), 0)
            .expect("alive");
        let ids = [7, 1, 2].map(|id| add(&nodes, 0, &entry(&script, id)).map(|id| id.nodeid));
        assert_eq!(ids, [Ok(1), Ok(7), Ok(2)]);
        assert_eq!(nodes.get(0, 7).map(|known| known.node.id()), Ok(1));
        nodes.forget(0, 1, u64::MAX);
        assert_eq!(nodes.get(0, 1).map(|known| known.node.id()), Ok(7));
    }

    #[test]
    fn a_node_goes_with_its_last_look_up_and_comes_back_as_another() {
        let script = Script::new();
        let nodes = Nodes::new(script.clone(), 9);
        nodes
            .set_root(0, script.node(1, Kind::Directory), 0)
            .expect("alive");
        let one = add(&nodes, 0, &entry(&script, 5)).expect("room");
        assert_eq!(add(&nodes, 0, &entry(&script, 5)), Ok(one));
        nodes.forget(0, 5, 1);
        assert!(nodes.get(0, 5).is_ok());
        nodes.forget(0, 5, 99);
        assert_eq!(nodes.get(0, 5).map(drop), Err(Errno::ESTALE));
        nodes.forget(0, 5, 1);
        let other = add(&nodes, 0, &entry(&script, 5)).expect("room");
        assert_ne!(one.generation, other.generation);
        assert_eq!(nodes.count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_is_made_is_not_what_had_its_number_before() {
        let script = Script::new();
        let nodes = Nodes::new(script.clone(), 9);
        let new = entry(&script, 5);
        nodes.record_created(0, &*new.node);
        let one = add(&nodes, 0, &new).expect("room");
        assert_eq!(add(&nodes, 0, &new), Ok(one));
        nodes.record_created(0, &*new.node);
        let other = add(&nodes, 0, &new).expect("room");
        assert_eq!(one.nodeid, other.nodeid);
        assert_ne!(one.generation, other.generation);
        // The client forgets both under the one id.
        nodes.forget(0, 5, 3);
        assert!(nodes.get(0, 5).is_err());
    }

    #[test]
    fn a_node_that_was_looked_up_too_often_to_count_stays() {
        let script = Script::new();
        let nodes = Nodes::new(script.clone(), 9);
        let id = add(&nodes, 0, &entry(&script, 5)).expect("room");
        let lookups = |lookups| {
            let mut shard = nodes.table.shard(0, 5).expect("alive");
            shard.entries.get_mut(5).expect("known").lookups = lookups;
        };
        lookups(u32::MAX - 1);
        assert_eq!(add(&nodes, 0, &entry(&script, 5)), Ok(id));
        assert_eq!(add(&nodes, 0, &entry(&script, 5)), Ok(id));
        nodes.forget(0, 5, u64::MAX);
        assert!(nodes.get(0, 5).is_ok());
        lookups(u32::MAX - 1);
        nodes.forget(0, 5, u64::MAX);
        assert!(nodes.get(0, 5).is_err());
    }

    #[test]
    fn a_full_table_says_so() {
        let script = Script::new();
        let nodes = Nodes::new(script.clone(), 2);
        nodes
            .set_root(0, script.node(1, Kind::Directory), 0)
            .expect("alive");
        assert_eq!(nodes.check_room(), Ok(()));
        assert!(add(&nodes, 0, &entry(&script, 2)).is_ok());
        assert_eq!(nodes.check_room(), Err(Errno::ENFILE));
        assert!(add(&nodes, 0, &entry(&script, 2)).is_ok());
        assert_eq!(add(&nodes, 0, &entry(&script, 3)), Err(Errno::ENFILE));
        drop(nodes.begin(1));
        assert_eq!((nodes.check_room(), nodes.count()), (Ok(()), 0));
        assert_eq!(add(&nodes, 0, &entry(&script, 2)), Err(Errno::ESTALE));
        assert!(add(&nodes, 1, &entry(&script, 2)).is_ok());
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<(u64, NodeEntry)>() <= 40);
    }
}
