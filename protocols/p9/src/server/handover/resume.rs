//! Continuing a session with the state from another process.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::fd::{AsFd, OwnedFd};
use vfs::lock::{Lock, LockFamily, LockKind, LockTable};
use vfs::{
    Call, Caller, Cx, Errno, Export, File, Handle, Kind, Name, Node, NodeId, OpenFlags, Patience,
    Peer, StaleNode,
};
use wire::SavedState;

use super::format::{Reader, SavedAttach, SavedNode, SavedOpen, SavedStep, SavedUse};
use super::stale::StaleFile;
use super::{HandoverError, Result, failed, is_gone};
use crate::Fid;
use crate::server::connection::{Connection, Negotiated, Options, Server};
use crate::server::fid::{DirPosition, FidState, OPEN_BYTES, Open, State};
use crate::server::lock_owners::LockOwners;
use crate::server::step::{Attach, STEP_BYTES, Step};
use crate::server::write_state::Writer;
use crate::server::xattr::{MAX_VALUE, check_name};
use crate::server::xattr_value::{XattrRead, XattrWrite};

/// Flags that only concern the first open of a file.
pub(super) const ONCE: OpenFlags = OpenFlags::TRUNC.union(OpenFlags::EXCL);

/// The other flags that a client may open a file with.
const FLAGS: OpenFlags = OpenFlags::READ
    .union(OpenFlags::WRITE)
    .union(OpenFlags::APPEND)
    .union(OpenFlags::DSYNC)
    .union(OpenFlags::SYNC)
    .union(OpenFlags::NOATIME)
    .union(OpenFlags::EXEC);

impl Server {
    /// Returns a session that continues one of another process with the `state` that its
    /// [`Session::save_state`](wire::Session::save_state) returned. This server has the same
    /// exports and users, and options that grant as much. The other session has been dropped: its
    /// locks are acquired again.
    ///
    /// `call` is one of the connection's, with the same peer, whose
    /// [`Peer::owner`](vfs::Peer::owner) is set as for requests: the peer must be permitted to act
    /// as the users that have attached. May block.
    ///
    /// An open file that cannot be opened again is stale, and its locks are lost.
    ///
    /// Returns an error, for the log, if the state is invalid or exceeds a limit, or if a lock
    /// cannot be acquired any more. Then no file stays open, and no lock acquired.
    pub fn resume(
        &self,
        call: &Call,
        state: &SavedState,
    ) -> std::result::Result<Connection, HandoverError> {
        let connection = self.session();
        let (reader, session) = Reader::new(&state.bytes)?;
        let (internal, sibling) = (call.internal(), call.sibling());
        let resume = Resume {
            connection: &connection,
            call: &sibling,
            files: &state.files,
            kept: Vec::new(),
            cx: Cx {
                caller: &Caller::ROOT,
                patience: Patience::Full,
                call: &internal,
            },
            exports: Vec::new(),
            attaches: Vec::new(),
            steps: Vec::new(),
            nodes: HashMap::new(),
            stale: 0,
            lost: Cell::new(0),
        };
        let Counts { fids, stale, lost } = match session.negotiated {
            Some(agreed) => {
                let agreed = resume.checked(agreed)?;
                let done = resume.run(reader, self.options.max_fids)?;
                connection
                    .negotiated
                    .store(agreed.pack(), Ordering::Release);
                done
            }
            None => resume.run(reader, 0)?,
        };
        let appends_only = session.appends_only;
        connection
            .appends_only
            .store(appends_only, Ordering::Relaxed);
        let client = connection.client;
        tracing::info!(client, fids, stale, "session continued");
        if lost > 0 {
            tracing::warn!(client, "{lost} open files cannot be opened again");
        }
        Ok(connection)
    }
}

/// A session that is being continued. A failure drops its connection, and with it all that was
/// opened and locked.
struct Resume<'a> {
    connection: &'a Connection,
    /// A call of the peer.
    call: &'a Call,
    /// Descriptors of open files that were removed.
    files: &'a [OwnedFd],
    /// Their nodes, which are found as long as these live.
    kept: Vec<Arc<dyn Node>>,
    /// The context of walks, opens and locks.
    cx: Cx<'a>,
    exports: Vec<KnownExport>,
    attaches: Vec<Arc<Attach>>,
    steps: Vec<Arc<Step>>,
    /// The nodes by the address of their export and their handle; `None` for those that are gone.
    nodes: HashMap<(usize, Handle), Option<Arc<dyn Node>>>,
    /// The number of steps whose node is gone.
    stale: usize,
    /// The number of open files that could not be opened again.
    lost: Cell<usize>,
}

/// The size of a session that continues.
struct Counts {
    fids: usize,
    /// Steps whose node is gone.
    stale: usize,
    /// Open files that could not be opened again.
    lost: usize,
}

