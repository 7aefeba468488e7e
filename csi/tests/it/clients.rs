//! Volumes of one NFSv4 server on one node, each of which is a client of its own: none loses its
//! locks because of another.
//!
//! There are 3 volumes, or `VOLUMES` in the environment. They work for 5 s, or for `LEASES` leases
//! of 10 s.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::controller::Server;
use crate::daemon::{Daemon, Scratch, may_mount};
use crate::node::Volume;

/// Returns the number that a variable of the environment has.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

fn open(path: &Path) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(path).expect("opened")
}

/// Adds one to the number in a file under an exclusive lock, and returns it.
fn count(path: &Path) -> u64 {
    let mut file = open(path);
    file.lock().expect("locked");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    let number = text.trim().parse().unwrap_or(0) + 1;
    file.seek(SeekFrom::Start(0)).expect("found");
    write!(file, "{number:10}").expect("written");
    file.sync_all().expect("synchronized");
    file.unlock().expect("unlocked");
    number
}

/// Counts on the volume at `at` until `end`, with a lock held that others do not get. Returns how
/// often, and the locked file.
fn work(at: &Path, own: u64, all: u64, end: Instant) -> (u64, File) {
    let mut held = open(&at.join(format!("held-{own}")));
    held.lock().expect("nobody else locks it");
    let mut rounds = 0;
    while Instant::now() < end {
        count(&at.join("counter"));
        rounds += 1;
        write!(held, "{rounds}").expect("written");
        held.sync_all().expect("synchronized");
        let other = at.join(format!("held-{}", (own + 1) % all));
        if let Ok(file) = File::options().read(true).write(true).open(other)
            && file.metadata().expect("there").len() > 0
        {
            let taken = file.try_lock();
            let refused = matches!(taken, Err(TryLockError::WouldBlock));
            assert!(refused, "volume {own} has got the lock of the next one");
        }
    }
    (rounds, held)
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
    let end = Instant::now() + Duration::from_secs(time);
    let rounds: u64 = thread::scope(|scope| {
        let threads: Vec<_> = staged
            .iter()
            .zip(0..)
            .map(|((_, target), own)| {
                let at = Path::new(target);
                scope.spawn(move || work(at, own, volumes, end))
            })
            .collect();
        let ended: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        ended.iter().map(|(rounds, _)| rounds).sum()
    });
    assert_eq!(count(&Path::new(&shared).join("counter")), rounds + 1);
    println!("{volumes} volumes counted to {rounds}");
    for (volume, target) in &staged {
        volume.unpublish(target).expect("unpublished");
        volume.unstage().expect("unstaged");
    }
}
