//! The running set: the shares and endpoints that a server serves, and their changes.
//!
//! A configuration file that was edited and requests at the control socket become the same
//! [`Change`]. A share stays the same while its name, its source and its opening options do: then
//! its terms change in place ([`layers::Gate`]) without its clients noticing. Other shares end or
//! begin: all calls through a closed gate return `ESTALE`. The devices of a share end with it.
//!
//! Addresses of NFS and of the status page, and referrals, do not change while the server runs.
//! They take a restart, which is logged.
//!
//! Lock order: changes, then the defaults of shares or the state. These are locked for short times
//! only, and no client is called meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::Engine;
use layers::gate::AccessPolicy;
use layers::limit::{LimitStats, Limits, Rates};
use layers::{Bundle, Gate, Limiter};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vfs::Export;

use super::args::access::ClientList;
use super::awaited;
use super::control::Removed;
use super::endpoint::{BindContext, Endpoint, EndpointEntry, State};
use super::exports::{self, Catalog, Exports};
use super::host::Host;
use super::opener::{AwaitedShare, OpenedShare, Opener, OpeningShare, Unopened};
use super::plan::Plan;
use super::share::{Share, Sources};
use crate::Failure;
use crate::config::{Config, Setting};
use crate::read_trace::TraceFile;
use crate::source::Source;
use crate::status::{Figures, ObservedSources, Serving};

/// The running set of a process.
pub(super) struct LiveServer {
    engine: Arc<Engine>,
    host: Host,
    figures: Arc<dyn Figures>,
    default: Arc<Export>,
    /// The tree of all shares, or `None` if the only share has no name and is itself the root.
    bundle: Option<Arc<Bundle>>,
    opener: Arc<Opener>,
    sources: Arc<ObservedSources>,
    /// The configuration at the start, which stays in force for everything but shares and their
    /// endpoints; `None` if nothing but certificates can change.
    config: Option<Config>,
    /// The same with the defaults of shares of the last reload.
    defaults: Mutex<Option<Config>>,
    /// Held during a change.
    changing: Mutex<()>,
    state: Mutex<RunningSet>,
}

#[derive(Default)]
struct RunningSet {
    shares: Vec<LiveShare>,
    endpoints: Vec<LiveEndpoint>,
}

#[derive(Clone)]
struct LiveShare {
    opening_settings: Vec<Setting>,
    source: String,
    export: Arc<Export>,
    /// The gate, if shares can change.
    gate: Option<Arc<Gate>>,
    /// The limits, if there are any or shares can change.
    limiter: Option<Arc<Limiter>>,
    /// Its source, if that was not open when it was first served.
    awaited: Option<Arc<AwaitedShare>>,
    clients: Option<ClientList>,
    /// The read trace of an added share, if one is written.
    trace: Option<Arc<TraceFile>>,
    state: State,
}

#[derive(Clone)]
struct LiveEndpoint {
    endpoint: Arc<dyn Endpoint>,
    state: State,
}

/// A share in a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShareEntry {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) state: State,
    /// The reason why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// The shares and endpoints of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listing {
    pub(super) shares: Vec<ShareEntry>,
    pub(super) endpoints: Vec<EndpointEntry>,
}

/// A request to the process that serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum LiveRequest {
    List,
    /// Adds shares and endpoints.
    Add {
        addition: Config,
    },
    /// Accepts no more clients of a share or endpoint, and waits until its requests are answered,
    /// or for `timeout`.
    Drain {
        target: Target,
        timeout: Duration,
    },
    /// Removes a share or endpoint; with `drained`, only if it is still being drained.
    Remove {
        target: Target,
        drained: bool,
    },
    /// Reads certificates again, and makes `config` the configuration if there is one.
    Reload {
        config: Option<Config>,
        /// The fate of its new shares whose sources cannot be opened.
        unopened: Unopened,
    },
    Clients,
    /// Closes the connection with this number.
    Disconnect {
        client: u64,
    },
    /// Releases what is cached of this share, or of all.
    Evict {
        share: Option<String>,
    },
    /// Returns the limits of a share, or of all.
    Limits {
        share: Option<String>,
    },
    /// Replaces the limits of a share, in the syntax of their options; those that are `None` stay.
    SetLimits {
        share: String,
        limit: Option<String>,
        client_limit: Option<String>,
    },
    Debug,
}

/// A share or an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Target {
    /// The share with this name.
    Share(String),
    /// The endpoints at this address.
    Endpoint(String),
}

/// An error of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveError {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

/// The result of reading the configuration again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReloadResult {
    Reloaded,
    /// The previous configuration stays.
    Invalid,
    /// The process that serves did not answer in time; the reload may happen later.
    Unknown,
}

impl ReloadResult {
    /// Returns that of a request to reload.
    pub(super) fn of<T>(reloaded: &Result<T, LiveError>) -> ReloadResult {
        match reloaded.as_ref().map_err(|error| error.code) {
            Ok(_) => ReloadResult::Reloaded,
            Err(ErrorCode::Timeout) => ReloadResult::Unknown,
            Err(_) => ReloadResult::Invalid,
        }
    }

