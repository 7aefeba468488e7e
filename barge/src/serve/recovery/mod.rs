//! NFS state that survives a restart, so that clients can continue: the server's name, its boot
//! number, and the clients that may reclaim. Each server has a file, identified by the server's
//! address.
//!
//! Opens and locks are not stored: clients reclaim them. The state is in a file ([`mod@file`]), or,
//! for several servers of which one is active, in etcd ([`mod@etcd`]), through the broker
//! ([`brokered`]).

pub(super) mod brokered;
pub(super) mod etcd;
mod file;
mod store;

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nfs::server::v4::state::{InMemory, Stable};
use transports::Addr;

use self::file::{OpenError, StateFile};
use self::store::{Boot, RecordList, StateStore, StoredRecords};
use crate::Failure;
use crate::listen::retry_while;
use crate::status::{Problem, Problems};

/// The identity of a server in its state directory.
pub(crate) struct ServerIdentity {
    /// The state directory, if it is not the default.
    pub(crate) dir: Option<PathBuf>,
    pub(crate) addr: Addr,
}

/// The stored state of a server, for one boot.
pub(crate) struct Recovery {
    /// The server's name, the same after each restart.
    pub(super) name: String,
    /// The boot number, a new one after each restart.
    pub(super) boot: u32,
    pub(crate) stable: Arc<dyn Stable>,
    /// The NLM clients to notify of a restart.
    pub(super) monitored: Arc<dyn Stable>,
    /// Returns whether the server may act now, if another one may take over.
    pub(super) may_act: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// The state of the active one of several servers.
pub(super) struct SharedState {
    pub(super) store: Arc<dyn StateStore>,
    pub(super) fence: Arc<::etcd::Fence>,
}

impl Recovery {
    /// Opens the state of a server. It is in memory only if the address is chosen anew at each
    /// start, or if the default directory cannot be used. Problems of a file become some of
    /// `storage`.
    pub(crate) fn open(
        ServerIdentity { dir, addr }: &ServerIdentity,
        storage: &Arc<Problems>,
    ) -> Result<Recovery, Failure> {
        let dir = dir.as_deref();
        if is_ephemeral(addr) {
            return Ok(Recovery::in_memory());
        }
        let file = format!("{}.redb", file_name(addr));
        let Some(path) = dir.map(Path::to_owned).or_else(default_state_dir) else {
            tracing::warn!(
                "NFS clients lose their locks at a restart: no state directory (--nfs-state-dir)"
            );
            return Ok(Recovery::in_memory());
        };
        let path = path.join(file);
        let in_use = |opened: &Result<_, OpenError>| matches!(opened, Err(OpenError::InUse));
        let problem = problem(storage);
        let opened = retry_while(in_use, || StateFile::open(&path, &problem));
        let begun = opened.and_then(|file| {
            let failed = |error: io::Error| OpenError::Failed(error.to_string());
            Recovery::begin(Arc::new(file), &problem).map_err(failed)
        });
        match begun {
            Ok(recovery) => Ok(recovery),
            Err(OpenError::InUse) => Err(Failure::new(format!(
                "{}: in use by another server (--nfs-state-dir sets another directory)",
                path.display()
            ))),
            Err(OpenError::Failed(why)) if dir.is_some() => {
                Err(Failure::new(format!("{}: {why}", path.display())))
            }
            Err(OpenError::Failed(why)) => {
                tracing::warn!(
                    "NFS clients lose their locks at a restart: {}: {why} (--nfs-state-dir sets another directory)",
                    path.display()
                );
                Ok(Recovery::in_memory())
            }
        }
    }

    /// Begins a run of the server whose state is in `store`.
    fn begin(store: Arc<dyn StateStore>, problem: &Problem) -> io::Result<Recovery> {
        let Boot { name, number } = store.begin()?;
        Ok(Recovery {
            name,
            boot: number,
            stable: StoredRecords::open(&store, RecordList::Clients, problem)?,
            monitored: StoredRecords::open(&store, RecordList::Monitored, problem)?,
            may_act: None,
        })
    }

    /// Begins a run of the server whose state is shared with standby servers. Problems of the store
    /// become some of `storage`.
    pub(super) fn shared(
        SharedState { store, fence }: SharedState,
        storage: &Arc<Problems>,
    ) -> io::Result<Recovery> {
        Ok(Recovery {
            may_act: Some(Arc::new(move || fence.allows(etcd::now()))),
            ..Recovery::begin(store, &problem(storage))?
        })
    }

