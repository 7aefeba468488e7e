//! Restores a session on a new server.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use vfs::Errno;

use super::names::is_same_file;
use super::session::{FidRecord, Session, State, User, reopen_flags};
use super::{DIALECT, InFlight};
use crate::client::error::errno_of;
use crate::client::reply::rejects_version;
use crate::numbers::lock_status;
use crate::{Data, Fid, Names, Qid, Rmessage, Tag, Tmessage};

/// A server on which a session is restored.
pub trait Server {
    /// Sends requests and returns the replies in the same order, as whole messages. The requests
    /// may be in flight together, but the server must process them in order.
    fn call(&mut self, requests: &[Tmessage<'_>]) -> Result<Vec<Vec<u8>>, Failure>;
}

/// The reason why a session was not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not on this connection, or not yet.
    Temporary(String),
    /// Not on any server like this.
    Permanent(String),
}

/// A session that is moving to another connection.
pub struct Recovery {
    pub(super) session: Session,
    msize: u32,
    /// Whether open files were requested; a new server may not support it.
    fd_passing: bool,
    pub(super) in_doubt: Vec<InFlight>,
    pub(super) settled: Vec<Settled>,
    next_fid: u32,
    /// How often a lock was refused because another owner holds it.
    lock_conflicts: u32,
}

/// A request whose reply was determined without sending it again.
pub(super) struct Settled {
    pub(super) tag: Tag,
    pub(super) order: u64,
    pub(super) reply: Vec<u8>,
}

/// The root of each attached user.
pub(super) type Roots = HashMap<Arc<User>, (Fid, Qid)>;

/// A fid to be walked by a path.
pub(super) struct Walk {
    pub(super) from: Fid,
    pub(super) to: Fid,
    pub(super) path: Vec<Vec<u8>>,
}

impl Recovery {
    /// The most requests in flight at a time, so that both sides' buffers hold them.
    const MAX_BATCH: usize = 64;

    /// How often a recovery after the loss of the connection alone waits for the server to release
    /// the old connection's locks.
    const MAX_LOCK_CONFLICTS: u32 = 8;

    pub(super) fn new(
        session: Session,
        (msize, hands): (u32, bool),
        doubted: Vec<InFlight>,
    ) -> Recovery {
        Recovery {
            session,
            msize,
            fd_passing: hands,
            in_doubt: doubted,
            settled: Vec::new(),
            next_fid: Fid::NONE.0,
            lock_conflicts: 0,
        }
    }

    pub(super) fn into_parts(self) -> (Session, Vec<Settled>) {
        (self.session, self.settled)
    }

    /// Restores the session. After a failure it can be called again with another connection, and
    /// starts over.
    pub fn run(&mut self, server: &mut dyn Server) -> Result<(), Failure> {
        self.next_fid = Fid::NONE.0;
        self.negotiate(server)?;
        let roots = self.attach(server)?;
        self.settle_renames(server, &roots)?;
        let mut lost = self.walk(server, &roots)?;
        self.open(server, &roots, &mut lost)?;
        self.lock(server, &mut lost)?;
        self.settle(server, &roots, &lost)?;
        let clunks: Vec<_> = roots
            .values()
            .map(|&(fid, _)| Tmessage::Clunk { fid })
            .collect();
        ask(server, &clunks)?;
        for fid in lost {
            if let Some(known) = self.session.fids.get_mut(&fid) {
                known.stale = true;
            }
        }
        Ok(())
    }

    fn negotiate(&self, server: &mut dyn Server) -> Result<(), Failure> {
        let msize = self.msize;
        let plain = DIALECT.version().as_bytes();
        let version = DIALECT.version_with(self.fd_passing).as_bytes();
        let mut reply = send_one(server, &Tmessage::Version { msize, version })?;
        if self.fd_passing && rejects_version(&reply).map_err(protocol_error)? {
            let version = plain;
            reply = send_one(server, &Tmessage::Version { msize, version })?;
        }
        match decode(&reply)? {
            Ok(Rmessage::Version {
                msize: agreed,
                version: spoken,
            }) if agreed == msize && (spoken == plain || spoken == version) => Ok(()),
            other => Err(Failure::Permanent(format!(
                "expected the server to agree on {DIALECT} with msize {msize} as before, got {other:?}"
            ))),
        }
    }

