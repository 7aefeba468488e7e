//! The handover of a session to another process, which continues it over the same connection.
//!
//! [`Session::save_state`](wire::Session::save_state) writes the result of Tversion, the users that
//! have attached, the paths that fids were walked to, and the fids with their open files,
//! attributes and locks; [`Server::resume`](super::Server::resume) continues with the same fids.
//! Nodes are found again by their handles, or, where these do not outlive the process, by their
//! names if the handle is the same.
//!
//! - A session of a tree that ends with the process cannot continue, nor one with an open
//!   file that is to be removed on clunk (`ORCLOSE`), or with an open directory whose cookies are
//!   not stable.
//! - A fid of a node that is gone stays: each use of it returns `ESTALE`.
//! - An open file that was removed is found with a descriptor of it, with which the state comes
//!   ([`SavedState::files`]).
//! - An open file that cannot be opened again is stale, too: a client loses one file rather than
//!   its mount.
//! - Files are opened again without a permission check, as their mode may have changed since.
//! - Locks are acquired again: the session that was saved has to be dropped before.
//!
//! Deliberately absent: requests in flight, which the driver completes before.

mod format;
mod resume;
mod stale;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::fd::OwnedFd;
use vfs::lock::{Lock, LockKind};
use vfs::{Attr, AttrMask, Call, Caller, Cx, Errno, Export, Handle, Node, NodeId, Patience, Peer};
use wire::{Malformed, SavedState};

use self::format::{
    SavedAttach, SavedLock, SavedNode, SavedOpen, SavedSession, SavedStep, SavedUse, Writer,
};
use super::connection::Connection;
use super::fid::{FidState, Open, State};
use super::step::{Attach, Step};
use crate::Fid;

/// The reason for which a session cannot continue in another process, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverError(String);

impl fmt::Display for HandoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HandoverError {}

impl From<Malformed> for HandoverError {
    fn from(malformed: Malformed) -> HandoverError {
        HandoverError(format!("state: {malformed}"))
    }
}

impl HandoverError {
    fn new(what: impl Into<String>) -> HandoverError {
        HandoverError(what.into())
    }
}

/// Returns a function that describes a failure with `what`.
fn failed(what: impl fmt::Display) -> impl FnOnce(Errno) -> HandoverError {
    move |errno| HandoverError(format!("{what}: {errno:?}"))
}

type Result<T> = std::result::Result<T, HandoverError>;

impl Connection {
    /// Returns the state of the session. No request is in progress.
    pub(super) fn state(&self, call: &Call) -> Result<SavedState> {
        let internal = call.internal();
        let cx = Cx {
            caller: &Caller::ROOT,
            patience: Patience::Full,
            call: &internal,
        };
        let fids = self.fids.snapshot();
        let mut tables = Tables::default();
        for (_, state) in &fids {
            tables.add(state.step());
        }
        let mut writer = Writer::new(&SavedSession {
            negotiated: self.negotiated(),
            appends_only: self.appends_only.load(Ordering::Relaxed),
        });
        let (mut exports, mut nodes) = (HashMap::new(), Nodes::default());
        let (mut files, mut kept) = (Vec::new(), Vec::new());
        for (_, state) in &fids {
            if let State::Open(open) = state.state()
                && let Some(file) = nodes.keep_removed(&cx, state, open)
            {
                files.push(file);
                kept.push(tables.attach_number(state.attach()));
            }
        }
        writer.count(tables.attaches.len())?;
        for attach in &tables.attaches {
            let export = &attach.export;
            let export = match exports.entry(Arc::as_ptr(export).addr()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(SavedExport::new(&cx, export)?),
            };
            let owner = call.peer().and_then(Peer::owner);
            writer.attach(&SavedAttach {
                top: export.top,
                export: &attach.export.name,
                socket_owner: owner == Some(&attach.caller),
                uid: attach.caller.uid,
                gid: attach.caller.gid,
                root: nodes.saved(&cx, &attach.export, &*attach.root)?,
            })?;
        }
        writer.count(kept.len())?;
        kept.iter().for_each(|&attach| writer.kept_file(attach));
        writer.count(tables.steps.len())?;
        for step in &tables.steps {
            let node = nodes.saved(&cx, &step.attach.export, &*step.node)?;
            writer.step(&tables.saved_step(step)?, &node)?;
        }
        writer.count(fids.len())?;
        let mut fid_writer = FidWriter {
            cx,
            client: self.client,
            exports: &exports,
            writer: &mut writer,
            locks: HashMap::new(),
        };
        for (fid, state) in &fids {
            fid_writer.write(*fid, tables.step_number(state.step()), state)?;
        }
        let bytes = writer.end();
        Ok(SavedState { bytes, files })
    }
}

