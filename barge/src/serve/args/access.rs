//! Values of the options of access: trusted users, and the clients of a source.

use std::str::FromStr;
use std::sync::Arc;

use layers::Clients;
use p9::server::Users;
use vfs::Trust;

use crate::serve::users::HostUsers;

/// The value of `--trust-uids`: `all`, or names and ids of users with commas between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct TrustedUsers(Trust);

impl FromStr for TrustedUsers {
    type Err = String;

    fn from_str(text: &str) -> Result<TrustedUsers, String> {
        if text == "all" {
            return Ok(TrustedUsers(Trust::All));
        }
        let user = |user: &str| {
            let known = || HostUsers.uid(user.as_bytes());
            user.parse()
                .ok()
                .or_else(known)
                .ok_or_else(|| format!("expected all, or users by name or id, got '{user}'"))
        };
        let users: Result<Vec<u32>, String> = text.split(',').map(user).collect();
        Ok(TrustedUsers(Trust::Users(users?.into())))
    }
}

impl From<TrustedUsers> for Trust {
    fn from(users: TrustedUsers) -> Trust {
        users.0
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
        assert_eq!(parse("all"), Ok(Trust::All));
        assert_eq!(parse("root,7"), Ok(Trust::Users([0, 7].into())));
        for bad in ["", "7,", "no-such-user", "-1"] {
            let why = parse(bad).expect_err(bad);
            assert!(why.contains("expected all, or users"), "{why}");
        }
    }
}
