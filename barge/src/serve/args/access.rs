//! Values of the options of access: trusted users, and the clients of a source.

use std::str::FromStr;
use std::sync::Arc;

use layers::Clients;
use p9::server::Users;
use vfs::LocalUsers;

use crate::serve::users::HostUsers;

/// The value of `--trust-uids`: `all`, or names and ids of users with commas between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct TrustedUsers(LocalUsers);

impl FromStr for TrustedUsers {
    type Err = String;

    fn from_str(text: &str) -> Result<TrustedUsers, String> {
        if text == "all" {
            return Ok(TrustedUsers(LocalUsers::All));
        }
        let user = |user: &str| {
            uid(user).ok_or_else(|| format!("expected all, or users by name or id, got '{user}'"))
        };
        let users: Result<Vec<u32>, String> = text.split(',').map(user).collect();
        Ok(TrustedUsers(LocalUsers::Users(users?.into())))
    }
}

impl From<TrustedUsers> for LocalUsers {
    fn from(users: TrustedUsers) -> LocalUsers {
        users.0
    }
}

/// Returns the id of a user, by name or id.
fn uid(user: &str) -> Option<u32> {
    user.parse().ok().or_else(|| HostUsers.uid(user.as_bytes()))
}

/// A value of `--admit`: the name or id of a user, or `*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmittedUser {
    All,
    One(u32),
}

impl FromStr for AdmittedUser {
    type Err = String;

    fn from_str(text: &str) -> Result<AdmittedUser, String> {
        if text == "*" {
            return Ok(AdmittedUser::All);
        }
        let found = uid(text).map(AdmittedUser::One);
        found.ok_or_else(|| format!("expected a user by name or id, or '*', got '{text}'"))
    }
}

impl FromIterator<AdmittedUser> for LocalUsers {
    fn from_iter<I: IntoIterator<Item = AdmittedUser>>(users: I) -> LocalUsers {
        let ids = users.into_iter().map(|user| match user {
            AdmittedUser::All => None,
            AdmittedUser::One(uid) => Some(uid),
        });
        match ids.collect::<Option<Vec<u32>>>() {
            None => LocalUsers::All,
            Some(ids) if ids.is_empty() => LocalUsers::Privileged,
            Some(ids) => LocalUsers::Users(ids.into()),
        }
    }
}

/// A line of exports(5) with a source's name in place of the path.
#[derive(Clone, Debug)]
pub(in crate::serve) struct ClientList {
    pub(in crate::serve) name: String,
    pub(in crate::serve) clients: Arc<Clients>,
}

impl FromStr for ClientList {
    type Err = String;

    fn from_str(line: &str) -> Result<ClientList, String> {
        let line = line.trim();
        let (name, clients) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| format!("expected NAME CLIENT(OPTIONS), got '{line}'"))?;
        let clients: Clients = clients.parse().map_err(|error| format!("{error}"))?;
        Ok(ClientList {
            name: name.trim_start_matches('/').into(),
            clients: Arc::new(clients),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_users_are_named_or_numbered() {
        let parse = |text: &str| text.parse().map(|TrustedUsers(trust)| trust);
        assert_eq!(parse("all"), Ok(LocalUsers::All));
        assert_eq!(parse("root,7"), Ok(LocalUsers::Users([0, 7].into())));
        for bad in ["", "*", "no-such-user", "-1"] {
            let why = bad.parse::<AdmittedUser>().map(drop);
            assert_eq!(why.is_ok(), bad == "*", "{bad}");
        }
        assert_eq!("*".parse(), Ok(AdmittedUser::All));
        assert_eq!("root".parse(), Ok(AdmittedUser::One(0)));
        assert_eq!("7".parse(), Ok(AdmittedUser::One(7)));
        let users = |all: &[AdmittedUser]| LocalUsers::from_iter(all.iter().copied());
        let one = AdmittedUser::One(7);
        assert_eq!(users(&[]), LocalUsers::Privileged);
        assert_eq!(users(&[one]), LocalUsers::Users([7].into()));
        assert_eq!(users(&[one, AdmittedUser::All]), LocalUsers::All);
        for bad in ["", "7,", "no-such-user", "-1"] {
            let why = parse(bad).expect_err(bad);
            assert!(why.contains("expected all, or users"), "{why}");
        }
    }
}
