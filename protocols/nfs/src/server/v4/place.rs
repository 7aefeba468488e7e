//! The current and the saved file handle, and the operations that move them (RFC 8881 sections 18.8, 18.13,
//! 18.14, 18.19 to 18.21, 18.27 to 18.29, 18.45).

use std::sync::Arc;

use vfs::{Errno, Kind, Name, Node};

use super::{Bad, Compound, Done};
use crate::server::gss::Flavor;
use crate::server::handle::FileHandle;
use crate::v4::Status;
use crate::v4::types::{GssInfo, SecInfo};

/// A node that a compound has come to.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) node: Arc<dyn Node>,
    /// Its handle, if that is at hand.
    pub(super) handle: Option<FileHandle>,
}

impl From<Arc<dyn Node>> for Place {
    fn from(node: Arc<dyn Node>) -> Place {
        Place { node, handle: None }
    }
}

/// A name as v4 has it: what is none has other errors than a local file system's.
pub(super) fn name(bytes: &[u8]) -> Result<Name<'_>, Status> {
    Name::new(bytes).map_err(|errno| match errno {
        Errno::ENAMETOOLONG => Status::Nametoolong,
        Errno::ENOENT => Status::Inval,
        Errno::EEXIST => Status::Badname,
        _ => Status::Badchar,
    })
}

impl Compound<'_, '_> {
    /// The current node.
    pub(super) fn node(&self) -> Result<Arc<dyn Node>, Status> {
        let place = self.current.as_ref().ok_or(Status::Nofilehandle)?;
        Ok(place.node.clone())
    }

    /// The saved node.
    pub(super) fn saved_node(&self) -> Result<Arc<dyn Node>, Status> {
        let place = self.saved.as_ref().ok_or(Status::Nofilehandle)?;
        Ok(place.node.clone())
    }

    /// The current node, which has to be a directory.
    pub(super) fn directory(&self) -> Result<Arc<dyn Node>, Status> {
        let node = self.node()?;
        match node.kind() {
            Kind::Directory => Ok(node),
            Kind::Symlink => Err(Status::Symlink),
            _ => Err(Status::Notdir),
        }
    }

    /// The current node, which has to be a regular file.
    pub(super) fn regular(&self) -> Result<Arc<dyn Node>, Status> {
        let node = self.node()?;
        self.check_regular(&node)?;
        Ok(node)
    }

    /// What is the matter with a node that is no regular file.
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

    /// The handle of the current node.
    pub(super) fn handle(&mut self) -> Result<FileHandle, Bad> {
        let cx = self.cx();
        let place = self.current.as_mut().ok_or(Status::Nofilehandle)?;
        if let Some(handle) = place.handle {
            return Ok(handle);
        }
        let handle = self.turn.server.handle(&cx, &place.node)?;
        place.handle = Some(handle);
        Ok(handle)
    }

    /// Goes to `place`.
    pub(super) fn go_to(&mut self, place: impl Into<Place>) {
        self.state = None;
        self.current = Some(place.into());
    }

    pub(super) fn putfh(&mut self, handle: &[u8]) -> Done {
        let handle = FileHandle::read(handle).ok_or(Status::Badhandle)?;
        let node = self.turn.server.node(&self.cx(), &handle)?;
        self.go_to(Place {
            node,
            handle: Some(handle),
        });
        Ok(())
    }

    pub(super) fn putrootfh(&mut self) -> Done {
        let root = self.turn.server.export.fs.root(&self.cx())?;
        self.go_to(root);
        Ok(())
    }

    pub(super) fn getfh(&mut self) -> Done {
        let handle = self.handle()?;
        self.reply.value(&handle.bytes().as_slice());
        Ok(())
    }

    pub(super) fn savefh(&mut self) -> Done {
        let current = self.current.as_ref().ok_or(Status::Nofilehandle)?;
        self.saved = Some(current.clone());
        self.saved_state = self.state;
        Ok(())
    }

    pub(super) fn restorefh(&mut self) -> Done {
        let saved = self.saved.as_ref().ok_or(Status::Restorefh)?;
        self.current = Some(saved.clone());
        self.state = self.saved_state;
        Ok(())
    }

    pub(super) fn lookup(&mut self, bytes: &[u8]) -> Done {
        let found = self.found(bytes)?;
        self.go_to(found);
        Ok(())
    }

    /// The node of this name in the current directory. At the root, the export's name is the root
    /// itself unless something there has that name, as MOUNT has it.
    fn found(&self, bytes: &[u8]) -> Result<Place, Bad> {
        let directory = self.directory()?;
        match directory.lookup(&self.cx(), name(bytes)?) {
            Err(Errno::ENOENT) if *bytes == *self.turn.server.export.name.as_bytes() => {
                self.named_root(&directory)
            }
            found => Ok(found?.node.into()),
        }
    }

    /// The root at the export's name, looked up in `directory`: `NOENT` unless that is the root.
    fn named_root(&self, directory: &Arc<dyn Node>) -> Result<Place, Bad> {
        let (cx, server) = (self.cx(), self.turn.server);
        let root = server.export.fs.root(&cx)?;
        if root.id() != directory.id() || self.is_at_name() {
            return Err(Status::Noent.into());
        }
        let handle = server.handle(&cx, &root)?.at_name();
        Ok(Place {
            node: root,
            handle: Some(handle),
        })
    }

    /// Whether the current directory is the root at the export's name.
    fn is_at_name(&self) -> bool {
        let handle = self.current.as_ref().and_then(|place| place.handle);
        handle.is_some_and(|handle| handle.is_at_name())
    }

    pub(super) fn lookup_parent(&mut self) -> Done {
        let directory = self.directory()?;
        if self.is_at_name() {
            return self.putrootfh();
        }
        let parent = directory.parent(&self.cx())?;
        if parent.node.id() == directory.id() {
            return Err(Status::Noent.into());
        }
        self.go_to(parent.node);
        Ok(())
    }

    pub(super) fn secinfo(&mut self, bytes: &[u8]) -> Done {
        self.found(bytes)?;
        self.flavors();
        Ok(())
    }

    pub(super) fn secinfo_no_name(&mut self, style: u32) -> Done {
        match style {
            0 => drop(self.node()?),
            1 => self.lookup_parent()?,
            _ => return Err(Status::Badxdr.into()),
        }
        self.flavors();
        Ok(())
    }

    /// Answers how one may say who one is. From v4.1 on the file handle is used up by that.
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
