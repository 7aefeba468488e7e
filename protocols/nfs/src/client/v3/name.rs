//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use vfs::{Attr, Device};
use wire::Xdr;

use super::attr::set_attributes;
use super::{decode, nfs_procedure, procedure};
use crate::client::{CallArguments, ClientCall, Failure, NodeInfo, Procedure, Tree};
use crate::v3::{
    self, CreateHow, CreateOk, DeviceData, LinkWcc, LookupOk, MkNodData, ReadLinkOk, RenameWcc,
    SpecData, Verifier, Wcc,
};

/// A LOOKUP.
pub struct Lookup<'a> {
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The name, or `..`.
    pub name: &'a [u8],
    /// The tree that the directory belongs to.
    pub tree: Tree,
}

impl CallArguments for Lookup<'_> {
    procedure!(Lookup);

    fn put(&self, to: &mut Vec<u8>) {
        self.dir.put(to);
        self.name.put(to);
    }
}

impl ClientCall for Lookup<'_> {
    type Answer<'r> = NodeInfo;

    fn answer(&self, results: &[u8]) -> Result<NodeInfo, Failure> {
        let ok: LookupOk = decode(results)?;
        Ok(NodeInfo {
            handle: Some(ok.object.bytes().into()),
            attr: ok.attributes.map(|attributes| self.tree.of_v3(&attributes)),
        })
    }
}

/// A READLINK.
pub struct ReadLink<'a> {
    /// The link's handle.
    pub handle: &'a [u8],
}

impl CallArguments for ReadLink<'_> {
    procedure!(ReadLink);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
    }
}

impl ClientCall for ReadLink<'_> {
    type Answer<'r> = Vec<u8>;

    fn answer<'r>(&self, results: &'r [u8]) -> Result<Vec<u8>, Failure> {
        decode(results).map(|ok: ReadLinkOk<'r>| ok.target.to_vec())
    }
}

/// A CREATE of a file that must not exist.
pub struct Create<'a> {
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The name.
    pub name: &'a [u8],
    /// Its permissions.
    pub mode: u32,
    /// The verifier of an exclusive create, with which a retransmission succeeds; the permissions
    /// must then be set afterwards. If `None`, the create is guarded, and a retransmission fails
    /// because the file exists.
    pub verifier: Option<Verifier>,
    /// The tree that the directory belongs to.
    pub tree: Tree,
}

impl CallArguments for Create<'_> {
    procedure!(Create);

    fn put(&self, to: &mut Vec<u8>) {
        self.dir.put(to);
        self.name.put(to);
        let how = match self.verifier {
            Some(attempt) => CreateHow::Exclusive(attempt),
            None => CreateHow::Guarded(with_mode(self.mode)),
        };
        how.put(to);
    }
}

impl ClientCall for Create<'_> {
    type Answer<'r> = NodeInfo;

    fn answer(&self, results: &[u8]) -> Result<NodeInfo, Failure> {
        made(self.tree, results)
    }
}

fn with_mode(mode: u32) -> v3::SetAttributes {
    set_attributes(&vfs::SetAttr {
        mode: Some(mode),
        ..vfs::SetAttr::default()
    })
}

fn made(tree: Tree, results: &[u8]) -> Result<NodeInfo, Failure> {
    let ok: CreateOk = decode(results)?;
    Ok(NodeInfo {
        handle: ok.object.map(|object| object.bytes().into()),
        attr: ok.attributes.map(|attributes| tree.of_v3(&attributes)),
    })
}

/// A MKDIR, SYMLINK or MKNOD, according to `PROCEDURE_NUMBER`.
pub struct Make<'a, const PROCEDURE_NUMBER: u32> {
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The name.
    pub name: &'a [u8],
    /// The type, with the link's target or the device number.
    pub what: vfs::NewNode<'a>,
    /// Its permissions.
    pub mode: u32,
    /// The tree that the directory belongs to.
    pub tree: Tree,
}

impl<const PROCEDURE_NUMBER: u32> CallArguments for Make<'_, PROCEDURE_NUMBER> {
    fn procedure(&self) -> Procedure {
        nfs_procedure(PROCEDURE_NUMBER)
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.dir.put(to);
        self.name.put(to);
        let attributes = with_mode(self.mode);
        let node = |device: Device| DeviceData {
            attributes,
            device: SpecData {
                major: device.major,
                minor: device.minor,
            },
        };
        match self.what {
            vfs::NewNode::Directory => attributes.put(to),
            vfs::NewNode::Symlink(target) => {
                attributes.put(to);
                target.put(to);
            }
            // Regular files are created by CREATE.
            vfs::NewNode::File => MkNodData::File.put(to),
            vfs::NewNode::Fifo => MkNodData::Fifo(attributes).put(to),
            vfs::NewNode::Socket => MkNodData::Socket(attributes).put(to),
            vfs::NewNode::CharDevice(device) => MkNodData::CharDevice(node(device)).put(to),
            vfs::NewNode::BlockDevice(device) => MkNodData::BlockDevice(node(device)).put(to),
        }
    }
}

impl<const PROCEDURE_NUMBER: u32> ClientCall for Make<'_, PROCEDURE_NUMBER> {
    type Answer<'r> = NodeInfo;

    fn answer(&self, results: &[u8]) -> Result<NodeInfo, Failure> {
        made(self.tree, results)
    }
}

/// A REMOVE, or an RMDIR if `DIRECTORY` is true.
pub struct Remove<'a, const DIRECTORY: bool> {
    /// The directory's handle.
    pub dir: &'a [u8],
    /// The name.
    pub name: &'a [u8],
}

impl<const DIRECTORY: bool> CallArguments for Remove<'_, DIRECTORY> {
    fn procedure(&self) -> Procedure {
        nfs_procedure(match DIRECTORY {
            true => v3::Procedure::RmDir as u32,
            false => v3::Procedure::Remove as u32,
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.dir.put(to);
        self.name.put(to);
    }
}

impl<const DIRECTORY: bool> ClientCall for Remove<'_, DIRECTORY> {
    type Answer<'r> = ();

    fn answer(&self, results: &[u8]) -> Result<(), Failure> {
        decode(results).map(|_: Wcc| ())
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

impl CallArguments for Rename<'_> {
    procedure!(Rename);

    fn put(&self, to: &mut Vec<u8>) {
        self.from.put(to);
        self.name.put(to);
        self.to.put(to);
        self.to_name.put(to);
    }
}

impl ClientCall for Rename<'_> {
    type Answer<'r> = ();

    fn answer(&self, results: &[u8]) -> Result<(), Failure> {
        decode(results).map(|_: RenameWcc| ())
    }
}

/// A LINK; returns the node's attributes if the server reports them.
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

impl CallArguments for Link<'_> {
    procedure!(Link);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        self.dir.put(to);
        self.name.put(to);
    }
}

impl ClientCall for Link<'_> {
    type Answer<'r> = Option<Attr>;

    fn answer(&self, results: &[u8]) -> Result<Option<Attr>, Failure> {
        let ok: LinkWcc = decode(results)?;
        Ok(ok.object.map(|attributes| self.tree.of_v3(&attributes)))
    }
}
