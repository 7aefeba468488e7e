//! Volumes of one NFSv4 server on one node, each of which is a client of its own: none loses its
//! locks because of another.
//!
//! There are 3 volumes, or `VOLUMES` in the environment. They work for 5 s, or for `LEASES` leases
//! of 10 s.

use std::path::Path;
use std::time::Duration;

use vfs_testkit::count_under_locks;

use crate::controller::Server;
use crate::daemon::{Daemon, Scratch, may_mount};
use crate::node::Volume;

/// Returns the number that a variable of the environment has.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

#[test]
fn volumes_of_one_nfs_server_do_not_end_each_others_locks() {
    if !may_mount() {
        return;
    }
    let volumes = number("VOLUMES").unwrap_or(3);
    let time = number("LEASES").map_or(5, |leases| leases * 10);
    let scratch = Scratch::new();
    let shared = scratch.dir("shared");
    let (_server, source) = Server::start("--nfs", &shared, &["--nfs-lease", "10"]);
    let daemon = Daemon::start(&scratch, &[]);
    let context = [("source", &*source), ("options", "cache=none")];
    let staged: Vec<_> = (0..volumes)
        .map(|number| {
            let name = format!("v{number}");
            let volume = Volume::new(&daemon, &scratch, &name, &context);
            let target = scratch.text(&format!("target-{number}"));
            volume.stage().expect("staged");
            volume.publish(&target, false).expect("published");
            (volume, target)
        })
        .collect();
    let targets: Vec<_> = staged.iter().map(|(_, target)| target).collect();
    let time = Duration::from_secs(time);
    let rounds = count_under_locks(&targets, Path::new(&shared), time);
    println!("{volumes} volumes counted to {rounds}");
    for (volume, target) in &staged {
        volume.unpublish(target).expect("unpublished");
        volume.unstage().expect("unstaged");
    }
}