/// The properties of an export.
struct SavedExport {
    /// The handle of its root.
    top: Handle,
    stable_cookies: bool,
}

impl SavedExport {
    fn new(cx: &Cx<'_>, export: &Export) -> Result<SavedExport> {
        let capabilities = export.fs.capabilities();
        if !capabilities.persistent {
            let name = &export.name;
            return Err(HandoverError(format!(
                "the tree /{name} ends with this process"
            )));
        }
        let top = export.fs.root(cx).and_then(|root| root.handle(cx));
        Ok(SavedExport {
            top: top.map_err(failed("the handle of the root"))?,
            stable_cookies: capabilities.stable_cookies,
        })
    }
}

/// The attaches and steps of all fids, numbered.
#[derive(Default)]
struct Tables {
    attaches: Vec<Arc<Attach>>,
    /// Parents first.
    steps: Vec<Arc<Step>>,
    /// The numbers of both, by address.
    attach_numbers: HashMap<usize, u32>,
    step_numbers: HashMap<usize, u32>,
}

impl Tables {
    /// Adds a step with those on the way to it.
    fn add(&mut self, step: &Arc<Step>) {
        let mut above = Vec::new();
        let mut at = Some(step);
        while let Some(step) = at
            && !self.step_numbers.contains_key(&Arc::as_ptr(step).addr())
        {
            above.push(step);
            let location = step.name_in_parent.as_ref();
            at = location.map(|location| &location.parent);
        }
        for step in above.into_iter().rev() {
            let (number, address) = (self.steps.len() as u32, Arc::as_ptr(step).addr());
            self.step_numbers.insert(address, number);
            self.steps.push(step.clone());
            let number = self.attaches.len() as u32;
            let attach = &step.attach;
            self.attach_numbers
                .entry(Arc::as_ptr(attach).addr())
                .or_insert_with(|| {
                    self.attaches.push(attach.clone());
                    number
                });
        }
    }

    /// Returns the number of the attach of a step that was added.
    fn attach_number(&self, attach: &Arc<Attach>) -> u32 {
        self.attach_numbers[&Arc::as_ptr(attach).addr()]
    }

    /// Returns the number of a step that was added.
    fn step_number(&self, step: &Arc<Step>) -> u32 {
        self.step_numbers[&Arc::as_ptr(step).addr()]
    }

    fn saved_step<'a>(&self, step: &'a Step) -> Result<SavedStep<'a>> {
        Ok(match &step.name_in_parent {
            None => SavedStep::Unnamed(self.attach_number(&step.attach)),
            Some(location) => {
                let name = location.name().map_err(failed("a name"))?;
                SavedStep::Named(self.step_number(&location.parent), name.bytes())
            }
        })
    }
}

/// The properties of nodes, by export and inode number: many fids are of one node.
#[derive(Default)]
struct Nodes(HashMap<(usize, NodeId), SavedNode>);

impl Nodes {
    /// Returns a descriptor of an open file that was removed, with which its handle is found.
    /// Returns `None` for other files, if there is one already, or if that is not possible.
    fn keep_removed(&mut self, cx: &Cx<'_>, fid: &FidState, open: &Open) -> Option<OwnedFd> {
        let node = fid.node();
        let Entry::Vacant(new) = self
            .0
            .entry((Arc::as_ptr(&fid.attach().export).addr(), node.id()))
        else {
            return None;
        };
        if !is_removed(open.file.attr(cx, AttrMask::STAT)) {
            return None;
        }
        let file = open.file.backing(cx)?;
        let file = (*file).as_fd().try_clone_to_owned().ok()?;
        new.insert(SavedNode {
            kind: node.kind(),
            id: node.id(),
            handle: Some(node.handle(cx).ok()?),
        });
        Some(file)
    }