    /// Attaches as every user with fids. If no user can attach, the tree is not available yet.
    fn attach(&mut self, server: &mut dyn Server) -> Result<Roots, Failure> {
        let users = self.session.fids.values().map(|known| known.user.clone());
        let users: HashSet<Arc<User>> = users.collect();
        let users: Vec<_> = users
            .into_iter()
            .map(|user| (self.new_fid(), user))
            .collect();
        let requests: Vec<_> = users
            .iter()
            .map(|(fid, user)| Tmessage::Attach {
                fid: *fid,
                afid: Fid::NONE,
                uname: &user.uname,
                aname: &user.aname,
                n_uname: user.n_uname,
            })
            .collect();
        let (mut roots, mut refused) = (Roots::new(), None);
        for (reply, (fid, user)) in ask(server, &requests)?.iter().zip(&users) {
            match decode(reply)? {
                Ok(Rmessage::Attach { qid }) => drop(roots.insert(user.clone(), (*fid, qid))),
                Ok(_) => return Err(Failure::Temporary("malformed reply to Tattach".into())),
                Err(errno) => refused = Some(errno),
            }
        }
        match refused {
            Some(errno) if roots.is_empty() => Err(Failure::Temporary(format!("attach: {errno}"))),
            _ => Ok(roots),
        }
    }

    /// Walks every fid by its path, and returns those that lead to no file or a different one.
    fn walk(&mut self, server: &mut dyn Server, roots: &Roots) -> Result<HashSet<Fid>, Failure> {
        let (mut lost, mut walks) = (HashSet::new(), Vec::new());
        for (&fid, known) in &self.session.fids {
            if let State::XattrRead { .. } = known.state {
                // Restored with Txattrwalk, not Twalk.
                if known.stale {
                    lost.insert(fid);
                }
                continue;
            }
            match self.walk_of(known, roots, fid) {
                Some(walk) => walks.push(walk),
                None => drop(lost.insert(fid)),
            }
        }
        let found = walk_each(server, &walks)?;
        let mut others = Vec::new();
        for (walk, found) in walks.iter().zip(found) {
            let known = &self.session.fids[&walk.to];
            let qid = match found {
                Some(Some(qid)) => Some(qid),
                Some(None) => roots.get(&known.user).map(|root| root.1),
                None => None,
            };
            if !qid.is_some_and(|qid| is_same_file(qid, known.qid)) {
                lost.insert(walk.to);
                if found.is_some() {
                    others.push(Tmessage::Clunk { fid: walk.to });
                }
            }
        }
        ask(server, &others)?;
        Ok(lost)
    }

    /// Returns the walk that restores a fid, or `None` if its file has no name any more or its user
    /// cannot attach.
    fn walk_of(&self, known: &FidRecord, roots: &Roots, to: Fid) -> Option<Walk> {
        if known.stale {
            return None;
        }
        let (from, _) = *roots.get(&known.user)?;
        let path = self.session.names.path(known.position)?;
        Some(Walk { from, to, path })
    }

    /// Walks a new fid to a fid's file, without opening it.
    pub(super) fn clone_fid(
        &mut self,
        server: &mut dyn Server,
        roots: &Roots,
        fid: Fid,
    ) -> Result<Option<Fid>, Failure> {
        let to = self.new_fid();
        let known = self.session.fids.get(&fid);
        let Some(walk) = known.and_then(|known| self.walk_of(known, roots, to)) else {
            return Ok(None);
        };
        let found = walk_each(server, &[walk])?;
        Ok(found[0].map(|_| to))
    }

    /// Opens files again, and restores the fids of extended attributes.
    fn open(
        &mut self,
        server: &mut dyn Server,
        roots: &Roots,
        lost: &mut HashSet<Fid>,
    ) -> Result<(), Failure> {
        let (mut opens, mut values) = (Vec::new(), Vec::new());
        for (&fid, known) in self
            .session
            .fids
            .iter()
            .filter(|(fid, _)| !lost.contains(fid))
        {
            match &known.state {
                State::Walked => {}
                State::Open { flags, .. } => opens.push(Tmessage::Lopen {
                    fid,
                    flags: reopen_flags(*flags),
                }),
                State::XattrWrite {
                    name,
                    size,
                    flags,
                    data,
                } => {
                    opens.push(Tmessage::Xattrcreate {
                        fid,
                        name,
                        size: *size,
                        flags: *flags,
                    });
                    if !data.is_empty() {
                        let (offset, data) = (0, Data(data));
                        opens.push(Tmessage::Write { fid, offset, data });
                    }
                }
                State::XattrRead { name } => values.push((fid, name.clone())),
            }
        }
        let mut refused = Vec::new();
        for (reply, request) in ask(server, &opens)?.iter().zip(&opens) {
            let [Some(fid), _] = super::fids_of(request) else {
                continue;
            };
            if decode(reply)?.is_err() && lost.insert(fid) {
                refused.push(Tmessage::Clunk { fid });
            }
        }
        ask(server, &refused)?;
        for (newfid, name) in values {
            let again = match self.clone_fid(server, roots, newfid)? {
                Some(fid) => {
                    let name = &name;
                    let walk = Tmessage::Xattrwalk { fid, newfid, name };
                    let replies = ask(server, &[walk, Tmessage::Clunk { fid }])?;
                    decode(&replies[0])?.is_ok()
                }
                None => false,
            };
            if !again {
                lost.insert(newfid);
            }
        }
        Ok(())
    }

