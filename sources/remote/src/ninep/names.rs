//! Directory entries: creating, linking, renaming, removing.

use std::sync::Arc;

use p9::client::{attr, request};
use p9::numbers::{AT_REMOVEDIR, Lopen};
use p9::{Fid, Qid, Rmessage, Tmessage};
use vfs::{Attr, Cx, Device, Entry, Errno, File, Kind, Mode, Name, NewNode, OpenFlags, Result};

use super::fid::{Opened, OwnedFid, Walk};
use super::file::RemoteFile;
use super::legacy;
use super::node::RemoteNode;

impl RemoteNode {
    pub(super) fn create_file(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.check_directory()?;
        if !self.session().is_linux() {
            return create_file_legacy(self, cx, name, flags, mode);
        }
        let wire = self.session();
        let dir = self.fid(cx)?;
        let create = |fid| Tmessage::Lcreate {
            fid,
            name: name.bytes(),
            flags: request::lopen(flags) | Lopen::CREATE.bits(),
            mode: mode.bits & !mode.umask & 0o7777,
            gid: self.shared.group(cx.caller),
        };
        let walk = Walk::begin(wire, cx, dir.fid, &[])?;
        let early = wire.pipelined(&create(walk.fid));
        let fd_request = wire.request_fd(walk.fid);
        let (held, _) = walk.end(cx)?;
        let reply = wire.await_pipelined(cx, early, &create(held.fid))?;
        let Rmessage::Lcreate { iounit, .. } = reply.message()? else {
            return Err(Errno::EIO);
        };
        let opened = Opened::new(held.opened(), iounit);
        let handed = wire.receive_fd(cx, fd_request, opened.held.fid, flags);
        let (node, attr) = self.node_of_open(cx, name, &opened.held)?;
        let entry = self.walked_entry(cx, Some(name), node, attr);
        let file = RemoteFile::new((opened, handed), flags, attr.id, attr.kind);
        Ok((entry, file))
    }

    /// Returns a new fid for the file that `open` has open, and its attributes.
    fn node_of_open(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        open: &OwnedFid,
    ) -> Result<(OwnedFid, Attr)> {
        match self.session().walk_getattr(cx, open.fid, &[]) {
            Err(errno) if !errno.is_signal() && errno != Errno::EINTR => {}
            done => return done,
        }
        // The server cannot clone an open fid: find the file by name, and check that it is the
        // same.
        let own = self.session().attr(cx, open.fid)?;
        let dir = self.fid(cx)?;
        let (held, attr) = self.session().walk_getattr(cx, dir.fid, &[name.bytes()])?;
        if attr.id == own.id {
            Ok((held, attr))
        } else {
            Err(Errno::ESTALE)
        }
    }

    pub(super) fn make_node(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        self.check_directory()?;
        if let NewNode::Symlink(target) = what {
            check_target(target)?;
        }
        if !self.session().is_linux() {
            return legacy::make(self, cx, name, what, mode);
        }
        let wire = self.session();
        let dir = self.fid(cx)?;
        let mode = mode.bits & !mode.umask & 0o7777;
        let gid = self.shared.group(cx.caller);
        let request = make_request(dir.fid, name.bytes(), what, mode, gid);
        let reply = wire.call(cx, &request)?;
        let made = parse_qid(&reply.message()?)?;
        let (held, attr) = wire.walk_getattr(cx, dir.fid, &[name.bytes()])?;
        if attr.id != attr::id_of(&made) {
            return Err(Errno::ESTALE);
        }
        Ok(self.walked_entry(cx, Some(name), held, attr))
    }

    pub(super) fn add_link(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &RemoteNode,
    ) -> Result<Entry> {
        self.check_directory()?;
        let (dir, held) = (self.fid(cx)?, target.fid(cx)?);
        if self.session().is_linux() {
            let link = Tmessage::Link {
                dfid: dir.fid,
                fid: held.fid,
                name: name.bytes(),
            };
            self.session().call(cx, &link)?;
        } else {
            legacy::link(self.session(), cx, dir.fid, held.fid, name)?;
        }
        let attr = self.session().attr(cx, held.fid)?;
        Ok(self.walked_entry(cx, Some(name), held, attr))
    }

    pub(super) fn remove_name(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.check_directory()?;
        let held = self.fid(cx)?;
        let pin = self.pin(cx, &held, name);
        let removed = self.remove_from(cx, &held, name, dir);
        pin.into_iter().for_each(|pin| pin.end(cx));
        removed
    }

    fn remove_from(&self, cx: &Cx<'_>, held: &OwnedFid, name: Name<'_>, dir: bool) -> Result<()> {
        if self.session().is_linux() {
            let unlink = Tmessage::Unlinkat {
                dirfid: held.fid,
                name: name.bytes(),
                flags: if dir { AT_REMOVEDIR } else { 0 },
            };
            match self.session().call(cx, &unlink) {
                Err(Errno::EOPNOTSUPP) => {}
                done => return done.map(drop),
            }
        }
        let (child, attr) = self.session().walk_getattr(cx, held.fid, &[name.bytes()])?;
        match (dir, attr.kind) {
            (true, Kind::Directory) => {}
            (true, _) => return Err(Errno::ENOTDIR),
            (false, Kind::Directory) => return Err(Errno::EISDIR),
            (false, _) => {}
        }
        child.remove()
    }

    pub(super) fn move_name(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &RemoteNode,
        to_name: Name<'_>,
    ) -> Result<()> {
        self.check_directory()?;
        to.check_directory()?;
        let (old, new) = (self.fid(cx)?, to.fid(cx)?);
        let node = self.shared.unpinned.get(self.id, name.bytes());
        let pin = to.pin(cx, &new, to_name);
        let moved = self.move_from(cx, &old, name, (to, &new), to_name);
        pin.into_iter().for_each(|pin| pin.end(cx));
        if let (Ok(()), Some(node)) = (moved, node) {
            node.record_rename(to, to_name);
        }
        moved
    }

