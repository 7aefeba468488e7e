//! Opens shares: sources with their layers, as exports.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use hostdir::HostDir;
use layers::disk_quota::DiskLimits;
use layers::gate::AccessPolicy;
use layers::limit::Timer;
use layers::squash::SquashMode;
use layers::{Admission, Clients, DiskQuota, Gate, Hide, Limiter, ReadOnly};
use parking_lot::Mutex;
use remote::ClientOwner;
use serde::{Deserialize, Serialize};
use vfs::source_stats::RemoteCounters;
use vfs::{Call, Caller, Cx, Export, FileSystem, HandleKey, Support};

use super::agent::AgentShares;
use super::awaited::{AwaitedTree, SourceOpener};
use super::handle_key;
use super::host::Host;
use super::project_quota;
use super::recovery::{ServerIdentity, handle_index_file};
use super::share::{Share, Sources};
use crate::call_log::CallLogFile;
use crate::read_trace::TraceFile;
use crate::source::Source;
use crate::stack::{Access, Stack};
use crate::{Failure, status};

/// Minimum number of shares to divide descriptors by if a configuration file can add shares.
const MIN_SHARES: usize = 16;

/// Opens shares with the options that all of them have in common.
pub(super) struct Opener {
    /// The identity of this server in its state directory.
    server_identity: Option<ServerIdentity>,
    /// The secret that the keys for sealed handles derive from; only with an identity.
    secret: Option<HandleKey>,
    /// The secret of a server without a stored one.
    temporary: HandleKey,
    call_log: Option<CallLogFile>,
    kernel_handles: bool,
    /// Descriptors per source.
    descriptors: usize,
    /// Whether the terms of a share may change.
    gated: bool,
    /// Whether clients may connect over sockets, and not only as devices.
    connected: bool,
    /// The group whose members may connect to Unix sockets.
    socket_group: Option<u32>,
    /// Whether calls of sources on other servers are counted.
    counts: bool,
    /// Admits requests that wait for a limit of their share.
    timer: Arc<Timer>,
    /// The shares whose changes agents may repeat, if there are agents.
    agents: Option<Arc<AgentShares>>,
    clients: ClientOwners,
    source_opener: SourceOpener,
}

/// The names of shares as clients of their servers, by share. They derive from a secret that a
/// process gets which replaces this one after a crash or an upgrade: the other servers then give up
/// at once what they have stored for this one.
#[derive(Default)]
struct ClientOwners(Mutex<HashMap<String, Vec<ClientOwner>>>);

impl ClientOwners {
    /// Returns a name for the share `share` that no open source has. A share that was removed may
    /// still be in use when another one gets its name.
    fn get(&self, share: &str, secret: &HandleKey) -> ClientOwner {
        let mut all = self.0.lock();
        all.retain(|name, owners| name == share || owners.iter().any(ClientOwner::is_shared));
        let owners = all.entry(share.to_owned()).or_default();
        if let Some(free) = owners.iter().find(|owner| !owner.is_shared()) {
            return free.clone();
        }
        let number = (owners.len() as u64).to_le_bytes();
        let id = secret.derive("client owner", &[share.as_bytes(), &number]);
        let owner = ClientOwner::with_id(u128::from_le_bytes(id.number_key()));
        owners.push(owner.clone());
        owner
    }
}

/// The demands of the endpoints and the engine on the exports.
pub(super) struct ExportRequirements {
    /// The identity of the server, if an endpoint has one.
    pub(super) identity: Option<ServerIdentity>,
    /// Whether clients may connect over sockets, and not only as devices.
    pub(super) connected: bool,
    /// Whether an endpoint serves image files as disks.
    pub(super) images: bool,
    /// Maximum number of connections.
    pub(super) connections: usize,
    /// Whether calls of sources on other servers are counted, for the status page.
    pub(super) counts: bool,
    /// Whether agents in guests may repeat changes.
    pub(super) agents: bool,
}

/// A share whose source is being opened.
pub(super) struct OpeningShare {
    name: String,
    tree: Arc<AwaitedTree>,
    /// The source as it is observed once it is open.
    observed: Arc<Mutex<Option<status::ObservedSource>>>,
    source: String,
    fd_passing: bool,
    gate: Option<Arc<Gate>>,
    limiter: Option<Arc<Limiter>>,
    trace: Option<Arc<TraceFile>>,
}

