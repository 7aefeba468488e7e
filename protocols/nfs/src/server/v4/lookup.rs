//! LOOKUP, LOOKUPP, READLINK (RFC 8881 sections 18.13, 18.14, 18.24), and the names of entries.

use std::sync::Arc;

use vfs::{Errno, Kind, Name, Node};

use super::compound::{Compound, OpError, OpResult};
use crate::server::RequestContext;
use crate::server::filehandle::Located;
use crate::v4::Status;

/// Parses a name. Invalid names have other errors in v4 than in a local file system.
pub(super) fn component(bytes: &[u8]) -> Result<Name<'_>, Status> {
    Name::new(bytes).map_err(|errno| match errno {
        Errno::ENAMETOOLONG => Status::Nametoolong,
        Errno::ENOENT => Status::Inval,
        Errno::EEXIST => Status::Badname,
        _ => Status::Badchar,
    })
}

impl RequestContext<'_, Compound> {
    pub(super) fn lookup(&mut self, bytes: &[u8]) -> OpResult {
        let found = self.lookup_name(bytes)?;
        self.set_current_in(found.node, found.at_name);
        Ok(())
    }

    /// Looks up a name in the current directory. In the root, the export's name is the root itself
    /// unless an entry has that name, as with MOUNT.
    pub(super) fn lookup_name(&self, bytes: &[u8]) -> Result<Located, OpError> {
        let directory = self.directory()?;
        match directory.lookup(&self.cx(), component(bytes)?) {
            Err(Errno::ENOENT) if *bytes == *self.server.export.name.as_bytes() => {
                self.named_root(&directory)
            }
            found => Ok(self.located(found?.node)),
        }
    }

    /// Returns the root at the export's name. Returns `NOENT` if `directory` is not the root.
    fn named_root(&self, directory: &Arc<dyn Node>) -> Result<Located, OpError> {
        let root = self.server.export.fs.root(&self.cx())?;
        if root.id() != directory.id() || self.is_at_name() {
            return Err(Status::Noent.into());
        }
        Ok(Located {
            node: root,
            at_name: true,
        })
    }

    pub(super) fn lookup_parent(&mut self) -> OpResult {
        let directory = self.directory()?;
        let parent = directory.parent(&self.cx())?;
        if parent.node.id() == directory.id() {
            return match self.is_at_name() {
                true => self.putrootfh(),
                false => Err(Status::Noent.into()),
            };
        }
        self.set_current(parent.node);
        Ok(())
    }

    pub(super) fn readlink(&mut self) -> OpResult {
        let node = self.node()?;
        if node.kind() != Kind::Symlink {
            return Err(match self.compound.minor {
                0 => Status::Inval,
                _ => Status::WrongType,
            }
            .into());
        }
        let target = node.readlink(&self.cx())?;
        self.reply.value(&target.as_slice());
        Ok(())
    }
}
