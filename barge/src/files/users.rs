//! Names of this host's users and groups.

use sys::users;

/// Returns the name of a user.
pub(super) fn user(uid: u32) -> Option<String> {
    let user = users::by_uid(uid).ok()??;
    Some(user.name.to_string_lossy().into_owned())
}

/// Returns the name of a group.
pub(super) fn group(gid: u32) -> Option<String> {
    let group = users::group_by_gid(gid).ok()??;
    Some(group.name.to_string_lossy().into_owned())
}