    /// Returns the status for the service manager.
    pub(super) fn status(self) -> &'static str {
        match self {
            ReloadResult::Reloaded => "ready",
            ReloadResult::Invalid => "invalid configuration: keeping the previous one",
            ReloadResult::Unknown => "reading the configuration takes long",
        }
    }
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ErrorCode {
    /// The line is no request.
    InvalidRequest,
    /// The version of the request is unknown.
    UnsupportedVersion,
    UnknownMethod,
    InvalidParams,
    /// A share or endpoint of that name exists.
    Exists,
    NotFound,
    /// The change takes a restart.
    RestartRequired,
    /// The operation failed.
    Failed,
    /// The user of the client is neither that of the server nor root.
    Denied,
    /// A limit is reached.
    Busy,
    /// The process that serves did not answer in time; the change may happen later.
    Timeout,
}

impl LiveError {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> LiveError {
        LiveError {
            code,
            message: message.into(),
        }
    }

    /// Returns the error of an operation that failed.
    pub(super) fn failed(failure: Failure) -> LiveError {
        LiveError::new(ErrorCode::Failed, failure.message)
    }
}

/// A share to open.
struct NewShare<'a> {
    name: &'a str,
    share: &'a Share,
    opening_settings: Vec<Setting>,
    clients: Option<ClientList>,
}

/// The terms of a share that stays.
struct NewTerms {
    export: Arc<Export>,
    access: AccessPolicy,
    clients: Option<ClientList>,
    limits: Limits,
}

/// A change of the running set.
#[derive(Default)]
struct Change<'a> {
    added_shares: Vec<NewShare<'a>>,
    removed_shares: Vec<Arc<Export>>,
    /// Terms of shares that stay.
    terms: Vec<NewTerms>,
    added_endpoints: Vec<Box<dyn Endpoint>>,
    removed_endpoints: Vec<Arc<dyn Endpoint>>,
    /// The order of all shares by name; additions come last without it.
    order: Option<Vec<String>>,
}

/// Time for the requests of a device to end when its socket is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which a drain looks for requests in flight.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);