    fn move_from(
        &self,
        cx: &Cx<'_>,
        old: &OwnedFid,
        name: Name<'_>,
        (to, new): (&RemoteNode, &OwnedFid),
        to_name: Name<'_>,
    ) -> Result<()> {
        if !self.session().is_linux() {
            if self.id != to.id {
                // 9P2000 renames only within a directory.
                return Err(Errno::EXDEV);
            }
            return legacy::rename(self.session(), cx, old.fid, name, to_name);
        }
        let rename = Tmessage::Renameat {
            olddirfid: old.fid,
            oldname: name.bytes(),
            newdirfid: new.fid,
            newname: to_name.bytes(),
        };
        match self.session().call(cx, &rename) {
            Err(Errno::EOPNOTSUPP) => {}
            done => return done.map(drop),
        }
        let (child, _) = self.session().walk(cx, old.fid, &[name.bytes()])?;
        let rename = Tmessage::Rename {
            fid: child.fid,
            dfid: new.fid,
            name: to_name.bytes(),
        };
        self.session().call(cx, &rename).map(drop)
    }

    /// Begins a walk to the file at `name`, if its node has no fid and the name is about to be
    /// removed: the node may outlive the name.
    fn pin(&self, cx: &Cx<'_>, dir: &OwnedFid, name: Name<'_>) -> Option<Pin<'_>> {
        let node = self.shared.unpinned.get(self.id, name.bytes())?;
        if node.has_fid() {
            return None;
        }
        let wire = self.session();
        let walk = Walk::begin(wire, cx, dir.fid, &[name.bytes()]).ok()?;
        let pin = Pin { node, walk };
        if wire.is_in_order() {
            return Some(pin);
        }
        pin.end(cx);
        None
    }
}

/// A walk to a file that is about to lose its name.
struct Pin<'a> {
    node: Arc<RemoteNode>,
    walk: Walk<'a>,
}

impl Pin<'_> {
    /// Waits for the walk and keeps its fid. A walk that fails or finds another file is not an
    /// error.
    fn end(self, cx: &Cx<'_>) {
        let Pin { node, walk } = self;
        if let Ok((held, Some(qid))) = walk.end(cx)
            && attr::id_of(&qid) == node.id
        {
            node.add_fid(node.shared.user(cx.caller), held.into());
        }
    }
}

/// Creates and opens a file over 9P2000 and 9P2000.u.
fn create_file_legacy(
    dir: &RemoteNode,
    cx: &Cx<'_>,
    name: Name<'_>,
    flags: OpenFlags,
    mode: Mode,
) -> Result<(Entry, Arc<dyn File>)> {
    // Tcreate only creates. Opening an existing file is another request, and each can lose a race.
    const ATTEMPTS: usize = 3;
    for _ in 0..ATTEMPTS {
        if !flags.contains(OpenFlags::EXCL) {
            match dir.find(cx, name) {
                Ok(entry) if entry.attr.kind == Kind::Directory => return Err(Errno::EISDIR),
                Ok(entry) => {
                    let file = entry.node.open(cx, flags)?;
                    return Ok((entry, file));
                }
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        let perm = request::perm(Kind::File, mode.bits & !mode.umask, dir.session().dialect());
        let mode = request::omode(flags - OpenFlags::TRUNC, dir.session().dialect());
        match legacy::create(dir, cx, name, perm, mode, b"") {
            Ok(opened) => {
                let entry = dir.find(cx, name)?;
                let attr = entry.attr;
                let file = RemoteFile::new((opened, None), flags, attr.id, attr.kind);
                return Ok((entry, file));
            }
            Err(Errno::EEXIST) if !flags.contains(OpenFlags::EXCL) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EAGAIN)
}

fn make_request<'a>(
    dfid: Fid,
    name: &'a [u8],
    what: NewNode<'a>,
    mode: u32,
    gid: u32,
) -> Tmessage<'a> {
    let node = |kind: Kind, device: Device| Tmessage::Mknod {
        dfid,
        name,
        mode: kind.mode_bits() | mode,
        major: device.major,
        minor: device.minor,
        gid,
    };
    let none = Device::default();
    match what {
        NewNode::File => node(Kind::File, none),
        NewNode::Fifo => node(Kind::Fifo, none),
        NewNode::Socket => node(Kind::Socket, none),
        NewNode::CharDevice(device) => node(Kind::CharDevice, device),
        NewNode::BlockDevice(device) => node(Kind::BlockDevice, device),
        NewNode::Directory => Tmessage::Mkdir {
            dfid,
            name,
            mode,
            gid,
        },
        NewNode::Symlink(target) => Tmessage::Symlink {
            fid: dfid,
            name,
            target,
            gid,
        },
    }
}

fn parse_qid(reply: &Rmessage<'_>) -> Result<Qid> {
    match reply {
        Rmessage::Mknod { qid } | Rmessage::Mkdir { qid } | Rmessage::Symlink { qid } => Ok(*qid),
        _ => Err(Errno::EIO),
    }
}

/// Checks a symbolic link's target as symlink(2) does; a message could not carry more than 64 KiB.
fn check_target(target: &[u8]) -> Result<()> {
    /// Linux's `PATH_MAX` without its NUL.
    const MOST: usize = 4095;
    match target {
        b"" => Err(Errno::ENOENT),
        _ if target.len() > MOST => Err(Errno::ENAMETOOLONG),
        _ => Ok(()),
    }
}