/// An export whose root has been looked up.
struct KnownExport {
    export: Arc<Export>,
    /// The inode number of its root.
    top: NodeId,
    /// The handle of its root.
    handle: Handle,
}

impl Resume<'_> {
    /// Returns the result of Tversion as far as this server grants it. Without Thand, the client
    /// gets the files' contents over the connection.
    fn checked(&self, agreed: Negotiated) -> Result<Negotiated> {
        let server = &self.connection.server;
        let most = server.options.max_msize.max(Options::MIN_MSIZE);
        if !(Options::MIN_MSIZE..=most).contains(&agreed.msize) {
            let msize = agreed.msize;
            return Err(HandoverError(format!(
                "messages of up to {msize} bytes, where this server allows {most}"
            )));
        }
        Ok(Negotiated {
            fd_passing: agreed.fd_passing && server.fd_passing,
            ..agreed
        })
    }

    /// Reads the tables, with at most `max_fids` fids.
    fn run(mut self, mut reader: Reader<'_>, max_fids: usize) -> Result<Counts> {
        for _ in 0..reader.count(max_fids, "attaches")? {
            let attach = self.attach(&reader.attach()?)?;
            self.attaches.push(attach);
        }
        for position in 0..reader.count(max_fids, "kept files")? {
            let attach = reader.kept_file()?;
            self.adopt(position, attach)?;
        }
        if let Some(first) = self.attaches.first() {
            self.connection.set_user(first);
        }
        let max_steps = match max_fids {
            0 => 0,
            _ => self.connection.server.options.max_fid_memory / STEP_BYTES,
        };
        for _ in 0..reader.count(max_steps, "steps")? {
            let (step, node) = reader.step()?;
            let step = self.step(&step, &node)?;
            self.steps.push(step);
        }
        let fids = reader.count(max_fids, "fids")?;
        let mut last = None;
        for _ in 0..fids {
            let (fid, step, used) = reader.fid()?;
            if last.is_some_and(|last| last >= fid) {
                return Err(HandoverError::new(
                    "state: expected each fid once, in order",
                ));
            }
            last = Some(fid);
            self.fid(&mut reader, fid, step, used)
                .map_err(|why| HandoverError(format!("fid {fid}: {why}")))?;
        }
        reader.end()?;
        Ok(Counts {
            fids,
            stale: self.stale,
            lost: self.lost.get(),
        })
    }

    /// Makes the export of an attach find the kept file in this position, if it is present.
    fn adopt(&mut self, position: usize, attach: u32) -> Result<()> {
        let attach = self.attaches.get(attach as usize);
        let attach = attach.ok_or_else(|| HandoverError::new("state: expected known attaches"))?;
        if let Some(file) = self.files.get(position) {
            // Otherwise it is stale.
            self.kept.extend(attach.export.fs.adopt(file.as_fd()));
        }
        Ok(())
    }

    fn attach(&mut self, saved: &SavedAttach<'_>) -> Result<Arc<Attach>> {
        let caller = self.caller(saved)?;
        let (export, top) = self.export(saved)?;
        let root = self.node(&export, &saved.root, || Err(Errno::ESTALE))?;
        let (server, fids) = (&self.connection.server, &self.connection.fids);
        Ok(Arc::new(Attach {
            below: root.id() != top,
            export,
            root,
            caller,
            memory: fids.memory(&server.memory, self.call.account()).clone(),
        }))
    }

    /// Returns the export of an attach and the inode number of its root.
    fn export(&mut self, saved: &SavedAttach<'_>) -> Result<(Arc<Export>, NodeId)> {
        let name = saved.export;
        let known = |known: &&KnownExport| known.export.name == name;
        let known = match self.exports.iter().find(known) {
            Some(known) => known,
            None => {
                let resolved = self.connection.server.exports.resolve(name.as_bytes());
                let (export, _) = resolved
                    .filter(|(export, rest)| export.name == name && rest.is_empty())
                    .ok_or_else(|| HandoverError(format!("no tree /{name}")))?;
                let top = export.fs.root(&self.cx);
                let top = top.map_err(failed(format_args!("the root of /{name}")))?;
                let handle = top.handle(&self.cx);
                let handle = handle.map_err(failed(format_args!("the handle of /{name}")))?;
                export.note_client();
                let key = (Arc::as_ptr(&export).addr(), handle);
                self.nodes.insert(key, Some(top.clone()));
                self.exports.push(KnownExport {
                    export,
                    top: top.id(),
                    handle,
                });
                &self.exports[self.exports.len() - 1]
            }
        };
        if known.handle != saved.top {
            return Err(HandoverError(format!(
                "/{name} is another tree, or has other handles"
            )));
        }
        Ok((known.export.clone(), known.top))
    }

    /// Returns the user of an attach, if the peer may act as it. As at a Tattach, the group of a
    /// user is that of the user database, unless the peer is limited to its own.
    fn caller(&self, saved: &SavedAttach<'_>) -> Result<Caller> {
        let (uid, gid) = (saved.uid, saved.gid);
        let peer = self.call.peer();
        let caller = if saved.socket_owner {
            peer.and_then(Peer::owner).cloned()
        } else if peer.is_none_or(Peer::is_trusted) {
            let group = self.connection.server.users.primary_group(uid);
            Some(self.call.acts_as(Caller::new(uid, group.unwrap_or(uid))))
        } else {
            let caller = self.call.acts_as(Caller::new(uid, gid));
            Some(caller).filter(|caller| caller.gid == gid)
        };
        caller
            .filter(|caller| caller.uid == uid)
            .ok_or_else(|| HandoverError(format!("the peer may not act as uid {uid}, gid {gid}")))
    }

    fn step(&mut self, step: &SavedStep<'_>, saved: &SavedNode) -> Result<Arc<Step>> {
        let invalid = || HandoverError::new("state: expected steps of earlier ones");
        match *step {
            SavedStep::Unnamed(attach) => {
                let attach = self
                    .attaches
                    .get(attach as usize)
                    .ok_or_else(invalid)?
                    .clone();
                let node = match saved.id == attach.root.id() {
                    true => attach.root.clone(),
                    false => self.node(&attach.export, saved, || Err(Errno::ESTALE))?,
                };
                Step::unnamed(&attach, node).map_err(failed("the table of fids"))
            }
            SavedStep::Named(parent, name) => {
                let parent = self.steps.get(parent as usize).ok_or_else(invalid)?.clone();
                if parent.node.kind() != Kind::Directory {
                    return Err(HandoverError::new("state: expected names in directories"));
                }
                let name = Name::new(name).map_err(failed("a name"))?;
                let charge = parent.attach.reserve_memory(STEP_BYTES);
                let charge = charge.map_err(failed("the table of fids"))?;
                let cx = self.cx;
                let look_up = || Ok(parent.node.lookup(&cx, name)?.node);
                let node = self.node(&parent.attach.export, saved, look_up)?;
                Ok(Step::new(&parent, name, node, charge))
            }
        }
    }

    /// Returns the node in question, or one that is stale if it is gone. `look_up` returns the node
    /// that has its name, for a source whose handles end with the process.
    fn node(
        &mut self,
        export: &Arc<Export>,
        saved: &SavedNode,
        look_up: impl FnOnce() -> vfs::Result<Arc<dyn Node>>,
    ) -> Result<Arc<dyn Node>> {
        let found = match &saved.handle {
            Some(handle) => self.find(export, handle, look_up),
            None => Ok(None),
        };
        let Some(node) = found.map_err(failed(format_args!("node {}", saved.id)))? else {
            self.stale += 1;
            return Ok(Arc::new(StaleNode::new(saved.id, saved.kind)));
        };
        if (node.id(), node.kind()) != (saved.id, saved.kind) {
            return Err(HandoverError(format!("node {} is another one", saved.id)));
        }
        Ok(node)
    }

    /// Returns the node with a handle, `None` if it is gone.
    fn find(
        &mut self,
        export: &Arc<Export>,
        handle: &Handle,
        look_up: impl FnOnce() -> vfs::Result<Arc<dyn Node>>,
    ) -> vfs::Result<Option<Arc<dyn Node>>> {
        let resolved = match self.nodes.entry((Arc::as_ptr(export).addr(), *handle)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(unless_gone(export.fs.resolve(&self.cx, handle))?),
        };
        if resolved.is_none() {
            let same = |node: &Arc<dyn Node>| node.handle(&self.cx).is_ok_and(|its| its == *handle);
            *resolved = unless_gone(look_up())?.filter(same);
        }
        Ok(resolved.clone())
    }

    /// Adds a fid, and reads the owners of its locks if it is open.
    fn fid(&self, reader: &mut Reader<'_>, fid: u32, step: u32, used: SavedUse<'_>) -> Result<()> {
        let step = self.steps.get(step as usize);
        let step = step.ok_or_else(|| HandoverError::new("state: expected a known step"))?;
        let walked = FidState::Walked(step.clone());
        let full = "the table of fids";
        let state = match used {
            SavedUse::Walked => walked,
            SavedUse::Open(saved) => {
                let open = self.open(&walked, &saved)?;
                self.owners(reader, &open)?;
                walked.with_state(State::Open(open))
            }
            SavedUse::XattrRead(bytes) => {
                if bytes.len() > MAX_VALUE {
                    return Err(failed("an attribute")(Errno::E2BIG));
                }
                let space = &self.connection.xattr_space;
                let value = XattrRead::new(bytes.to_vec(), space, &step.attach);
                walked.with_state(State::XattrRead(Arc::new(value.map_err(failed(full))?)))
            }
            SavedUse::XattrWrite {
                name,
                size,
                flags,
                bytes,
            } => {
                check_name(name).map_err(failed("an attribute"))?;
                let size = size as usize;
                if size > MAX_VALUE {
                    return Err(failed("an attribute")(Errno::E2BIG));
                }
                let space = &self.connection.xattr_space;
                let draft = XattrWrite::new(name, size, flags, space, &step.attach);
                let draft = draft.map_err(failed(full))?;
                draft.restore(bytes).map_err(failed("an attribute"))?;
                walked.with_state(State::XattrWrite(Arc::new(draft)))
            }
        };
        let inserted = self.connection.fids.insert(Fid(fid), state);
        inserted.map_err(failed(full))
    }

    /// Opens a file again as the client has it open, or returns one that is stale.
    fn open(&self, fid: &FidState, saved: &SavedOpen) -> Result<Arc<Open>> {
        let flags = saved.flags;
        let directory = fid.is_directory();
        let access = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXEC;
        let writes = flags.contains(OpenFlags::WRITE);
        if !FLAGS.contains(flags) || !flags.intersects(access) || directory && writes {
            return Err(HandoverError::new("state: expected flags of an open file"));
        }
        let charge = fid.reserve_memory(OPEN_BYTES);
        let charge = charge.map_err(failed("the table of fids"))?;
        let file = self.reopen(fid.node(), flags);
        let writer = (writes && !directory).then(|| {
            let states = &self.connection.write_states;
            let (end, verified) = saved.ends;
            let writer = Writer::new(states, fid.step(), flags, end);
            writer.state.restore(end, verified);
            writer
        });
        if saved.in_place {
            let writer = writer.as_ref().filter(|writer| writer.appender);
            let writer = writer.ok_or_else(|| HandoverError::new("state: expected an append"))?;
            let durable = flags & (OpenFlags::DSYNC | OpenFlags::SYNC);
            let file = self.reopen(fid.node(), OpenFlags::WRITE | durable);
            writer.in_place.get_or_init(|| file);
        }
        let State::Open(open) = State::opened(fid, file, flags, (false, writer), charge) else {
            return Err(HandoverError::new("an open file"));
        };
        let (offset, cookie) = saved.position;
        *open.records.lock() = DirPosition { offset, cookie };
        Ok(open)
    }

    fn reopen(&self, node: &dyn Node, flags: OpenFlags) -> Arc<dyn File> {
        let opened = match node.open(&self.cx, flags) {
            Err(Errno::EPERM) => node.open(&self.cx, flags - OpenFlags::NOATIME),
            // Its mode no longer permits to execute it.
            Err(Errno::EACCES) if flags == OpenFlags::EXEC => node.open(&self.cx, OpenFlags::READ),
            opened => opened,
        };
        opened.unwrap_or_else(|errno| {
            let client = self.connection.client;
            tracing::debug!(client, node = node.id(), ?errno, "not opened");
            self.lost.set(self.lost.get() + 1);
            Arc::new(StaleFile)
        })
    }

    /// Reads the owners of locks of an open file, and acquires their locks unless it is stale.
    fn owners(&self, reader: &mut Reader<'_>, open: &Open) -> Result<()> {
        let is_stale = open.file.as_any().is::<StaleFile>();
        for _ in 0..reader.count(LockOwners::MAX_OWNERS, "owners of locks")? {
            let (client_id, proc_id) = reader.owner()?;
            let owner = self.connection.lock_owner(client_id, proc_id);
            let owner = owner.map_err(failed("an owner of locks"))?;
            let added = open.lock_owners.add(owner.clone());
            added.map_err(failed("the table of locks"))?;
            for _ in 0..reader.count(LockTable::MAX_RANGES_PER_NODE, "locks")? {
                let saved = reader.lock()?;
                if is_stale {
                    continue;
                }
                let lock = Lock {
                    family: LockFamily::Posix,
                    start: saved.start,
                    end: saved.end,
                    kind: match saved.exclusive {
                        true => LockKind::Exclusive,
                        false => LockKind::Shared,
                    },
                    owner: owner.clone(),
                };
                let locked = open.lock_owners.lock(&self.cx, lock, false);
                locked.map_err(failed("a lock cannot be acquired again"))?;
            }
        }
        Ok(())
    }
}

/// Returns `None` if the error says that the node no longer exists.
fn unless_gone(found: vfs::Result<Arc<dyn Node>>) -> vfs::Result<Option<Arc<dyn Node>>> {
    match found {
        Ok(node) => Ok(Some(node)),
        Err(errno) if is_gone(errno) => Ok(None),
        Err(errno) => Err(errno),
    }
}
