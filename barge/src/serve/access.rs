//! The users that clients may act as: `--trust-uids`, and the lines of the ready message about
//! them.

use std::str::FromStr;

use layers::squash::Whom;
use p9::server::Users;
use vfs::Trust;

use super::plan::Plan;
use super::users::HostUsers;

/// The value of `--trust-uids`: `all`, or names and ids of users with commas between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrustedUsers(Trust);

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

/// Returns the users that clients act as over 9P and NFS, as shell comments: a line for this host,
/// and one for other hosts if they may connect (`networked`).
pub(super) fn lines(plan: &Plan, networked: bool) -> String {
    let mut text = String::from("# local users act as themselves, root as any user");
    match &plan.trust {
        Trust::Privileged => {}
        Trust::Users(users) => {
            let users: Vec<_> = users.iter().map(u32::to_string).collect();
            text.push_str(&format!(", as do uids {} (--trust-uids)", users.join(", ")));
        }
        Trust::All => text = "# local users act as any user (--trust-uids)".into(),
    }
    // Without privileges the server accesses everything as its own user.
    if !rustix::process::geteuid().is_root() {
        let uid = rustix::process::geteuid().as_raw();
        text = format!("# all clients have the access of uid {uid}, the user of this process");
    }
    text.push('\n');
    if networked {
        text.push_str("# other hosts: ");
        text.push_str(remote(plan));
        text.push('\n');
    }
    text
}

/// Describes the users that clients of other hosts act as.
fn remote(plan: &Plan) -> &'static str {
    let mut all = plan
        .shares
        .iter()
        .map(|share| share.layers.terms.squash.whom);
    let first = all.next().unwrap_or(Whom::RemoteRoot);
    match first {
        _ if !plan.lists.is_empty() => "as --export says",
        _ if all.any(|other| other != first) => "as --squash of each share says",
        Whom::RemoteRoot | Whom::Root => "any user but root, which is squashed",
        Whom::None => "any user, and root (--squash none)",
        Whom::All => "all users are squashed",
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
