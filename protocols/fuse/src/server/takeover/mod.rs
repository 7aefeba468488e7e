//! Takeover: another process continues a mount whose server was killed or replaced.
//!
//! The client goes on with its node ids, open files, locks and unanswered requests. It sends the
//! latter again (`FUSE_NOTIFY_RESEND`, Linux 6.9), or the transport finds them in the client's
//! queues: see [`Resender`]. So a session with [`Records`] writes down, in memory that outlives its
//! process, whatever the client refers to:
//!
//! | records | written | read by the successor |
//! |---|---|---|
//! | nodes: id, look-ups, generation, handle | at each look-up | on first use, by handle |
//! | open files: number, node, flags, I/O mode | when opened and closed | at once |
//! | locks: file, handle, owner, range, kind | when granted and released | at once |
//! | the journal: requests in progress, replies | before and after each | for a resent request |
//!
//! Reads, writes at an offset and all other requests that give the same result again have no
//! record. `resent` decides about requests that were begun and have no reply.
//!
//! **Trust.** The memory was written by a process with the same privileges as the reader, which may
//! have been taken over by an attacker. Numbers are clamped or checked when they are read; handles
//! are opened by the source, which checks its seal; no word is used as an address or a length
//! without a check. Wrong contents lead to errors of requests, not more.

mod journal;
mod kept;
mod resent;
mod restore;
mod slab;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use vfs::{Cx, Errno, Handle, HandleKey, Node, siphash};

use self::journal::{Begun, Journal};
use self::slab::{Region, Slab};
use crate::layout::{FallocateIn, OutHeader, SetattrIn, WriteIn};
use crate::message::{HEADER, Header, Opcode, REPLY_HEADER};
use crate::numbers::{Fattr, Flags, Notify, UNIQUE_RESEND, WRITE_CACHE};

pub(super) use self::journal::{Attempt, Begun as BegunRequest, JournalEntry, JournaledReply};
pub use self::kept::FileKeeper;
pub(super) use self::kept::OpenNodes;
pub use self::restore::{Resender, TakenOver};
pub(super) use self::slab::Place;

/// Identifies memory with records, and their format: one that differs is not taken over.
const FORMAT: u64 = u64::from_le_bytes(*b"barge\0\0\x02");

/// The format of version 0.1, whose locks have no handles.
const FORMAT_1: u64 = u64::from_le_bytes(*b"barge\0\0\x01");

/// The words of the header.
const FORMAT_AT: usize = 0;
const NEGOTIATED_AT: usize = 1;
const SECRET_AT: usize = 2;
const NEXT_FILE_AT: usize = 6;
const NEXT_GENERATION_AT: usize = 7;
const INCOMPLETE_AT: usize = 8;
const NODES_USED_AT: usize = 9;
const FILES_USED_AT: usize = 10;
const LOCKS_USED_AT: usize = 11;
const ROOT_AT: usize = 12;
const HEADER_WORDS: usize = 64;

/// Nodes: id; look-ups and generation; device; kind and length of the handle; the handle.
const NODES: Region = Region {
    used: NODES_USED_AT,
    first: HEADER_WORDS,
    width: NODE_WORDS,
    capacity: 16 << 20,
};
const NODE_WORDS: usize = 4 + HANDLE_WORDS;
const HANDLE_WORDS: usize = Handle::MAX.div_ceil(8);

/// Open files: number; node; flags; I/O mode; backing id; the request that opened it.
const FILES: Region = Region {
    used: FILES_USED_AT,
    first: NODES.end(),
    width: FILE_WORDS,
    capacity: 1 << 20,
};
const FILE_WORDS: usize = 6;

/// Locks: node; handle, family and kind; owner; first and last byte; process.
const LOCKS: Region = Region {
    used: LOCKS_USED_AT,
    first: FILES.end(),
    width: LOCK_WORDS,
    capacity: 1 << 16,
};
const LOCK_WORDS: usize = 6;

