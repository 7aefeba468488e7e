//! LOOKUP, READLINK, CREATE, REMOVE, RENAME, LINK, and the way to a tree's root.

use vfs::{Errno, Make};

use super::attr::{self, PUTFH, STAT, put_is_directory, skip, take_handle};
use super::compound::{Ops, Results, Steps};
use crate::client::{Failure, Made, Tree};
use crate::v4::Status;
use crate::v4::attr::SpecData;
use crate::v4::op::{self, CreateWhat, Op};
use crate::v4::reply::{Created, Renamed};
use crate::v4::types::ChangeInfo;

const LOOKUP: u32 = 15;
const LOOKUP_PARENT: u32 = 16;
const SAVEFH: u32 = 32;
const RESTOREFH: u32 = 31;

fn put_found(to: &mut Ops<'_>) {
    to.op(&Op::Getfh).op(&Op::Getattr(STAT));
}

fn take_found(tree: Tree, from: &mut Results<'_>) -> Result<Made, Failure> {
    let handle = take_handle(from)?;
    let attr = attr::take(tree, from)?;
    Ok(Made {
        handle: Some(handle),
        attr: Some(attr),
    })
}

/// The server's root.
pub struct Root;

impl Steps for Root {
    type Answer<'r> = Made;

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putrootfh);
        put_found(to);
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Made, Failure> {
        const PUTROOTFH: u32 = 24;
        from.take::<()>(PUTROOTFH)?;
        take_found(Tree::default(), from)
    }
}

/// The node of a name, or the directory that a directory is in.
pub struct Lookup<'a> {
    /// The directory.
    pub dir: &'a [u8],
    /// The name; without one, the parent.
    pub name: Option<&'a [u8]>,
    /// Of which tree.
    pub tree: Tree,
}

impl Steps for Lookup<'_> {
    type Answer<'r> = Made;

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.dir)).op(&match self.name {
            Some(name) => Op::Lookup(name),
            None => Op::LookupParent,
        });
        put_found(to);
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Made, Failure> {
        from.take::<()>(PUTFH)?;
        from.take::<()>(match self.name {
            Some(_) => LOOKUP,
            None => LOOKUP_PARENT,
        })?;
        take_found(self.tree, from)
    }
}

/// Where a symbolic link leads.
pub struct ReadLink<'a> {
    /// The link.
    pub handle: &'a [u8],
}

impl Steps for ReadLink<'_> {
    type Answer<'r> = Vec<u8>;

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle)).op(&Op::Readlink);
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Vec<u8>, Failure> {
        const READLINK: u32 = 27;
        from.take::<()>(PUTFH)?;
        from.take::<&[u8]>(READLINK).map(<[u8]>::to_vec)
    }
}

/// Makes what is no file.
pub struct Create<'a> {
    /// Where.
    pub dir: &'a [u8],
    /// As what.
    pub name: &'a [u8],
    /// What.
    pub what: Make<'a>,
    /// Its permissions.
    pub mode: u32,
    /// Of which tree.
    pub tree: Tree,
}

impl Steps for Create<'_> {
    type Answer<'r> = Made;

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        let device = |device: vfs::Device| SpecData {
            major: device.major,
            minor: device.minor,
        };
        to.op(&Op::Putfh(self.dir)).op(&Op::Create(op::Create {
            what: match self.what {
                Make::Symlink(target) => CreateWhat::Link(target),
                Make::BlockDevice(of) => CreateWhat::Block(device(of)),
                Make::CharDevice(of) => CreateWhat::Character(device(of)),
                Make::Socket => CreateWhat::Socket,
                Make::Fifo => CreateWhat::Fifo,
                // The caller has OPEN for files.
                Make::Directory | Make::File => CreateWhat::Directory,
            },
            name: self.name,
            attributes: attr::mode(self.mode),
        }));
        put_found(to);
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Made, Failure> {
        const CREATE: u32 = 6;
        from.take::<()>(PUTFH)?;
        skip::<Created>(from, CREATE)?;
        take_found(self.tree, from)
    }
}

/// Removes a name: of a directory, or of anything else. REMOVE itself does not tell the two apart.
pub struct Remove<'a> {
    /// From where.
    pub dir: &'a [u8],
    /// Which.
    pub name: &'a [u8],
    /// Whether it shall be a directory's.
    pub directory: bool,
}

impl Steps for Remove<'_> {
    type Answer<'r> = ();

    const ONCE: bool = true;

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
            Status::NotSame => return Err(Failure::Refused(Errno::ENOTDIR)),
            Status::Same => return Err(Failure::Refused(Errno::EISDIR)),
            status => return Err(super::compound::refused(status)),
        }
        from.take::<()>(PUTFH)?;
        skip::<ChangeInfo>(from, REMOVE)
    }
}

/// Moves a name.
pub struct Rename<'a> {
    /// From which directory.
    pub from: &'a [u8],
    /// Which.
    pub name: &'a [u8],
    /// To which directory.
    pub to: &'a [u8],
    /// As what.
    pub to_name: &'a [u8],
}

impl Steps for Rename<'_> {
    type Answer<'r> = ();

    const ONCE: bool = true;

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

/// Gives a node a further name; its attributes then.
pub struct Link<'a> {
    /// What.
    pub handle: &'a [u8],
    /// Where.
    pub dir: &'a [u8],
    /// As what.
    pub name: &'a [u8],
    /// Of which tree.
    pub tree: Tree,
}

impl Steps for Link<'_> {
    type Answer<'r> = vfs::Attr;

    const ONCE: bool = true;

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
