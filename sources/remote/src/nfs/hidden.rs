//! Open files that are removed, or replaced by a rename: they keep a hidden name on the server,
//! `.nfs` and 24 hexadecimal digits, until the last close ("silly rename" of Linux's client).
//!
//! A server may lose a file with its last name. v3 knows no open files, and a server of v4 promises
//! to keep them with `OPEN4_RESULT_PRESERVE_UNLINKED` only (RFC 8881, section 18.16.3), which
//! Ganesha and Linux do not send. A file that has another name is removed as any other.
//!
//! As with Linux's client, the hidden name is seen in listings, removing or renaming it is `EBUSY`,
//! and its directory is not empty. A removal of the directory waits a moment for closes that are on
//! their way: the kernel does not wait for those of FUSE.
//!
//! With a [`HiddenLog`], the next mount removes what one leaves that ends without a word.
//!
//! Lock order: the turn of an object, which is kept across requests; then the table, which is not.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use concurrency::Shards;
use parking_lot::{Condvar, Mutex};
use vfs::{Attr, Call, Caller, Cx, Errno, Kind, NodeId, Result};

use super::hidden_log::HiddenLog;
use super::shared::Shared;
use super::version::{Found, Handle, ProtocolVersion};
use crate::client_owner::random;
use crate::deferred::{DeferredSender, FlushDeferred};

/// The prefix of hidden names, the one of Linux's client.
const PREFIX: &[u8] = b".nfs";

/// How long the removal of a directory waits for the last closes of hidden files in it.
const CLOSE_TIME: Duration = Duration::from_millis(250);

/// How long the end of the mount waits for the removal of hidden names.
const END_TIME: Duration = Duration::from_secs(5);

/// The files of a mount that are open without a promise of the server to keep them, and their
/// hidden names.
#[derive(Default)]
pub(super) struct OpenFiles {
    table: Mutex<Table>,
    /// The number of open files in the table.
    count: AtomicUsize,
    /// Whether there are hidden names.
    has_names: AtomicBool,
    /// Is notified when a hidden name is gone.
    removed: Condvar,
    /// One removal at a time for each object: the second one of two must not take the last name.
    turns: Shards<(), 64>,
    sender: DeferredSender,
    log: Option<HiddenLog>,
}

#[derive(Default)]
struct Table {
    files: HashMap<NodeId, OpenFile>,
    /// All hidden names: those of open files, and those to be removed.
    names: HashMap<Box<[u8]>, Arc<HiddenName>>,
    /// The names to be removed.
    due: Vec<Arc<HiddenName>>,
}

/// An object that is open.
#[derive(Default)]
struct OpenFile {
    opens: usize,
    hidden: Vec<Arc<HiddenName>>,
}

/// A hidden name of an object.
pub(super) struct HiddenName {
    object: NodeId,
    pub(super) dir: Handle,
    pub(super) name: Box<[u8]>,
    /// The caller that has removed the file, and as whom the hidden name is removed.
    pub(super) caller: Caller,
}

impl HiddenName {
    /// Returns a name that no other client gives to this or another file.
    fn random(cx: &Cx<'_>, object: NodeId, dir: &Handle) -> HiddenName {
        HiddenName {
            object,
            dir: dir.clone(),
            name: format!(".nfs{object:016x}{:08x}", random() as u32)
                .into_bytes()
                .into(),
            caller: cx.caller.clone(),
        }
    }

    /// Returns the hidden name of an earlier mount, unless no mount makes such a name.
    pub(super) fn parse(dir: &[u8], name: &str, caller: Caller) -> Option<HiddenName> {
        let digits = name
            .strip_prefix(".nfs")
            .filter(|digits| digits.len() == 24)?;
        let object = NodeId::from_str_radix(digits.get(..16)?, 16).ok()?;
        u32::from_str_radix(digits.get(16..)?, 16).ok()?;
        Some(HiddenName {
            object,
            dir: dir.into(),
            name: name.as_bytes().into(),
            caller,
        })
    }
}