/// A share that was served before its source was open.
pub(super) struct AwaitedShare {
    tree: Arc<AwaitedTree>,
    observed: Arc<Mutex<Option<status::ObservedSource>>>,
}

impl AwaitedShare {
    /// Returns the reason why the source is not open, or `None` if it is.
    pub(super) fn problem(&self) -> Option<String> {
        self.tree.problem()
    }

    /// Returns whether the last attempt to open the source has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.tree.has_failed()
    }

    /// Calls `notify` with the source as it is observed once it is open.
    pub(super) fn on_open(&self, notify: impl FnOnce(status::ObservedSource) + Send + 'static) {
        let observed = self.observed.clone();
        self.tree.on_open(move || {
            let opened = observed.lock().take();
            if let Some(opened) = opened {
                notify(opened);
            }
        });
    }

    /// Ends the attempts to open the source: the share has ended.
    pub(super) fn end(&self) {
        self.tree.end();
    }
}

/// The fate of a share whose source cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Unopened {
    /// The change that adds it fails.
    Refused,
    /// It is served all the same ([`AwaitedTree`]).
    Awaited,
}

/// A share that is served.
pub(super) struct OpenedShare {
    pub(super) export: Arc<Export>,
    /// Its source, if that was not open when it was first served.
    pub(super) awaited: Option<Arc<AwaitedShare>>,
    /// The gate with the terms, if they may change.
    pub(super) gate: Option<Arc<Gate>>,
    /// The limits, if there are any or they may change.
    pub(super) limiter: Option<Arc<Limiter>>,
    /// The source as it was opened, before layers, for the status page.
    pub(super) unlayered: status::ObservedSource,
    /// The read trace, if one is written.
    pub(super) trace: Option<Arc<TraceFile>>,
}

impl Opener {
    /// Prepares to open `sources`.
    pub(super) fn new(
        sources: &Sources,
        demands: ExportRequirements,
        call_log: Option<CallLogFile>,
        host: &Host,
    ) -> Result<Opener, Failure> {
        let temporary = host.temporary_key()?;
        let secret = match &demands.identity {
            Some(identity) => Some(handle_key::server_key(identity, &temporary)?),
            None => None,
        };
        let gated = sources.reloadable;
        let shares = match gated {
            true => sources.shares.len().max(MIN_SHARES),
            false => sources.shares.len().max(1),
        };
        // A connection uses one descriptor, and another one while requests wait.
        let all = usize::try_from(sys::limits::descriptors()).unwrap_or(usize::MAX);
        let connections = demands.connections.min(all / 2);
        let descriptors = (all / 4 * 3).min(all - connections);
        Ok(Opener {
            server_identity: demands.identity,
            secret,
            temporary,
            call_log,
            kernel_handles: sources.kernel_handles,
            descriptors: descriptors / shares,
            gated,
            connected: demands.connected,
            socket_group: sources.socket_group,
            counts: demands.counts,
            timer: Timer::new(),
            agents: demands.agents.then(Arc::default),
            clients: ClientOwners::default(),
            source_opener: SourceOpener::new(),
        })
    }

    /// Returns the shares whose changes agents may repeat, if there are agents.
    pub(super) fn agents(&self) -> Option<&Arc<AgentShares>> {
        self.agents.as_ref()
    }

