//! Finding nodes by handle, and the parent directory.
//!
//! A handle is sealed with a key that only this export has ([`vfs::seal`]), so that a peer cannot
//! forge one for an object that it was not given. Its body is
//!
//! ```text
//! 1, words of the kernel handle (4 bits each) | handle type u8 | number u64 | kernel handle | directory
//! 2, 0                                        | number u64     | incarnation u64
//! ```
//! *directory* is the kernel handle of the directory in which an object other than a directory was
//! first found, as a difference from the object's own: a bit for each word, then the words that
//! differ. An object opened by such a handle has to be proven to be below the root
//! ([`crate::containment`]), which uses the directory.
//!
//! The second form is for systems where kernel handles are not permitted. It resolves to live
//! nodes, and to those whose name is in the [`crate::handle_index::HandleIndex`], even after a
//! restart if that is recorded.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use sys::handle::FileHandle;
use vfs::{Cx, Errno, Handle, HandleKey, Name, NodeId, Patience, Result};

use crate::handle_index::Location;
use crate::node::HostNode;
use crate::stat::incarnation_of;
use crate::tree::{Tree, TreeDevice};
use crate::{identity, mounts};

const BY_KERNEL: u8 = 0x10;
const BY_NAME: u8 = 0x20;

/// The longest handle: a layer with two such trees prepends a byte.
const MAX_LEN: usize = Handle::MAX_SOURCE - 1;

/// The size of a word of a kernel handle in bytes.
const WORD: usize = 4;

/// Implements [`vfs::Node::handle`].
pub(crate) fn handle(node: &HostNode, patience: Patience) -> Result<Handle> {
    let device = node.device();
    device.allow_cached(patience)?;
    let key = &node.host().handle_key;
    let mut body = Vec::with_capacity(MAX_LEN);
    if device.mount().is_some() {
        let kernel = node.kernel_handle()?;
        let kind = u8::try_from(kernel.kind()).map_err(|_| Errno::EOPNOTSUPP)?;
        let (words, rest) = kernel.bytes().as_chunks::<WORD>();
        if words.len() > 0xf || !rest.is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        body.extend([BY_KERNEL | words.len() as u8, kind]);
        body.extend(node.number().to_le_bytes());
        body.extend(kernel.bytes());
        if let Some(dir) = node.directory().and_then(|dir| dir.kernel_handle().ok())
            && let Some(dir) = difference(&kernel, &dir)
            && body.len() + dir.len() <= HandleKey::max_body(MAX_LEN)
        {
            body.extend(dir);
        }
    } else {
        let incarnation = incarnation_of(node.fd(patience)?.as_fd());
        node.tree()
            .handle_index
            .record_ancestors(locations(node, incarnation));
        body.push(BY_NAME);
        body.extend(node.number().to_le_bytes());
        body.extend(incarnation.to_le_bytes());
    }
    key.seal(&body, MAX_LEN)
}

/// Returns the locations of `node`, `incarnation` of its number, and of its ancestors.
fn locations(node: &HostNode, incarnation: u64) -> impl Iterator<Item = (NodeId, Location)> {
    let mut first = node
        .dentry()
        .map(|dentry| (node.number(), dentry, incarnation));
    let mut above: Option<Arc<HostNode>> = None;
    std::iter::from_fn(move || {
        let (id, dentry, incarnation) = match first.take() {
            Some(first) => first,
            None => {
                let node = above.take()?;
                let dentry = node.dentry()?;
                let fd = node.fd(Patience::Full).ok()?;
                (node.number(), dentry, incarnation_of(fd.as_fd()))
            }
        };
        let location = Location {
            parent: dentry.parent.number(),
            name: dentry.name,
            incarnation,
        };
        above = Some(dentry.parent);
        Some((id, location))
    })
}

/// Records the new location `name` in `parent` of a node that need not be live, if its location is
/// recorded.
pub(crate) fn record_move(id: NodeId, parent: &HostNode, name: Name<'_>) {
    let index = &parent.tree().handle_index;
    let Some(old) = index.location(id) else {
        return;
    };
    let known = index.location(parent.number()).is_some();
    if let Ok(fd) = parent.fd(Patience::Full)
        && !known
    {
        index.record_ancestors(locations(parent, incarnation_of(fd.as_fd())));
    }
    index.set(
        id,
        Location {
            parent: parent.number(),
            name: name.bytes().into(),
            incarnation: old.incarnation,
        },
    );
}

