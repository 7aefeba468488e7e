//! The host's user database for processes that cannot read it.

use std::ffi::{CStr, CString};
use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sys::users::{self, Group, User, UserDatabase};

/// A query of the user database.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Query {
    /// For a user or a group.
    Find { key: Key },
    /// For the groups of a user.
    GroupsOf { user: Entry },
}

/// The key of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Key {
    Uid(u32),
    User(Vec<u8>),
    Gid(u32),
    Group(Vec<u8>),
}

/// A user with the primary group, or a group, whose id is then in both places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    name: Vec<u8>,
    id: u32,
    gid: u32,
}

/// The result of a query.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Found {
    /// The user or group, if it exists.
    Entry(Option<Entry>),
    Groups(Vec<u32>),
}

impl From<User> for Entry {
    fn from(user: User) -> Entry {
        Entry {
            name: user.name.into_bytes(),
            id: user.uid,
            gid: user.gid,
        }
    }
}

impl From<Group> for Entry {
    fn from(group: Group) -> Entry {
        Entry {
            name: group.name.into_bytes(),
            id: group.gid,
            gid: group.gid,
        }
    }
}

impl TryFrom<Entry> for User {
    type Error = Errno;

    fn try_from(entry: Entry) -> Result<User, Errno> {
        Ok(User {
            name: text(entry.name)?,
            uid: entry.id,
            gid: entry.gid,
        })
    }
}

impl TryFrom<Entry> for Group {
    type Error = Errno;

    fn try_from(entry: Entry) -> Result<Group, Errno> {
        Ok(Group {
            name: text(entry.name)?,
            gid: entry.gid,
        })
    }
}

fn text(name: Vec<u8>) -> Result<CString, Errno> {
    CString::new(name).map_err(|_| Errno::INVAL)
}

/// Carries out a query in a process that can read the database.
pub(crate) fn find(query: Query) -> io::Result<Found> {
    Ok(match query {
        Query::Find { key } => Found::Entry(match key {
            Key::Uid(uid) => users::by_uid(uid)?.map(Entry::from),
            Key::User(name) => users::by_name(&text(name)?)?.map(Entry::from),
            Key::Gid(gid) => users::group_by_gid(gid)?.map(Entry::from),
            Key::Group(name) => users::group_by_name(&text(name)?)?.map(Entry::from),
        }),
        Query::GroupsOf { user } => Found::Groups(users::groups(&user.try_into()?)),
    })
}

/// The database of another process, which the function asks.
struct Remote<F>(F);

/// Makes this process query the database with `ask` from now on.
pub(crate) fn ask_with(ask: impl Fn(Query) -> io::Result<Found> + Send + Sync + 'static) {
    sys::users::set_database(Box::new(Remote(ask)));
}

impl<F: Fn(Query) -> io::Result<Found>> Remote<F> {
    fn entry<T: TryFrom<Entry, Error = Errno>>(&self, key: Key) -> rustix::io::Result<Option<T>> {
        match (self.0)(Query::Find { key }) {
            Ok(Found::Entry(entry)) => entry.map(T::try_from).transpose(),
            Ok(Found::Groups(_)) => Err(Errno::BADMSG),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

impl<F: Fn(Query) -> io::Result<Found> + Send + Sync> UserDatabase for Remote<F> {
    fn by_uid(&self, uid: u32) -> rustix::io::Result<Option<User>> {
        self.entry(Key::Uid(uid))
    }

    fn by_name(&self, name: &CStr) -> rustix::io::Result<Option<User>> {
        self.entry(Key::User(name.to_bytes().to_vec()))
    }

    fn group_by_gid(&self, gid: u32) -> rustix::io::Result<Option<Group>> {
        self.entry(Key::Gid(gid))
    }

    fn group_by_name(&self, name: &CStr) -> rustix::io::Result<Option<Group>> {
        self.entry(Key::Group(name.to_bytes().to_vec()))
    }

    fn groups(&self, user: &User) -> Vec<u32> {
        let user = Entry {
            name: user.name.to_bytes().to_vec(),
            id: user.uid,
            gid: user.gid,
        };
        match (self.0)(Query::GroupsOf { user }) {
            Ok(Found::Groups(gids)) => gids,
            _ => Vec::new(),
        }
    }
}