    /// Begins to open `share` under `name` for `clients`, or for all clients. Its read trace is a
    /// file of `host`.
    pub(super) fn begin(
        self: &Arc<Self>,
        name: &str,
        share: &Share,
        clients: Option<&Arc<Clients>>,
        host: &Host,
    ) -> Result<OpeningShare, Failure> {
        let trace = share.read_trace.as_deref();
        let trace = trace.map(|path| TraceFile::new(path, host.create(path)));
        let trace = trace.transpose()?;
        let limiter = self.limiter(share);
        let terms = self.terms(share, clients);
        let gate = self.gated.then(|| Arc::new(Gate::new(terms.clone())));
        let observed = Arc::<Mutex<Option<status::ObservedSource>>>::default();
        let opening = OpeningSource {
            opener: self.clone(),
            name: name.to_owned(),
            share: Mutex::new(share.clone()),
            host: host.clone(),
            terms,
            gate: gate.clone(),
            limiter: limiter.clone(),
            trace: trace.clone(),
        };
        let opened = observed.clone();
        let open = move || {
            let (tree, observed) = opening.open()?;
            *opened.lock() = Some(observed);
            Ok(tree)
        };
        Ok(OpeningShare {
            name: name.to_owned(),
            tree: self.source_opener.begin(name, Box::new(open)),
            observed,
            source: share.named.source.shown().to_string(),
            fd_passing: share.fd_passing,
            gate,
            limiter,
            trace,
        })
    }

    /// Begins to open the image that `share` is, as a file: the disk `name` for `clients`, or for
    /// all clients.
    pub(super) fn begin_image(
        self: &Arc<Self>,
        name: &str,
        share: &Share,
        clients: Option<&Arc<Clients>>,
        limiter: Option<Arc<Limiter>>,
    ) -> Arc<AwaitedTree> {
        let terms = self.terms(share, clients);
        let gate = self.gated.then(|| Arc::new(Gate::new(terms.clone())));
        let (opener, share) = (self.clone(), share.clone());
        let open = move || {
            let source = &share.named.source;
            let here = share.source_here();
            let image = here.tree().and_then(sources::Source::image);
            let image = image
                .ok_or_else(|| Failure::new(format!("{}: expected an image", source.shown())))?;
            let opened = image
                .file()
                .and_then(|(file, _)| HostDir::open(file, sources::local_options()));
            let file = opened.map_err(|error| source.failed(&error))?;
            let access = opener.access(gate.as_ref(), &terms);
            let stack = shared_layers(&share, access, limiter.clone());
            stack.wrap(layers::stack(file, ReadOnly))
        };
        self.source_opener.begin(name, Box::new(open))
    }

    /// Returns the limits of `share`, if there are any or they may change.
    fn limiter(&self, share: &Share) -> Option<Arc<Limiter>> {
        if !self.gated && share.limits.is_unlimited() {
            return None;
        }
        let start = Instant::now();
        let clock = Arc::new(move || start.elapsed());
        Some(Limiter::new(share.limits, clock, self.timer.clone()))
    }

    /// Returns the terms of a share. With a list of clients, the list instead of the default says
    /// for each client whether its super-user is squashed.
    pub(super) fn terms(&self, share: &Share, clients: Option<&Arc<Clients>>) -> AccessPolicy {
        let AccessPolicy {
            mut squash,
            read_only,
            ref admission,
        } = share.access;
        if clients.is_some() && squash.mode == SquashMode::RemoteRoot {
            squash.mode = SquashMode::None;
        }
        let users = admission.users().clone();
        AccessPolicy {
            squash,
            read_only,
            admission: Arc::new(Admission::new(clients.cloned(), users, self.socket_group)),
        }
    }

    /// Returns the policy of access of a share with these `terms`, which may change if it has a
    /// gate.
    fn access(&self, gate: Option<&Arc<Gate>>, terms: &AccessPolicy) -> Access {
        match gate {
            Some(gate) => Access::Gated(gate.clone()),
            None => Access::Fixed {
                terms: terms.clone(),
                connected: self.connected,
            },
        }
    }
}

/// Returns the layers of everything that clients of `share` can access.
fn shared_layers(share: &Share, access: Access, limiter: Option<Arc<Limiter>>) -> Stack<'_> {
    Stack {
        ids: &share.ids,
        xattrs: share.xattrs.as_ref(),
        access,
        log_requests: true,
        limiter,
        ..Stack::default()
    }
}

/// A share whose source is to be opened.
struct OpeningSource {
    opener: Arc<Opener>,
    name: String,
    share: Mutex<Share>,
    host: Host,
    terms: AccessPolicy,
    gate: Option<Arc<Gate>>,
    limiter: Option<Arc<Limiter>>,
    trace: Option<Arc<TraceFile>>,
}