impl LiveServer {
    /// Takes over `exports` and `endpoints`, which have started.
    pub(super) fn new(
        engine: Arc<Engine>,
        host: Host,
        figures: Arc<dyn Figures>,
        plan: &Plan,
        exports: &Exports,
        endpoints: Vec<Box<dyn Endpoint>>,
    ) -> LiveServer {
        let config = plan.changeable_config().cloned();
        let configured = config.iter().flat_map(|config| {
            let shares = config.shares().iter();
            shares.map(|share| config.opening_settings(share))
        });
        let settings = configured.chain(std::iter::repeat(Vec::new()));
        let changeable = exports.gates.iter().zip(&exports.limiters);
        let opened = exports.shares.iter().zip(changeable).zip(&exports.awaited);
        let shares = opened.zip(&plan.sources.shares).zip(settings);
        let shares = shares.map(
            |((((export, changeable), awaited), share), opening_settings)| LiveShare {
                opening_settings,
                source: share.named.source.shown().to_string(),
                export: export.clone(),
                gate: changeable.0.clone(),
                limiter: changeable.1.clone(),
                awaited: awaited.clone(),
                clients: list_of(&plan.sources.client_lists, &export.name),
                trace: None,
                state: State::Serving,
            },
        );
        let state = RunningSet {
            shares: shares.collect(),
            endpoints: endpoints.into_iter().map(LiveEndpoint::new).collect(),
        };
        for share in &state.shares {
            observe_once_open(&exports.sources, share);
        }
        LiveServer {
            engine,
            host,
            figures,
            default: exports.default.clone(),
            bundle: exports.bundle.clone(),
            opener: exports.opener.clone(),
            sources: exports.sources.clone(),
            defaults: Mutex::new(config.clone()),
            config,
            changing: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn figures(&self) -> &Arc<dyn Figures> {
        &self.figures
    }

    /// Returns whether shares and endpoints can change.
    pub(super) fn can_change(&self) -> bool {
        self.config.is_some()
    }

    /// Returns whether further clients are accepted: not if all shares, or all endpoints of
    /// clients, are being drained. A server without shares or endpoints waits for requests to add
    /// some.
    pub(super) fn serving(&self) -> Serving {
        let Listing { shares, endpoints } = self.listing();
        let is_of_clients = |one: &&EndpointEntry| !["http", "agent"].contains(&&*one.protocol);
        let endpoints: Vec<_> = endpoints.iter().filter(is_of_clients).collect();
        let shares_drain = shares.iter().all(|it| it.state == State::Draining);
        let endpoints_drain = endpoints.iter().all(|it| it.state == State::Draining);
        match !shares.is_empty() && shares_drain || !endpoints.is_empty() && endpoints_drain {
            true => Serving::Draining,
            false => Serving::Accepting,
        }
    }

    /// Returns whether [`LiveServer::reload`] has any effect.
    pub(super) fn is_reloadable(&self) -> bool {
        let mut endpoints = self.endpoints().into_iter();
        self.can_change() || endpoints.any(|one| one.endpoint.is_reloadable())
    }

    /// Stops the server. The connections that can continue in another process stay open.
    pub(super) fn hand_over(&self) {
        self.engine.hand_over();
    }

    /// Reads certificates again, and makes `config` the configuration if there is one.
    fn reload(&self, config: Option<Config>, unopened: Unopened) -> Result<(), Failure> {
        for one in &self.endpoints() {
            one.endpoint.reload();
        }
        if let Some(config) = config {
            self.replace(config, unopened)?;
            tracing::info!("configuration reloaded");
        }
        Ok(())
    }

    /// Carries out a request.
    pub(super) fn handle(&self, request: LiveRequest) -> Result<Value, LiveError> {
        match request {
            LiveRequest::List => Ok(json!(self.listing())),
            LiveRequest::Add { addition } => self.add(&addition),
            LiveRequest::Drain { target, timeout } => self.drain(&target, timeout),
            LiveRequest::Remove { target, drained } => self.remove(&target, drained),
            LiveRequest::Reload { config, unopened } => {
                let reloaded = self.reload(config, unopened);
                reloaded.map_or_else(|why| Err(LiveError::failed(why)), |()| Ok(json!({})))
            }
            LiveRequest::Clients => Ok(self.clients()),
            LiveRequest::Disconnect { client } => {
                match self.engine.disconnect(|connection| connection.id == client) {
                    0 => Err(LiveError::new(
                        ErrorCode::NotFound,
                        format!("expected the number of a client, got {client}"),
                    )),
                    _ => Ok(json!({})),
                }
            }
            LiveRequest::Evict { share } => self.evict(share.as_deref()),
            LiveRequest::Limits { share } => self.limits(share.as_deref()),
            LiveRequest::SetLimits {
                share,
                limit,
                client_limit,
            } => self.set_limits(&share, limit.as_deref(), client_limit.as_deref()),
            LiveRequest::Debug => Ok(json!({
                "process": std::process::id(),
                "limits": engine_limits(&self.engine),
                "status": self.figures.status(),
                "checks": self.figures.checks(true),
                "failed_listeners": self.engine.failed_listeners(),
            })),
        }
    }

    /// Returns the shares and endpoints.
    pub(super) fn listing(&self) -> Listing {
        let state = self.state.lock();
        let catalog = CatalogParts::of(&state.shares);
        let catalog = catalog.catalog(&self.default);
        let endpoints = state.endpoints.iter().flat_map(|one| {
            let entries = one.endpoint.entries(&catalog).into_iter();
            entries.map(|entry| EndpointEntry {
                state: one.state,
                ..entry
            })
        });
        let endpoints = endpoints.collect();
        let shares = state.shares.iter().map(LiveShare::entry);
        Listing {
            shares: shares.collect(),
            endpoints,
        }
    }

    /// Releases what is cached of the share `name`, or of all shares.
    fn evict(&self, name: Option<&str>) -> Result<Value, LiveError> {
        let evicted = self.sources.evict(name);
        if let (Some(name), true) = (name, evicted.is_empty()) {
            return Err(no_share(name));
        }
        let shares = evicted.into_iter().map(|(name, evicted)| {
            json!({
                "name": name,
                "memory_bytes": evicted.memory,
                "disk_bytes": evicted.disk,
                "descriptors": evicted.descriptors,
            })
        });
        Ok(json!({ "shares": shares.collect::<Vec<_>>() }))
    }

    fn clients(&self) -> Value {
        let connections = self.engine.open_connections().into_iter().map(|it| {
            json!({
                "id": it.id,
                "address": it.peer,
                "endpoint": it.listener,
                "protocol": it.protocol,
                "version": it.client.version,
                "user": it.client.user,
                "age": it.age.as_secs_f64(),
                "requests": it.requests,
                "in_flight": it.in_flight,
            })
        });
        json!({ "clients": connections.collect::<Vec<_>>() })
    }

    /// Returns the limits of the share called `name`, or of all shares, and their figures.
    fn limits(&self, name: Option<&str>) -> Result<Value, LiveError> {
        let state = self.state.lock();
        let is_selected = |share: &&LiveShare| name.is_none_or(|name| share.export.name == name);
        let shares: Vec<_> = state.shares.iter().filter(is_selected).collect();
        match name {
            Some(name) if shares.is_empty() => Err(no_share(name)),
            _ => Ok(json!({ "shares": shares.iter().map(|it| it.limits()).collect::<Vec<_>>() })),
        }
    }

    /// Replaces limits of the share called `name`.
    fn set_limits(
        &self,
        name: &str,
        limit: Option<&str>,
        client_limit: Option<&str>,
    ) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let rates = |text: Option<&str>, old: Rates| match text {
            None => Ok(old),
            Some(text) => {
                let parsed = text.parse::<Rates>();
                parsed.map_err(|why| LiveError::new(ErrorCode::InvalidParams, why.to_string()))
            }
        };
        let state = self.state.lock();
        let share = state.shares.iter().find(|it| it.export.name == name);
        let share = share.ok_or_else(|| no_share(name))?.clone();
        drop(state);
        let Some(limiter) = &share.limiter else {
            let message = "the shares of this server cannot change";
            return Err(LiveError::new(ErrorCode::RestartRequired, message));
        };
        let old = limiter.limits();
        let limits = Limits {
            share: rates(limit, old.share)?,
            client: rates(client_limit, old.client)?,
        };
        limiter.set(limits);
        let Limits { share: all, client } = limits;
        tracing::info!(share = name, limit = %all, client_limit = %client, "changed the limits");
        Ok(share.limits())
    }

    /// Drops all shares and endpoints, and then writes the read traces of shares that were added.
    pub(super) fn end(&self) -> Result<(), Failure> {
        let ended = std::mem::take(&mut *self.state.lock());
        let traces: Vec<_> = ended
            .shares
            .iter()
            .filter_map(|it| it.trace.clone())
            .collect();
        drop(ended);
        traces.iter().try_for_each(|trace| trace.finish())
    }

    fn endpoints(&self) -> Vec<LiveEndpoint> {
        self.state.lock().endpoints.clone()
    }

    /// Makes the shares and endpoints of `config` the running set. On failure the previous state
    /// stays.
    fn replace(&self, config: Config, unopened: Unopened) -> Result<(), Failure> {
        let _changing = self.changing.lock();
        let mut plan = Plan::of_settings(&config)?;
        self.host.limit(&mut plan);
        self.host.find_objects(&mut plan);
        let names = exports::check(&plan.sources)?;
        let restart = self.changes_requiring_restart(&config);
        let (shares, endpoints) = {
            let state = self.state.lock();
            (state.shares.clone(), state.endpoints.clone())
        };
        let mut change = Change {
            order: Some(names.clone()),
            ..Change::default()
        };
        let served: HashMap<_, _> = shares.iter().map(|it| (&it.export.name, it)).collect();
        let mut stay = HashSet::new();
        for ((name, share), configured) in
            names.iter().zip(&plan.sources.shares).zip(config.shares())
        {
            let opening_settings = config.opening_settings(configured);
            let clients = list_of(&plan.sources.client_lists, name);
            let served = served.get(name);
            match served.filter(|it| it.opening_settings == opening_settings) {
                Some(served) => {
                    stay.insert(name.clone());
                    let terms = self
                        .opener
                        .terms(share, clients.as_ref().map(|list| &list.clients));
                    change.terms.push(NewTerms {
                        export: served.export.clone(),
                        access: terms,
                        clients,
                        limits: share.limits,
                    });
                }
                None => change.added_shares.push(NewShare {
                    name,
                    share,
                    opening_settings,
                    clients,
                }),
            }
        }
        let removed = shares.iter().filter(|it| !stay.contains(&it.export.name));
        change.removed_shares = removed.map(|share| share.export.clone()).collect();
        // The export of a device is chosen when its socket is opened.
        let wanted = std::mem::take(&mut plan.endpoints).into_iter();
        let wanted = wanted.filter_map(|one| Some((one.setting()?, one)));
        let mut wanted: Vec<_> = wanted.map(|(setting, one)| (setting, Some(one))).collect();
        let mut positions: HashMap<_, Vec<usize>> = HashMap::new();
        for (at, (setting, _)) in wanted.iter().enumerate().rev() {
            positions.entry(setting.clone()).or_default().push(at);
        }
        for LiveEndpoint { endpoint, .. } in endpoints {
            let Some(setting) = endpoint.setting() else {
                continue;
            };
            let stays = share_of(&*endpoint).is_none_or(|name| stay.contains(&name));
            let same = positions.get_mut(&setting).filter(|_| stays);
            match same.and_then(Vec::pop) {
                Some(at) => wanted[at].1 = None,
                None => change.removed_endpoints.push(endpoint),
            }
        }
        change.added_endpoints = wanted.into_iter().filter_map(|(_, one)| one).collect();
        self.apply(change, Some(&plan.sources), unopened)?;
        if let Some(defaults) = &mut *self.defaults.lock() {
            defaults.take_share_defaults(&config);
        }
        for name in restart {
            tracing::warn!("{name} differs in the file: restart the server to apply it");
        }
        Ok(())
    }

    /// Returns the changes of `config` that take a restart.
    fn changes_requiring_restart(&self, config: &Config) -> Vec<String> {
        let Some(initial) = &self.config else {
            return Vec::new();
        };
        let mut all = config.changed_keys(initial);
        let referral = |config: &Config| {
            let shares = config.shares().iter();
            let elsewhere = shares.filter(|share| matches!(share.source.1, Source::Referral(_)));
            let mut all: Vec<_> = elsewhere
                .map(|share| (share.name.clone(), share.source.0.clone()))
                .collect();
            all.sort();
            all
        };
        if referral(config) != referral(initial) {
            all.push("a referral".into());
        }
        all
    }

    /// Adds the shares and endpoints of `addition`.
    fn add(&self, addition: &Config) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let invalid = |why: String| LiveError::new(ErrorCode::InvalidParams, why);
        let defaults = self.defaults.lock();
        let Some(config) = defaults.as_ref().map(|it| it.with_only(addition)) else {
            return Err(invalid("the shares of this server cannot change".into()));
        };
        drop(defaults);
        let mut plan = Plan::of_settings(&config).map_err(|why| invalid(why.message))?;
        self.host.find_objects(&mut plan);
        let mut change = Change::default();
        for (share, configured) in plan.sources.shares.iter().zip(config.shares()) {
            let Some(name) = &configured.name else {
                return Err(invalid("expected a share with a name".into()));
            };
            change.added_shares.push(NewShare {
                name,
                share,
                opening_settings: config.opening_settings(configured),
                clients: list_of(&plan.sources.client_lists, name),
            });
        }
        change.added_endpoints = std::mem::take(&mut plan.endpoints);
        change.added_endpoints.retain(|one| one.setting().is_some());
        let added: Vec<_> = change
            .added_endpoints
            .iter()
            .filter_map(|it| it.setting())
            .collect();
        self.check_new(&change)?;
        self.apply(change, Some(&plan.sources), Unopened::Refused)
            .map_err(LiveError::failed)?;
        let state = self.state.lock();
        let is_new = |share: &&LiveShare| {
            let mut new = addition.shares().iter();
            new.any(|one| one.name.as_ref() == Some(&share.export.name))
        };
        let shares = state.shares.iter().filter(is_new).map(LiveShare::entry);
        let catalog = CatalogParts::of(&state.shares);
        let catalog = catalog.catalog(&self.default);
        let is_added =
            |one: &&LiveEndpoint| one.endpoint.setting().is_some_and(|it| added.contains(&it));
        let endpoints = state.endpoints.iter().filter(is_added);
        let endpoints = endpoints.flat_map(|one| one.endpoint.entries(&catalog));
        Ok(json!(Listing {
            shares: shares.collect(),
            endpoints: endpoints.collect(),
        }))
    }

