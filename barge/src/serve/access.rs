//! The users that clients act as, for the ready message.

use layers::squash::SquashMode;
use rustix::process::geteuid;
use vfs::LocalUsers;

use super::plan::Plan;

/// Returns the users that clients act as over 9P and NFS, as shell comments: a line for this host,
/// and one for other hosts if they may connect (`networked`).
pub(super) fn lines(plan: &Plan, networked: bool) -> String {
    let mut text = String::from("# local users: ");
    text.push_str(&local(plan));
    text.push('\n');
    // Without privileges the server accesses everything as its own user.
    if !geteuid().is_root() {
        let uid = geteuid().as_raw();
        text.push_str(&format!(
            "# all clients have the access of uid {uid}, the user of this process\n"
        ));
    }
    if networked {
        text.push_str("# other hosts: ");
        text.push_str(remote(plan));
        text.push('\n');
    }
    text
}

/// Describes the users of this host who may connect, and as whom they act.
fn local(plan: &Plan) -> String {
    let own = match geteuid().is_root() {
        true => "root",
        false => "root and the user of this process",
    };
    let mut all = plan.sources.shares.iter();
    let mut admitted = all.by_ref().map(|share| share.access.admission.users());
    let first = admitted.next().cloned().unwrap_or_default();
    let differ = admitted.any(|other| *other != first);
    let others = match &first {
        _ if differ => "others as admit of each share says".to_owned(),
        LocalUsers::Privileged => "no others without --admit".to_owned(),
        LocalUsers::Users(users) => format!("{} as themselves (--admit)", uids(users)),
        LocalUsers::All => "others as themselves (--admit)".to_owned(),
    };
    match &plan.trust {
        LocalUsers::Privileged => format!("{own} as any user, {others}"),
        LocalUsers::Users(users) => {
            format!(
                "{own} and {} (--trust-uids) as any user, {others}",
                uids(users)
            )
        }
        LocalUsers::All => "all as any user (--trust-uids)".to_owned(),
    }
}

fn uids(users: &[u32]) -> String {
    let users: Vec<_> = users.iter().map(u32::to_string).collect();
    format!("uids {}", users.join(", "))
}

/// Describes the users that clients of other hosts act as.
fn remote(plan: &Plan) -> &'static str {
    let mut all = plan
        .sources
        .shares
        .iter()
        .map(|share| share.access.squash.mode);
    let first = all.next().unwrap_or(SquashMode::RemoteRoot);
    match first {
        _ if !plan.sources.client_lists.is_empty() => "as --export says",
        _ if all.any(|other| other != first) => "as --squash of each share says",
        SquashMode::RemoteRoot | SquashMode::Root => "any user but root, which is squashed",
        SquashMode::None => "any user, and root (--squash none)",
        SquashMode::All => "all users are squashed",
    }
}
