//! The host's user database, through the C library: the services that nsswitch.conf names.
//!
//! A lookup may read files or query a directory service over the network, so it may block. A
//! process that can reach neither asks another one ([`set_database`]).

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use rustix::io::{Errno, Result};

/// A user of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: CString,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

/// A group of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: CString,
    /// Group id.
    pub gid: u32,
}

/// Another way to the user database, with the functions of this module.
pub trait UserDatabase: Send + Sync {
    /// See [`by_uid`].
    fn by_uid(&self, uid: u32) -> Result<Option<User>>;
    /// See [`by_name`].
    fn by_name(&self, name: &CStr) -> Result<Option<User>>;
    /// See [`group_by_gid`].
    fn group_by_gid(&self, gid: u32) -> Result<Option<Group>>;
    /// See [`group_by_name`].
    fn group_by_name(&self, name: &CStr) -> Result<Option<Group>>;
    /// See [`groups`].
    fn groups(&self, user: &User) -> Vec<u32>;
}

static DATABASE: OnceLock<Box<dyn UserDatabase>> = OnceLock::new();

/// Makes all later lookups of this process ask `database` in place of the C library. Only the first
/// call has an effect.
pub fn set_database(database: Box<dyn UserDatabase>) {
    DATABASE.get_or_init(|| database);
}

/// Returns the user with this id, if any (getpwuid_r(3)).
pub fn by_uid(uid: u32) -> Result<Option<User>> {
    if let Some(database) = DATABASE.get() {
        return database.by_uid(uid);
    }
    look_up(user, |entry, buffer, len, found| {
        // SAFETY: `look_up` passes room for one entry, `len` bytes of buffer and a pointer.
        #[allow(unsafe_code)]
        unsafe {
            libc::getpwuid_r(uid, entry, buffer, len, found)
        }
    })
}

/// Returns the user with this login name, if any (getpwnam_r(3)).
pub fn by_name(name: &CStr) -> Result<Option<User>> {
    if let Some(database) = DATABASE.get() {
        return database.by_name(name);
    }
    look_up(user, |entry, buffer, len, found| {
        // SAFETY: as above, and `name` ends in NUL.
        #[allow(unsafe_code)]
        unsafe {
            libc::getpwnam_r(name.as_ptr(), entry, buffer, len, found)
        }
    })
}

/// Returns the group with this id, if any (getgrgid_r(3)).
pub fn group_by_gid(gid: u32) -> Result<Option<Group>> {
    if let Some(database) = DATABASE.get() {
        return database.group_by_gid(gid);
    }
    look_up(group, |entry, buffer, len, found| {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            libc::getgrgid_r(gid, entry, buffer, len, found)
        }
    })
}

/// Returns the group with this name, if any (getgrnam_r(3)).
pub fn group_by_name(name: &CStr) -> Result<Option<Group>> {
    if let Some(database) = DATABASE.get() {
        return database.group_by_name(name);
    }
    look_up(group, |entry, buffer, len, found| {
        // SAFETY: as above, and `name` ends in NUL.
        #[allow(unsafe_code)]
        unsafe {
            libc::getgrnam_r(name.as_ptr(), entry, buffer, len, found)
        }
    })
}

/// Returns all groups of `user`, including the primary one (getgrouplist(3)).
pub fn groups(user: &User) -> Vec<u32> {
    if let Some(database) = DATABASE.get() {
        return database.groups(user);
    }
    // Most users are in few groups; the kernel's limit (`NGROUPS_MAX`) bounds the growth.
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: the name ends in NUL, and at most `count` numbers are written to `groups`.
        #[allow(unsafe_code)]
        let answer = unsafe {
            libc::getgrouplist(
                user.name.as_ptr(),
                user.gid,
                groups.as_mut_ptr(),
                &raw mut count,
            )
        };
        if answer >= 0 || groups.len() >= 65536 {
            groups.truncate(count.max(0) as usize);
            return groups;
        }
        groups.resize(groups.len() * 4, 0);
    }
}

fn user(entry: &libc::passwd) -> User {
    User {
        name: name_of(entry.pw_name),
        uid: entry.pw_uid,
        gid: entry.pw_gid,
    }
}

fn group(entry: &libc::group) -> Group {
    Group {
        name: name_of(entry.gr_name),
        gid: entry.gr_gid,
    }
}

/// Returns the name of an entry.
fn name_of(name: *const libc::c_char) -> CString {
    // SAFETY: only called for entries that a lookup filled in, while the buffer of their strings
    // lives.
    #[allow(unsafe_code)]
    let name = unsafe { CStr::from_ptr(name) };
    name.to_owned()
}

fn look_up<Entry, T>(
    take: impl Fn(&Entry) -> T,
    call: impl Fn(*mut Entry, *mut libc::c_char, usize, *mut *mut Entry) -> libc::c_int,
) -> Result<Option<T>> {
    let mut buffer = vec![0u8; 1024];
    loop {
        let mut entry = MaybeUninit::<Entry>::uninit();
        let mut found = std::ptr::null_mut();
        match call(
            entry.as_mut_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            &raw mut found,
        ) {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: the call succeeded and found an entry, so `entry` is filled in.
                #[allow(unsafe_code)]
                return Ok(Some(take(unsafe { entry.assume_init_ref() })));
            }
            libc::EINTR => {}
            // An entry larger than a megabyte is refused.
            libc::ERANGE if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            // getpwnam_r(3): the errors that some services return for "not found".
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            error => return Err(Errno::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_by_id_and_name_and_is_in_its_group() {
        let root = by_uid(0).expect("looks up").expect("every host has one");
        assert_eq!(by_name(&root.name), Ok(Some(root.clone())));
        assert!(groups(&root).contains(&root.gid));
    }

    #[test]
    fn an_unknown_user_or_group_is_none() {
        assert_eq!(group_by_name(c"no such group"), Ok(None));
        let root = group_by_gid(0)
            .expect("looks up")
            .expect("every host has one");
        assert_eq!(group_by_name(&root.name), Ok(Some(root)));
        assert_eq!(by_name(c"no such user"), Ok(None));
        assert_eq!(by_uid(0xfffe_fffe), Ok(None));
    }
}
