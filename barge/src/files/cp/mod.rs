//! `barge cp`: copies between sources.
//!
//! One thread walks the tree and creates directories and links; several threads copy files
//! ([`data`]), so that a remote server always has requests to process. Attributes of directories
//! ([`preserve`]) are set after their contents.
//!
//! Lock order: the queue of files, held only to take one.

mod data;
mod preserve;
mod progress;

use std::collections::HashMap;
use std::io::{Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use serde_json::json;
use vfs::{AttrMask, Entry, Errno, Kind, Mode, Name, NewNode, Node, NodeId, Result, Time};

use super::args::CpArgs;
use super::operand::Operand;
use super::{ErrorReporter, finish_output};
use crate::disk_cache::DiskCacheArgs;
use crate::{CommandResult, Failure, confinement};
use data::copy_file;
use preserve::{Preserve, preserve_attributes};
pub(crate) use progress::Progress;
use sources::Tree;

/// Copies all arguments but the last to the last.
pub(crate) fn cp(args: &CpArgs) -> CommandResult {
    let Some((to, from)) = args.operands.split_last() else {
        return Err(Failure::usage("expected a source and a destination"));
    };
    let mut sources = args.operands.iter().map(Operand::source);
    if sources.any(confinement::connects) {
        confinement::enter_writer(true);
    }
    let (tree, path) = to.open(&args.disk_cache)?;
    let target = Target::resolve(tree, &path, to)?;
    if from.len() > 1 && !matches!(target.destination, Destination::Directory(_)) {
        return Err(Failure::usage(format!(
            "{to}: expected a directory as the destination of {} sources",
            from.len()
        )));
    }
    let copier = Copier {
        recursive: args.recursive || args.archive,
        preserve: Preserve {
            attributes: args.preserve || args.archive,
            xattrs: args.archive,
        },
        hard_links: args.archive,
        target: target.tree.clone(),
        errors: ErrorReporter::default(),
        progress: Progress::new(args.quiet),
        copied: Copied::default(),
    };
    std::thread::scope(|scope| {
        // At most four files per thread wait: a queued file holds its node.
        let (queue, files) = sync_channel::<QueuedFile>(usize::from(args.jobs) * 4);
        let files = Arc::new(Mutex::new(files));
        for _ in 0..args.jobs {
            let (files, copier) = (files.clone(), &copier);
            scope.spawn(move || copier.copy_files(&files));
        }
        let mut walk = Walk {
            copier: &copier,
            disk_cache: &args.disk_cache,
            queue,
            linked_copies: HashMap::new(),
            created: HashMap::new(),
            directories: Vec::new(),
        };
        for operand in from {
            if let Err(failure) = walk.copy_operand(operand, &target) {
                copier.errors.report("cp", failure.message);
            }
        }
        let Walk {
            queue, directories, ..
        } = walk;
        drop(queue);
        directories
    })
    .into_iter()
    .rev()
    .for_each(|directory| directory.finish(&copier));
    copier.progress.finish();
    if !args.json {
        return Ok(copier.errors.status());
    }
    let Copied {
        files,
        directories,
        others,
    } = &copier.copied;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let object = json!({
        "destination": to.to_string(),
        "files": count(files),
        "directories": count(directories),
        "others": count(others),
        "bytes": copier.progress.bytes(),
        "errors": copier.errors.count(),
    });
    finish_output(writeln!(stdout(), "{object}"), &copier.errors)
}

/// The numbers of copies.
#[derive(Default)]
struct Copied {
    files: AtomicU64,
    directories: AtomicU64,
    /// Links, pipes, sockets and devices.
    others: AtomicU64,
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The destination.
struct Target {
    tree: Tree,
    destination: Destination,
}

enum Destination {
    /// An existing directory: copies are created in it.
    Directory(Entry),
    /// The name of the copy in an existing directory.
    Name(Entry, Vec<u8>),
}

impl Target {
    fn resolve(tree: Tree, path: &[u8], operand: &Operand) -> std::result::Result<Target, Failure> {
        let failed = |errno: Errno| Failure::new(format!("{operand}: {errno}"));
        let found = match tree.resolve(path, true) {
            Ok(entry) if entry.attr.kind == Kind::Directory => Destination::Directory(entry),
            Ok(_) | Err(Errno::ENOENT) => {
                let (dir, name) = tree.parent_of(path).map_err(failed)?;
                Destination::Name(dir, name)
            }
            Err(errno) => return Err(failed(errno)),
        };
        Ok(Target {
            tree,
            destination: found,
        })
    }
}

/// The options and the target of a copy.
struct Copier {
    recursive: bool,
    preserve: Preserve,
    /// Whether hard links are preserved.
    hard_links: bool,
    target: Tree,
    errors: ErrorReporter,
    progress: Progress,
    copied: Copied,
}

/// A file to copy.
struct QueuedFile {
    tree: Tree,
    from: Entry,
    to: Arc<dyn Node>,
    name: Vec<u8>,
    shown: String,
}

/// A directory whose attributes are set at the end.
struct CopiedDirectory {
    tree: Tree,
    from: Entry,
    to: Arc<dyn Node>,
    created: bool,
    shown: String,
}

impl CopiedDirectory {
    fn finish(self, copier: &Copier) {
        if !self.created && !copier.preserve.attributes {
            return;
        }
        let result = preserve_attributes(copier, &self.tree, &self.from, &*self.to);
        if let Err(errno) = result {
            copier.errors.report(&self.shown, errno);
        }
    }
}

impl Copier {
    fn copy_files(&self, files: &Mutex<Receiver<QueuedFile>>) {
        loop {
            // The lock is released before the copy begins.
            let next = files.lock().recv();
            let Ok(file) = next else { return };
            if let Err(errno) = self.copy(&file) {
                self.errors.report(&file.shown, errno);
            }
        }
    }

    fn copy(&self, file: &QueuedFile) -> Result<Arc<dyn Node>> {
        let name = Name::new(&file.name)?;
        let copy = copy_file(self, &file.tree, &file.from, &*file.to, name)?;
        if self.preserve.attributes {
            preserve_attributes(self, &file.tree, &file.from, &*copy)?;
        }
        increment(&self.copied.files);
        Ok(copy)
    }
}

struct Walk<'a> {
    copier: &'a Copier,
    disk_cache: &'a DiskCacheArgs,
    queue: SyncSender<QueuedFile>,
    /// Copies of files with several links, by device and inode number of the original.
    linked_copies: HashMap<(u64, u64), Arc<dyn Node>>,
    /// Directories created. If one is found in the source, the target is below it, and the copy
    /// would never end.
    created: HashMap<NodeId, NodeIdentity>,
    directories: Vec<CopiedDirectory>,
}

/// A directory whose entries remain to be copied.
struct Pending {
    from: Entry,
    to: Arc<dyn Node>,
    shown: String,
}

impl Walk<'_> {
    fn copy_operand(
        &mut self,
        operand: &Operand,
        target: &Target,
    ) -> std::result::Result<(), Failure> {
        let (tree, path) = operand.open(self.disk_cache)?;
        let shown = operand.to_string();
        let failed = |errno: Errno| Failure::new(format!("{operand}: {errno}"));
        let from = tree
            .resolve(&path, !self.copier.recursive)
            .map_err(failed)?;
        if from.attr.kind == Kind::Directory && !self.copier.recursive {
            return Err(Failure::new(format!(
                "{operand}: is a directory (--recursive copies it)"
            )));
        }
        let (dir, name) = match (&target.destination, operand.name()) {
            (Destination::Name(dir, name), _) => (dir, name.clone()),
            (Destination::Directory(dir), Some(name)) => (dir, name),
            // A source without a name is copied entry by entry.
            (Destination::Directory(dir), None) => {
                let (to, made) = (dir.node.clone(), false);
                self.copy_contents(&tree, from, to, made, shown);
                return Ok(());
            }
        };
        if from.attr.kind == Kind::Directory {
            self.refuse_loop(&tree, &from, &dir.node).map_err(failed)?;
        }
        let to = dir.node.clone();
        if let Some(pending) = self
            .copy_entry(&tree, from, &to, name, shown.clone())
            .map_err(failed)?
        {
            let Pending { from, to, shown } = pending;
            self.copy_descendants(&tree, Pending { from, to, shown });
        }
        Ok(())
    }

    /// Returns `EINVAL` if `to` is `from` or below it, as far as the target shows its parents.
    fn refuse_loop(&self, tree: &Tree, from: &Entry, to: &Arc<dyn Node>) -> Result<()> {
        let Some(original) = NodeIdentity::of(tree, &*from.node) else {
            return Ok(());
        };
        let mut at = to.clone();
        loop {
            let same = at.id() == from.node.id()
                && NodeIdentity::of(&self.copier.target, &*at).as_ref() == Some(&original);
            if same {
                return Err(Errno::EINVAL);
            }
            match self.copier.target.with(|cx| at.parent(cx)) {
                Ok(up) if up.node.id() != at.id() => at = up.node,
                _ => return Ok(()),
            }
        }
    }

    /// Returns whether a directory that was found was created by this copy.
    fn is_copy(&self, tree: &Tree, found: &Entry) -> bool {
        let made = self.created.get(&found.attr.id);
        made.is_some_and(|made| NodeIdentity::of(tree, &*found.node).as_ref() == Some(made))
    }

    fn copy_contents(
        &mut self,
        tree: &Tree,
        from: Entry,
        to: Arc<dyn Node>,
        made: bool,
        shown: String,
    ) {
        self.directories.push(CopiedDirectory {
            tree: tree.clone(),
            from: from.clone(),
            to: to.clone(),
            created: made,
            shown: shown.clone(),
        });
        self.copy_descendants(tree, Pending { from, to, shown });
    }

    fn copy_descendants(&mut self, tree: &Tree, first: Pending) {
        let mut pending = vec![first];
        while let Some(Pending { from, to, shown }) = pending.pop() {
            let listed = match tree.list(&*from.node) {
                Ok(listed) => listed,
                Err(errno) => {
                    self.copier.errors.report(&shown, errno);
                    continue;
                }
            };
            for listed in listed {
                let shown = format!("{shown}/{}", String::from_utf8_lossy(&listed.name));
                let Some(entry) = listed.entry else {
                    self.copier.errors.report(&shown, "cannot be accessed");
                    continue;
                };
                match self.copy_entry(tree, entry, &to, listed.name, shown.clone()) {
                    Ok(more) => pending.extend(more),
                    Err(errno) => self.copier.errors.report(&shown, errno),
                }
            }
        }
    }

    /// Copies an entry or queues it. A directory is created and returned, so that its entries come
    /// next.
    fn copy_entry(
        &mut self,
        tree: &Tree,
        from: Entry,
        to: &Arc<dyn Node>,
        name: Vec<u8>,
        shown: String,
    ) -> Result<Option<Pending>> {
        let key = (from.attr.device, from.attr.id);
        let has_links = self.copier.hard_links && from.attr.nlink > 1;
        if has_links && let Some(copy) = self.linked_copies.get(&key) {
            self.make_link(to, &name, &**copy)?;
            increment(&self.copier.copied.others);
            return Ok(None);
        }
        match from.attr.kind {
            Kind::Directory if self.is_copy(tree, &from) => {
                let why = "is the destination, which is not copied into itself";
                self.copier.errors.report(&shown, why);
            }
            Kind::Directory => {
                let (made, new) = self.make_directory(to, &name)?;
                increment(&self.copier.copied.directories);
                if new && let Some(identity) = NodeIdentity::of(&self.copier.target, &*made) {
                    self.created.insert(made.id(), identity);
                }
                self.directories.push(CopiedDirectory {
                    tree: tree.clone(),
                    from: from.clone(),
                    to: made.clone(),
                    created: new,
                    shown: shown.clone(),
                });
                return Ok(Some(Pending {
                    from,
                    to: made,
                    shown,
                }));
            }
            Kind::File => {
                self.copier.progress.inc_length(from.attr.size);
                let (tree, to) = (tree.clone(), to.clone());
                let file = QueuedFile {
                    tree,
                    from,
                    to,
                    name,
                    shown,
                };
                if has_links {
                    // Its other links need the copy.
                    let copy = self.copier.copy(&file)?;
                    self.linked_copies.insert(key, copy);
                } else if self.queue.send(file).is_err() {
                    return Err(Errno::ECANCELED);
                }
            }
            _ => {
                let copy = self.make_special(tree, &from, to, &name)?;
                increment(&self.copier.copied.others);
                if has_links {
                    self.linked_copies.insert(key, copy);
                }
            }
        }
        Ok(None)
    }

    fn make_link(&self, to: &Arc<dyn Node>, name: &[u8], copy: &dyn Node) -> Result<()> {
        let name = Name::new(name)?;
        self.copier.target.with(|cx| match to.link(cx, name, copy) {
            Err(Errno::EEXIST) => {
                to.unlink(cx, name, false)?;
                to.link(cx, name, copy).map(drop)
            }
            done => done.map(drop),
        })
    }

    /// Creates a directory, or returns an existing one. Only its owner can access a new one until
    /// it is complete.
    fn make_directory(&self, to: &Arc<dyn Node>, name: &[u8]) -> Result<(Arc<dyn Node>, bool)> {
        let name = Name::new(name)?;
        self.copier.target.with(|cx| {
            match to.make(cx, name, NewNode::Directory, Mode::without_umask(0o700)) {
                Ok(made) => Ok((made.node, true)),
                Err(Errno::EEXIST) => {
                    let found = to.lookup(cx, name)?;
                    match found.attr.kind {
                        Kind::Directory => Ok((found.node, false)),
                        _ => Err(Errno::ENOTDIR),
                    }
                }
                Err(errno) => Err(errno),
            }
        })
    }

    /// Creates a symbolic link, pipe, socket or device like `from`, replacing an existing file.
    fn make_special(
        &self,
        tree: &Tree,
        from: &Entry,
        to: &Arc<dyn Node>,
        name: &[u8],
    ) -> Result<Arc<dyn Node>> {
        let target;
        let what = match from.attr.kind {
            Kind::Symlink => {
                target = tree.readlink(&*from.node)?;
                NewNode::Symlink(&target)
            }
            Kind::Fifo => NewNode::Fifo,
            Kind::Socket => NewNode::Socket,
            Kind::CharDevice => NewNode::CharDevice(from.attr.rdev),
            Kind::BlockDevice => NewNode::BlockDevice(from.attr.rdev),
            Kind::File | Kind::Directory => return Err(Errno::EINVAL),
        };
        let name = Name::new(name)?;
        let mode = Mode::without_umask(from.attr.mode & 0o777);
        let copy = self.copier.target.with(|cx| {
            let made = match to.make(cx, name, what, mode) {
                Err(Errno::EEXIST) => {
                    to.unlink(cx, name, false)?;
                    to.make(cx, name, what, mode)
                }
                done => done,
            };
            made.map(|made| made.node)
        })?;
        if self.copier.preserve.attributes {
            preserve_attributes(self.copier, tree, from, &*copy)?;
        }
        Ok(copy)
    }
}

/// The identity of a node in all trees: the same directory may be reached by its path and through a
/// server.
#[derive(PartialEq, Eq)]
struct NodeIdentity {
    id: u64,
    generation: u64,
    btime: Option<Time>,
}

impl NodeIdentity {
    /// Returns `None` if the inode number is all that is known: another tree may have the same.
    fn of(tree: &Tree, node: &dyn Node) -> Option<NodeIdentity> {
        let want = AttrMask::BASIC | AttrMask::BTIME | AttrMask::GENERATION;
        let attr = tree.with(|cx| node.attr(cx, want)).ok()?;
        (attr.generation != 0 || attr.btime.is_some()).then_some(NodeIdentity {
            id: attr.id,
            generation: attr.generation,
            btime: attr.btime,
        })
    }
}

#[cfg(test)]
mod tests;
