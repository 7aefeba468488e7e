//! Users by name and by number.

/// A user database. 9P2000 names users by strings, the other dialects by numbers.
pub trait Users: Send + Sync {
    /// Returns the number of the user `name`.
    fn uid(&self, name: &[u8]) -> Option<u32>;

    /// Returns the name of a user.
    fn user(&self, uid: u32) -> Option<String>;

    /// Returns the number of the group `name`.
    fn gid(&self, name: &[u8]) -> Option<u32>;

    /// Returns the name of a group.
    fn group(&self, gid: u32) -> Option<String>;

    /// Returns a user's primary group: the group of new files unless a message names another.
    fn primary_group(&self, uid: u32) -> Option<u32>;
}

/// No database: the names of users and groups are their numbers in decimal, and user 0 is `root`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumericUsers;

impl Users for NumericUsers {
    fn uid(&self, name: &[u8]) -> Option<u32> {
        number(name)
    }

    fn user(&self, uid: u32) -> Option<String> {
        Some(if uid == 0 {
            "root".into()
        } else {
            uid.to_string()
        })
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        number(name)
    }

    fn group(&self, gid: u32) -> Option<String> {
        self.user(gid)
    }

    fn primary_group(&self, uid: u32) -> Option<u32> {
        Some(uid)
    }
}

fn number(name: &[u8]) -> Option<u32> {
    match name {
        b"root" => Some(0),
        _ => std::str::from_utf8(name).ok()?.parse().ok(),
    }
}
