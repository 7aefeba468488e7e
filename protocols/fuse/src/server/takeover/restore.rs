//! The restoration of a session from the records of an earlier process.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vfs::{AttrMask, Call, Caller, Cx, Errno, Kind, Node, NodeId, OpenFlags, Result, Support};

use super::super::Session;
use super::super::handles::Open;
use super::super::init::Negotiated;
use super::super::io_modes::{IoMode, IoModeRef};
use super::super::lock::{LockRecord, MountLocks};
use super::super::nodes::{NodeRef, SavedNode};
use super::super::open::Reopened;
use super::{
    FILE_WORDS, FileKeeper, FileRecord, LOCK_WORDS, NODE_WORDS, OpenNodes, Place, Records,
};
use crate::numbers::{InitFlags, ROOT_ID};

/// The incarnation of a session in which no INIT was served.
const FIRST: u64 = 0;

/// The side that sends unanswered requests to a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resender {
    /// The client does: the kernel of this host, at a notification ([`super::resend_message`]).
    Client,
    /// The transport does ([`wire::Incoming::is_repeated`]). The client notices nothing.
    Transport,
}

/// The state that a session has taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// Nodes that the client has looked up.
    pub nodes: usize,
    /// Open files and directories.
    pub files: usize,
    /// Open files and directories that could not be opened again, or whose locks others have now:
    /// requests for them return `EIO`.
    pub lost: usize,
    /// Locks.
    pub locks: usize,
}

impl FileRecord {
    /// Returns the record of the open file `fh`, which the request `unique` has opened.
    pub(in super::super) fn new(fh: u64, open: &Open, unique: u64) -> FileRecord {
        let mode = open.io_mode.as_ref().map(IoModeRef::mode);
        let (io_mode, backing) = match mode.unwrap_or_default() {
            IoMode::Cached => (0, 0),
            IoMode::Direct => (1, 0),
            IoMode::Passthrough(number) => (2, number.get()),
        };
        FileRecord {
            fh,
            nodeid: open.nodeid,
            flags: open.flags.bits(),
            io_mode,
            backing,
            opened_by: unique & !crate::numbers::UNIQUE_RESEND,
        }
    }

    /// Decodes a record. Returns `None` if it is not one that this server writes.
    fn decode(words: &[u64; FILE_WORDS]) -> Option<FileRecord> {
        let [fh, nodeid, flags, io_mode, backing, opened_by] = *words;
        Some(FileRecord {
            fh,
            nodeid,
            flags: u32::try_from(flags).ok()?,
            io_mode,
            backing: u32::try_from(backing).ok()?,
            opened_by,
        })
    }

    fn io_mode(&self) -> Option<IoMode> {
        match self.io_mode {
            0 => Some(IoMode::Cached),
            1 => Some(IoMode::Direct),
            2 => NonZeroU32::new(self.backing).map(IoMode::Passthrough),
            _ => None,
        }
    }
}

impl Session {
    /// Returns whether a session with records can be taken over: its tree outlives the process, and
    /// so do the handles of its nodes.
    pub fn can_be_taken_over(&self) -> bool {
        self.capabilities.persistent && self.capabilities.handles == Support::Native
    }

    /// Writes down the client's state in `records`, from which another process can continue the
    /// mount. Requires a tree whose handles outlive the process.
    pub fn with_records(mut self, records: Records, resender: Resender) -> Session {
        let records = Arc::new(records);
        self.resender = resender;
        self.nodes.set_records(records.clone());
        self.handles.set_records(records.clone());
        let locks = MountLocks::new(&self.export, Some(records.clone()));
        self.client = locks.client;
        *self.mount_locks.get_mut() = locks;
        self.records = Some(records);
        self
    }

    /// Lets `keeper` keep descriptors of open files without a name.
    pub fn with_keeper(mut self, keeper: Arc<dyn FileKeeper>) -> Session {
        self.handles.open_nodes = OpenNodes::new(keeper);
        self
    }

    /// Notes that the reply to `message` was sent: no client sends it again. The driver calls it
    /// for each request of a session [with records](Session::with_records).
    pub fn sent(&self, message: &[u8]) {
        if let Some(records) = &self.records {
            records.sent(message);
        }
    }