    /// Returns an error if a share or endpoint of `change` exists already.
    fn check_new(&self, change: &Change<'_>) -> Result<(), LiveError> {
        let state = self.state.lock();
        let served = |name: &str| state.shares.iter().any(|share| share.export.name == name);
        for new in &change.added_shares {
            if served(new.name) {
                let message = format!("a share named '{}' exists", new.name);
                return Err(LiveError::new(ErrorCode::Exists, message));
            }
        }
        let endpoints = state.endpoints.iter();
        let taken: HashSet<_> = endpoints
            .flat_map(|one| self.addrs(&*one.endpoint))
            .collect();
        for new in &change.added_endpoints {
            if let Some(addr) = addrs_of(&**new).iter().find(|addr| taken.contains(*addr)) {
                let message = format!("an endpoint at {addr} exists");
                return Err(LiveError::new(ErrorCode::Exists, message));
            }
        }
        Ok(())
    }

    /// Removes a share with its devices, or endpoints. With `drained`, removes only those that are
    /// being drained.
    fn remove(&self, target: &Target, drained: bool) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let change = self.removal(target, drained)?;
        let shares = change.removed_shares.iter().map(|it| it.name.clone());
        let endpoints = change.removed_endpoints.iter();
        let settings = endpoints.clone().filter_map(|it| it.setting());
        let removed = Removed {
            shares: shares.collect(),
            settings: settings
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            addrs: endpoints.flat_map(|it| addrs_of(&**it)).collect(),
        };
        self.apply(change, None, Unopened::Refused)
            .map_err(LiveError::failed)?;
        Ok(json!(removed))
    }

    /// Returns the change that removes a share with its devices, or endpoints. With `drained`,
    /// there may be none.
    fn removal(&self, target: &Target, drained: bool) -> Result<Change<'static>, LiveError> {
        if matches!(target, Target::Share(_)) && self.bundle.is_none() {
            let message = "a share without a name takes a restart to remove";
            return Err(LiveError::new(ErrorCode::RestartRequired, message));
        }
        let is_selected = |endpoint: &dyn Endpoint| match target {
            Target::Share(name) => share_of(endpoint).as_ref() == Some(name),
            Target::Endpoint(addr) => self.addrs(endpoint).contains(addr),
        };
        let in_state = |state: State| !drained || state == State::Draining;
        let mut change = Change::default();
        let state = self.state.lock();
        for one in &state.endpoints {
            if !in_state(one.state) || !is_selected(&*one.endpoint) {
                continue;
            }
            if one.endpoint.setting().is_none() {
                let message = "this endpoint takes a restart to remove";
                return Err(LiveError::new(ErrorCode::RestartRequired, message));
            }
            change.removed_endpoints.push(one.endpoint.clone());
        }
        let (found, what, name) = match target {
            Target::Share(name) => {
                let mut shares = state.shares.iter();
                let share = shares.find(|it| in_state(it.state) && it.export.name == *name);
                change
                    .removed_shares
                    .extend(share.map(|it| it.export.clone()));
                (share.is_some(), "name of a share", name)
            }
            Target::Endpoint(addr) => {
                let found = !change.removed_endpoints.is_empty();
                (found, "address of an endpoint", addr)
            }
        };
        if !found && !drained {
            let message = format!("expected the {what}, got '{name}'");
            return Err(LiveError::new(ErrorCode::NotFound, message));
        }
        Ok(change)
    }

    /// Accepts no more clients of a share with its devices, or of endpoints, and waits until each
    /// of their connections was without a request in flight once, or for `timeout`. Other changes
    /// are possible meanwhile.
    fn drain(&self, target: &Target, timeout: Duration) -> Result<Value, LiveError> {
        let deadline = Instant::now() + timeout;
        let changing = self.changing.lock();
        let change = self.removal(target, false)?;
        self.mark_draining(&change);
        let shares = self.state.lock().shares.clone();
        self.change_bundle(&shares).map_err(LiveError::failed)?;
        self.publish();
        for endpoint in &change.removed_endpoints {
            // A device accepts one monitor at a time.
            if endpoint.devices().is_empty() {
                for addr in self.bound_addrs(&**endpoint) {
                    self.engine.close_listener(&addr, CLOSE_TIMEOUT);
                }
                self.close_sockets(&**endpoint);
            }
        }
        drop(changing);
        let endpoints = change.removed_endpoints.iter();
        let names: HashSet<_> = endpoints.flat_map(|it| self.bound_addrs(&**it)).collect();
        let of_share = !change.removed_shares.is_empty();
        let busy = || -> HashSet<String> {
            let queues = self.engine.snapshot().lanes.into_iter();
            let queues = queues
                .filter(|lane| lane.in_flight > 0 && names.contains(&lane.listener))
                .map(|lane| format!("lane {}", lane.peer));
            let connections = self.engine.open_connections().into_iter();
            let connections = connections
                .filter(|it| it.in_flight > 0 && (of_share || names.contains(&it.listener)))
                .map(|it| format!("connection {}", it.id));
            queues.chain(connections).collect()
        };
        let mut waiting = busy();
        while !waiting.is_empty() {
            if Instant::now() >= deadline {
                return Ok(json!({ "drained": false }));
            }
            std::thread::sleep(DRAIN_INTERVAL);
            let now = busy();
            waiting.retain(|lane| now.contains(lane));
        }
        Ok(json!({ "drained": true }))
    }

    fn mark_draining(&self, change: &Change<'_>) {
        let mut state = self.state.lock();
        for share in &mut state.shares {
            let mut removed = change.removed_shares.iter();
            if removed.any(|export| Arc::ptr_eq(export, &share.export)) {
                share.state = State::Draining;
            }
        }
        for one in &mut state.endpoints {
            let mut removed = change.removed_endpoints.iter();
            if removed.any(|endpoint| Arc::ptr_eq(endpoint, &one.endpoint)) {
                one.state = State::Draining;
            }
        }
    }

    /// Makes `shares` the members of the tree of all shares. The names of those that are being
    /// drained are hidden.
    fn change_bundle(&self, shares: &[LiveShare]) -> Result<(), Failure> {
        let Some(bundle) = &self.bundle else {
            return Ok(());
        };
        let export = |share: &LiveShare| share.export.clone();
        let members: Vec<_> = shares.iter().map(export).collect();
        let drained = shares.iter().filter(|it| it.state == State::Draining);
        let hidden: Vec<_> = drained.map(export).collect();
        let now = sources::now();
        let changed = bundle.change_hiding(&members, &hidden, now);
        changed.map_err(Failure::usage)
    }

    /// Sets the shares that clients can choose from: those that are not being drained.
    fn publish(&self) {
        let (mut shares, endpoints) = {
            let state = self.state.lock();
            (state.shares.clone(), state.endpoints.clone())
        };
        shares.retain(|share| share.state == State::Serving);
        let catalog = CatalogParts::of(&shares);
        let catalog = catalog.catalog(&self.default);
        endpoints
            .iter()
            .for_each(|one| one.endpoint.set_exports(&catalog));
    }

    /// Returns the addresses that an endpoint is bound to.
    fn bound_addrs(&self, endpoint: &dyn Endpoint) -> Vec<String> {
        let catalog = CatalogParts::of(&[]);
        let entries = endpoint.entries(&catalog.catalog(&self.default));
        entries.into_iter().map(|entry| entry.address).collect()
    }

    /// Returns the addresses of an endpoint: as its options name them, and those that it is bound
    /// to.
    fn addrs(&self, endpoint: &dyn Endpoint) -> Vec<String> {
        let bound = self.bound_addrs(endpoint);
        addrs_of(endpoint).into_iter().chain(bound).collect()
    }

    fn close_sockets(&self, endpoint: &dyn Endpoint) {
        for addr in addrs_of(endpoint) {
            self.host.close(&addr);
        }
    }

    /// Carries out `change`. The added shares are among `sources`, if there are any. On failure the
    /// shares and endpoints stay as they are, except for endpoints that were removed for others at
    /// the same address.
    fn apply(
        &self,
        mut change: Change<'_>,
        sources: Option<&Sources>,
        unopened: Unopened,
    ) -> Result<(), Failure> {
        let changes_shares = !change.added_shares.is_empty() || !change.removed_shares.is_empty();
        if self.bundle.is_none() && changes_shares {
            return Err(Failure::usage(
                "a share without a name cannot change while it is served: restart the server",
            ));
        }
        let opened = self.open(&change, unopened)?;
        let (old, endpoints) = {
            let state = self.state.lock();
            (state.shares.clone(), state.endpoints.clone())
        };
        let (ended, shares) = change.shares(&old, &opened);
        self.change_bundle(&shares)?;
        let added = std::mem::take(&mut change.added_endpoints);
        let replaced = self.replace_endpoints(added, &change, endpoints, &shares, sources);
        // They were its members until now.
        let endpoints = replaced.inspect_err(|_| {
            let _ = self.change_bundle(&old);
            self.publish();
        })?;
        // Infallible from here on.
        change.set_terms(&shares);
        for (new, live) in opened {
            if new.awaited.is_none() {
                tracing::info!(
                    share = new.export.name,
                    source = new.unlayered.source,
                    "serving a share"
                );
            }
            self.sources.put(new.unlayered);
            observe_once_open(&self.sources, &live);
        }
        {
            let mut state = self.state.lock();
            state.shares = shares;
            state.endpoints = endpoints;
        }
        self.publish();
        for share in &ended {
            self.end_share(share);
        }
        Ok(())
    }

    /// Starts the endpoints `added`, and closes those that `change` removes from `endpoints`.
    /// Returns the endpoints after the change. If an endpoint cannot start, closes those that have.
    fn replace_endpoints(
        &self,
        added: Vec<Box<dyn Endpoint>>,
        change: &Change<'_>,
        mut endpoints: Vec<LiveEndpoint>,
        shares: &[LiveShare],
        sources: Option<&Sources>,
    ) -> Result<Vec<LiveEndpoint>, Failure> {
        let removed = change.removed_endpoints.iter();
        let freed: HashSet<_> = removed.flat_map(|it| self.addrs(&**it)).collect();
        let is_free = |one: &dyn Endpoint| !addrs_of(one).iter().any(|it| freed.contains(it));
        let (mut first, mut rest): (Vec<_>, Vec<_>) =
            added.into_iter().partition(|one| is_free(&**one));
        self.start(&mut first, shares, sources)?;
        for endpoint in &change.removed_endpoints {
            self.close_endpoint(&**endpoint);
        }
        endpoints.retain(|one| {
            let mut removed = change.removed_endpoints.iter();
            !removed.any(|other| Arc::ptr_eq(other, &one.endpoint))
        });
        self.state.lock().endpoints.clone_from(&endpoints);
        self.start(&mut rest, shares, sources).inspect_err(|_| {
            for endpoint in &first {
                self.close_endpoint(&**endpoint);
            }
        })?;
        endpoints.extend(first.into_iter().chain(rest).map(LiveEndpoint::new));
        Ok(endpoints)
    }

    /// Ends a share that is no longer in the running set.
    fn end_share(&self, share: &LiveShare) {
        let name = &share.export.name;
        share.gate.iter().for_each(|gate| gate.close());
        share.awaited.iter().for_each(|awaited| awaited.end());
        // Requests that wait get the error of the closed gate.
        let limiter = share.limiter.iter();
        limiter.for_each(|limiter| limiter.set(Limits::default()));
        if !self
            .state
            .lock()
            .shares
            .iter()
            .any(|it| it.export.name == *name)
        {
            self.sources.remove(name);
        }
        if let Some(Err(failure)) = share.trace.as_ref().map(|trace| trace.finish()) {
            tracing::error!("{}", failure.message);
        }
        tracing::info!(share = name, "stopped serving a share");
    }

    /// Opens the added shares.
    fn open(
        &self,
        change: &Change<'_>,
        unopened: Unopened,
    ) -> Result<Vec<(OpenedShare, LiveShare)>, Failure> {
        let opening = change.added_shares.iter().map(|new| {
            let clients = new.clients.as_ref().map(|list| &list.clients);
            self.opener.begin(new.name, new.share, clients, &self.host)
        });
        let opening: Vec<OpeningShare> = opening.collect::<Result<_, Failure>>()?;
        let deadline = Instant::now() + awaited::TIMEOUT;
        for (share, new) in opening.iter().zip(&change.added_shares) {
            let failure = match share.wait(deadline) {
                Ok(()) => continue,
                Err(Some(failure)) => failure,
                Err(None) => {
                    let source = new.share.named.source.shown();
                    Failure::new(format!("{source}: does not answer"))
                }
            };
            if unopened == Unopened::Refused {
                return Err(failure);
            }
        }
        let added = opening.into_iter().zip(&change.added_shares);
        let added = added.map(|(share, new)| {
            let share = share.serve();
            let live = LiveShare {
                opening_settings: new.opening_settings.clone(),
                source: new.share.named.source.shown().to_string(),
                export: share.export.clone(),
                gate: share.gate.clone(),
                limiter: share.limiter.clone(),
                awaited: share.awaited.clone(),
                clients: new.clients.clone(),
                trace: share.trace.clone(),
                state: State::Serving,
            };
            (share, live)
        });
        Ok(added.collect())
    }

    /// Binds and starts `endpoints`, which serve `shares`. If one fails, closes those before it.
    fn start(
        &self,
        endpoints: &mut [Box<dyn Endpoint>],
        shares: &[LiveShare],
        sources: Option<&Sources>,
    ) -> Result<(), Failure> {
        if endpoints.is_empty() {
            return Ok(());
        }
        let images = match sources {
            Some(sources) if endpoints.iter().any(|one| one.serves_images()) => {
                exports::images(sources, &self.opener, |name| {
                    let share = shares.iter().find(|share| share.export.name == name);
                    share.and_then(|share| share.limiter.clone())
                })
            }
            _ => Vec::new(),
        };
        let parts = CatalogParts::of(shares);
        let exports = Exports {
            shares: parts.shares,
            gates: Vec::new(),
            limiters: Vec::new(),
            awaited: Vec::new(),
            default: self.default.clone(),
            bundle: self.bundle.clone(),
            sources: self.sources.clone(),
            client_lists: parts.client_lists,
            call_log: None,
            traces: Vec::new(),
            referrals: Vec::new(),
            images,
            opener: self.opener.clone(),
        };
        let context = BindContext {
            exports: &exports,
            host: &self.host,
            figures: &self.figures,
            use_default_addrs: false,
        };
        let running = self.endpoints();
        for endpoint in endpoints.iter_mut() {
            for other in &running {
                endpoint.share_limits(&*other.endpoint);
            }
        }
        for at in 0..endpoints.len() {
            let bound = endpoints[at].bind(&context);
            let opened = at + usize::from(bound.is_ok());
            if let Err(failure) = bound.and_then(|()| endpoints[at].start(&self.engine)) {
                for endpoint in &endpoints[..opened] {
                    self.close_endpoint(&**endpoint);
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Ends an endpoint with its connections, and closes its sockets.
    fn close_endpoint(&self, endpoint: &dyn Endpoint) {
        let bound = self.bound_addrs(endpoint);
        for addr in &bound {
            if !self.engine.close_listener(addr, CLOSE_TIMEOUT) {
                tracing::warn!("{addr}: requests of its clients do not end");
            }
        }
        self.engine
            .disconnect(|connection| bound.contains(&connection.listener));
        self.close_sockets(endpoint);
    }
}

impl Change<'_> {
    /// Sets the terms of those of `shares` that stay.
    fn set_terms(&mut self, shares: &[LiveShare]) {
        let shares = shares.iter().map(|it| (Arc::as_ptr(&it.export), it));
        let shares: HashMap<_, _> = shares.collect();
        for terms in std::mem::take(&mut self.terms) {
            let Some(share) = shares.get(&Arc::as_ptr(&terms.export)) else {
                continue;
            };
            if let Some(gate) = &share.gate {
                gate.set(terms.access);
            }
            if let Some(limiter) = &share.limiter {
                limiter.set(terms.limits);
            }
        }
    }

    /// Returns those of the shares `old` that end, and the shares after the change.
    fn shares(
        &self,
        old: &[LiveShare],
        opened: &[(OpenedShare, LiveShare)],
    ) -> (Vec<LiveShare>, Vec<LiveShare>) {
        let removed: HashSet<_> = self.removed_shares.iter().map(Arc::as_ptr).collect();
        let is_removed = |share: &LiveShare| removed.contains(&Arc::as_ptr(&share.export));
        let (ended, mut shares): (Vec<_>, Vec<_>) = old.iter().cloned().partition(is_removed);
        shares.extend(opened.iter().map(|(_, live)| live.clone()));
        if let Some(order) = &self.order {
            let positions: HashMap<_, _> = order.iter().zip(0..).collect();
            shares.sort_by_key(|share| positions.get(&share.export.name).copied());
        }
        let terms = self.terms.iter();
        let lists = terms.map(|it| (Arc::as_ptr(&it.export), &it.clients));
        let lists: HashMap<_, _> = lists.collect();
        for share in &mut shares {
            if let Some(clients) = lists.get(&Arc::as_ptr(&share.export)) {
                share.clients.clone_from(clients);
            }
        }
        (ended, shares)
    }
}

impl LiveShare {
    fn entry(&self) -> ShareEntry {
        let error = self.awaited.as_ref().and_then(|awaited| awaited.problem());
        ShareEntry {
            name: self.export.name.clone(),
            source: self.source.clone(),
            state: match &error {
                Some(_) => State::Failed,
                None => self.state,
            },
            error,
        }
    }

    /// Returns the limits and their figures.
    fn limits(&self) -> Value {
        let stats = self.limiter.as_ref().map(|limiter| limiter.stats());
        let LimitStats {
            limits,
            delayed,
            waited,
            waiting,
            clients,
        } = stats.unwrap_or_default();
        json!({
            "name": self.export.name,
            "limit": limits.share.to_string(),
            "client_limit": limits.client.to_string(),
            "delayed": delayed,
            "waited": waited.as_secs_f64(),
            "waiting": waiting,
            "clients": clients,
        })
    }
}

impl LiveEndpoint {
    fn new(endpoint: Box<dyn Endpoint>) -> LiveEndpoint {
        LiveEndpoint {
            endpoint: endpoint.into(),
            state: State::Serving,
        }
    }
}

/// The parts of a [`Catalog`].
struct CatalogParts {
    shares: Vec<Arc<Export>>,
    client_lists: Vec<ClientList>,
}

impl CatalogParts {
    fn of(shares: &[LiveShare]) -> CatalogParts {
        let lists = shares.iter().filter_map(|share| share.clients.clone());
        CatalogParts {
            shares: shares.iter().map(|share| share.export.clone()).collect(),
            client_lists: lists.collect(),
        }
    }

    fn catalog<'a>(&'a self, default: &'a Arc<Export>) -> Catalog<'a> {
        Catalog {
            shares: &self.shares,
            default,
            client_lists: &self.client_lists,
        }
    }
}

/// Returns the limits of an engine, and how far they are used.
fn engine_limits(engine: &Engine) -> Value {
    let tuning = engine.tuning();
    let seconds = |time: Duration| time.as_secs();
    json!({
        "connections": {
            "max": tuning.connections,
            // Null is half of what other clients leave.
            "max_per_client": tuning.connections_per_client,
            "open": engine.stats().0,
            "most_of_a_client": engine.most_connections_of_a_client(),
        },
        "in_flight_per_connection": {
            "max": tuning.in_flight,
            "max_bytes": tuning.in_flight_bytes,
        },
        "memory": { "max": tuning.memory, "used": engine.budget().used() },
        "workers": { "max": tuning.workers },
        "timeouts": {
            "handshake": seconds(tuning.timeouts.handshake),
            "message": seconds(tuning.timeouts.message),
            "send": seconds(tuning.timeouts.send),
            "idle": tuning.timeouts.idle.map(seconds),
        },
    })
}

/// Adds the source of `share` to `sources` once it is open, if it is not.
fn observe_once_open(sources: &Arc<ObservedSources>, share: &LiveShare) {
    if let Some(awaited) = &share.awaited {
        let sources = sources.clone();
        awaited.on_open(move |observed| sources.put(observed));
    }
}

fn no_share(name: &str) -> LiveError {
    let message = format!("expected the name of a share, got '{name}'");
    LiveError::new(ErrorCode::NotFound, message)
}

fn list_of(lists: &[ClientList], name: &str) -> Option<ClientList> {
    lists.iter().find(|list| list.name == name).cloned()
}

/// Returns the name of the only share that an endpoint serves.
fn share_of(endpoint: &dyn Endpoint) -> Option<String> {
    endpoint.devices().first()?.name.clone()
}

/// Returns the addresses of an endpoint as its options name them.
fn addrs_of(endpoint: &dyn Endpoint) -> Vec<String> {
    let devices = endpoint.devices().into_iter().map(|device| &device.addr);
    endpoint
        .requested()
        .iter()
        .chain(devices)
        .map(ToString::to_string)
        .collect()
}
