//! The current and the saved file handle, and the operations that set them (RFC 8881 sections 18.8,
//! 18.13, 18.14, 18.19 to 18.21, 18.27 to 18.29, 18.45).

use std::sync::Arc;

use vfs::{Errno, Name, Node};

use super::compound::{Compound, CurrentHandle, OpError, OpResult};
use crate::server::RequestContext;
use crate::server::gss::Flavor;
use crate::server::handle::{FileHandle, Located};
use crate::v4::Status;
use crate::v4::types::{GssInfo, SecInfo};

/// Parses a name. Invalid names have other errors in v4 than in a local file system.
pub(super) fn name(bytes: &[u8]) -> Result<Name<'_>, Status> {
    Name::new(bytes).map_err(|errno| match errno {
        Errno::ENAMETOOLONG => Status::Nametoolong,
        Errno::ENOENT => Status::Inval,
        Errno::EEXIST => Status::Badname,
        _ => Status::Badchar,
    })
}

impl RequestContext<'_, Compound> {
    pub(super) fn putfh(&mut self, handle: &[u8]) -> OpResult {
        let handle = FileHandle::read(handle).ok_or(Status::Badhandle)?;
        let node = self.server.node(&self.cx(), &handle)?;
        self.compound.stateid = None;
        self.compound.current = Some(CurrentHandle {
            node,
            at_name: handle.is_at_name(),
            handle: Some(handle),
        });
        Ok(())
    }

    pub(super) fn putrootfh(&mut self) -> OpResult {
        let root = self.server.export.fs.root(&self.cx())?;
        self.set_current_in(root, false);
        Ok(())
    }

    pub(super) fn getfh(&mut self) -> OpResult {
        let handle = self.handle()?;
        self.reply.value(&handle.bytes().as_slice());
        Ok(())
    }

    pub(super) fn savefh(&mut self) -> OpResult {
        let current = self.compound.current.as_ref().ok_or(Status::Nofilehandle)?;
        self.compound.saved = Some(current.clone());
        self.compound.saved_stateid = self.compound.stateid;
        Ok(())
    }

    pub(super) fn restorefh(&mut self) -> OpResult {
        let saved = self.compound.saved.as_ref().ok_or(Status::Restorefh)?;
        self.compound.current = Some(saved.clone());
        self.compound.stateid = self.compound.saved_stateid;
        Ok(())
    }

    pub(super) fn lookup(&mut self, bytes: &[u8]) -> OpResult {
        let found = self.found(bytes)?;
        self.set_current_in(found.node, found.at_name);
        Ok(())
    }

    /// Looks up a name in the current directory. In the root, the export's name is the root itself
    /// unless an entry has that name, as with MOUNT.
    fn found(&self, bytes: &[u8]) -> Result<Located, OpError> {
        let directory = self.directory()?;
        match directory.lookup(&self.cx(), name(bytes)?) {
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

    pub(super) fn secinfo(&mut self, bytes: &[u8]) -> OpResult {
        self.found(bytes)?;
        self.flavors();
        Ok(())
    }

    pub(super) fn secinfo_no_name(&mut self, style: u32) -> OpResult {
        match style {
            0 => drop(self.node()?),
            1 => self.lookup_parent()?,
            _ => return Err(Status::Badxdr.into()),
        }
        self.flavors();
        Ok(())
    }

    /// Writes the allowed security flavors. From v4.1 on this consumes the current file handle.
    fn flavors(&mut self) {
        let flavors = &self.server.options.flavors;
        let info = |flavor: &Flavor| match flavor.service() {
            None => SecInfo::Sys,
            Some(service) => SecInfo::Gss(GssInfo {
                oid: Flavor::KRB5,
                quality: 0,
                service: service as u32,
            }),
        };
        let mut all: Vec<SecInfo<'_>> = flavors.iter().map(info).collect();
        if flavors.contains(&Flavor::Sys) {
            all.push(SecInfo::None);
        }
        self.reply.value(&all);
        if self.compound.minor > 0 {
            self.compound.current = None;
        }
    }
}
