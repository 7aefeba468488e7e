//! The state of a server in etcd, which it shares with standby servers. One of them is active at a
//! time: it has the lease, and a fence that closes before the lease can expire.
//!
//! The connection is the broker's, not that of the process that serves, which has no network. The
//! broker waits until this server is active before it starts that process.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use etcd::lease::{End, Waiting, acquire};
use etcd::{Active, Client, Clock, Endpoints, Fence, Lease, Login, Records, Tls};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use vfs::HandleKey;

use super::store::{Boot, RecordList, StateStore};
use super::{SharedState, new_name, next_boot};
use crate::{Failure, service};

/// The options of shared state.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Settings {
    pub(in crate::serve) endpoints: Endpoints,
    pub(in crate::serve) ttl: Duration,
    pub(in crate::serve) ca: Option<PathBuf>,
    /// The files of this client's certificate and key.
    pub(in crate::serve) client: Option<(PathBuf, PathBuf)>,
    /// The file of the user and password.
    pub(in crate::serve) auth: Option<PathBuf>,
}

/// Maximum length of a file of certificates, a key or a password, in bytes.
const MAX_FILE: u64 = 1 << 20;

impl Settings {
    /// Checks the options without reading files.
    pub(in crate::serve) fn check(&self) -> Result<(), Failure> {
        let Settings {
            ca,
            client,
            auth,
            endpoints,
            ..
        } = self;
        if client.is_some() && ca.is_none() {
            return Err(Failure::usage("--nfs-state-cert: expected --nfs-state-ca"));
        }
        if auth.is_some() && ca.is_none() && !endpoints.is_local() {
            return Err(Failure::usage(
                "--nfs-state-auth: expected --nfs-state-ca, as the password would be readable on the network",
            ));
        }
        Ok(())
    }

    /// Returns a client, which connects later.
    fn connect(&self) -> Result<Client, Failure> {
        let tls = match &self.ca {
            None => None,
            Some(ca) => Some(Tls {
                ca: read(ca)?,
                client: match &self.client {
                    None => None,
                    Some((cert, key)) => Some((read(cert)?, read(key)?)),
                },
            }),
        };
        if tls.is_none() && !self.endpoints.is_local() {
            tracing::warn!(
                "{}: without TLS (--nfs-state-ca), other hosts of the network can change the state of NFS",
                self.endpoints
            );
        }
        let login = self.auth.as_deref().map(read_login).transpose()?;
        Client::new(&self.endpoints, tls.as_ref(), login)
            .map_err(|why| Failure::new(format!("{}: {why}", self.endpoints)))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    read_if(path, |_| Ok(()))
}

/// Reads a file, if `check` returns no error for its mode.
fn read_if(path: &Path, check: impl Fn(u32) -> Result<(), String>) -> Result<Vec<u8>, Failure> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path)?;
        check(file.metadata()?.mode() & 0o7777).map_err(io::Error::other)?;
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Reads a file with a line `USER:PASSWORD`, which other users must not be able to read.
fn read_login(path: &Path) -> Result<Login, Failure> {
    let text = read_if(path, |mode| match mode & 0o077 {
        0 => Ok(()),
        _ => Err(format!(
            "expected a file with mode 0600, got mode {mode:04o}: it has a password"
        )),
    })?;
    let failed = |why: &str| Failure::new(format!("{}: {why}", path.display()));
    let text = String::from_utf8(text).ok();
    let pair = text
        .as_deref()
        .map(|text| text.trim_end_matches(['\r', '\n']));
    let pair = pair.filter(|text| !text.contains('\n'));
    match pair.and_then(|text| text.split_once(':')) {
        Some((user, password)) if !user.is_empty() => Ok(Login {
            user: user.into(),
            password: password.into(),
        }),
        _ => Err(failed("expected one line USER:PASSWORD")),
    }
}

/// Returns the time of the clock that fences use. It runs while the host is suspended, and is the
/// same in all processes.
pub(in crate::serve) fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// The clock of this host.
struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> Duration {
        now()
    }

    /// Waits for `time`, or until the thread is unparked.
    fn sleep(&self, time: Duration) {
        std::thread::park_timeout(time);
    }
}

/// The value of the key `server`, which an active server leaves to the next one.
#[derive(Debug, Serialize, Deserialize)]
struct StoredServer {
    name: String,
    boot: u32,
    /// The fingerprint of the secret that seals file handles.
    handle_key: String,
}

impl StoredServer {
    /// Parses and checks a value. `handle_key` is the fingerprint of this server's secret.
    fn parse(value: &[u8], handle_key: &str) -> io::Result<StoredServer> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let stored: StoredServer = serde_json::from_slice(value)
            .map_err(|error| invalid(format!("key server: {error}")))?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if stored.name.is_empty() || stored.name.len() > 64 || !stored.name.chars().all(is_name) {
            return Err(invalid("key server: invalid name".into()));
        }
        if stored.handle_key != handle_key {
            return Err(invalid(OTHER_KEY.into()));
        }
        Ok(stored)
    }
}

/// The error of a server whose secret is not that of the others.
const OTHER_KEY: &str = "handle-key in the state directory differs from that of the server that was \
                         active last: file handles would become stale (copy the file)";

