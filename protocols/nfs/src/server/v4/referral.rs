//! Referrals: exports on other servers, to which a client is directed (RFC 8881 section 11.4, RFC
//! 7530 section 8.4).
//!
//! The file system of a referral is absent here: a directory with a file system number of its own
//! takes its place, and only that number and the file system's locations (`fs_locations`) can be
//! queried. Everything else fails with `MOVED`. v3 and other protocols, which have no such error,
//! show an empty directory.

use std::collections::HashMap;
use std::sync::Arc;

use vfs::{Call, Caller, Cx, Export, Name, Node, NodeId};

use super::opnum;
use crate::v4::attr::{Bitmap, FsLocation, FsLocations, number as n};

/// An export on another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// The export's name here: an entry of the root.
    pub name: String,
    /// The export's path on the other servers.
    pub path: String,
    /// The servers' host names or addresses, in order of preference.
    pub hosts: Vec<String>,
}

impl Referral {
    /// Returns the value of `fs_locations`.
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

/// The attributes that an absent file system has.
pub(super) const ABSENT_ATTRIBUTES: Bitmap = Bitmap::of(&[
    n::FSID,
    n::RDATTR_ERROR,
    n::FS_LOCATIONS,
    n::MOUNTED_ON_FILEID,
]);

/// The attributes that show a client to support absent file systems: a request for one of them
/// succeeds with those attributes that exist.
pub(super) const REFERRAL_AWARE: Bitmap = Bitmap::of(&[n::RDATTR_ERROR, n::FS_LOCATIONS]);

/// Returns whether an operation does not concern the file system of the current file handle.
pub(super) fn is_independent_of_file_system(number: u32) -> bool {
    matches!(
        number,
        opnum::GETATTR
            | opnum::LOOKUPP
            | opnum::PUTFH..=opnum::PUTROOTFH
            | opnum::RESTOREFH
            | opnum::SECINFO
            | opnum::BACKCHANNEL_CTL..=opnum::FREE_STATEID
            | opnum::SECINFO_NO_NAME
            | opnum::SEQUENCE
            | opnum::TEST_STATEID
            | opnum::DESTROY_CLIENTID
            | opnum::RECLAIM_COMPLETE
            | opnum::RENEW
            | opnum::SETCLIENTID
            | opnum::SETCLIENTID_CONFIRM
    )
}

/// The referrals, by the nodes that stand for them.
#[derive(Default)]
pub(in crate::server) struct Referrals(HashMap<NodeId, Referral>);

impl Referrals {
    /// Returns the referrals in `all` whose names exist in the root of `export`.
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

    /// Returns the referral of `node`, if it is one.
    pub(super) fn of(&self, node: &Arc<dyn Node>) -> Option<&Referral> {
        match self.0.is_empty() {
            true => None,
            false => self.0.get(&node.id()),
        }
    }
}
