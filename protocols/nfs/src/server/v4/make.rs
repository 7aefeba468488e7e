//! Changes to directories: CREATE, REMOVE, RENAME, LINK (RFC 8881 sections 18.4, 18.9, 18.25,
//! 18.26).

use std::sync::Arc;

use vfs::{Errno, Kind, Make, Mode, Node, RenameFlags, SetAttr, Want};

use super::attr::KEPT;
use super::compound::{Compound, OpError, OpResult};
use super::place::name;
use super::set::{Change, to_set};
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::attr::{Attributes, Bitmap};
use crate::v4::op::{Create, CreateWhat, Rename};
use crate::v4::reply::{Created, Renamed};
use crate::v4::types::ChangeInfo;

impl RequestContext<'_, Compound> {
    /// Returns the change counter of a directory.
    pub(super) fn change(&self, node: &Arc<dyn Node>) -> Result<u64, Errno> {
        Ok(node.attr(&self.cx(), Want::TIMES)?.change)
    }

    /// Returns the change information of a directory whose counter was `before`.
    pub(super) fn change_since(&self, before: u64, node: &Arc<dyn Node>) -> ChangeInfo {
        ChangeInfo {
            // Local programs and other protocols' clients may have changed it as well.
            atomic: false,
            before,
            after: self.change(node).unwrap_or(before),
        }
    }

    pub(super) fn create(&mut self, op: Create<'_>) -> OpResult {
        let directory = self.directory()?;
        let child = name(op.name)?;
        let device = |device: crate::v4::attr::SpecData| vfs::Device {
            major: device.major,
            minor: device.minor,
        };
        let what = match &op.what {
            CreateWhat::Regular | CreateWhat::AttributeDirectory | CreateWhat::NamedAttribute => {
                return Err(Status::Badtype.into());
            }
            CreateWhat::Link(b"") => return Err(Status::Inval.into()),
            CreateWhat::Link(target) => Make::Symlink(target),
            CreateWhat::Block(at) => Make::BlockDevice(device(*at)),
            CreateWhat::Character(at) => Make::CharDevice(device(*at)),
            CreateWhat::Socket => Make::Socket,
            CreateWhat::Fifo => Make::Fifo,
            CreateWhat::Directory => Make::Directory,
        };
        let kind = match what {
            Make::Directory => Kind::Directory,
            Make::Symlink(_) => Kind::Symlink,
            _ => Kind::File,
        };
        let (mode, rest) = self.attributes_of_new(&op.attributes, kind)?;
        let before = self.change(&directory)?;
        let cx = self.cx();
        let made = directory.make(&cx, child, what, mode)?;
        self.forbid_restart();
        let set = self.finish_new(&made.node, &rest);
        let change = self.change_since(before, &directory);
        self.set_current(made.node);
        self.reply.value(&Created { change, set });
        Ok(())
    }

    /// Returns the mode to create a node of this kind with, and the attributes to set afterwards.
    pub(super) fn attributes_of_new(
        &self,
        attributes: &Attributes<'_>,
        kind: Kind,
    ) -> Result<(Mode, Change), OpError> {
        let mut change = to_set(self.server, self.compound.minor, attributes, kind)?;
        let rest = &mut change.set;
        let mode = match attributes.mode_umask {
            Some(both) => Mode {
                bits: both.mode & 0o7777,
                umask: both.umask & 0o777,
            },
            None => Mode::exactly(rest.mode.unwrap_or(0o600)),
        };
        rest.mode = None;
        rest.kill_priv = false;
        // The new node has these values already.
        let caller = self.caller;
        rest.uid = rest.uid.filter(|&uid| uid != caller.uid);
        rest.gid = rest.gid.filter(|&gid| gid != caller.gid);
        rest.size = rest.size.filter(|&size| size != 0);
        Ok((mode, change))
    }

    /// Sets the remaining attributes of a new node. The node stays even if that fails. Returns the
    /// attributes that were set.
    pub(super) fn finish_new(&self, node: &Arc<dyn Node>, rest: &Change) -> Bitmap {
        use crate::v4::attr::number as n;
        const MADE_WITH: Bitmap = Bitmap::of(&[n::MODE, n::MODE_UMASK]);
        let mut done = rest.done;
        if rest.set != SetAttr::default() && node.setattr(&self.cx(), &rest.set).is_err() {
            done = done.and(&MADE_WITH.or(&KEPT));
        }
        match self.set_kept(node, rest.acls.as_ref(), rest.label.as_deref()) {
            Ok(()) => done,
            Err((left, _)) => done.without(&left),
        }
    }

    pub(super) fn remove(&mut self, bytes: &[u8]) -> OpResult {
        let directory = self.directory()?;
        let child = name(bytes)?;
        let before = self.change(&directory)?;
        let cx = self.cx();
        let server = self.server;
        let victim = server.entry_to_remove(&cx, &directory, child)?;
        match directory.unlink(&cx, child, false) {
            Err(Errno::EISDIR) => directory.unlink(&cx, child, true)?,
            done => done?,
        }
        self.forbid_restart();
        server.forget_removed(&self.cx(), victim);
        let change = self.change_since(before, &directory);
        self.reply.value(&change);
        Ok(())
    }

    pub(super) fn rename(&mut self, op: Rename<'_>) -> OpResult {
        let from = self.saved_node()?;
        let to = self.directory()?;
        if from.kind() != Kind::Directory {
            return Err(Status::Notdir.into());
        }
        let (old, new) = (name(op.from)?, name(op.to)?);
        let (before_from, before_to) = (self.change(&from)?, self.change(&to)?);
        let cx = self.cx();
        let server = self.server;
        let victim = server.entry_to_remove(&cx, &to, new)?;
        from.rename(&cx, old, &*to, new, RenameFlags::empty())
            .map_err(|errno| match errno {
                // The name to be replaced is of another kind.
                Errno::EISDIR | Errno::ENOTDIR => OpError::Status(Status::Exist),
                errno => errno.into(),
            })?;
        self.forbid_restart();
        server.forget_removed(&self.cx(), victim);
        let renamed = Renamed {
            from: self.change_since(before_from, &from),
            to: self.change_since(before_to, &to),
        };
        self.reply.value(&renamed);
        Ok(())
    }

    pub(super) fn link(&mut self, bytes: &[u8]) -> OpResult {
        let target = self.saved_node()?;
        let directory = self.directory()?;
        if target.kind() == Kind::Directory {
            return Err(Status::Isdir.into());
        }
        let child = name(bytes)?;
        let before = self.change(&directory)?;
        let cx = self.cx();
        directory.link(&cx, child, &*target)?;
        self.forbid_restart();
        let change = self.change_since(before, &directory);
        self.reply.value(&change);
        Ok(())
    }
}
