//! Users by name and by number.

/// Who is who: the program's user database. 9P2000 names users by strings, the others by numbers.
pub trait Users: Send + Sync {
    /// The number of the user `name`.
    fn uid(&self, name: &[u8]) -> Option<u32>;

    /// The name of a user.
    fn user(&self, uid: u32) -> Option<String>;

    /// The number of the group `name`.
    fn gid(&self, name: &[u8]) -> Option<u32>;

    /// The name of a group.
    fn group(&self, gid: u32) -> Option<String>;

    /// The group that a user belongs to first: that of what it creates, where a message names none.
    fn primary_group(&self, uid: u32) -> Option<u32>;
}

/// No database: a user's name is its number in decimal, and so is a group's; the super-user is
/// `root`.
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