/// Returns the fingerprint of the secret that seals file handles. The secret cannot be derived from
/// it.
fn fingerprint(key: &HandleKey) -> String {
    let bytes = key.derive("fingerprint", &[]).number_key();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The active server: its records, and the thread that renews its lease.
pub(in crate::serve) struct ActiveServer {
    records: Records,
    fence: Arc<Fence>,
    handle_key: String,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<Active>>>,
    /// Number of sockets at which its state is served ([`super::brokered`]).
    pub(super) sockets: AtomicUsize,
}

impl ActiveServer {
    /// Waits until this server is active. Returns `None` if `stop` is set meanwhile. Fails if
    /// `key`, the secret of file handles, is not that of the other servers.
    ///
    /// `on_loss` is called once, with the reason, when the server is no longer active: it must end
    /// the process that serves.
    pub(in crate::serve) fn wait(
        settings: &Settings,
        key: &HandleKey,
        stop: &AtomicBool,
        on_loss: impl FnOnce(String) + Send + 'static,
    ) -> Result<Option<Arc<ActiveServer>>, Failure> {
        let failed =
            |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", settings.endpoints));
        let cluster = Arc::new(settings.connect()?);
        let handle_key = fingerprint(key);
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let lease = Lease {
            prefix: settings.endpoints.prefix().into(),
            ttl: settings.ttl,
            description: format!("{host}, process {}", std::process::id()),
        };
        let mut reported = None;
        let (mut refused, mut is_checked) = (None, false);
        let report = |waiting: Waiting<'_>| {
            let is_held = matches!(waiting, Waiting::Held(_));
            // Errors of members differ, and are reported once.
            let (reason, text) = match waiting {
                Waiting::Held(by) => {
                    let text = format!("standby: the active server is {by}");
                    (text.clone(), text)
                }
                Waiting::Unreachable(error) => (String::new(), format!("standby: {error}")),
            };
            if reported.as_ref() != Some(&reason) {
                tracing::info!("{}: {text}", settings.endpoints);
                service::notify(&service::ready(&text));
                reported = Some(reason);
            }
            // A wrong secret is an error now, not when this server becomes active. The first active
            // server stores the fingerprint only after it has become active.
            if is_held
                && !is_checked
                && let Ok(Some(value)) = Records::peek_server(&lease, &*cluster)
            {
                if let Err(error) = StoredServer::parse(&value, &handle_key) {
                    refused = Some(error);
                    return false;
                }
                is_checked = true;
            }
            !stop.load(Ordering::SeqCst)
        };
        let active = acquire(lease.clone(), cluster.clone(), Arc::new(HostClock), report);
        if let Some(error) = refused {
            return Err(failed(&error));
        }
        let Some(mut active) = active else {
            return Ok(None);
        };
        tracing::info!("{}: this server is active", settings.endpoints);
        let records = Records::new(&active);
        let fence = active.fence().clone();
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let hold = move || {
            if let End::Lost(why) = active.hold(&ended) {
                on_loss(why);
            }
            active
        };
        let thread = std::thread::Builder::new().name("barge-lease".into());
        let thread = thread.spawn(hold).map_err(|error| failed(&error))?;
        Ok(Some(Arc::new(ActiveServer {
            records,
            fence,
            handle_key,
            stop: end,
            thread: Mutex::new(Some(thread)),
            sockets: AtomicUsize::new(0),
        })))
    }

    /// Returns its state, for a process without barriers.
    pub(in crate::serve) fn state(self: &Arc<Self>) -> SharedState {
        SharedState {
            store: self.clone(),
            fence: self.fence.clone(),
        }
    }

    pub(super) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// Lets another server become active at once. The processes that serve must have ended.
    pub(in crate::serve) fn release(&self) {
        self.stop.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        thread.thread().unpark();
        if let Ok(active) = thread.join()
            && let Err(error) = active.release()
        {
            tracing::warn!("etcd: a standby server waits until the lease has expired: {error}");
        }
    }
}

fn list_name(list: RecordList) -> &'static str {
    match list {
        RecordList::Clients => "clients",
        RecordList::Monitored => "monitored",
    }
}

impl StateStore for ActiveServer {
    fn begin(&self) -> io::Result<Boot> {
        let stored = self.records.server()?;
        let stored = stored.map(|value| StoredServer::parse(&value, &self.handle_key));
        let (name, last) = match stored.transpose()? {
            Some(stored) => (stored.name, stored.boot),
            None => (new_name(), 0),
        };
        let next = StoredServer {
            boot: next_boot(last),
            handle_key: self.handle_key.clone(),
            name,
        };
        self.records.set_server(&serde_json::to_vec(&next)?)?;
        Ok(Boot {
            name: next.name,
            number: next.boot,
        })
    }

    fn list(&self, list: RecordList) -> io::Result<Vec<Box<[u8]>>> {
        self.records.list(list_name(list))
    }

    fn put(&self, list: RecordList, record: &[u8]) -> io::Result<()> {
        self.records.put(list_name(list), record)
    }

    fn remove(&self, list: RecordList, record: &[u8]) -> io::Result<()> {
        self.records.remove(list_name(list), record)
    }

    fn is_shared(&self) -> bool {
        true
    }
}
