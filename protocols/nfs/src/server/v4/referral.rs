//! Referrals: exports on other servers, to which a client is directed (RFC 8881 section 11.4, RFC
//! 7530 section 8.4).
//!
//! The file system of a referral is absent here: a directory with a file system number of its own
//! takes its place, and only that number and the file system's locations (`fs_locations`) can be
//! queried. Everything else fails with `MOVED`. v3 and other protocols, which have no such error,
//! show an empty directory.

use std::collections::HashMap;
use std::sync::Arc;

use vfs::{Export, Node, NodeId};

use super::locations::Locations;
use super::opnum;
use crate::v4::attr::{Bitmap, number as n};

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

/// The locations of absent file systems, by the nodes that stand for them.
#[derive(Default)]
pub(in crate::server) struct Referrals(HashMap<NodeId, Arc<Locations>>);

impl Referrals {
    /// Returns the referrals in `all` whose names exist in the root of `export`.
    pub(in crate::server) fn new(export: &Export, all: &[Locations]) -> Referrals {
        let found = all
            .iter()
            .filter_map(|referral| match referral.root(export) {
                Ok(node) => Some((node.id(), Arc::new(referral.clone()))),
                Err(errno) => {
                    tracing::warn!(name = referral.name, "cannot create a referral: {errno}");
                    None
                }
            });
        Referrals(found.collect())
    }

    /// Returns the locations of `node`'s file system, if it is absent.
    pub(super) fn of(&self, node: &Arc<dyn Node>) -> Option<&Arc<Locations>> {
        match self.0.is_empty() {
            true => None,
            false => self.0.get(&node.id()),
        }
    }
}
