//! LOOKUP, READLINK, CREATE, REMOVE, RENAME, LINK, and the server's root.

use vfs::{Errno, NewNode};

use super::attr::{self, PUTFH, STAT, put_is_directory, skip, take_handle};
use super::compound::{Operations, Ops, Results};
use crate::client::{Failure, NodeInfo, Tree};
use crate::v4::Status;
use crate::v4::attr::SpecData;
use crate::v4::op::{self, CreateWhat, Op};
use crate::v4::reply::{Created, Renamed};
use crate::v4::types::ChangeInfo;

const LOOKUP: u32 = 15;
const LOOKUP_PARENT: u32 = 16;
const SAVEFH: u32 = 32;
const RESTOREFH: u32 = 31;

fn put_node_info(to: &mut Ops<'_>) {
    to.op(&Op::Getfh).op(&Op::Getattr(STAT));
}

fn take_node_info(tree: Tree, from: &mut Results<'_>) -> Result<NodeInfo, Failure> {
    let handle = take_handle(from)?;
    let attr = attr::take(tree, from)?;
    Ok(NodeInfo {
        handle: Some(handle),
        attr: Some(attr),
    })
}

/// A request for the server's root.
pub struct Root;

impl Operations for Root {
    type Answer<'r> = NodeInfo;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putrootfh);
        put_node_info(to);
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<NodeInfo, Failure> {
        const PUTROOTFH: u32 = 24;
        from.take::<()>(PUTROOTFH)?;
        take_node_info(Tree::default(), from)
    }
}

/// A LOOKUP of a name, or a LOOKUPP.
pub struct Lookup<'a> {
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The name; `None` for the parent directory.
    pub name: Option<&'a [u8]>,
    /// The tree that the directory belongs to.
    pub tree: Tree,
}

impl Operations for Lookup<'_> {
    type Answer<'r> = NodeInfo;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.dir)).op(&match self.name {
            Some(name) => Op::Lookup(name),
            None => Op::LookupParent,
        });
        put_node_info(to);
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<NodeInfo, Failure> {
        from.take::<()>(PUTFH)?;
        from.take::<()>(match self.name {
            Some(_) => LOOKUP,
            None => LOOKUP_PARENT,
        })?;
        take_node_info(self.tree, from)
    }
}

/// A READLINK.
pub struct ReadLink<'a> {
    /// The link's handle.
    pub handle: &'a [u8],
}

impl Operations for ReadLink<'_> {
    type Answer<'r> = Vec<u8>;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle)).op(&Op::Readlink);
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Vec<u8>, Failure> {
        const READLINK: u32 = 27;
        from.take::<()>(PUTFH)?;
        from.take::<&[u8]>(READLINK).map(<[u8]>::to_vec)
    }
}

/// A CREATE of a node other than a regular file.
pub struct Create<'a> {
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The name.
    pub name: &'a [u8],
    /// The type, with the link's target or the device number.
    pub what: NewNode<'a>,
    /// Its permissions.
    pub mode: u32,
    /// The tree that the directory belongs to.
    pub tree: Tree,
}

impl Operations for Create<'_> {
    type Answer<'r> = NodeInfo;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        let device = |device: vfs::Device| SpecData {
            major: device.major,
            minor: device.minor,
        };
        to.op(&Op::Putfh(self.dir)).op(&Op::Create(op::Create {
            what: match self.what {
                NewNode::Symlink(target) => CreateWhat::Link(target),
                NewNode::BlockDevice(of) => CreateWhat::Block(device(of)),
                NewNode::CharDevice(of) => CreateWhat::Character(device(of)),
                NewNode::Socket => CreateWhat::Socket,
                NewNode::Fifo => CreateWhat::Fifo,
                // Regular files are created by OPEN.
                NewNode::Directory | NewNode::File => CreateWhat::Directory,
            },
            name: self.name,
            attributes: attr::mode(self.mode),
        }));
        put_node_info(to);
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<NodeInfo, Failure> {
        const CREATE: u32 = 6;
        from.take::<()>(PUTFH)?;
        skip::<Created>(from, CREATE)?;
        take_node_info(self.tree, from)
    }
}

/// A removal of a directory or of another node. REMOVE alone does not distinguish the two.
pub struct Remove<'a> {
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The name.
    pub name: &'a [u8],
    /// Whether the name must be that of a directory.
    pub directory: bool,
}

impl Operations for Remove<'_> {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.dir)).op(&Op::Lookup(self.name));
        put_is_directory(self.directory, to);
        to.op(&Op::Putfh(self.dir)).op(&Op::Remove(self.name));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const VERIFY: u32 = 37;
        const NVERIFY: u32 = 17;
        const REMOVE: u32 = 28;
        from.take::<()>(PUTFH)?;
        from.take::<()>(LOOKUP)?;
        let condition = match self.directory {
            true => VERIFY,
            false => NVERIFY,
        };
        match from.end_of(condition)?.0 {
            Status::Ok => {}
            Status::NotSame => return Err(Failure::Error(Errno::ENOTDIR)),
            Status::Same => return Err(Failure::Error(Errno::EISDIR)),
            status => return Err(super::compound::failure_of(status)),
        }
        from.take::<()>(PUTFH)?;
        skip::<ChangeInfo>(from, REMOVE)
    }
}

/// A RENAME.
pub struct Rename<'a> {
    /// The source directory's handle.
    pub from: &'a [u8],
    /// The source name.
    pub name: &'a [u8],
    /// The destination directory's handle.
    pub to: &'a [u8],
    /// The destination name.
    pub to_name: &'a [u8],
}

impl Operations for Rename<'_> {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.from))
            .op(&Op::Savefh)
            .op(&Op::Putfh(self.to))
            .op(&Op::Rename(op::Rename {
                from: self.name,
                to: self.to_name,
            }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const RENAME: u32 = 29;
        from.take::<()>(PUTFH)?;
        from.take::<()>(SAVEFH)?;
        from.take::<()>(PUTFH)?;
        skip::<Renamed>(from, RENAME)
    }
}

/// A LINK; returns the node's attributes.
pub struct Link<'a> {
    /// The node's handle.
    pub handle: &'a [u8],
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The new name.
    pub name: &'a [u8],
    /// The tree that the node belongs to.
    pub tree: Tree,
}

impl Operations for Link<'_> {
    type Answer<'r> = vfs::Attr;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::Savefh)
            .op(&Op::Putfh(self.dir))
            .op(&Op::Link(self.name))
            .op(&Op::Restorefh)
            .op(&Op::Getattr(STAT));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<vfs::Attr, Failure> {
        const LINK: u32 = 11;
        from.take::<()>(PUTFH)?;
        from.take::<()>(SAVEFH)?;
        from.take::<()>(PUTFH)?;
        skip::<ChangeInfo>(from, LINK)?;
        from.take::<()>(RESTOREFH)?;
        attr::take(self.tree, from)
    }
}
