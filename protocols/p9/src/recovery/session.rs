//! A session's state on its server: fids, their open files and locks, and where they point.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::{Names, Position};
use crate::numbers::{Getattr, Lopen, lock_kind, lock_status};
use crate::{Fid, Qid, Rmessage, Tmessage, Uid};

/// The state to be restored on a new server.
#[derive(Default)]
pub(super) struct Session {
    pub(super) fids: HashMap<Fid, FidRecord>,
    pub(super) names: Names,
    /// The latest time that the server has reported, by its clock: a file with an earlier last
    /// change existed before the requests in flight.
    pub(super) latest: (u64, u64),
    /// Whether the session exceeds the limits of a record.
    pub(super) too_large: bool,
}

/// A fid.
pub(super) struct FidRecord {
    pub(super) user: Arc<User>,
    pub(super) position: Position,
    pub(super) qid: Qid,
    pub(super) state: State,
    /// Whether the new server has no such fid.
    pub(super) stale: bool,
}

/// A user and tree, as attached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct User {
    pub(super) uname: Vec<u8>,
    pub(super) aname: Vec<u8>,
    pub(super) n_uname: Uid,
}

/// The state of a fid.
pub(super) enum State {
    Walked,
    Open {
        flags: u32,
        locks: Vec<LockedRange>,
    },
    /// Reads an extended attribute of the file that it was walked from.
    XattrRead {
        name: Vec<u8>,
    },
    /// Takes an extended attribute's new value.
    XattrWrite {
        name: Vec<u8>,
        size: u64,
        flags: u32,
        data: Vec<u8>,
    },
}

/// A locked range; `length` 0 means to the end of the file.
#[derive(Clone)]
pub(super) struct LockedRange {
    pub(super) kind: u8,
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) proc_id: u32,
    pub(super) client_id: Vec<u8>,
}

impl Session {
    /// The most fids, which is barge's server's limit for a client.
    const MAX_FIDS: usize = 1 << 20;

    /// The most locked ranges of a fid.
    const MAX_LOCKS: usize = 4096;

    /// The largest value of an extended attribute in Linux.
    const MAX_VALUE: usize = 64 << 10;

    /// Records a reply; `ok` unless it is an error.
    pub(super) fn apply_reply(&mut self, request: &Tmessage<'_>, reply: &Rmessage<'_>, ok: bool) {
        match request {
            // The fid is released even if the request failed.
            Tmessage::Clunk { fid } => return self.forget(*fid),
            Tmessage::Remove { fid } => {
                if let Some(known) = self.fids.get(fid).filter(|_| ok) {
                    self.names.remove(known.position);
                }
                return self.forget(*fid);
            }
            _ if !ok => return,
            _ => {}
        }
        match (request, reply) {
            (
                Tmessage::Attach {
                    fid,
                    uname,
                    aname,
                    n_uname,
                    ..
                },
                Rmessage::Attach { qid },
            ) => {
                let user = Arc::new(User {
                    uname: uname.to_vec(),
                    aname: aname.to_vec(),
                    n_uname: *n_uname,
                });
                let position = self.names.root(aname, *qid);
                self.insert(*fid, user, position, *qid, State::Walked);
            }
            (Tmessage::Walk { fid, newfid, names }, Rmessage::Walk { qids })
                if qids.len() == names.len() =>
            {
                let Some(known) = self.fids.get(fid) else {
                    return;
                };
                let (user, mut qid) = (known.user.clone(), known.qid);
                let mut position = self.names.retain(known.position);
                for (name, found) in names.iter().zip(qids.iter()) {
                    let next = match name {
                        b"." => self.names.retain(position),
                        b".." => self.names.parent(position),
                        name => self.names.child(position, name, found),
                    };
                    self.names.release(position);
                    (position, qid) = (next, found);
                }
                self.insert(*newfid, user, position, qid, State::Walked);
            }
            (Tmessage::Lopen { fid, flags }, Rmessage::Lopen { qid, .. }) => {
                if let Some(known) = self.fids.get_mut(fid) {
                    known.qid = *qid;
                    known.state = State::open(*flags);
                }
            }
            (
                Tmessage::Lcreate {
                    fid, name, flags, ..
                },
                Rmessage::Lcreate { qid, .. },
            ) => {
                let Some(known) = self.fids.get(fid) else {
                    return;
                };
                let (user, dir) = (known.user.clone(), known.position);
                let position = self.names.child(dir, name, *qid);
                self.insert(*fid, user, position, *qid, State::open(*flags));
            }
            (Tmessage::Xattrwalk { fid, newfid, name }, _) => {
                let Some(known) = self.fids.get(fid) else {
                    return;
                };
                let (user, qid) = (known.user.clone(), known.qid);
                let position = self.names.retain(known.position);
                let name = name.to_vec();
                self.insert(*newfid, user, position, qid, State::XattrRead { name });
            }
            (
                Tmessage::Xattrcreate {
                    fid,
                    name,
                    size,
                    flags,
                },
                _,
            ) => {
                if let Some(known) = self.fids.get_mut(fid) {
                    known.state = State::XattrWrite {
                        name: name.to_vec(),
                        size: *size,
                        flags: *flags,
                        data: Vec::new(),
                    };
                }
            }
            (Tmessage::Write { fid, offset, data }, Rmessage::Write { count }) => {
                self.write_xattr(*fid, *offset, &data.0[..data.0.len().min(*count as usize)]);
            }
            (Tmessage::Rename { fid, dfid, name }, _) => {
                if let (Some(known), Some(dir)) = (self.fids.get(fid), self.fids.get(dfid)) {
                    self.names.move_to(known.position, dir.position, name);
                }
            }
            (
                Tmessage::Renameat {
                    olddirfid,
                    oldname,
                    newdirfid,
                    newname,
                },
                _,
            ) => {
                let dirs = (self.fids.get(olddirfid), self.fids.get(newdirfid));
                if let (Some(old), Some(new)) = dirs {
                    self.names
                        .rename(old.position, oldname, new.position, newname);
                }
            }
            (Tmessage::Unlinkat { dirfid, name, .. }, _) => {
                if let Some(dir) = self.fids.get(dirfid) {
                    self.names.unlink(dir.position, name);
                }
            }
            (Tmessage::Lock { .. }, Rmessage::Lock { status })
                if *status == lock_status::SUCCESS =>
            {
                self.apply_lock(request);
            }
            (
                Tmessage::Getattr { .. },
                Rmessage::Getattr {
                    valid,
                    ctime_sec,
                    ctime_nsec,
                    ..
                },
            ) if valid & Getattr::CTIME.bits() != 0 => {
                self.latest = self.latest.max((*ctime_sec, *ctime_nsec));
            }
            _ => {}
        }
    }