    /// Takes locks again. A fid is lost if another owner holds a conflicting lock.
    fn lock(&mut self, server: &mut dyn Server, lost: &mut HashSet<Fid>) -> Result<(), Failure> {
        let (mut requests, mut of) = (Vec::new(), Vec::new());
        for (&fid, known) in self
            .session
            .fids
            .iter()
            .filter(|(fid, _)| !lost.contains(fid))
        {
            let State::Open { locks, .. } = &known.state else {
                continue;
            };
            for lock in locks {
                of.push(fid);
                requests.push(Tmessage::Lock {
                    fid,
                    kind: lock.kind,
                    flags: 0,
                    start: lock.start,
                    length: lock.length,
                    proc_id: lock.proc_id,
                    client_id: &lock.client_id,
                });
            }
        }
        let mut refused = Vec::new();
        for (reply, fid) in ask(server, &requests)?.iter().zip(of) {
            match decode(reply)? {
                Ok(Rmessage::Lock {
                    status: lock_status::SUCCESS,
                }) => {}
                Ok(Rmessage::Lock {
                    status: lock_status::BLOCKED | lock_status::GRACE,
                }) if self.lock_conflicts < Recovery::MAX_LOCK_CONFLICTS => {
                    self.lock_conflicts += 1;
                    return Err(Failure::Temporary("another client holds a lock".into()));
                }
                _ if lost.insert(fid) => refused.push(Tmessage::Clunk { fid }),
                _ => {}
            }
        }
        ask(server, &refused).map(drop)
    }

    /// Returns a fid that the client does not use: clients count from below.
    pub(super) fn new_fid(&mut self) -> Fid {
        loop {
            self.next_fid = self.next_fid.wrapping_sub(1);
            let fid = Fid(self.next_fid);
            if fid != Fid::NONE && !self.session.fids.contains_key(&fid) {
                return fid;
            }
        }
    }
}

/// Walks each path and returns its last qid: `None` if it does not exist, `Some(None)` if it has no
/// names.
pub(super) fn walk_each(
    server: &mut dyn Server,
    walks: &[Walk],
) -> Result<Vec<Option<Option<Qid>>>, Failure> {
    let mut found = vec![Some(None); walks.len()];
    let longest = walks.iter().map(|walk| walk.path.len()).max().unwrap_or(0);
    let rounds = longest.div_ceil(Names::MAX).max(1);
    for round in 0..rounds {
        let mut names = Vec::new();
        for (at, walk) in walks.iter().enumerate() {
            let part = walk.path.chunks(Names::MAX).nth(round).unwrap_or(&[]);
            if found[at].is_some() && (round == 0 || !part.is_empty()) {
                names.push((at, part.iter().map(Vec::as_slice).collect::<Vec<_>>()));
            }
        }
        let requests: Vec<_> = names
            .iter()
            .map(|(at, part)| Tmessage::Walk {
                fid: if round == 0 {
                    walks[*at].from
                } else {
                    walks[*at].to
                },
                newfid: walks[*at].to,
                names: Names::new(part),
            })
            .collect();
        let mut halfway = Vec::new();
        for (reply, (at, part)) in ask(server, &requests)?.iter().zip(&names) {
            found[*at] = match decode(reply)? {
                Ok(Rmessage::Walk { qids }) if qids.len() == part.len() => Some(qids.iter().last()),
                _ => {
                    if round > 0 {
                        halfway.push(Tmessage::Clunk { fid: walks[*at].to });
                    }
                    None
                }
            };
        }
        ask(server, &halfway)?;
    }
    Ok(found)
}

/// Sends requests in batches.
pub(super) fn ask(
    server: &mut dyn Server,
    requests: &[Tmessage<'_>],
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut replies = Vec::with_capacity(requests.len());
    for some in requests.chunks(Recovery::MAX_BATCH) {
        replies.extend(server.call(some)?);
    }
    Ok(replies)
}

/// Sends one request.
pub(super) fn send_one(
    server: &mut dyn Server,
    request: &Tmessage<'_>,
) -> Result<Vec<u8>, Failure> {
    let mut replies = server.call(std::slice::from_ref(request))?;
    replies
        .pop()
        .ok_or_else(|| Failure::Temporary("no reply".into()))
}

/// Decodes a reply, or returns its errno.
pub(super) fn decode(reply: &[u8]) -> Result<Result<Rmessage<'_>, Errno>, Failure> {
    let (_, reply) = Rmessage::decode(DIALECT, reply).map_err(protocol_error)?;
    Ok(match errno_of(&reply) {
        Some(errno) => Err(errno),
        None => Ok(reply),
    })
}

fn protocol_error(what: impl ToString) -> Failure {
    Failure::Temporary(what.to_string())
}
