//! The users that clients act as, for the ready message.

use layers::squash::SquashMode;
use vfs::Trust;

use super::plan::Plan;

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