    fn insert(&mut self, fid: Fid, user: Arc<User>, position: Position, qid: Qid, state: State) {
        let known = FidRecord {
            user,
            position,
            qid,
            state,
            stale: false,
        };
        if let Some(before) = self.fids.insert(fid, known) {
            self.names.release(before.position);
        }
        self.too_large |= self.fids.len() > Session::MAX_FIDS;
    }

    fn forget(&mut self, fid: Fid) {
        if let Some(known) = self.fids.remove(&fid) {
            self.names.release(known.position);
        }
    }

    fn write_xattr(&mut self, fid: Fid, offset: u64, written: &[u8]) {
        let draft = self.fids.get_mut(&fid).map(|known| &mut known.state);
        if let Some(State::XattrWrite { data, .. }) = draft {
            // Values are written in order.
            if offset == data.len() as u64 && data.len() + written.len() <= Session::MAX_VALUE {
                data.extend_from_slice(written);
            }
        }
    }

    fn apply_lock(&mut self, request: &Tmessage<'_>) {
        let &Tmessage::Lock {
            fid,
            kind,
            start,
            length,
            proc_id,
            client_id,
            ..
        } = request
        else {
            return;
        };
        let open = self.fids.get_mut(&fid).map(|known| &mut known.state);
        let Some(State::Open { locks, .. }) = open else {
            return;
        };
        let end = end_of(start, length);
        let mut left = Vec::new();
        for lock in locks.drain(..) {
            let (first, last) = (lock.start, end_of(lock.start, lock.length));
            let ours = lock.proc_id == proc_id && lock.client_id == client_id;
            if !ours || last < start || first > end {
                left.push(lock);
                continue;
            }
            if first < start {
                left.push(lock.subrange(first, start - 1));
            }
            if last > end {
                left.push(lock.subrange(end + 1, last));
            }
        }
        if kind != lock_kind::UNLCK {
            left.push(LockedRange {
                kind,
                start,
                length,
                proc_id,
                client_id: client_id.to_vec(),
            });
        }
        self.too_large |= left.len() > Session::MAX_LOCKS;
        *locks = left;
    }
}

impl State {
    fn open(flags: u32) -> State {
        let locks = Vec::new();
        State::Open { flags, locks }
    }
}

impl LockedRange {
    fn subrange(&self, first: u64, last: u64) -> LockedRange {
        LockedRange {
            start: first,
            length: match last {
                u64::MAX => 0,
                last => last - first + 1,
            },
            ..self.clone()
        }
    }
}

/// Returns the last byte of a range.
fn end_of(start: u64, length: u64) -> u64 {
    match length {
        0 => u64::MAX,
        length => start.saturating_add(length - 1),
    }
}

/// Returns the flags for opening a file again that was opened or created before.
pub(super) fn reopen_flags(flags: u32) -> u32 {
    flags & !(Lopen::CREATE | Lopen::EXCL | Lopen::TRUNC).bits()
}

/// Returns the fids that a request uses.
pub(super) fn fids_of(request: &Tmessage<'_>) -> [Option<Fid>; 2] {
    match *request {
        Tmessage::Rename { fid, dfid, .. } | Tmessage::Link { dfid, fid, .. } => {
            [Some(fid), Some(dfid)]
        }
        Tmessage::Renameat {
            olddirfid,
            newdirfid,
            ..
        } => [Some(olddirfid), Some(newdirfid)],
        Tmessage::Lopen { fid, .. }
        | Tmessage::Lcreate { fid, .. }
        | Tmessage::Symlink { fid, .. }
        | Tmessage::Mknod { dfid: fid, .. }
        | Tmessage::Mkdir { dfid: fid, .. }
        | Tmessage::Unlinkat { dirfid: fid, .. }
        | Tmessage::Readlink { fid }
        | Tmessage::Getattr { fid, .. }
        | Tmessage::Setattr { fid, .. }
        | Tmessage::Xattrwalk { fid, .. }
        | Tmessage::Xattrcreate { fid, .. }
        | Tmessage::Readdir { fid, .. }
        | Tmessage::Fsync { fid, .. }
        | Tmessage::Lock { fid, .. }
        | Tmessage::Getlock { fid, .. }
        | Tmessage::Statfs { fid }
        | Tmessage::Walk { fid, .. }
        | Tmessage::Read { fid, .. }
        | Tmessage::Write { fid, .. }
        | Tmessage::Hand { fid }
        | Tmessage::Clunk { fid }
        | Tmessage::Remove { fid } => [Some(fid), None],
        _ => [None, None],
    }
}
