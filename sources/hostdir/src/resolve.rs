//! Finding nodes otherwise than by name from above: by handle, and the directory above.
//!
//! A handle is 4 bytes of head, the node's number, what tells its life, and a stamp that only this
//! export's key makes, so that a peer cannot name an object that it was never shown:
//!
//! ```text
//! 1 | prefix u16 | handle type u8 | number u64 | kernel handle, up to 28 bytes | stamp u64
//! 2 | prefix u16 | 0              | number u64 | life u64                      | stamp u64
//! ```
//! The second form is for where kernel handles are not permitted: it leads to nodes that live, and
//! to those that the [`crate::book::Book`] knows the name of, also into the next run of the program if that is recorded.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use sys::handle::FileHandle;
use vfs::{Attr, Cx, Errno, Handle, Kind, NodeId, Patience, Result, Want, sip};

use crate::device::{self, Device};
use crate::fds::Fd;
use crate::node::{HostNode, life_of};
use crate::tree::{self, Tree};
use crate::{attr, mounts};

const BY_KERNEL: u8 = 1;
const BY_NAME: u8 = 2;
const HEAD: usize = 12;
const STAMP: usize = 8;

/// [`vfs::Node::handle`].
pub(crate) fn handle(node: &HostNode, patience: Patience) -> Result<Handle> {
    let device = node.device();
    device.memory(patience)?;
    let mut bytes = Vec::with_capacity(Handle::MAX_OF_SOURCE);
    let head = |bytes: &mut Vec<u8>, form: u8, kind: u8| {
        bytes.push(form);
        bytes.extend(device.prefix.to_le_bytes());
        bytes.push(kind);
        bytes.extend(node.number().to_le_bytes());
    };
    if device.mount().is_some() {
        let kernel = node.kernel_handle()?;
        let kind = u8::try_from(kernel.kind()).map_err(|_| Errno::EOPNOTSUPP)?;
        if HEAD + kernel.bytes().len() + STAMP > Handle::MAX_OF_SOURCE {
            return Err(Errno::EOPNOTSUPP);
        }
        head(&mut bytes, BY_KERNEL, kind);
        bytes.extend(kernel.bytes());
    } else {
        let life = life_of(node.fd(patience)?.as_fd());
        device.tree.book.note(node, life);
        head(&mut bytes, BY_NAME, 0);
        bytes.extend(life.to_le_bytes());
    }
    let stamp = sip::hash(&device.tree.key, &bytes);
    bytes.extend(stamp.to_le_bytes());
    Handle::new(&bytes)
}