    /// Returns the properties of a node, without a handle if it was removed and is not kept: to
    /// search for it again may take long.
    fn saved(&mut self, cx: &Cx<'_>, export: &Arc<Export>, node: &dyn Node) -> Result<SavedNode> {
        let id = node.id();
        match self.0.entry((Arc::as_ptr(export).addr(), id)) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                let handle = match is_removed(node.attr(cx, AttrMask::STAT)) {
                    true => None,
                    false => Some(
                        node.handle(cx)
                            .map_err(failed(format_args!("the handle of node {id}")))?,
                    ),
                };
                let kind = node.kind();
                Ok(*new.insert(SavedNode { kind, id, handle }))
            }
        }
    }
}

/// Returns whether a node with these attributes has no name any more.
fn is_removed(attr: vfs::Result<Attr>) -> bool {
    match attr {
        Ok(attr) => attr.nlink == 0,
        Err(errno) => is_gone(errno),
    }
}

/// Returns whether the error says that a node no longer exists.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ESTALE | Errno::ENOENT)
}

/// Locks of a node by the id of their owner.
type LocksByOwner = HashMap<Arc<[u8]>, Vec<Lock>>;

/// Writes fids.
struct FidWriter<'a> {
    cx: Cx<'a>,
    /// The connection's number in the lock table.
    client: u64,
    /// By address.
    exports: &'a HashMap<usize, SavedExport>,
    writer: &'a mut Writer,
    /// The locks that are not written yet, by export and inode number.
    locks: HashMap<(usize, NodeId), LocksByOwner>,
}

impl FidWriter<'_> {
    fn write(&mut self, fid: Fid, step: u32, state: &FidState) -> Result<()> {
        let draft;
        let used = match state.state() {
            State::Walked => SavedUse::Walked,
            State::Open(open) => {
                let saved = self.saved_open(state, open);
                SavedUse::Open(saved.map_err(|why| {
                    HandoverError(format!("fid {}, node {}: {why}", fid.0, state.node().id()))
                })?)
            }
            State::XattrRead(value) => SavedUse::XattrRead(&value.bytes),
            State::XattrWrite(value) => {
                let (name, size, flags, bytes) = value.snapshot();
                draft = bytes;
                SavedUse::XattrWrite {
                    name,
                    size: size as u32,
                    flags,
                    bytes: &draft,
                }
            }
        };
        self.writer.fid(fid.0, step, &used)?;
        match state.state() {
            State::Open(open) => self.write_owners(state, open),
            State::Walked | State::XattrRead(_) | State::XattrWrite(_) => Ok(()),
        }
    }

    fn saved_open(&self, fid: &FidState, open: &Open) -> Result<SavedOpen> {
        if open.remove {
            return Err(HandoverError::new("the file is to be removed on clunk"));
        }
        let export = Arc::as_ptr(&fid.attach().export).addr();
        if open.directory
            && !self.exports[&export].stable_cookies
            && !is_removed(open.file.attr(&self.cx, AttrMask::STAT))
        {
            return Err(HandoverError::new(
                "positions in the directory end with the process",
            ));
        }
        let writer = open.writer.as_ref();
        let records = open.records.lock();
        Ok(SavedOpen {
            flags: open.flags - resume::ONCE,
            in_place: writer.is_some_and(|writer| writer.in_place.get().is_some()),
            position: (records.offset, records.cookie),
            ends: writer.map_or((0, 0), |writer| {
                (writer.state.end(), writer.state.verified_end())
            }),
        })
    }

    fn write_owners(&mut self, fid: &FidState, open: &Open) -> Result<()> {
        let owners = open.lock_owners.snapshot();
        self.writer.count(owners.len())?;
        if owners.is_empty() {
            return Ok(());
        }
        let (export, node) = (&fid.attach().export, fid.node().id());
        let locks = match self.locks.entry((Arc::as_ptr(export).addr(), node)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let by_owner = new.insert(LocksByOwner::new());
                for lock in export.locks.held_by(node, self.client) {
                    by_owner
                        .entry(lock.owner.id.clone())
                        .or_default()
                        .push(lock);
                }
                by_owner
            }
        };
        for owner in owners {
            let client_id = owner.id.split_last_chunk::<4>();
            let client_id = client_id.map_or(&[][..], |(client_id, _)| client_id);
            self.writer.owner(client_id, owner.pid)?;
            let own = locks.remove(&owner.id).unwrap_or_default();
            self.writer.count(own.len())?;
            for lock in own {
                self.writer.lock(&SavedLock {
                    exclusive: lock.kind == LockKind::Exclusive,
                    start: lock.start,
                    end: lock.end,
                });
            }
        }
        Ok(())
    }
}
