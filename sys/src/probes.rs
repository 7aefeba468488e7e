//! Checks of mounted file systems whose servers may not answer: statvfs(2) with a time-out.
//!
//! A thread waits in the call, which cannot be given up. There is one for each path, and
//! [`MAX_THREADS`] at most: calls for a path share its thread, and a later call for a path that has
//! not answered in time fails at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{StatVfs, statvfs};
use rustix::io::{Errno, Result};

/// Largest number of threads that wait for file systems. A node of Kubernetes has 110 pods; if
/// their volumes hang, each with two mounts, those of further pods can still be checked.
pub const MAX_THREADS: usize = 256;

/// Checks in flight. Clones share them.
#[derive(Clone, Default)]
pub struct Probes(Arc<Shared>);

/// The reason why a check has no result.
#[derive(Debug)]
pub enum ProbeError {
    /// The system call failed; `ENOTCONN` if the server of a FUSE mount has ended.
    Failed(Errno),
    /// The file system did not answer in time.
    TimedOut,
    /// No thread could be started, or [`MAX_THREADS`] wait for other file systems.
    Unchecked(std::io::Error),
}

#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    answered: Condvar,
}

#[derive(Default)]
struct Table {
    waiting: BTreeMap<PathBuf, Arc<Probe>>,
    threads: usize,
}

struct Probe {
    started: Instant,
    answer: OnceLock<Result<Arc<StatVfs>>>,
}

impl Probes {
    /// Calls statvfs(2), and waits for it until `timeout` after the start of the first call for
    /// this path that waits.
    pub fn statvfs(
        &self,
        path: &Path,
        timeout: Duration,
    ) -> std::result::Result<Arc<StatVfs>, ProbeError> {
        let copy = path.to_owned();
        self.ask(path, timeout, move || statvfs(&copy))
    }

    /// Returns whether a thread waits for the file system at `path`.
    pub fn is_waiting(&self, path: &Path) -> bool {
        self.0.table.lock().waiting.contains_key(path)
    }

    /// Gives up the check of `path`, which is unmounted: another file system may be mounted there.
    /// The thread waits on.
    pub fn forget(&self, path: &Path) {
        self.0.table.lock().waiting.remove(path);
    }

    fn ask(
        &self,
        path: &Path,
        timeout: Duration,
        statvfs: impl FnOnce() -> Result<StatVfs> + Send + 'static,
    ) -> std::result::Result<Arc<StatVfs>, ProbeError> {
        let mut table = self.0.table.lock();
        let probe = match table.waiting.get(path) {
            Some(probe) => probe.clone(),
            None => {
                let started = self.start(&mut table, path, statvfs);
                started.map_err(ProbeError::Unchecked)?
            }
        };
        let deadline = probe.started + timeout;
        loop {
            if let Some(answer) = probe.answer.get() {
                return answer.clone().map_err(ProbeError::Failed);
            }
            if self.0.answered.wait_until(&mut table, deadline).timed_out()
                && probe.answer.get().is_none()
            {
                return Err(ProbeError::TimedOut);
            }
        }
    }

    fn start(
        &self,
        table: &mut Table,
        path: &Path,
        statvfs: impl FnOnce() -> Result<StatVfs> + Send + 'static,
    ) -> std::io::Result<Arc<Probe>> {
        if table.threads >= MAX_THREADS {
            let text = format!("{MAX_THREADS} other file systems do not answer");
            return Err(std::io::Error::other(text));
        }
        let probe = Arc::new(Probe {
            started: Instant::now(),
            answer: OnceLock::new(),
        });
        let (shared, path, copy) = (self.0.clone(), path.to_owned(), probe.clone());
        let key = path.clone();
        let wait = move || {
            let answer = statvfs().map(Arc::new);
            let mut table = shared.table.lock();
            table.threads -= 1;
            let is_same = |found: &Arc<Probe>| Arc::ptr_eq(found, &copy);
            if table.waiting.get(&path).is_some_and(is_same) {
                table.waiting.remove(&path);
            }
            let _ = copy.answer.set(answer);
            shared.answered.notify_all();
        };
        thread::Builder::new().name("statvfs".into()).spawn(wait)?;
        table.threads += 1;
        table.waiting.insert(key, probe.clone());
        Ok(probe)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_file_system_answers_or_fails() {
        let probes = Probes::default();
        let stat = probes.statvfs(Path::new("/proc"), LONG).expect("mounted");
        assert_eq!(stat.f_blocks, 0);
        let missing = probes.statvfs(Path::new("/no/such/directory"), LONG);
        assert!(matches!(missing, Err(ProbeError::Failed(Errno::NOENT))));
        assert!(!probes.is_waiting(Path::new("/proc")));
    }

    #[test]
    fn a_path_that_hangs_has_one_thread_and_later_calls_fail_at_once() {
        let probes = Probes::default();
        let path = Path::new("/hangs");
        let (release, released) = channel::<()>();
        let hang = move || {
            let _ = released.recv();
            statvfs("/")
        };
        let first = probes.ask(path, Duration::from_millis(1), hang);
        assert!(matches!(first, Err(ProbeError::TimedOut)));
        for _ in 0..3 {
            let unused = || panic!("a second thread");
            let again = probes.ask(path, Duration::from_millis(1), unused);
            assert!(matches!(again, Err(ProbeError::TimedOut)));
        }
        assert!(probes.is_waiting(path));
        assert_eq!(probes.0.table.lock().threads, 1);
        // A call that may wait longer gets the answer.
        thread::scope(|scope| {
            let joined = scope.spawn(|| probes.ask(path, LONG, || statvfs("/")));
            drop(release);
            joined.join().expect("no panic").expect("answered");
        });
        assert!(!probes.is_waiting(path));
        assert_eq!(probes.0.table.lock().threads, 0);
    }

    #[test]
    fn threads_are_bounded_also_for_paths_that_are_forgotten() {
        let probes = Probes::default();
        let path = Path::new("/hangs");
        let mut releases = Vec::new();
        for _ in 0..MAX_THREADS {
            let (release, released) = channel::<()>();
            releases.push(release);
            let hang = move || {
                let _ = released.recv();
                statvfs("/")
            };
            let silent = probes.ask(path, Duration::ZERO, hang);
            assert!(matches!(silent, Err(ProbeError::TimedOut)));
            probes.forget(path);
        }
        let more = probes.statvfs(Path::new("/"), LONG);
        assert!(matches!(more, Err(ProbeError::Unchecked(_))));
        drop(releases);
        let mut table = probes.0.table.lock();
        let ended = |table: &mut Table| table.threads > 0;
        probes.0.answered.wait_while(&mut table, ended);
    }
}