impl OpeningSource {
    /// Opens the source, with its layers.
    fn open(&self) -> Result<(Arc<dyn FileSystem>, status::ObservedSource), Failure> {
        let share = {
            let mut share = self.share.lock();
            if share.released {
                let again = format!("`barge ctl reopen {}` serves it again", self.name);
                return Err(Failure::new(format!("released: {again}")));
            }
            self.host.find_missing_objects(&mut share)?;
            share.clone()
        };
        let (opener, name, source) = (&self.opener, &*self.name, &share.named.source);
        let names = match (source, &opener.server_identity) {
            (Source::Tree(sources::Source::HostDir(_)), Some(identity)) => {
                handle_index_file(identity, name)
            }
            _ => None,
        };
        let secret = opener.secret.as_ref();
        let hidden = (!share.hidden.is_empty()).then(|| Hide::new(share.hidden.clone()));
        // Other rules make handles stale that they may hide.
        let key = secret.map(|secret| match &hidden {
            Some(hidden) => secret.derive("export", &[name.as_bytes(), &hidden.digest()]),
            None => secret.derive("export", &[name.as_bytes()]),
        });
        // Without NFS, only the state of a session for another process has handles. Files that
        // rules hide are out of reach because nobody can make a handle of them.
        let own_key = hidden.as_ref().map(|hidden| {
            let parts: [&[u8]; 2] = [name.as_bytes(), &hidden.digest()];
            opener.temporary.derive("export", &parts)
        });
        let options = hostdir::Options {
            descriptors: Some(opener.descriptors),
            key: key.clone().or(own_key),
            public_handle_key: key.is_none() && hidden.is_none(),
            shown_path: shown_path(source),
            ..share.hostdir.clone()
        };
        let mut client = share.source_here();
        if let Source::Tree(sources::Source::Remote(url)) = &mut client
            && let Some(owner) = url.client_owner()
        {
            *owner = Some(opener.clients.get(name, &opener.temporary));
        }
        let opened = source.open_at(
            &client,
            hostdir::Options {
                handle_index: names,
                ..options.clone()
            },
        )?;
        if opener.kernel_handles && opened.capabilities().handles != Support::Native {
            return Err(Failure::usage(format!(
                "{}: expected a file system with handles and CAP_DAC_READ_SEARCH, as handles are mandatory",
                source.shown()
            )));
        }
        let is_remote = matches!(source, Source::Tree(sources::Source::Remote(_)));
        let remote = (opener.counts && is_remote).then(Arc::<RemoteCounters>::default);
        let quota = match share.quota {
            limits if limits == DiskLimits::default() => None,
            limits => Some(open_quota(&*opened, source, name, limits)?),
        };
        let observed = status::ObservedSource {
            quota: quota.clone(),
            remote: remote.clone(),
            ..observed(
                name,
                &source.shown().to_string(),
                opened.clone(),
                self.limiter.clone(),
            )
        };
        let overlay = share.overlay.clone();
        // Directories seal their handles themselves.
        let seals =
            overlay.is_some() || matches!(source, Source::Tree(sources::Source::HostDir(_)));
        let access = opener.access(self.gate.as_ref(), &self.terms);
        let stack = Stack {
            remote,
            read_trace: self.trace.clone(),
            overlay: overlay.map(|dir| {
                let here = share.path_here(&dir);
                let shown_path = Some(dir);
                (
                    here,
                    hostdir::Options {
                        shown_path,
                        ..options
                    },
                )
            }),
            quota: quota.and_then(|quota| quota.counted),
            hidden,
            seal: key.filter(|_| !seals),
            call_log: opener.call_log.clone().map(|log| (log, name)),
            agents: opener.agents.as_deref().map(|shares| (shares, name)),
            ..shared_layers(&share, access, self.limiter.clone())
        };
        Ok((stack.wrap(opened)?, observed))
    }
}

/// Returns `fs`, the tree of the share `name`, as the status page observes it.
fn observed(
    name: &str,
    source: &str,
    fs: Arc<dyn FileSystem>,
    limiter: Option<Arc<Limiter>>,
) -> status::ObservedSource {
    status::ObservedSource {
        name: name.to_owned(),
        source: source.to_owned(),
        fs,
        problem: None,
        pages: None,
        files: None,
        remote: None,
        limiter,
        quota: None,
    }
}