    /// Prepares the end of the process in favour of a successor: lets no further request begin that
    /// must not be carried out twice, and waits until those that were begun have a reply, `limit`
    /// at most. Threads that serve requests may stop for good: the process has to exit. Returns
    /// false, without effect, if no successor could continue.
    pub fn hand_over(&self, limit: Duration) -> bool {
        match &self.records {
            Some(records) if self.agreed_to_continue(records).is_some() => {
                records.journal.close(&records.memory, limit);
                true
            }
            _ => false,
        }
    }

    /// Returns the result of INIT in the records, if they permit that the mount is continued.
    fn agreed_to_continue(&self, records: &Records) -> Option<Negotiated> {
        let agreed = Negotiated::unpack(records.negotiated())?;
        let is_granted = (agreed.flags - self.continues()).is_empty();
        let resends = match self.resender {
            Resender::Client => agreed.has(InitFlags::HAS_RESEND),
            Resender::Transport => true,
        };
        (resends && is_granted && !records.is_incomplete()).then_some(agreed)
    }

    /// Continues the mount that the records describe, before any request is served. `kept` are the
    /// descriptors that the [keeper](Session::with_keeper) has, in any order.
    ///
    /// Returns `None` if the records do not permit it: no INIT was served, the client sends no
    /// request again, something is not in them, or they are those of another tree. Where the
    /// transport sends requests again, a session without INIT is continued as a new one.
    pub fn take_over(&self, kept: &[OwnedFd]) -> Result<Option<TakenOver>> {
        let Some(records) = &self.records else {
            return Ok(None);
        };
        if self.resender == Resender::Transport && records.negotiated() == 0 {
            records.clear();
            return Ok(Some(TakenOver::default()));
        }
        let Some(agreed) = self.agreed_to_continue(records) else {
            return Ok(None);
        };
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let root = self.export.fs.root(&cx)?;
        if root.kind() != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !records.is_of_root(&*root, &cx)? {
            return Ok(None);
        }
        let attr = root.attr(&cx, AttrMask::BASIC)?;
        self.nodes.set_root(FIRST, root, attr.device)?;
        self.negotiated.store(agreed.pack(), Ordering::Release);
        self.note_client(agreed);
        self.restore_nodes(records)?;
        let adopted = self.adopt(kept);
        for (node, _) in &adopted {
            let nodeid = self.nodes.nodeid_of(node.id());
            self.handles.open_nodes.note_kept(nodeid);
        }
        let mut taken = TakenOver::default();
        let files = self.restore_files(&cx, records, agreed, &mut taken);
        self.restore_locks(records, files, &mut taken);
        self.handles.open_nodes.release_closed();
        self.has_lost.store(taken.lost > 0, Ordering::Relaxed);
        taken.nodes = self.nodes.count();
        taken.files = self.handles.count();
        Ok(Some(taken))
    }