/// An open file in the table of its mount.
pub(super) struct OpenGuard<V: ProtocolVersion> {
    shared: Arc<Shared<V>>,
    object: NodeId,
}

impl<V: ProtocolVersion> OpenGuard<V> {
    /// Counts an open of an object. Call it before the open, so that a removal at the same time
    /// finds it.
    pub(super) fn new(shared: &Arc<Shared<V>>, object: NodeId) -> OpenGuard<V> {
        let files = &shared.open_files;
        let mut table = files.table.lock();
        table.files.entry(object).or_default().opens += 1;
        files.count.fetch_add(1, Ordering::Relaxed);
        // Opened again by its hidden name, which is about to be removed.
        let Table {
            files: all, due, ..
        } = &mut *table;
        let again = due.extract_if(.., |hidden| hidden.object == object);
        all.entry(object).or_default().hidden.extend(again);
        drop(table);
        OpenGuard {
            shared: shared.clone(),
            object,
        }
    }
}

impl<V: ProtocolVersion> Drop for OpenGuard<V> {
    fn drop(&mut self) {
        let files = &self.shared.open_files;
        let mut table = files.table.lock();
        files.count.fetch_sub(1, Ordering::Relaxed);
        let Some(file) = table.files.get_mut(&self.object) else {
            return;
        };
        file.opens -= 1;
        if file.opens > 0 {
            return;
        }
        let closed = table.files.remove(&self.object).unwrap_or_default();
        if !closed.hidden.is_empty() {
            table.due.extend(closed.hidden);
            drop(table);
            files.sender.arm(&self.shared.this);
        }
    }
}

impl OpenFiles {
    /// Returns an empty table, which writes hidden names to `log`.
    pub(super) fn with_log(log: Option<HiddenLog>) -> OpenFiles {
        OpenFiles {
            log,
            ..OpenFiles::default()
        }
    }

    /// Returns a new name for an object, which is in the table and the log from now on.
    fn hidden_name(&self, cx: &Cx<'_>, object: NodeId, dir: &Handle) -> Arc<HiddenName> {
        let hidden = Arc::new(HiddenName::random(cx, object, dir));
        let mut table = self.table.lock();
        table.names.insert(hidden.name.clone(), hidden.clone());
        self.has_names.store(true, Ordering::Relaxed);
        if let Some(log) = &self.log {
            log.add(&hidden, table.names.values().map(|hidden| &**hidden));
        }
        hidden
    }