impl OpeningShare {
    /// Waits until `deadline` for the source to open. Returns the failure if it does not.
    pub(super) fn wait(&self, deadline: Instant) -> Result<(), Option<Failure>> {
        self.tree.wait(deadline).map(drop)
    }

    /// Returns the share, whose source has opened or is awaited.
    pub(super) fn serve(self) -> OpenedShare {
        let opened = self.tree.wait(Instant::now()).ok();
        let opened = opened.and_then(|fs| Some((fs, self.observed.lock().take()?)));
        let (fs, unlayered, awaited) = match opened {
            Some((fs, unlayered)) => (fs, unlayered, None),
            None => {
                let fs: Arc<dyn FileSystem> = self.tree.clone();
                let tree = self.tree.clone();
                if let Some(why) = tree.problem() {
                    tree.report(&why);
                }
                let unlayered = status::ObservedSource {
                    problem: Some(Box::new(move || tree.problem())),
                    ..observed(&self.name, &self.source, fs.clone(), self.limiter.clone())
                };
                let awaited = AwaitedShare {
                    tree: self.tree.clone(),
                    observed: self.observed,
                };
                (fs, unlayered, Some(Arc::new(awaited)))
            }
        };
        let export = Export::new(self.name, fs).with_fd_passing(self.fd_passing);
        OpenedShare {
            export: Arc::new(export.with_local_locks_warning(warn_of_local_locks)),
            awaited,
            gate: self.gate,
            limiter: self.limiter,
            unlayered,
            trace: self.trace,
        }
    }
}

/// Returns the path of the directory that `source` is, for messages.
fn shown_path(source: &Source) -> Option<PathBuf> {
    match source {
        Source::Tree(sources::Source::HostDir(path)) => Some(path.clone()),
        _ => None,
    }
}

/// The file systems whose `st_blocks` has the space of data as soon as it is written: ext4, XFS,
/// btrfs, F2FS, tmpfs and overlayfs (`include/uapi/linux/magic.h`). ZFS and NFS count it later.
const COUNTABLE: [u32; 6] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x0102_1994,
    0x794c_7630,
];

/// Returns the quota of the share `name`, whose source `source` is opened as `fs`. Counts the share
/// unless the kernel enforces the limits.
fn open_quota(
    fs: &dyn FileSystem,
    source: &Source,
    name: &str,
    limits: DiskLimits,
) -> Result<status::ObservedQuota, Failure> {
    let failed = |errno| Failure::new(format!("quota of '{name}': {errno}"));
    let start = Instant::now();
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let stat = fs.root(&cx).and_then(|root| root.statfs(&cx));
    let stat = stat.map_err(failed)?;
    if project_quota::is_in_force(limits, &stat) {
        return Ok(status::ObservedQuota {
            limits,
            counted: None,
        });
    }
    let is_local = matches!(
        source,
        Source::Tree(sources::Source::HostDir(_) | sources::Source::Memory)
    );
    if !is_local || !COUNTABLE.contains(&stat.magic) {
        return Err(Failure::new(format!(
            "quota of '{name}': expected a directory on ext4, XFS, btrfs, F2FS, tmpfs or \
             overlayfs, whose blocks can be counted, got {} on a file system of type {:#x}",
            source.shown(),
            stat.magic
        )));
    }
    let quota = DiskQuota::new(fs, limits).map_err(failed)?;
    let used = quota.used();
    tracing::info!(
        "quota of '{name}': {} bytes and {} files are used, counted in {:.1} s",
        used.bytes,
        used.inodes,
        start.elapsed().as_secs_f64()
    );
    Ok(status::ObservedQuota {
        limits,
        counted: Some(Arc::new(quota)),
    })
}

/// Warns that clients of a share do not see each other's locks.
pub(super) fn warn_of_local_locks(share: &str) {
    tracing::warn!(
        share,
        "locks of virtiofs guests stay in each guest, and the share has another client: with \
         --virtiofs-locks=shared they are shared"
    );
}