/// Returns the words of `dir` that differ from `own`, in a handle's encoding; `None` if the two
/// differ in type or length.
fn difference(own: &FileHandle, dir: &FileHandle) -> Option<Vec<u8>> {
    let (words, its) = (
        own.bytes().as_chunks::<WORD>().0,
        dir.bytes().as_chunks::<WORD>().0,
    );
    if own.kind() != dir.kind() || own.bytes().len() != dir.bytes().len() || words.len() > 8 {
        return None;
    }
    let mut difference = vec![0];
    for (at, (own, its)) in words.iter().zip(its).enumerate() {
        if own != its {
            difference[0] |= 1 << at;
            difference.extend(its);
        }
    }
    Some(difference)
}

/// Returns the handle that has this `difference` from `own`.
fn apply(own: &FileHandle, difference: &[u8]) -> Option<FileHandle> {
    let (&mask, words) = difference.split_first()?;
    let mut words = words.as_chunks::<WORD>().0.iter();
    let mut bytes = own.bytes().to_vec();
    for (at, word) in bytes.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
        if at < 8 && mask & 1 << at != 0 {
            *word = *words.next()?;
        }
    }
    FileHandle::new(own.kind(), &bytes).ok()
}

/// Implements [`vfs::FileSystem::resolve`]. Checks no permission: the holder of a handle was given
/// the node.
pub(crate) fn resolve(tree: &Arc<Tree>, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<HostNode>> {
    if cx.patience == Patience::None {
        return Err(Errno::WOULD_BLOCK);
    }
    match *tree.host.handle_key.open(handle)? {
        [form, kind, ref rest @ ..] if form & 0xf0 == BY_KERNEL => {
            let words = usize::from(form & 0xf);
            let (id, rest) = rest.split_first_chunk().ok_or(Errno::ESTALE)?;
            let (own, dir) = rest.split_at_checked(words * WORD).ok_or(Errno::ESTALE)?;
            let kernel = FileHandle::new(kind.into(), own).map_err(|_| Errno::ESTALE)?;
            let form = KernelForm {
                id: NodeId::from_le_bytes(*id),
                dir: apply(&kernel, dir),
                kernel,
            };
            resolve_kernel_handle(tree, cx, &form)
        }
        [BY_NAME, ref rest @ ..] => {
            let (id, incarnation) = rest.split_first_chunk().ok_or(Errno::ESTALE)?;
            let incarnation = incarnation.first_chunk().ok_or(Errno::ESTALE)?;
            let id = NodeId::from_le_bytes(*id);
            resolve_by_name(tree, cx, id, u64::from_le_bytes(*incarnation))
        }
        _ => Err(Errno::ESTALE),
    }
}

/// The contents of a handle of the first form.
struct KernelForm {
    id: NodeId,
    kernel: FileHandle,
    /// The directory in which it was first found.
    dir: Option<FileHandle>,
}

fn resolve_kernel_handle(
    tree: &Arc<Tree>,
    cx: &Cx<'_>,
    form: &KernelForm,
) -> Result<Arc<HostNode>> {
    if let Some(node) = tree.nodes.get(form.id)
        && node.kernel_handle().is_ok_and(|own| own == form.kernel)
    {
        // Another request may have inserted it a moment ago.
        if let Some(mount) = node.device().mount() {
            record_directory(cx, mount, &node, form)?;
        }
        return Ok(node);
    }
    let mut devices = tree.devices();
    // Any device of a disk opens handles of all of its volumes, so try the others too.
    devices.sort_by_key(|tree_device| !tree_device.device.may_have(form.id));
    for tree_device in &devices {
        tree_device.device.allow_brief(cx.patience)?;
        if let Some(mount) = tree_device.device.mount()
            && let Some(node) = open_on(cx, tree_device, mount, form)?
        {
            return Ok(node);
        }
    }
    // It may be on a mount below the root without nodes so far, or on one of another part of a
    // known file system.
    cx.check_may_block()?;
    identity::assume_server()?;
    mounts::find(tree, |tree_device, mount| {
        open_on(cx, tree_device, mount, form)
    })?
    .ok_or(Errno::ESTALE)
}

/// Repeats `open` after `ENOMEM`: Linux also returns that while another inode is being set up with
/// the number of a removed one (`iget_locked()` in `fs/inode.c`).
fn retry_nomem<T>(mut open: impl FnMut() -> Result<T>) -> Result<T> {
    /// The most retries; an inode is set up in fewer.
    const RETRIES: usize = 100;
    for _ in 0..RETRIES {
        match open() {
            Err(Errno::ENOMEM) => std::thread::yield_now(),
            done => return done,
        }
    }
    open()
}

/// Returns the node of `form`, if `mount`, which is of `tree_device`, has it and it is below the
/// root.
fn open_on(
    cx: &Cx<'_>,
    tree_device: &Arc<TreeDevice>,
    mount: BorrowedFd<'_>,
    form: &KernelForm,
) -> Result<Option<Arc<HostNode>>> {
    let tree = &tree_device.tree;
    identity::assume_server()?;
    match retry_nomem(|| tree.host.open(|| form.kernel.open(mount, OFlags::PATH))) {
        Ok(fd) => {
            if !tree
                .containment()?
                .is_beneath(cx, mount, &fd, form.dir.as_ref())?
            {
                return Ok(None);
            }
            let (node, _) = tree.enter(Some(tree_device), fd, None)?;
            if node.number() != form.id {
                return Ok(None);
            }
            record_directory(cx, mount, &node, form)?;
            Ok(Some(node))
        }
        Err(error @ (Errno::ENFILE | Errno::ENOMEM)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Records the directory in the handle `form` of `node`, so that the node has this same handle: for
/// a Linux client another handle is another file. A directory that was removed, or moved out of the
/// export, is not recorded.
fn record_directory(
    cx: &Cx<'_>,
    mount: BorrowedFd<'_>,
    node: &HostNode,
    form: &KernelForm,
) -> Result<()> {
    let lacks_directory = || node.is_open() && node.directory().is_none();
    let Some(dir) = form.dir.as_ref().filter(|_| lacks_directory()) else {
        return Ok(());
    };
    node.device().allow_brief(cx.patience)?;
    identity::assume_server()?;
    let tree = node.tree();
    let containment = tree.containment()?;
    let Some(fd) = containment.open_directory_of(mount, dir)? else {
        return Ok(());
    };
    let entered = match containment.is_directory_beneath(&fd) {
        Ok(true) => tree.enter(Some(node.tree_device()), fd, None),
        Ok(false) => return Ok(()),
        Err(error) => Err(error),
    };
    match entered {
        Ok((dir, _)) => node.record_directory(&dir),
        Err(error @ (Errno::ENFILE | Errno::ENOMEM)) => return Err(error),
        // The host removes it at this moment.
        Err(_) => {}
    }
    Ok(())
}

fn resolve_by_name(
    tree: &Arc<Tree>,
    cx: &Cx<'_>,
    id: NodeId,
    incarnation: u64,
) -> Result<Arc<HostNode>> {
    let same = |node: &HostNode, incarnation| {
        Ok::<_, Errno>(incarnation_of(node.fd(cx.patience)?.as_fd()) == incarnation)
    };
    if let Some(node) = tree.nodes.get(id) {
        return if same(&node, incarnation)? {
            Ok(node)
        } else {
            Err(Errno::ESTALE)
        };
    }
    // Up through the index to a live node; the root is one.
    let mut path = Vec::new();
    let mut at = id;
    let mut node = loop {
        if let Some(node) = tree.nodes.get(at) {
            break node;
        }
        let location = tree.handle_index.location(at).ok_or(Errno::ESTALE)?;
        at = location.parent;
        path.push(location);
        if path.len() > MAX_DEPTH {
            return Err(Errno::ESTALE);
        }
    };
    for location in path.into_iter().rev() {
        let dir = node.fd(cx.patience)?;
        let name = Name::new(&location.name)?;
        identity::assume_server()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = tree
            .host
            .open(|| rustix::fs::openat(&*dir, name.bytes(), flags, Mode::empty()))
            .map_err(|error| match error {
                Errno::ENFILE => error,
                _ => Errno::ESTALE,
            })?;
        if incarnation_of(fd.as_fd()) != location.incarnation {
            return Err(Errno::ESTALE);
        }
        node = tree
            .enter(Some(node.tree_device()), fd, Some((&node, name)))?
            .0;
    }
    if node.number() == id && same(&node, incarnation)? {
        Ok(node)
    } else {
        Err(Errno::ESTALE)
    }
}

/// A limit for the depth of a tree, against cycles.
const MAX_DEPTH: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of an open that fails the first `times` times with `ENOMEM`, and the
    /// number of tries.
    fn opened(times: usize, then: Result<()>) -> (Result<()>, usize) {
        let mut tries = 0;
        let done = retry_nomem(|| {
            tries += 1;
            if tries > times {
                then
            } else {
                Err(Errno::ENOMEM)
            }
        });
        (done, tries)
    }

    #[test]
    fn a_handle_for_which_there_is_no_memory_is_tried_again() {
        assert_eq!(opened(0, Ok(())), (Ok(()), 1));
        assert_eq!(opened(3, Ok(())), (Ok(()), 4));
        assert_eq!(opened(3, Err(Errno::ESTALE)), (Err(Errno::ESTALE), 4));
        let (done, tries) = opened(usize::MAX, Ok(()));
        assert_eq!(done, Err(Errno::ENOMEM));
        assert!(tries < 1000, "not for ever");
    }
}