const JOURNAL_AT: usize = LOCKS.end();

/// The granularity of the timestamps of files, by which they may be older than their creation.
const GRANULARITY: Duration = Duration::from_millis(10);

/// Memory that outlives this process, and that other processes may change at any time.
pub type Words = Box<dyn Deref<Target = [AtomicU64]> + Send + Sync>;

/// The records of a mount.
pub struct Records {
    memory: Words,
    nodes: Slab,
    files: Slab,
    locks: Slab,
    journal: Journal,
}

impl Records {
    /// The size of the memory in words. Only what is written takes space.
    pub const WORDS: usize = JOURNAL_AT + journal::ENTRIES * journal::WIDTH;

    /// The words at which the header and the kinds of records begin: nodes, open files, locks, and
    /// the journal.
    pub const REGIONS: [usize; 5] = [0, NODES.first, FILES.first, LOCKS.first, JOURNAL_AT];

    /// Returns the records in `memory` of [`Records::WORDS`] words: those of another process, or
    /// none, with `secret`, if the memory is zero. Returns `None` if the memory has another size,
    /// or records of another format.
    pub fn new(memory: Words, secret: [u8; 32]) -> Option<Records> {
        if memory.len() != Records::WORDS {
            return None;
        }
        match memory[FORMAT_AT].load(Ordering::Acquire) {
            FORMAT => {}
            FORMAT_1 => memory[FORMAT_AT].store(FORMAT, Ordering::Release),
            0 => {
                for (word, bytes) in memory[SECRET_AT..].iter().zip(secret.as_chunks().0) {
                    word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
                }
                memory[NEXT_FILE_AT].store(1, Ordering::Relaxed);
                memory[NEXT_GENERATION_AT].store(1, Ordering::Relaxed);
                memory[FORMAT_AT].store(FORMAT, Ordering::Release);
            }
            _ => return None,
        }
        Some(Records {
            nodes: Slab::new(NODES, &memory),
            files: Slab::new(FILES, &memory),
            locks: Slab::new(LOCKS, &memory),
            journal: Journal::new(JOURNAL_AT, &memory),
            memory,
        })
    }

    /// Returns the key for the handles of the tree, the same in each process that serves the mount.
    pub fn key(&self) -> HandleKey {
        let mut key = [0; 32];
        let words = self.memory[SECRET_AT..].iter();
        for (bytes, word) in key.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        HandleKey::new(key)
    }

    fn word(&self, at: usize) -> u64 {
        self.memory[at].load(Ordering::Acquire)
    }

    /// Returns the packed result of INIT, 0 without one.
    pub(super) fn negotiated(&self) -> u64 {
        self.word(NEGOTIATED_AT)
    }

    pub(super) fn set_negotiated(&self, packed: u64) {
        self.memory[NEGOTIATED_AT].store(packed, Ordering::Release);
    }

    /// Notes the tree's root. Without a handle, another process will not continue the mount.
    pub(super) fn set_root(&self, root: &dyn Node, cx: &Cx<'_>) {
        match identity(root, cx) {
            Ok(identity) => self.memory[ROOT_AT].store(identity, Ordering::Release),
            Err(_) => self.set_incomplete(),
        }
    }

    /// Returns whether the tree's root is the one that was noted: an image may have been replaced
    /// by another one.
    fn is_of_root(&self, root: &dyn Node, cx: &Cx<'_>) -> Result<bool, Errno> {
        Ok(self.word(ROOT_AT) == identity(root, cx)?)
    }