    /// Returns the nodes of open files without a name, with the descriptors of an earlier process.
    /// Their handles lead to them as long as these live.
    pub(in super::super) fn adopt<'f>(
        &self,
        files: &'f [OwnedFd],
    ) -> Vec<(Arc<dyn Node>, &'f OwnedFd)> {
        let adopt = |file: &'f OwnedFd| {
            let adopted = self.export.fs.adopt(file.as_fd());
            let adopted = adopted.inspect_err(|errno| {
                tracing::warn!(client = self.client, "an open file is lost: {errno}");
            });
            Some((adopted.ok()?, file))
        };
        files.iter().filter_map(adopt).collect()
    }

    fn restore_nodes(&self, records: &Records) -> Result<()> {
        let any = self.nodes.get(FIRST, ROOT_ID)?.node;
        // A node whose record was being replaced has two.
        let mut found: HashMap<u64, (Place, SavedNode)> = HashMap::new();
        for (place, words) in records.nodes.all::<NODE_WORDS>(&records.memory) {
            let saved = SavedNode {
                nodeid: words[0],
                node: NodeRef {
                    node: any.clone(),
                    device: words[2],
                },
                lookups: (words[1] >> 32) as u32,
                generation: words[1] as u32,
            };
            let newer = |(_, older): &(Place, SavedNode)| saved.lookups >= older.lookups;
            if saved.nodeid == ROOT_ID
                || saved.lookups == 0
                || !found.get(&saved.nodeid).is_none_or(newer)
            {
                records.remove_node(place);
            } else if let Some((older, _)) = found.insert(saved.nodeid, (place, saved)) {
                records.remove_node(older);
            }
        }
        for (place, saved) in found.into_values() {
            self.nodes.restore_recorded(FIRST, place, saved);
        }
        Ok(())
    }

    /// Opens files again. Returns them by the number of their node, with their handles.
    fn restore_files(
        &self,
        cx: &Cx<'_>,
        records: &Records,
        agreed: Negotiated,
        taken: &mut TakenOver,
    ) -> HashMap<NodeId, Vec<u64>> {
        let mut files: HashMap<NodeId, Vec<u64>> = HashMap::new();
        for (place, words) in records.files.all::<FILE_WORDS>(&records.memory) {
            let record = FileRecord::decode(&words);
            let record = record.filter(|record| {
                // Its number was not sent, and the request opens another one.
                !records.journal.is_begun(&records.memory, record.opened_by)
            });
            let Some(record) = record else {
                records.remove_file(place);
                continue;
            };
            let opened = self.open_again(cx, &record, agreed).and_then(|open| {
                let node = open.node().id();
                let reserved = self.handles.reserve(cx.call.account())?;
                reserved.insert(FIRST, record.fh, open, Some(place))?;
                Ok(node)
            });
            match opened {
                Ok(node) => files.entry(node).or_default().push(record.fh),
                Err(errno) => {
                    tracing::warn!(node = record.nodeid, "an open file is lost: {errno}");
                    taken.lost += 1;
                    records.remove_file(place);
                }
            }
        }
        files
    }

    fn open_again(&self, cx: &Cx<'_>, record: &FileRecord, agreed: Negotiated) -> Result<Open> {
        let node = self.nodes.get(FIRST, record.nodeid)?.node;
        let reopened = Reopened {
            nodeid: record.nodeid,
            flags: OpenFlags::from_bits(record.flags).ok_or(Errno::EINVAL)?,
            io_mode: record.io_mode().ok_or(Errno::EINVAL)?,
        };
        self.reopen(cx, FIRST, agreed, node, &reopened)
    }

    /// Takes locks again. The files of a node of which others have locked a part are lost: their
    /// programs rely on locks that they do not have.
    fn restore_locks(
        &self,
        records: &Records,
        mut files: HashMap<NodeId, Vec<u64>>,
        taken: &mut TakenOver,
    ) {
        let call = Call::detached();
        for (place, words) in records.locks.all::<LOCK_WORDS>(&records.memory) {
            let lock = LockRecord::decode(&words);
            if let Some(lock) = lock
                && let Some(handles) = files.get(&lock.node)
            {
                let opens = handles.iter().map(|&fh| (fh, self.handles.get(FIRST, fh)));
                let opens = opens.filter_map(|(fh, open)| Some((fh, open.ok()?)));
                let opens: Vec<(u64, Arc<Open>)> = opens.collect();
                // The locks end with the last of the files.
                for (fh, open) in &opens {
                    open.locks.record_request(*fh);
                }
                let lock = lock.of_handles(handles);
                let locks = self.mount_locks();
                let cx = Cx::new(&Caller::ROOT, &call);
                let restored =
                    |(_, open): &(u64, Arc<Open>)| locks.restore(&cx, open, &lock).is_ok();
                match opens.first().is_some_and(restored) {
                    true => taken.locks += 1,
                    false => {
                        tracing::warn!(node = lock.node, "a lock is lost: others have locked it");
                        drop(opens);
                        for fh in files.remove(&lock.node).unwrap_or_default() {
                            taken.lost += 1;
                            // It is there.
                            let _ = self.handles.remove(FIRST, fh);
                        }
                    }
                }
            }
            // There is a new one, if it is held.
            records.remove_lock(place);
        }
    }
}
