//! CREATE (RFC 8881 section 18.4), and the attributes of new nodes.

use std::sync::Arc;

use vfs::{Kind, Mode, NewNode, Node, SetAttr};

use super::attr::XATTR_BACKED;
use super::compound::{Compound, OpError, OpResult};
use super::lookup::component;
use super::setattr::{Change, to_set};
use crate::server::RequestContext;
use crate::v4::Status;
use crate::v4::attr::{Attributes, Bitmap};
use crate::v4::op::{Create, CreateWhat};
use crate::v4::reply::Created;

impl RequestContext<'_, Compound> {
    pub(super) fn create(&mut self, args: Create<'_>) -> OpResult {
        let directory = self.directory()?;
        let child = component(args.name)?;
        let device = |device: crate::v4::attr::SpecData| vfs::Device {
            major: device.major,
            minor: device.minor,
        };
        let what = match &args.what {
            CreateWhat::Regular | CreateWhat::AttributeDirectory | CreateWhat::NamedAttribute => {
                return Err(Status::Badtype.into());
            }
            CreateWhat::Link(b"") => return Err(Status::Inval.into()),
            CreateWhat::Link(target) => NewNode::Symlink(target),
            CreateWhat::Block(at) => NewNode::BlockDevice(device(*at)),
            CreateWhat::Character(at) => NewNode::CharDevice(device(*at)),
            CreateWhat::Socket => NewNode::Socket,
            CreateWhat::Fifo => NewNode::Fifo,
            CreateWhat::Directory => NewNode::Directory,
        };
        let kind = match what {
            NewNode::Directory => Kind::Directory,
            NewNode::Symlink(_) => Kind::Symlink,
            _ => Kind::File,
        };
        let (mode, rest) = self.attributes_of_new(&args.attributes, kind)?;
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
            None => Mode::without_umask(rest.mode.unwrap_or(0o600)),
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

    /// Sets the remaining attributes of a new node. The node stays even if that fails. A node that
    /// the call notes as existing keeps its ACLs and its label, which the server would set with its
    /// own privileges. Returns the attributes that were set.
    pub(super) fn finish_new(&self, node: &Arc<dyn Node>, rest: &Change) -> Bitmap {
        use crate::v4::attr::number as n;
        const MADE_WITH: Bitmap = Bitmap::of(&[n::MODE, n::MODE_UMASK]);
        let mut done = rest.attributes;
        if rest.set != SetAttr::default() && node.setattr(&self.cx(), &rest.set).is_err() {
            done = done.and(&MADE_WITH.or(&XATTR_BACKED));
        }
        if self.cx().call.take_existing() {
            return done.without(&XATTR_BACKED);
        }
        match self.set_xattr_backed(node, rest.acls.as_ref(), rest.label.as_deref()) {
            Ok(()) => done,
            Err((left, _)) => done.without(&left),
        }
    }
}