    /// Forgets a name that the server has not or no longer.
    fn forget(&self, hidden: &Arc<HiddenName>) {
        let mut table = self.table.lock();
        let is_other = |other: &Arc<HiddenName>| !Arc::ptr_eq(other, hidden);
        table.due.retain(is_other);
        // It may have been opened again meanwhile.
        if let Some(file) = table.files.get_mut(&hidden.object) {
            file.hidden.retain(is_other);
        }
        table.names.remove(&hidden.name);
        if table.names.is_empty() {
            self.has_names.store(false, Ordering::Relaxed);
            self.log.iter().for_each(HiddenLog::clear);
        }
        drop(table);
        self.removed.notify_all();
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn has_names(&self) -> bool {
        self.has_names.load(Ordering::Relaxed)
    }

    fn is_open(&self, object: NodeId) -> bool {
        self.table.lock().files.contains_key(&object)
    }

    /// Returns whether an open object has hidden names.
    pub(super) fn has_hidden(&self, object: NodeId) -> bool {
        if !self.has_names() {
            return false;
        }
        let table = self.table.lock();
        let file = table.files.get(&object);
        file.is_some_and(|file| !file.hidden.is_empty())
    }

    /// Returns `EBUSY` for a hidden name.
    fn check_not_hidden(&self, dir: &Handle, name: &[u8]) -> Result<()> {
        if !name.starts_with(PREFIX) {
            return Ok(());
        }
        match self.table.lock().names.get(name) {
            Some(hidden) if hidden.dir == *dir => Err(Errno::EBUSY),
            _ => Ok(()),
        }
    }

    /// Returns the attributes of an object without its hidden names.
    pub(super) fn without_hidden(&self, mut attr: Attr) -> Attr {
        if self.has_names() && attr.kind == Kind::File {
            let table = self.table.lock();
            let hidden = table
                .files
                .get(&attr.id)
                .map_or(0, |file| file.hidden.len());
            attr.nlink = attr.nlink.saturating_sub(hidden as u32);
        }
        attr
    }

    /// Waits until a directory has no hidden names. Returns false if it still has some after
    /// [`CLOSE_TIME`].
    fn await_removals(&self, dir: &Handle) -> bool {
        let until = Instant::now() + CLOSE_TIME;
        let mut table = self.table.lock();
        let has_hidden = |table: &Table| table.names.values().any(|hidden| hidden.dir == *dir);
        while has_hidden(&table) {
            if self.removed.wait_until(&mut table, until).timed_out() {
                return !has_hidden(&table);
            }
        }
        true
    }

    /// Waits for the removal of the names of files that are closed, at the end of the mount.
    pub(super) fn finish(&self) {
        let until = Instant::now() + END_TIME;
        let mut table = self.table.lock();
        while !table.due.is_empty() && !self.removed.wait_until(&mut table, until).timed_out() {}
    }
}

impl<V: ProtocolVersion> Shared<V> {
    /// Removes the hidden names that an earlier mount has left.
    pub(super) fn remove_left_names(&self) {
        let left = self.open_files.log.iter().flat_map(HiddenLog::read);
        let left: Vec<_> = left.map(Arc::new).collect();
        if left.is_empty() {
            return;
        }
        let mut table = self.open_files.table.lock();
        let names = left
            .iter()
            .map(|hidden| (hidden.name.clone(), hidden.clone()));
        table.names.extend(names);
        self.open_files.has_names.store(true, Ordering::Relaxed);
        table.due.extend(left);
        drop(table);
        self.open_files.sender.arm(&self.this);
    }

    /// Removes the name of an object that is not a directory.
    pub(super) fn unlink(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8]) -> Result<()> {
        self.open_files.check_not_hidden(dir, name)?;
        let Some(found) = self.open_file_at(cx, dir, name) else {
            return self.version.remove(cx, dir, name, false);
        };
        let _turn = self.open_files.turns.lock(&found.attr.id);
        if self.has_another_name(cx, &found)? {
            return self.version.remove(cx, dir, name, false);
        }
        let hidden = self.open_files.hidden_name(cx, found.attr.id, dir);
        let renamed = self.version.rename(cx, (dir, name), (dir, &hidden.name));
        self.settle(hidden, may_be_done(renamed));
        renamed
    }

