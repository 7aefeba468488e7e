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
//! Lock order: changes, then the state. The state is locked for short times only, and no client is
//! called meanwhile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::Engine;
use layers::gate::AccessPolicy;
use layers::{Bundle, Gate};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vfs::Export;

use super::args::access::ClientList;
use super::endpoint::{BindContext, Endpoint, EndpointEntry, State};
use super::exports::{self, Catalog, Exports};
use super::host::Host;
use super::opener::{OpenedShare, Opener, terms};
use super::plan::{self, Plan};
use super::share::{Share, Sources};
use crate::Failure;
use crate::config::{Config, Setting};
use crate::read_trace::TraceFile;
use crate::status::{Figures, ObservedSources};

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
    /// Held during a change.
    changing: Mutex<()>,
    state: Mutex<RunningSet>,
}

#[derive(Default)]
struct RunningSet {
    shares: Vec<LiveShare>,
    endpoints: Vec<LiveEndpoint>,
    traces: Vec<Arc<TraceFile>>,
}

#[derive(Clone)]
struct LiveShare {
    opening_settings: Vec<Setting>,
    source: String,
    export: Arc<Export>,
    /// The gate, if shares can change.
    gate: Option<Arc<Gate>>,
    clients: Option<ClientList>,
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
}

/// The shares and endpoints of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listing {
    pub(super) shares: Vec<ShareEntry>,
    pub(super) endpoints: Vec<EndpointEntry>,
}

