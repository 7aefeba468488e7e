//! The host's users, by name and number.

use std::ffi::CString;

use p9::server::Users;
use sys::users;

use crate::Failure;

/// The users and groups of nsswitch.conf(5). They are looked up at attach, and for the 9P dialects
/// that transfer names.
pub(super) struct HostUsers;

impl Users for HostUsers {
    fn uid(&self, name: &[u8]) -> Option<u32> {
        let user = users::by_name(&CString::new(name).ok()?).ok()??;
        Some(user.uid)
    }

    fn user(&self, uid: u32) -> Option<String> {
        let user = users::by_uid(uid).ok()??;
        user.name.into_string().ok()
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        users::group_by_name(&CString::new(name).ok()?)
            .ok()?
            .map(|group| group.gid)
    }

    fn group(&self, gid: u32) -> Option<String> {
        users::group_by_gid(gid).ok()??.name.into_string().ok()
    }

    fn primary_group(&self, uid: u32) -> Option<u32> {
        Some(users::by_uid(uid).ok()??.gid)
    }
}

/// Returns the id of the group of `--socket-group`, whose members may connect to the Unix sockets
/// of all protocols.
pub(super) fn socket_group(group: Option<&str>) -> Result<Option<u32>, Failure> {
    let Some(group) = group else {
        return Ok(None);
    };
    let known = HostUsers.gid(group.as_bytes());
    match known.or_else(|| group.parse().ok()) {
        Some(gid) => Ok(Some(gid)),
        None => Err(Failure::usage(format!(
            "--socket-group {group}: there is no such group"
        ))),
    }
}