/// [`vfs::FileSystem::resolve`]. Asks for no permission: whoever has a handle was shown the node.
pub(crate) fn resolve(tree: &Arc<Tree>, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<HostNode>> {
    if cx.patience == Patience::None {
        return Err(Errno::WOULD_BLOCK);
    }
    let Some((body, stamp)) = handle.bytes().split_last_chunk::<STAMP>() else {
        return Err(Errno::ESTALE);
    };
    let forged = u64::from_le_bytes(*stamp) != sip::hash(&tree.key, body);
    let Some((head, life)) = body.split_first_chunk::<HEAD>().filter(|_| !forged) else {
        return Err(Errno::ESTALE);
    };
    let &[form, p0, p1, kind, ref id @ ..] = head;
    let (prefix, id) = (u16::from_le_bytes([p0, p1]), NodeId::from_le_bytes(*id));
    match form {
        BY_KERNEL => {
            let kernel = FileHandle::new(kind.into(), life).map_err(|_| Errno::ESTALE)?;
            by_kernel(tree, cx, prefix, id, &kernel)
        }
        BY_NAME => {
            let life = life.first_chunk().ok_or(Errno::ESTALE)?;
            by_name(tree, cx, id, u64::from_le_bytes(*life))
        }
        _ => Err(Errno::ESTALE),
    }
}

fn by_kernel(
    tree: &Arc<Tree>,
    cx: &Cx<'_>,
    prefix: u16,
    id: NodeId,
    kernel: &FileHandle,
) -> Result<Arc<HostNode>> {
    if let Some(node) = tree.table.get(id)
        && node.kernel_handle().is_ok_and(|own| own == *kernel)
    {
        return Ok(node);
    }
    let mut devices = tree.devices();
    // Any device of one disk opens handles of all of its volumes, so ask the others too.
    devices.sort_by_key(|device| device.prefix != prefix);
    for device in &devices {
        if let Some(node) = open_on(device, cx, prefix, id, kernel)? {
            return Ok(node);
        }
    }
    // It may be on a mount below the root that nobody has looked at yet.
    cx.may_wait()?;
    tree.act_as_server()?;
    for device in mounts::unseen(tree, &devices)? {
        if let Some(node) = open_on(&device, cx, prefix, id, kernel)? {
            return Ok(node);
        }
    }
    Err(Errno::ESTALE)
}

/// Tries again if there is no memory: Linux answers so as well while another node is being made that has got the number of one
/// that is gone (`iget_locked()` in `fs/inode.c`).
fn for_memory<T>(mut open: impl FnMut() -> Result<T>) -> Result<T> {
    /// A node is made in less than as many turns.
    const AGAIN: usize = 100;
    for _ in 0..AGAIN {
        match open() {
            Err(Errno::ENOMEM) => std::thread::yield_now(),
            done => return done,
        }
    }
    open()
}

fn open_on(
    device: &Arc<Device>,
    cx: &Cx<'_>,
    prefix: u16,
    id: NodeId,
    kernel: &FileHandle,
) -> Result<Option<Arc<HostNode>>> {
    let Some(mount) = device.mount() else {
        return Ok(None);
    };
    device.brief(cx.patience)?;
    let tree = &device.tree;
    tree.act_as_server()?;
    match for_memory(|| tree.open(|| kernel.open(mount, OFlags::PATH))) {
        Ok(fd) => {
            let (node, _) = tree.enter(Some(device), fd, None)?;
            Ok((node.device().prefix == prefix && node.number() == id).then_some(node))
        }
        Err(error @ (Errno::ENFILE | Errno::ENOMEM)) => Err(error),
        Err(_) => Ok(None),
    }
}

fn by_name(tree: &Arc<Tree>, cx: &Cx<'_>, id: NodeId, life: u64) -> Result<Arc<HostNode>> {
    let same =
        |node: &HostNode, life| Ok::<_, Errno>(life_of(node.fd(cx.patience)?.as_fd()) == life);
    if let Some(node) = tree.table.get(id) {
        return if same(&node, life)? {
            Ok(node)
        } else {
            Err(Errno::ESTALE)
        };
    }
    // Up through the book to a node that lives: the root does.
    let mut way = Vec::new();
    let mut at = id;
    let mut node = loop {
        if let Some(node) = tree.table.get(at) {
            break node;
        }
        let page = tree.book.page(at).ok_or(Errno::ESTALE)?;
        at = page.parent;
        way.push(page);
        if way.len() > DEEPEST {
            return Err(Errno::ESTALE);
        }
    };
    for page in way.into_iter().rev() {
        let dir = node.fd(cx.patience)?;
        let name = vfs::Name::new(&page.name)?;
        tree.act_as_server()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = tree
            .open(|| rustix::fs::openat(&*dir, name.bytes(), flags, Mode::empty()))
            .map_err(|error| match error {
                Errno::ENFILE => error,
                _ => Errno::ESTALE,
            })?;
        if life_of(fd.as_fd()) != page.life {
            return Err(Errno::ESTALE);
        }
        node = tree.enter(Some(node.device()), fd, Some((&node, name)))?.0;
    }
    if node.number() == id && same(&node, life)? {
        Ok(node)
    } else {
        Err(Errno::ESTALE)
    }
}

/// Directories deeper than this are no tree.
const DEEPEST: usize = 1 << 16;

/// The directory above `node`, proven to be at or below the root: `ESTALE` if not.
pub(crate) fn parent(node: &HostNode, cx: &Cx<'_>) -> Result<(Arc<HostNode>, Attr)> {
    if node.what() != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let device = node.device();
    device.brief(cx.patience)?;
    let tree = &device.tree;
    let fd = node.fd(cx.patience)?;
    if tree.is_root(&tree::stat(fd.as_fd())?) {
        let attr = attr::read(device, fd.as_fd(), Want::STAT)?;
        return Ok((node.shared().ok_or(Errno::ESTALE)?, attr));
    }
    tree.act(cx)?;
    let up = tree.open(|| above(fd.as_fd()))?;
    tree.act_as_server()?;
    if !is_below_root(tree, &up)? {
        return Err(Errno::ESTALE);
    }
    tree.enter(Some(device), up, None)
}

fn is_below_root(tree: &Tree, dir: &Fd) -> Result<bool> {
    let mut stx = tree::stat(dir.as_fd())?;
    let mut at: Option<Fd> = None;
    for _ in 0..DEEPEST {
        if tree.is_root(&stx) {
            return Ok(true);
        }
        let up = tree.open(|| above(at.as_ref().unwrap_or(dir).as_fd()))?;
        let next = tree::stat(up.as_fd())?;
        // Above the host's root is the host's root.
        if (device::dev_of(&next), next.stx_ino) == (device::dev_of(&stx), stx.stx_ino) {
            return Ok(false);
        }
        (stx, at) = (next, Some(up));
    }
    Ok(false)
}

fn above(dir: BorrowedFd<'_>) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, c"..", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an open answers that finds no memory the first `times` times, and how often it was tried.
    fn opened(times: usize, then: Result<()>) -> (Result<()>, usize) {
        let mut tries = 0;
        let done = for_memory(|| {
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