    /// Returns the next number of an open file, which is not used again.
    pub(super) fn next_file(&self) -> u64 {
        self.memory[NEXT_FILE_AT].fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number that the next open file will have.
    pub(super) fn peek_next_file(&self) -> u64 {
        self.word(NEXT_FILE_AT)
    }

    /// Lets the numbers of open files continue at `next` or later.
    pub(super) fn continue_files_at(&self, next: u64) {
        self.memory[NEXT_FILE_AT].fetch_max(next, Ordering::Relaxed);
    }

    /// Returns the generation that the next node will have.
    pub(super) fn peek_next_generation(&self) -> u32 {
        self.word(NEXT_GENERATION_AT) as u32
    }

    /// Lets generations continue at `next`.
    pub(super) fn continue_generations_at(&self, next: u32) {
        self.memory[NEXT_GENERATION_AT].store(next.into(), Ordering::Relaxed);
    }

    /// Returns the next generation of a node.
    pub(super) fn next_generation(&self) -> u32 {
        self.memory[NEXT_GENERATION_AT].fetch_add(1, Ordering::Relaxed) as u32
    }

    /// Notes that something has no record, so that the mount cannot be taken over any more.
    pub(super) fn set_incomplete(&self) {
        self.memory[INCOMPLETE_AT].store(1, Ordering::Release);
    }

    fn is_incomplete(&self) -> bool {
        self.word(INCOMPLETE_AT) != 0
    }

    /// Removes the records of an incarnation that is over.
    pub(super) fn clear(&self) {
        self.set_negotiated(0);
        self.nodes.clear(&self.memory);
        self.files.clear(&self.memory);
        self.locks.clear(&self.memory);
        self.journal.clear_all(&self.memory);
        self.memory[INCOMPLETE_AT].store(0, Ordering::Release);
    }

    /// Adds a node.
    pub(super) fn add_node(&self, node: &NodeRecord) -> Option<Place> {
        let mut record = [0; NODE_WORDS];
        record[0] = node.nodeid;
        record[1] = counts(node.lookups, node.generation);
        record[2] = node.device;
        let bytes = node.handle.bytes();
        record[3] = bytes.len() as u64;
        let mut padded = [0; HANDLE_WORDS * 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        for (word, bytes) in record[4..].iter_mut().zip(padded.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.nodes.add(&self.memory, &record)
    }

    /// Updates the look-ups of a node and its generation.
    pub(super) fn count_node(&self, place: Place, lookups: u32, generation: u32) {
        let words = self.nodes.words(&self.memory, place);
        words[1].store(counts(lookups, generation), Ordering::Release);
    }

    pub(super) fn remove_node(&self, place: Place) {
        self.nodes.remove(&self.memory, place);
    }

    /// Returns the handle in a node's record.
    pub(super) fn node_handle(&self, place: Place) -> Result<Handle, Errno> {
        let words = self.nodes.words(&self.memory, place);
        let bytes = words[4..].iter();
        let bytes = bytes.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let bytes: Vec<u8> = bytes.collect();
        let len = usize::try_from(words[3].load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        Handle::new(bytes.get(..len).ok_or(Errno::ESTALE)?)
    }

    /// Adds an open file.
    pub(super) fn add_file(&self, file: &FileRecord) -> Option<Place> {
        let record = [
            file.fh,
            file.nodeid,
            u64::from(file.flags),
            file.io_mode,
            u64::from(file.backing),
            file.opened_by,
        ];
        self.files.add(&self.memory, &record)
    }

    pub(super) fn remove_file(&self, place: Place) {
        self.files.remove(&self.memory, place);
    }

    /// Adds a lock.
    pub(super) fn add_lock(&self, lock: &[u64; LOCK_WORDS]) -> Option<Place> {
        self.locks.add(&self.memory, lock)
    }

    pub(super) fn remove_lock(&self, place: Place) {
        self.locks.remove(&self.memory, place);
    }

    /// Enters a request into the journal, if it must not be carried out twice. It may be there
    /// already if it is `resent`.
    pub(super) fn begin(
        &self,
        header: &Header,
        message: &[u8],
        resent: bool,
    ) -> Result<Option<Begun>, Errno> {
        if !is_journaled(header.opcode, message) {
            return Ok(None);
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().saturating_sub(GRANULARITY);
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let unique = header.unique & !UNIQUE_RESEND;
        let begun = self.journal.begin(&self.memory, unique, resent, now)?;
        Ok(Some(begun))
    }

    /// Records an observation, not 0, before a request is carried out.
    pub(super) fn observe(&self, entry: JournalEntry, observed: u64) {
        self.journal.observe(&self.memory, entry, observed);
    }

    /// Records the reply to a request: its pieces, which have 160 bytes at most, or its error.
    pub(super) fn finish(&self, entry: JournalEntry, reply: Result<&[&[u8]], Errno>) {
        self.journal.finish(&self.memory, entry, reply);
    }

    /// Removes a request that has had no effect.
    pub(super) fn cancel(&self, entry: JournalEntry) {
        self.journal.cancel(&self.memory, entry);
    }

    /// Removes the request `message`, whose reply was sent.
    pub(super) fn sent(&self, message: &[u8]) {
        if let Ok(header) = Header::decode(message)
            && is_journaled(header.opcode, message)
        {
            let unique = header.unique & !UNIQUE_RESEND;
            self.journal.end(&self.memory, unique);
        }
    }
}

/// Returns the notification that makes the kernel send unanswered requests again. It has to be sent
/// when the processes that have read them have ended.
pub fn resend_message() -> Vec<u8> {
    let header = OutHeader {
        len: REPLY_HEADER as u32,
        error: Notify::Resend as i32,
        unique: 0,
    };
    header.encode().to_vec()
}

/// Returns a hash of a node's handle, which has an identity of the tree.
fn identity(node: &dyn Node, cx: &Cx<'_>) -> Result<u64, Errno> {
    Ok(siphash::hash(&[0; 16], node.handle(cx)?.bytes()))
}

fn counts(lookups: u32, generation: u32) -> u64 {
    u64::from(lookups) << 32 | u64::from(generation)
}

/// Returns whether a request must not be carried out twice.
fn is_journaled(opcode: u32, message: &[u8]) -> bool {
    let arguments = || message.get(HEADER..).unwrap_or_default();
    match Opcode::of(opcode) {
        Some(
            Opcode::Open
            | Opcode::Opendir
            | Opcode::Create
            | Opcode::Tmpfile
            | Opcode::Mknod
            | Opcode::Mkdir
            | Opcode::Symlink
            | Opcode::Link
            | Opcode::Unlink
            | Opcode::Rmdir
            | Opcode::Rename
            | Opcode::Rename2
            | Opcode::Setxattr
            | Opcode::Removexattr,
        ) => true,
        Some(Opcode::Write) => WriteIn::decode(arguments()).is_ok_and(|args| {
            args.write_flags & WRITE_CACHE == 0
                && Flags::from_bits_retain(args.flags).contains(Flags::APPEND)
        }),
        Some(Opcode::Setattr) => SetattrIn::decode(arguments())
            .is_ok_and(|args| Fattr::from_bits_retain(args.valid).contains(Fattr::SIZE)),
        // Some modes move the bytes after the range.
        Some(Opcode::Fallocate) => {
            FallocateIn::decode(arguments()).is_ok_and(|args| args.mode & !1 != 0)
        }
        _ => false,
    }
}

/// A node in the records.
pub(super) struct NodeRecord {
    pub(super) nodeid: u64,
    pub(super) lookups: u32,
    pub(super) generation: u32,
    pub(super) device: u64,
    pub(super) handle: Handle,
}

/// An open file in the records.
pub(super) struct FileRecord {
    pub(super) fh: u64,
    pub(super) nodeid: u64,
    pub(super) flags: u32,
    /// 0 cached, 1 direct, 2 passthrough.
    pub(super) io_mode: u64,
    pub(super) backing: u32,
    pub(super) opened_by: u64,
}

/// The records of a session, if it has any.
pub(super) type OptionalRecords = Option<Arc<Records>>;
