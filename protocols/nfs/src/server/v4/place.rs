//! The current and the saved file handle, and the operations that set them (RFC 8881 sections 18.8,
//! 18.13, 18.14, 18.19 to 18.21, 18.27 to 18.29, 18.45).

use std::sync::Arc;

use vfs::{Errno, Kind, Name, Node};

use super::{Compound, OpError, OpResult};
use crate::server::gss::Flavor;
use crate::server::handle::{FileHandle, Located};
use crate::v4::Status;
use crate::v4::types::{GssInfo, SecInfo};

/// The node of the current or the saved file handle.
#[derive(Clone)]
pub(super) struct CurrentHandle {
    pub(super) node: Arc<dyn Node>,
    /// Whether the node was found through the export's name.
    at_name: bool,
    /// The node's file handle, if already computed.
    handle: Option<FileHandle>,
}

/// Parses a name. Invalid names have other errors in v4 than in a local file system.
pub(super) fn name(bytes: &[u8]) -> Result<Name<'_>, Status> {
    Name::new(bytes).map_err(|errno| match errno {
        Errno::ENAMETOOLONG => Status::Nametoolong,
        Errno::ENOENT => Status::Inval,
        Errno::EEXIST => Status::Badname,
        _ => Status::Badchar,
    })
}

impl Compound<'_, '_> {
    /// Returns the current node.
    pub(super) fn node(&self) -> Result<Arc<dyn Node>, Status> {
        let handle = self.current.as_ref().ok_or(Status::Nofilehandle)?;
        Ok(handle.node.clone())
    }

    /// Returns the saved node.
    pub(super) fn saved_node(&self) -> Result<Arc<dyn Node>, Status> {
        let handle = self.saved.as_ref().ok_or(Status::Nofilehandle)?;
        Ok(handle.node.clone())
    }

    /// Returns the current node, which must be a directory.
    pub(super) fn directory(&self) -> Result<Arc<dyn Node>, Status> {
        let node = self.node()?;
        match node.kind() {
            Kind::Directory => Ok(node),
            Kind::Symlink => Err(Status::Symlink),
            _ => Err(Status::Notdir),
        }
    }

    /// Returns the current node, which must be a regular file.
    pub(super) fn regular(&self) -> Result<Arc<dyn Node>, Status> {
        let node = self.node()?;
        self.check_regular(&node)?;
        Ok(node)
    }

    /// Returns the error for a node that is not a regular file.
    pub(super) fn check_regular(&self, node: &Arc<dyn Node>) -> Result<(), Status> {
        match node.kind() {
            Kind::File => Ok(()),
            Kind::Directory => Err(Status::Isdir),
            Kind::Symlink if self.minor == 0 => Err(Status::Inval),
            Kind::Symlink => Err(Status::Symlink),
            _ if self.minor == 0 => Err(Status::Inval),
            _ => Err(Status::WrongType),
        }
    }

    /// Returns the file handle of the current node.
    pub(super) fn handle(&mut self) -> Result<FileHandle, OpError> {
        let cx = self.cx();
        let current = self.current.as_mut().ok_or(Status::Nofilehandle)?;
        if let Some(handle) = current.handle {
            return Ok(handle);
        }
        let server = self.turn.server;
        let handle = server.handle_in(&cx, &current.node, current.at_name)?;
        current.handle = Some(handle);
        Ok(handle)
    }

    /// Makes `node`, found from the current node, the current one.
    pub(super) fn set_current(&mut self, node: Arc<dyn Node>) {
        let at_name = self.is_at_name();
        self.set_current_in(node, at_name);
    }

    /// Makes `node` the current node, in the tree at the export's name if `at_name`, otherwise in
    /// the tree at `/`.
    fn set_current_in(&mut self, node: Arc<dyn Node>, at_name: bool) {
        self.state = None;
        self.current = Some(CurrentHandle {
            node,
            at_name,
            handle: None,
        });
    }

    /// Returns `node`, found from the current node, in the form that the state stores.
    pub(super) fn located(&self, node: Arc<dyn Node>) -> Located {
        let at_name = self.is_at_name();
        Located { node, at_name }
    }

    pub(super) fn putfh(&mut self, handle: &[u8]) -> OpResult {
        let handle = FileHandle::read(handle).ok_or(Status::Badhandle)?;
        let node = self.turn.server.node(&self.cx(), &handle)?;
        self.state = None;
        self.current = Some(CurrentHandle {
            node,
            at_name: handle.is_at_name(),
            handle: Some(handle),
        });
        Ok(())
    }

    pub(super) fn putrootfh(&mut self) -> OpResult {
        let root = self.turn.server.export.fs.root(&self.cx())?;
        self.set_current_in(root, false);
        Ok(())
    }

    pub(super) fn getfh(&mut self) -> OpResult {
        let handle = self.handle()?;
        self.reply.value(&handle.bytes().as_slice());
        Ok(())
    }

    pub(super) fn savefh(&mut self) -> OpResult {
        let current = self.current.as_ref().ok_or(Status::Nofilehandle)?;
        self.saved = Some(current.clone());
        self.saved_state = self.state;
        Ok(())
    }

    pub(super) fn restorefh(&mut self) -> OpResult {
        let saved = self.saved.as_ref().ok_or(Status::Restorefh)?;
        self.current = Some(saved.clone());
        self.state = self.saved_state;
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
            Err(Errno::ENOENT) if *bytes == *self.turn.server.export.name.as_bytes() => {
                self.named_root(&directory)
            }
            found => Ok(self.located(found?.node)),
        }
    }

    /// Returns the root at the export's name. Returns `NOENT` if `directory` is not the root.
    fn named_root(&self, directory: &Arc<dyn Node>) -> Result<Located, OpError> {
        let root = self.turn.server.export.fs.root(&self.cx())?;
        if root.id() != directory.id() || self.is_at_name() {
            return Err(Status::Noent.into());
        }
        Ok(Located {
            node: root,
            at_name: true,
        })
    }

    /// Returns whether the current node was found through the export's name.
    pub(super) fn is_at_name(&self) -> bool {
        self.current.as_ref().is_some_and(|handle| handle.at_name)
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
        let flavors = &self.turn.server.options.flavors;
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
        if self.minor > 0 {
            self.current = None;
        }
    }
}
