//! LOOKUP, READLINK, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.

use vfs::{Attr, Device};
use wire::Xdr;

use super::attr::set_attributes;
use super::{done, procedure};
use crate::client::{Ask, Failure, Made, Procedure, Tree};
use crate::rpc::program;
use crate::v3::{
    self, CreateHow, CreateOk, DeviceData, LinkWcc, LookupOk, MkNodData, ReadLinkOk, RenameWcc,
    SpecData, Verifier, Wcc,
};

/// The node of a name.
pub struct Lookup<'a> {
    /// The directory.
    pub dir: &'a [u8],
    /// The name, or two dots.
    pub name: &'a [u8],
    /// Of which tree.
    pub tree: Tree,
}

impl Ask for Lookup<'_> {
    type Answer<'r> = Made;

    procedure!(Lookup);

    fn put(&self, to: &mut Vec<u8>) {
        self.dir.put(to);
        self.name.put(to);
    }

    fn answer(&self, results: &[u8]) -> Result<Made, Failure> {
        let ok: LookupOk = done(results)?;
        Ok(Made {
            handle: Some(ok.object.bytes().into()),
            attr: ok.attributes.map(|attributes| self.tree.of_v3(&attributes)),
        })
    }
}

/// Where a symbolic link leads.
pub struct ReadLink<'a> {
    /// The link.
    pub handle: &'a [u8],
}

impl Ask for ReadLink<'_> {
    type Answer<'r> = Vec<u8>;

    procedure!(ReadLink);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
    }

    fn answer<'r>(&self, results: &'r [u8]) -> Result<Vec<u8>, Failure> {
        done(results).map(|ok: ReadLinkOk<'r>| ok.target.to_vec())
    }
}

/// Makes a file, which must be new.
pub struct Create<'a> {
    /// Where.
    pub dir: &'a [u8],
    /// As what.
    pub name: &'a [u8],
    /// Its permissions.
    pub mode: u32,
    /// Tells this attempt from others, so that one that is made again is not refused; then the
    /// permissions are to be set afterwards. Without it, what was made is refused the second time.
    pub attempt: Option<Verifier>,
    /// Of which tree.
    pub tree: Tree,
}

impl Ask for Create<'_> {
    type Answer<'r> = Made;

    procedure!(Create);

    fn put(&self, to: &mut Vec<u8>) {
        self.dir.put(to);
        self.name.put(to);
        let how = match self.attempt {
            Some(attempt) => CreateHow::Exclusive(attempt),
            None => CreateHow::Guarded(with_mode(self.mode)),
        };
        how.put(to);
    }

    fn answer(&self, results: &[u8]) -> Result<Made, Failure> {
        made(self.tree, results)
    }
}

fn with_mode(mode: u32) -> v3::SetAttributes {
    set_attributes(&vfs::SetAttr {
        mode: Some(mode),
        ..vfs::SetAttr::default()
    })
}

fn made(tree: Tree, results: &[u8]) -> Result<Made, Failure> {
    let ok: CreateOk = done(results)?;
    Ok(Made {
        handle: ok.object.map(|object| object.bytes().into()),
        attr: ok.attributes.map(|attributes| tree.of_v3(&attributes)),
    })
}

/// Makes what is no file: `PROCEDURE_NUMBER` is MKDIR's, SYMLINK's or MKNOD's.
pub struct Make<'a, const PROCEDURE_NUMBER: u32> {
    /// Where.
    pub dir: &'a [u8],
    /// As what.
    pub name: &'a [u8],
    /// What.
    pub what: vfs::Make<'a>,
    /// Its permissions.
    pub mode: u32,
    /// Of which tree.
    pub tree: Tree,
}

impl<const PROCEDURE_NUMBER: u32> Ask for Make<'_, PROCEDURE_NUMBER> {
    type Answer<'r> = Made;

    const PROCEDURE: Procedure = Procedure {
        program: program::NFS,
        version: 3,
        number: PROCEDURE_NUMBER,
    };

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
            vfs::Make::Directory => attributes.put(to),
            vfs::Make::Symlink(target) => {
                attributes.put(to);
                target.put(to);
            }
            // The caller has CREATE for it.
            vfs::Make::File => MkNodData::File.put(to),
            vfs::Make::Fifo => MkNodData::Fifo(attributes).put(to),
            vfs::Make::Socket => MkNodData::Socket(attributes).put(to),
            vfs::Make::CharDevice(device) => MkNodData::CharDevice(node(device)).put(to),
            vfs::Make::BlockDevice(device) => MkNodData::BlockDevice(node(device)).put(to),
        }
    }

    fn answer(&self, results: &[u8]) -> Result<Made, Failure> {
        made(self.tree, results)
    }
}

/// Removes a name: of a directory, or of anything else.
pub struct Remove<'a, const DIRECTORY: bool> {
    /// From where.
    pub dir: &'a [u8],
    /// Which.
    pub name: &'a [u8],
}

impl<const DIRECTORY: bool> Ask for Remove<'_, DIRECTORY> {
    type Answer<'r> = ();

    const PROCEDURE: Procedure = Procedure {
        program: program::NFS,
        version: 3,
        number: match DIRECTORY {
            true => v3::Procedure::RmDir as u32,
            false => v3::Procedure::Remove as u32,
        },
    };

    fn put(&self, to: &mut Vec<u8>) {
        self.dir.put(to);
        self.name.put(to);
    }

    fn answer(&self, results: &[u8]) -> Result<(), Failure> {
        done(results).map(|_: Wcc| ())
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

impl Ask for Rename<'_> {
    type Answer<'r> = ();

    procedure!(Rename);

    fn put(&self, to: &mut Vec<u8>) {
        self.from.put(to);
        self.name.put(to);
        self.to.put(to);
        self.to_name.put(to);
    }

    fn answer(&self, results: &[u8]) -> Result<(), Failure> {
        done(results).map(|_: RenameWcc| ())
    }
}

/// Gives a node a further name; its attributes then, if the server tells them.
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

impl Ask for Link<'_> {
    type Answer<'r> = Option<Attr>;

    procedure!(Link);

    fn put(&self, to: &mut Vec<u8>) {
        self.handle.put(to);
        self.dir.put(to);
        self.name.put(to);
    }

    fn answer(&self, results: &[u8]) -> Result<Option<Attr>, Failure> {
        let ok: LinkWcc = done(results)?;
        Ok(ok.object.map(|attributes| self.tree.of_v3(&attributes)))
    }
}
