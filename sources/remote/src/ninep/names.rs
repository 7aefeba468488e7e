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
        let (opened, fd_request) = wire.with_room(|| {
            let walk = Walk::begin(wire, cx, dir.fid, &[])?;
            let early = wire.pipelined(&create(walk.fid));
            let fd_request = wire.request_fd(walk.fid);
            let held = match walk.end(cx) {
                Ok((held, _)) => held,
                Err(errno) => {
                    wire.settle_pipelined(cx, early);
                    return Err(errno);
                }
            };
            let reply = wire.await_pipelined(cx, early, &create(held.fid))?;
            let Rmessage::Lcreate { iounit, .. } = reply.message()? else {
                return Err(Errno::EIO);
            };
            Ok((Opened::new(held.opened(), iounit), fd_request))
        })?;
        let handed = wire.receive_fd(cx, fd_request, opened.held.fid, flags);
        let (node, attr) = self.node_of_open(cx, name, &opened.held)?;
        let node = Arc::new(node);
        let entry = self.walked_entry(cx, name, node.clone(), attr);
        let object = (attr.id, attr.kind);
        let file = RemoteFile::new((opened, handed), Some(node), flags, object);
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
        Ok(self.walked_entry(cx, name, held, attr))
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
        Ok(self.walked_entry(cx, name, held, attr))
    }

    pub(super) fn remove_name(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.check_directory()?;
        let held = self.fid(cx)?;
        let pins = self.pin(cx, &held, name);
        let removed = self.remove_from(cx, &held, name, dir);
        pins.into_iter()
            .for_each(|pin| pin.end(cx, removed.is_ok()));
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
        let nodes = self.shared.places.at(self.id, name.bytes());
        let pins = to.pin(cx, &new, to_name);
        let moved = self.move_from(cx, &old, name, (to, &new), to_name);
        // A name that is renamed to itself, or to another of the same file, is not removed.
        let is_same = |pin: &Pin<'_>| nodes.iter().any(|node| node.id == pin.node.id);
        for pin in pins {
            let is_removed = moved.is_ok() && !is_same(&pin);
            pin.end(cx, is_removed);
        }
        if moved.is_ok() {
            nodes
                .iter()
                .for_each(|node| node.record_rename(to, to_name));
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

    /// Begins a walk to the file at `name`, whose nodes may outlive the name that is about to be
    /// removed, unless they have a fid.
    fn pin(&self, cx: &Cx<'_>, dir: &OwnedFid, name: Name<'_>) -> Vec<Pin<'_>> {
        let wire = self.session();
        let nodes = self.shared.places.at(self.id, name.bytes()).into_iter();
        let pins = nodes.filter_map(|node| {
            let fid = match node.any_fid() {
                Some(held) => PinFid::Held(held),
                None => PinFid::Walk(Walk::begin(wire, cx, dir.fid, &[name.bytes()]).ok()?),
            };
            let mut pin = Pin { node, fid };
            if !wire.is_in_order() {
                pin.walked(cx);
            }
            Some(pin)
        });
        pins.collect()
    }
}

/// A node that is about to lose its name.
struct Pin<'a> {
    node: Arc<RemoteNode>,
    fid: PinFid<'a>,
}

enum PinFid<'a> {
    Held(Arc<OwnedFid>),
    Walk(Walk<'a>),
    /// The walk has failed, or has found another file.
    None,
}

impl Pin<'_> {
    /// Waits for the walk. A walk that fails or finds another file is not an error.
    fn walked(&mut self, cx: &Cx<'_>) {
        self.fid = match std::mem::replace(&mut self.fid, PinFid::None) {
            PinFid::Walk(walk) => match walk.end(cx) {
                Ok((held, Some(qid))) if attr::id_of(&qid) == self.node.id => {
                    PinFid::Held(held.into())
                }
                _ => PinFid::None,
            },
            fid => fid,
        };
    }

    /// Keeps the fid if the name was `removed`.
    fn end(mut self, cx: &Cx<'_>, removed: bool) {
        self.walked(cx);
        if let (true, PinFid::Held(held)) = (removed, self.fid) {
            let user = self.node.shared.user(cx.caller);
            self.node.record_removal(user, held);
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
                let object = (entry.attr.id, entry.attr.kind);
                let file = RemoteFile::new((opened, None), None, flags, object);
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
