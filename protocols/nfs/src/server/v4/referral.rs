//! Exports that are elsewhere: a client that comes to one is told where (RFC 8881 section 11.4, RFC 7530 section 8.4).
//!
//! Such a file system is absent here: there is a directory in its place, with a file system number of its own, and all
//! that may be asked of it is which that is and where it can be found (`fs_locations`). Anything else is `MOVED`. v3 and
//! other protocols, which have no such word, show an empty directory.

use std::collections::HashMap;
use std::sync::Arc;

use vfs::{Call, Caller, Cx, Export, Name, Node, NodeId};

use crate::v4::attr::{Bitmap, FsLocation, FsLocations, number as n};

/// An export that is elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// What it is called here: a name in the root.
    pub name: String,
    /// Its path there.
    pub path: String,
    /// Which servers have it: host names or addresses, the better ones first.
    pub hosts: Vec<String>,
}

impl Referral {
    /// Where it is.
    pub(super) fn locations(&self) -> FsLocations<'_> {
        fn components(path: &str) -> Vec<&[u8]> {
            let names = path.split('/').filter(|name| !name.is_empty());
            names.map(str::as_bytes).collect()
        }
        FsLocations {
            root: components(&self.name),
            locations: vec![FsLocation {
                servers: self.hosts.iter().map(String::as_bytes).collect(),
                path: components(&self.path),
            }],
        }
    }
}

/// What is told of an absent file system.
pub(super) const TOLD: Bitmap = Bitmap::of(&[
    n::FSID,
    n::RDATTR_ERROR,
    n::FS_LOCATIONS,
    n::MOUNTED_ON_FILEID,
]);

/// What says that whoever asks knows of absent file systems, and gets of what he asks for what there is.
pub(super) const KNOWS: Bitmap = Bitmap::of(&[n::RDATTR_ERROR, n::FS_LOCATIONS]);

/// Operations that are nothing to do with the file system that the current file handle is of.
pub(super) fn is_elsewhere(number: u32) -> bool {
    const GETATTR: u32 = 9;
    const LOOKUPP: u32 = 16;
    const PUTFH: u32 = 22;
    const PUTROOTFH: u32 = 24;
    const RESTOREFH: u32 = 31;
    const SECINFO: u32 = 33;
    const OF_CLIENTS: [u32; 3] = [30, 35, 36];
    const BACKCHANNEL_CTL: u32 = 40;
    const FREE_STATEID: u32 = 45;
    const SECINFO_NO_NAME: u32 = 52;
    const SEQUENCE: u32 = 53;
    const TEST_STATEID: u32 = 55;
    const DESTROY_CLIENTID: u32 = 57;
    const RECLAIM_COMPLETE: u32 = 58;
    matches!(
        number,
        GETATTR
            | LOOKUPP
            | PUTFH..=PUTROOTFH
            | RESTOREFH
            | SECINFO
            | BACKCHANNEL_CTL..=FREE_STATEID
            | SECINFO_NO_NAME
            | SEQUENCE
            | TEST_STATEID
            | DESTROY_CLIENTID
            | RECLAIM_COMPLETE
    ) || OF_CLIENTS.contains(&number)
}

/// What is elsewhere, by the nodes that stand for it.
#[derive(Default)]
pub(in crate::server) struct Referrals(HashMap<NodeId, Referral>);

impl Referrals {
    /// Those among `all` whose names are in the root of `export`.
    pub(in crate::server) fn new(export: &Export, all: &[Referral]) -> Referrals {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let find = |referral: &Referral| {
            let root = export.fs.root(&cx)?;
            let entry = root.lookup(&cx, Name::new(referral.name.as_bytes())?)?;
            Ok(entry.node.id())
        };
        let found = all.iter().filter_map(|referral| {
            let found: vfs::Result<NodeId> = find(referral);
            match found {
                Ok(id) => Some((id, referral.clone())),
                Err(errno) => {
                    tracing::warn!(name = referral.name, "no referral: {errno}");
                    None
                }
            }
        });
        Referrals(found.collect())
    }

    /// Where `node` is, if that is elsewhere.
    pub(super) fn of(&self, node: &Arc<dyn Node>) -> Option<&Referral> {
        match self.0.is_empty() {
            true => None,
            false => self.0.get(&node.id()),
        }
    }
}
