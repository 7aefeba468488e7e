//! Locations of file systems on other servers (`fs_locations`, RFC 8881 section 11.16).

use std::sync::Arc;

use vfs::{AttrMask, Call, Caller, Cx, Export, Location, Name, Node};

use crate::server::Server;
use crate::v4::attr::{FsLocation, FsLocations};

/// A file system of this server, and where other servers have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locations {
    /// The export's name here: an entry of the root, or that of the export itself.
    pub name: String,
    /// The locations, in order of preference.
    pub locations: Vec<Location>,
}

impl Locations {
    /// Returns the value of `fs_locations`.
    pub(super) fn value(&self) -> FsLocations<'_> {
        fn components(path: &str) -> Vec<&[u8]> {
            let names = path.split('/').filter(|name| !name.is_empty());
            names.map(str::as_bytes).collect()
        }
        let locations = self.locations.iter().map(|location| FsLocation {
            servers: location.hosts.iter().map(String::as_bytes).collect(),
            path: components(&location.path),
        });
        FsLocations {
            root: components(&self.name),
            locations: locations.collect(),
        }
    }

    /// Returns the root of the file system in `export`. The lookup is the server's own.
    pub(super) fn root(&self, export: &Export) -> vfs::Result<Arc<dyn Node>> {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let root = export.fs.root(&cx)?;
        match self.name == export.name {
            true => Ok(root),
            false => Ok(root.lookup(&cx, Name::new(self.name.as_bytes())?)?.node),
        }
    }
}

impl Server {
    /// Returns where other servers have the file system `device`. Roots are looked up each time,
    /// because a reload may replace a source.
    pub(super) fn replicas_of(&self, device: u64) -> Option<Locations> {
        // The lock is not held during the lookups: a source may take long to reply.
        let replicated: Vec<Locations> = {
            let listed = self.listed.read();
            let replicated = listed.iter().filter(|export| !export.replicas.is_empty());
            let locations = replicated.map(|export| Locations {
                name: export.path.trim_start_matches('/').into(),
                locations: export.replicas.clone(),
            });
            locations.collect()
        };
        replicated.into_iter().find(|locations| {
            let call = Call::detached();
            let cx = Cx::new(&Caller::ROOT, &call);
            let root = locations.root(&self.export);
            let attr = root.and_then(|root| root.attr(&cx, AttrMask::BASIC));
            attr.is_ok_and(|attr| attr.device == device)
        })
    }
}