/// A request to the process that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LiveRequest {
    List,
    /// Adds the tables of shares and the endpoints of a configuration file with this text.
    Add {
        text: String,
    },
    /// Removes a share or endpoint. With `drain`, it accepts no more clients, and is removed once
    /// its requests are answered, or after that time.
    Remove {
        target: Target,
        drain: Option<Duration>,
    },
    /// Reads certificates and the configuration file again.
    Reload,
    Clients,
    /// Closes the connection with this number.
    Disconnect {
        client: u64,
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

/// A change of the running set.
#[derive(Default)]
struct Change<'a> {
    added_shares: Vec<NewShare<'a>>,
    removed_shares: Vec<Arc<Export>>,
    /// Terms of shares that stay.
    terms: Vec<(Arc<Export>, AccessPolicy, Option<ClientList>)>,
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
        let config = plan.file.clone();
        let configured = config.iter().flat_map(|config| {
            let shares = config.shares().iter();
            shares.map(|share| config.opening_settings(share))
        });
        let settings = configured.chain(std::iter::repeat(Vec::new()));
        let opened = exports.shares.iter().zip(&exports.gates);
        let shares = opened.zip(&plan.sources.shares).zip(settings);
        let shares = shares.map(|(((export, gate), share), opening_settings)| LiveShare {
            opening_settings,
            source: share.named.source.to_string(),
            export: export.clone(),
            gate: gate.clone(),
            clients: list_of(&plan.sources.client_lists, &export.name),
            state: State::Serving,
        });
        let state = RunningSet {
            shares: shares.collect(),
            endpoints: endpoints.into_iter().map(LiveEndpoint::new).collect(),
            traces: Vec::new(),
        };
        LiveServer {
            engine,
            host,
            figures,
            default: exports.default.clone(),
            bundle: exports.bundle.clone(),
            opener: exports.opener.clone(),
            sources: exports.sources.clone(),
            config,
            changing: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    pub(super) fn figures(&self) -> &Arc<dyn Figures> {
        &self.figures
    }

    /// Returns whether [`LiveServer::reload`] has any effect.
    pub(super) fn is_reloadable(&self) -> bool {
        let state = self.state.lock();
        self.config.is_some()
            || state
                .endpoints
                .iter()
                .any(|one| one.endpoint.is_reloadable())
    }

    /// Reads certificates and the configuration file again. Returns the status to report.
    pub(super) fn reload(&self) -> String {
        for one in &self.endpoints() {
            one.endpoint.reload();
        }
        let Some(path) = self.config.as_ref().and_then(Config::file) else {
            return "ready".into();
        };
        let config = plan::read_config_of(path, &self.host).map_err(Failure::usage);
        match config.and_then(|config| self.replace(config)) {
            Ok(()) => {
                tracing::info!("configuration reloaded");
                "ready".into()
            }
            Err(why) => {
                for line in why.message.lines() {
                    tracing::error!("{line}");
                }
                tracing::error!("keeping the previous configuration");
                "invalid configuration: keeping the previous one".into()
            }
        }
    }

    /// Carries out a request.
    pub(super) fn handle(&self, request: LiveRequest) -> Result<Value, LiveError> {
        match request {
            LiveRequest::List => Ok(json!(self.listing())),
            LiveRequest::Add { text } => self.add(&text),
            LiveRequest::Remove { target, drain } => self.remove(&target, drain),
            LiveRequest::Reload => match self.reload().as_str() {
                "ready" => Ok(json!({})),
                status => Err(LiveError::new(ErrorCode::Failed, status)),
            },
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
            LiveRequest::Debug => Ok(json!({
                "process": std::process::id(),
                "status": self.figures.status(),
                "troubles": self.figures.troubles(),
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
        let shares = state.shares.iter().map(|share| ShareEntry {
            name: share.export.name.clone(),
            source: share.source.clone(),
            state: share.state,
        });
        Listing {
            shares: shares.collect(),
            endpoints,
        }
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

    /// Writes the read traces of shares that were added.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let state = self.state.lock();
        state.traces.iter().try_for_each(|trace| trace.finish())
    }

    /// Drops all shares and endpoints.
    pub(super) fn clear(&self) {
        let traces = self.state.lock().traces.clone();
        let dropped = std::mem::replace(
            &mut *self.state.lock(),
            RunningSet {
                traces,
                ..RunningSet::default()
            },
        );
        drop(dropped);
    }

    fn endpoints(&self) -> Vec<LiveEndpoint> {
        self.state.lock().endpoints.clone()
    }

    /// Makes the shares and endpoints of `config` the running set. If a share cannot be opened,
    /// the previous state stays.
    fn replace(&self, config: Config) -> Result<(), Failure> {
        let _changing = self.changing.lock();
        let mut plan = Plan::from_config(&config)?;
        self.host.limit(&mut plan);
        let config = plan.file.clone().unwrap_or(config);
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
        let mut stay = HashSet::new();
        for ((name, share), configured) in
            names.iter().zip(&plan.sources.shares).zip(config.shares())
        {
            let opening_settings = config.opening_settings(configured);
            let clients = list_of(&plan.sources.client_lists, name);
            let same = |served: &&LiveShare| {
                served.export.name == *name && served.opening_settings == opening_settings
            };
            match shares.iter().find(same) {
                Some(served) => {
                    stay.insert(name.clone());
                    let terms = terms(share, clients.as_ref().map(|list| &list.clients));
                    change.terms.push((served.export.clone(), terms, clients));
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
        let mut wanted = std::mem::take(&mut plan.endpoints);
        wanted.retain(|one| one.setting().is_some());
        for LiveEndpoint { endpoint, .. } in endpoints {
            let Some(setting) = endpoint.setting() else {
                continue;
            };
            let at = wanted
                .iter()
                .position(|one| one.setting().as_ref() == Some(&setting));
            let share = share_of(&*endpoint);
            match at.filter(|_| share.is_none_or(|name| stay.contains(&name))) {
                Some(at) => drop(wanted.remove(at)),
                None => change.removed_endpoints.push(endpoint),
            }
        }
        change.added_endpoints = wanted;
        self.apply(change, Some(&plan.sources))?;
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
            let elsewhere = shares.filter(|share| share.source.0.starts_with("refer:"));
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

    /// Adds the shares and endpoints of `text`.
    fn add(&self, text: &str) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        let invalid = |why: String| LiveError::new(ErrorCode::InvalidParams, why);
        let Some(config) = &self.config else {
            return Err(invalid("the shares of this server cannot change".into()));
        };
        let addition = Config::addition(text).map_err(|why| invalid(why.to_string()))?;
        let config = config.with_only(&addition);
        let mut plan = Plan::of_settings(&config).map_err(|why| invalid(why.message))?;
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
        self.apply(change, Some(&plan.sources))
            .map_err(LiveError::failed)?;
        let mut listing = self.listing();
        listing.shares.retain(|it| {
            addition
                .shares()
                .iter()
                .any(|one| one.name.as_ref() == Some(&it.name))
        });
        let state = self.state.lock();
        let catalog = CatalogParts::of(&state.shares);
        let catalog = catalog.catalog(&self.default);
        let is_added =
            |one: &&LiveEndpoint| one.endpoint.setting().is_some_and(|it| added.contains(&it));
        let endpoints = state.endpoints.iter().filter(is_added);
        listing.endpoints = endpoints
            .flat_map(|one| one.endpoint.entries(&catalog))
            .collect();
        Ok(json!(listing))
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
        for new in &change.added_endpoints {
            for addr in addrs_of(&**new) {
                let exists = state
                    .endpoints
                    .iter()
                    .any(|it| addrs_of(&*it.endpoint).contains(&addr));
                if exists {
                    let message = format!("an endpoint at {addr} exists");
                    return Err(LiveError::new(ErrorCode::Exists, message));
                }
            }
        }
        Ok(())
    }

    /// Removes a share with its devices, or endpoints.
    fn remove(&self, target: &Target, drain: Option<Duration>) -> Result<Value, LiveError> {
        let _changing = self.changing.lock();
        if matches!(target, Target::Share(_)) && self.bundle.is_none() {
            let message = "a share without a name takes a restart to remove";
            return Err(LiveError::new(ErrorCode::RestartRequired, message));
        }
        let mut change = Change::default();
        {
            let mut state = self.state.lock();
            let catalog = CatalogParts::of(&[]);
            let catalog = catalog.catalog(&self.default);
            let is_at = |endpoint: &dyn Endpoint, addr: &str| {
                let entries = endpoint.entries(&catalog);
                entries.iter().any(|entry| entry.address == addr)
                    || addrs_of(endpoint).iter().any(|own| own == addr)
            };
            for one in &mut state.endpoints {
                let selected = match target {
                    Target::Share(name) => share_of(&*one.endpoint).as_ref() == Some(name),
                    Target::Endpoint(addr) => is_at(&*one.endpoint, addr),
                };
                if !selected {
                    continue;
                }
                if one.endpoint.setting().is_none() {
                    let message = "this endpoint takes a restart to remove";
                    return Err(LiveError::new(ErrorCode::RestartRequired, message));
                }
                one.state = State::Draining;
                change.removed_endpoints.push(one.endpoint.clone());
            }
            if let Target::Share(name) = target {
                for share in &mut state.shares {
                    if share.export.name == *name {
                        share.state = State::Draining;
                        change.removed_shares.push(share.export.clone());
                    }
                }
            }
        }
        let (found, what, name) = match target {
            Target::Share(name) => (!change.removed_shares.is_empty(), "name of a share", name),
            Target::Endpoint(addr) => (
                !change.removed_endpoints.is_empty(),
                "address of an endpoint",
                addr,
            ),
        };
        if !found {
            let message = format!("expected the {what}, got '{name}'");
            return Err(LiveError::new(ErrorCode::NotFound, message));
        }
        let drained = drain.map(|timeout| self.drain(&change, timeout));
        let settings: Vec<_> = change
            .removed_endpoints
            .iter()
            .filter_map(|it| it.setting())
            .collect();
        self.apply(change, None).map_err(LiveError::failed)?;
        Ok(json!({ "drained": drained, "settings": settings }))
    }

    /// Accepts no more clients of the shares and endpoints that `change` removes, and waits until
    /// each of their connections was without a request in flight once, or for `timeout`. Returns
    /// whether they were.
    fn drain(&self, change: &Change<'_>, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let names: HashSet<String> = change
            .removed_endpoints
            .iter()
            .flat_map(|it| self.bound_addrs(&**it))
            .collect();
        if !change.removed_shares.is_empty() {
            self.hide(&change.removed_shares);
        }
        for endpoint in &change.removed_endpoints {
            // A device accepts one monitor at a time.
            if endpoint.devices().is_empty() {
                for addr in self.bound_addrs(&**endpoint) {
                    self.engine.close_listener(&addr, CLOSE_TIMEOUT);
                }
                self.close_sockets(&**endpoint);
            }
        }
        let of_share = !change.removed_shares.is_empty();
        let busy = || -> HashSet<String> {
            let lanes = self.engine.snapshot().lanes.into_iter();
            let of_device = |peer: &str| {
                names.iter().any(|addr| {
                    peer.strip_prefix(addr.as_str())
                        .is_some_and(|rest| !rest.starts_with('/'))
                })
            };
            let queues = lanes
                .filter(|lane| lane.in_flight > 0 && of_device(&lane.peer))
                .map(|lane| format!("queue {}", lane.peer));
            let connections = self.engine.open_connections().into_iter();
            let connections = connections
                .filter(|it| it.in_flight > 0 && (of_share || names.contains(&it.listener)))
                .map(|it| format!("connection {}", it.id));
            queues.chain(connections).collect()
        };
        let mut waiting = busy();
        while !waiting.is_empty() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(DRAIN_INTERVAL);
            let now = busy();
            waiting.retain(|lane| now.contains(lane));
        }
        true
    }

    /// Removes shares from the names that clients can choose from; they are still served.
    fn hide(&self, hidden: &[Arc<Export>]) {
        let (mut shares, endpoints) = {
            let state = self.state.lock();
            (state.shares.clone(), state.endpoints.clone())
        };
        shares.retain(|share| !hidden.iter().any(|other| Arc::ptr_eq(other, &share.export)));
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

    fn close_sockets(&self, endpoint: &dyn Endpoint) {
        for addr in addrs_of(endpoint) {
            self.host.close(&addr);
        }
    }

    /// Carries out `change`. The added shares are among `sources`, if there are any. On failure the
    /// shares stay as they are.
    fn apply(&self, mut change: Change<'_>, sources: Option<&Sources>) -> Result<(), Failure> {
        let changes_shares = !change.added_shares.is_empty() || !change.removed_shares.is_empty();
        if self.bundle.is_none() && changes_shares {
            return Err(Failure::usage(
                "a share without a name cannot change while it is served: restart the server",
            ));
        }
        let opened = self.open(&change)?;
        let (old, mut endpoints) = {
            let state = self.state.lock();
            (state.shares.clone(), state.endpoints.clone())
        };
        let (ended, shares) = change.shares(&old, &opened);
        for endpoint in &change.removed_endpoints {
            self.close_endpoint(&**endpoint);
        }
        endpoints.retain(|one| {
            let mut removed = change.removed_endpoints.iter();
            !removed.any(|other| Arc::ptr_eq(other, &one.endpoint))
        });
        self.state.lock().endpoints.clone_from(&endpoints);
        let now = barge_client::source::now();
        let parts = CatalogParts::of(&shares);
        if let Some(bundle) = &self.bundle {
            bundle.change(&parts.shares, now).map_err(Failure::usage)?;
        }
        if let Err(failure) = self.start(&mut change.added_endpoints, &shares, sources) {
            for endpoint in &change.added_endpoints {
                self.close_endpoint(&**endpoint);
            }
            if let Some(bundle) = &self.bundle {
                // They were its members until now.
                let _ = bundle.change(&CatalogParts::of(&old).shares, now);
            }
            return Err(failure);
        }
        // Infallible from here on.
        for (export, terms, _) in change.terms {
            let mut same = shares.iter().filter(|it| Arc::ptr_eq(&it.export, &export));
            if let Some(gate) = same.find_map(|share| share.gate.as_ref()) {
                gate.set(terms);
            }
        }
        endpoints.extend(change.added_endpoints.into_iter().map(LiveEndpoint::new));
        let catalog = parts.catalog(&self.default);
        endpoints
            .iter()
            .for_each(|one| one.endpoint.set_exports(&catalog));
        for share in &ended {
            share.gate.iter().for_each(|gate| gate.close());
            self.sources.remove(&share.export.name);
            tracing::info!(share = share.export.name, "stopped serving a share");
        }
        let mut state = self.state.lock();
        for (new, _) in opened {
            tracing::info!(
                share = new.export.name,
                source = new.unlayered.source,
                "serving a share"
            );
            self.sources.put(new.unlayered);
            state.traces.extend(new.trace);
        }
        state.shares = shares;
        state.endpoints = endpoints;
        Ok(())
    }

    /// Opens the added shares.
    fn open(&self, change: &Change<'_>) -> Result<Vec<(OpenedShare, LiveShare)>, Failure> {
        let opened = change.added_shares.iter().map(|new| {
            let clients = new.clients.as_ref().map(|list| &list.clients);
            let share = self.opener.open(new.name, new.share, clients, &self.host)?;
            let live = LiveShare {
                opening_settings: new.opening_settings.clone(),
                source: new.share.named.source.to_string(),
                export: share.export.clone(),
                gate: share.gate.clone(),
                clients: new.clients.clone(),
                state: State::Serving,
            };
            Ok((share, live))
        });
        opened.collect()
    }

    /// Binds and starts `endpoints`, which serve `shares`.
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
                exports::images(sources, &self.opener)?
            }
            _ => Vec::new(),
        };
        let parts = CatalogParts::of(shares);
        let exports = Exports {
            shares: parts.shares,
            gates: Vec::new(),
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
        endpoints.iter_mut().try_for_each(|endpoint| {
            endpoint.bind(&context)?;
            endpoint.start(&self.engine)
        })
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
            shares.sort_by_key(|share| order.iter().position(|name| *name == share.export.name));
        }
        for (export, _, clients) in &self.terms {
            let same = shares
                .iter_mut()
                .filter(|it| Arc::ptr_eq(&it.export, export));
            same.for_each(|share| share.clients.clone_from(clients));
        }
        (ended, shares)
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