    fn in_memory() -> Recovery {
        Recovery {
            name: new_name(),
            boot: valid_boot(random() as u32),
            stable: Arc::new(InMemory::default()),
            monitored: Arc::new(InMemory::default()),
            may_act: None,
        }
    }
}

/// Adds the state of NFS to `storage`.
fn problem(storage: &Arc<Problems>) -> Problem {
    storage.add(
        "nfs-state",
        "NFS clients lose their locks at a restart, as their records cannot be stored",
    )
}

/// Returns the file that records what the handles of the source called `name` need after a restart,
/// for the server `identity`. Returns `None` if the address is chosen anew at each start, or if the
/// directory cannot be created.
pub(super) fn handle_index_file(identity: &ServerIdentity, name: &str) -> Option<PathBuf> {
    let ServerIdentity { dir, addr } = identity;
    if is_ephemeral(addr) {
        return None;
    }
    let dir = dir.clone().or_else(default_state_dir)?;
    create_private_dir(&dir).ok()?;
    Some(dir.join(format!("{}-{name}.names", file_name(addr))))
}

/// Returns the state directory of the server `identity`, or `None` if it keeps its state in memory.
pub(super) fn state_dir(ServerIdentity { dir, addr }: &ServerIdentity) -> Option<PathBuf> {
    let usual = || (!is_ephemeral(addr)).then(default_state_dir).flatten();
    dir.clone().or_else(usual)
}

/// Returns the default state directory.
pub(super) fn default_state_dir() -> Option<PathBuf> {
    state_dir_from_env(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

/// Returns the directory that systemd created for the service, or else the usual one of the user.
fn state_dir_from_env(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(dirs) = var("STATE_DIRECTORY") {
        return std::env::split_paths(&dirs).next();
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/barge".into());
    }
    let home = || Some(PathBuf::from(var("HOME")?).join(".local/state"));
    let state = var("XDG_STATE_HOME").map(PathBuf::from).or_else(home)?;
    Some(state.join("barge"))
}

/// Returns whether `addr` is, or may be, another at each start.
fn is_ephemeral(addr: &Addr) -> bool {
    is_ephemeral_port(addr) || matches!(addr, Addr::Fd(_))
}

/// Returns whether the port is chosen at each start.
pub(super) fn is_ephemeral_port(addr: &Addr) -> bool {
    matches!(
        addr,
        Addr::Tcp { port: 0, .. } | Addr::Vsock { port: 0, .. }
    )
}

/// Returns a file name that distinguishes the servers of one host: a slash is `%2F`.
fn file_name(addr: &Addr) -> String {
    let addr = addr.to_string().replace('%', "%25").replace('/', "%2F");
    format!("nfs-{addr}")
}

fn random() -> u64 {
    RandomState::new().hash_one(())
}

fn new_name() -> String {
    format!("barge-{:016x}", random())
}

/// Returns a boot number that no earlier start used. It follows the time, so that it is new even if
/// the stored state is lost.
fn next_boot(last: u32) -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |time| time.as_secs() as u32);
    valid_boot(now.max(last.wrapping_add(1) % u32::MAX))
}

/// Excludes 0 and the highest number, which special stateids use, and 1, which made-up stateids
/// use.
fn valid_boot(number: u32) -> u32 {
    number.clamp(2, u32::MAX - 1)
}

/// Creates a directory that only this user can access, if there is none.
pub(super) fn create_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn identity(dir: &Path, addr: &str) -> ServerIdentity {
        ServerIdentity {
            dir: Some(dir.to_owned()),
            addr: addr.parse().expect("an address"),
        }
    }

    fn open(dir: &Path) -> Recovery {
        let identity = identity(dir, "tcp:127.0.0.1:2049");
        Recovery::open(&identity, &Arc::default()).unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    #[test]
    fn what_was_put_is_there_after_a_restart_and_the_boot_is_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("a/b");
        let first = open(&dir);
        assert!(first.stable.list().is_empty());
        for record in [&b"one"[..], b"two", b""] {
            assert_eq!(first.stable.put(record), Ok(()));
        }
        assert_eq!(first.stable.put(b"one"), Ok(()));
        assert_eq!(first.stable.remove(b"two"), Ok(()));
        assert_eq!(first.stable.remove(b"never"), Ok(()));
        // The state that a killed process leaves.
        let left = dir.with_file_name("left");
        fs::create_dir(&left).expect("made");
        let name = "nfs-tcp:127.0.0.1:2049.redb";
        fs::copy(dir.join(name), left.join(name)).expect("copied");
        let (mut boot, name) = (first.boot, first.name.clone());
        drop(first);
        for dir in [&dir, &left] {
            for _ in 0..3 {
                let next = open(dir);
                assert_eq!(next.stable.list(), [b""[..].into(), b"one"[..].into()]);
                assert_eq!(next.name, name);
                if dir != &left {
                    assert!(next.boot > boot);
                    boot = next.boot;
                }
            }
        }
    }

    #[test]
    fn two_servers_do_not_share_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let one = open(dir.path());
        let again = Recovery::open(&identity(dir.path(), "tcp:127.0.0.1:2049"), &Arc::default());
        let why = again.err().expect("refused").message;
        assert!(why.contains("in use by another server"), "{why}");
        let other = Recovery::open(&identity(dir.path(), "unix:/run/nfs"), &Arc::default())
            .unwrap_or_else(|why| panic!("{why:?}"));
        assert_ne!(one.name, other.name);
        assert!(dir.path().join("nfs-unix:%2Frun%2Fnfs.redb").exists());
    }

    #[test]
    fn boots_are_never_those_of_special_stateids() {
        for last in [0, 1, u32::MAX - 2, u32::MAX - 1, u32::MAX] {
            assert!((2..u32::MAX).contains(&next_boot(last)), "{last}");
        }
        assert_eq!(next_boot(u32::MAX - 3), u32::MAX - 2);
    }

    #[test]
    fn a_place_that_cannot_be_had_is_an_error_only_if_it_was_asked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("file"), "").expect("written");
        let file = dir.path().join("file");
        let refused = Recovery::open(&identity(&file, "tcp:127.0.0.1:2049"), &Arc::default());
        assert!(refused.err().expect("refused").message.contains("file"));
        let in_memory = Recovery::open(&identity(dir.path(), "tcp:127.0.0.1:0"), &Arc::default());
        assert!(in_memory.is_ok_and(|it| (2..u32::MAX).contains(&it.boot)));
    }

    #[test]
    fn the_usual_place_is_the_service_managers_first() {
        let var = |name: &str| (name == "STATE_DIRECTORY").then(|| "/a:/b".into());
        assert_eq!(state_dir_from_env(var), Some("/a".into()));
    }
}
