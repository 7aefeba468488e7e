//! Programs on mounts of one share that lock: each counts in one file under a lock, and holds a
//! lock of its own that the others do not get.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

fn open(path: &Path) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(path).expect("opened")
}

/// Adds one to the number in the file `counter` of a directory, under an exclusive lock, and
/// returns it.
fn count(dir: &Path) -> u64 {
    let mut file = open(&dir.join("counter"));
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

/// Locks and counts on the mount at `at` until `end`, holding a lock that is refused to others.
/// Returns how often it has counted, and the locked file: others may not have ended.
fn work(at: &Path, own: usize, all: usize, end: Instant) -> (u64, File) {
    let mut held = open(&at.join(format!("held-{own}")));
    held.lock().expect("nobody else locks it");
    let mut rounds = 0;
    while Instant::now() < end {
        count(at);
        rounds += 1;
        write!(held, "{rounds}").expect("written");
        held.sync_all().expect("synchronized");
        for other in (0..all).filter(|other| *other != own) {
            let path = at.join(format!("held-{other}"));
            // The other one may not have begun yet.
            if let Ok(file) = File::options().read(true).write(true).open(path)
                && file.metadata().expect("there").len() > 0
            {
                let taken = file.try_lock();
                assert!(
                    matches!(taken, Err(TryLockError::WouldBlock)),
                    "client {own} has got the lock of client {other}: {taken:?}"
                );
            }
        }
    }
    held.sync_all().expect("synchronized");
    (rounds, held)
}

/// Counts for `time` on all `mounts` at once, whose server shares the directory `share` of this
/// host. Panics if one has got another one's lock, or if an increment is lost, as it is if two
/// clients have a lock at a time. Returns how often they have counted.
pub fn count_under_locks<P: AsRef<Path> + Sync>(mounts: &[P], share: &Path, time: Duration) -> u64 {
    let end = Instant::now() + time;
    let rounds: u64 = thread::scope(|scope| {
        let threads: Vec<_> = mounts
            .iter()
            .enumerate()
            .map(|(own, at)| scope.spawn(move || work(at.as_ref(), own, mounts.len(), end)))
            .collect();
        let ended: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect();
        ended.iter().map(|(rounds, _)| rounds).sum()
    });
    assert_eq!(count(share), rounds + 1, "an increment is lost");
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_on_one_directory_count_each_round() {
        let dir = tempfile::tempdir().expect("a directory");
        let mounts = [dir.path(); 3];
        let rounds = count_under_locks(&mounts, dir.path(), Duration::from_millis(50));
        assert!(rounds >= 3, "{rounds}");
    }

    #[test]
    #[should_panic(expected = "no panic")]
    fn a_lock_that_two_programs_get_is_found() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        // A client's own view: what the other one has written, without its lock.
        let [own, other] = dirs.each_ref().map(|dir| dir.path());
        std::fs::write(own.join("held-1"), "1").expect("written");
        count_under_locks(&[own, other], own, Duration::from_millis(50));
    }
}