    /// Removes a directory.
    pub(super) fn rmdir(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8]) -> Result<()> {
        let has_hidden = self.open_files.has_names();
        let removed = self.version.remove(cx, dir, name, true);
        let has_entries = matches!(removed, Err(Errno::ENOTEMPTY | Errno::EEXIST));
        if !has_entries || !has_hidden {
            return removed;
        }
        let found = self.version.lookup(cx, dir, Some(name))?;
        if !self.open_files.await_removals(&found.handle) {
            return removed;
        }
        self.version.remove(cx, dir, name, true)
    }

    /// Renames an object, and replaces the one that has the new name.
    pub(super) fn replace(
        &self,
        cx: &Cx<'_>,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
    ) -> Result<()> {
        self.open_files.check_not_hidden(from.0, from.1)?;
        self.open_files.check_not_hidden(to.0, to.1)?;
        let Some(target) = self.open_file_at(cx, to.0, to.1) else {
            return self.version.rename(cx, from, to);
        };
        let _turn = self.open_files.turns.lock(&target.attr.id);
        if self.has_another_name(cx, &target)? {
            return self.version.rename(cx, from, to);
        }
        let hidden = self.open_files.hidden_name(cx, target.attr.id, to.0);
        let (renamed, is_hidden) = self.hide_and_rename(cx, &target.handle, from, to, &hidden);
        self.settle(hidden, is_hidden);
        renamed
    }

    /// Gives a file its hidden name, and renames another one to its name. Returns whether it may
    /// have the hidden name.
    fn hide_and_rename(
        &self,
        cx: &Cx<'_>,
        file: &Handle,
        from: (&Handle, &[u8]),
        to: (&Handle, &[u8]),
        hidden: &HiddenName,
    ) -> (Result<()>, bool) {
        let version = &self.version;
        let hidden_at = (to.0, &*hidden.name);
        // With a link, the new name exists at all times.
        if version.link(cx, file, to.0, &hidden.name).is_ok() {
            let renamed = version.rename(cx, from, to);
            let is_hidden =
                may_be_done(renamed) || version.remove(cx, to.0, &hidden.name, false).is_err();
            return (renamed, is_hidden);
        }
        // The server has no hard links.
        match version.lookup(cx, from.0, Some(from.1)) {
            Err(errno) => return (Err(errno), false),
            Ok(source) if source.attr.id == hidden.object => {
                return (version.rename(cx, from, to), false);
            }
            Ok(_) => {}
        }
        let moved = version.rename(cx, to, hidden_at);
        if moved.is_err() {
            return (moved, may_be_done(moved));
        }
        let renamed = version.rename(cx, from, to);
        let is_hidden = may_be_done(renamed) || version.rename(cx, hidden_at, to).is_err();
        (renamed, is_hidden)
    }

    /// Returns the regular file at a name, if this client has it open.
    fn open_file_at(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8]) -> Option<Found> {
        if self.open_files.is_empty() {
            return None;
        }
        // The removal itself has the error.
        let found = self.version.lookup(cx, dir, Some(name)).ok()?;
        let is_open = found.attr.kind == Kind::File && self.open_files.is_open(found.attr.id);
        is_open.then_some(found)
    }

    /// Returns whether a file stays if one name is removed. Called in the object's turn.
    fn has_another_name(&self, cx: &Cx<'_>, found: &Found) -> Result<bool> {
        Ok(found.attr.nlink > 1 && self.version.attr(cx, &found.handle)?.nlink > 1)
    }

    /// Records whether a name was given to an open file.
    fn settle(&self, hidden: Arc<HiddenName>, is_hidden: bool) {
        if !is_hidden {
            return self.open_files.forget(&hidden);
        }
        let mut table = self.open_files.table.lock();
        match table.files.get_mut(&hidden.object) {
            Some(file) => file.hidden.push(hidden),
            // It was closed meanwhile.
            None => {
                table.due.push(hidden);
                drop(table);
                self.open_files.sender.arm(&self.this);
            }
        }
    }
}

impl<V: ProtocolVersion> FlushDeferred for Shared<V> {
    fn deferred_sender(&self) -> &DeferredSender {
        &self.open_files.sender
    }

    /// Removes the hidden names of files that are closed.
    fn flush_deferred(&self) -> bool {
        let files = &self.open_files;
        let call = Call::detached();
        let mut any = false;
        loop {
            let Some(hidden) = files.table.lock().due.first().cloned() else {
                return any;
            };
            any = true;
            let cx = Cx::new(&hidden.caller, &call);
            if let Err(errno) = self.version.remove(&cx, &hidden.dir, &hidden.name, false)
                && ![Errno::ENOENT, Errno::ESTALE].contains(&errno)
            {
                let name = String::from_utf8_lossy(&hidden.name);
                tracing::warn!("{name} of a removed file stays on the server: {errno}");
            }
            files.forget(&hidden);
        }
    }
}

/// Returns whether the server may have carried out a request.
fn may_be_done(result: Result<()>) -> bool {
    matches!(result, Ok(()) | Err(Errno::EINTR | Errno::ETIMEDOUT))
}
