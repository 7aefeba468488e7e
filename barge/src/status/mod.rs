//! Observability: the activity of a server over HTTP (`--http`) and in the terminal (`barge top`).
//!
//! No figures are stored here: each request sums up the engine's current ones.

mod change;
mod health;
mod http;
mod json;
pub(crate) mod metrics;
mod page;
pub(crate) mod top;

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use engine::Engine;
use layers::disk_quota::{Amount, DiskLimits};
use layers::limit::Rates;
use layers::{DiskCache, DiskQuota, Limiter, PageCache};
use parking_lot::{Mutex, MutexGuard};
use transports::{Addr, Listener};
use vfs::peer::Refusal;
use vfs::source_stats::{Evicted, RemoteCounters};
use vfs::{Call, Caller, Cx, FileSystem, LocalUsers, Origin};

pub(crate) use self::health::{Check, CheckKind, Problem, Problems};
use self::health::{Probe, Probes, Unhealthy};
use self::http::{HostNames, Request, Response};
pub(crate) use self::json::Status;
use self::json::{Cache, Export, Limit, Memory, Quota, Remote};
pub(crate) use self::top::{TopArgs, run as top};
use crate::Failure;

/// Default port of `barge top`: the one after that of 9P.
const DEFAULT_PORT: &str = "5641";

/// The figures of a server, of this process or of several.
pub(crate) trait Figures: Send + Sync {
    fn status(&self) -> Status;

    /// Runs the checks of health, those of sources only if `sources`: waits for the slowest one or
    /// a timeout.
    fn checks(&self, sources: bool) -> Vec<Check>;
}

/// The figures of an engine and its sources.
pub(crate) struct Observer {
    engine: Arc<Engine>,
    sources: Arc<ObservedSources>,
    started: Instant,
    process: u32,
    /// The running set, once clients can connect.
    serving: OnceLock<Box<dyn Fn() -> Serving + Send + Sync>>,
    /// The numbers of exported spans, if there is an exporter.
    #[cfg(feature = "otel")]
    spans: OnceLock<Arc<crate::otel::SpanCounts>>,
}

/// Whether a server that has started accepts further clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    Accepting,
    /// All its shares, or all its endpoints, are being drained.
    Draining,
}

/// A server of the status page.
pub(crate) struct StatusServer {
    engine: Arc<Engine>,
    figures: Arc<dyn Figures>,
}

/// The clients of the status page.
pub(crate) struct StatusAdmission {
    /// Host names that requests may use, besides addresses and the name of this host.
    pub(crate) names: Vec<String>,
    /// The users of this host who may see it.
    pub(crate) users: LocalUsers,
    /// The group whose members may, over a Unix socket.
    pub(crate) socket_group: Option<u32>,
}

/// A source as it was opened, without layers.
pub(crate) struct ObservedSource {
    pub(crate) name: String,
    /// SOURCE on the command line.
    pub(crate) source: String,
    pub(crate) fs: Arc<dyn FileSystem>,
    /// Returns the reason why it is not open, if it was not when it was first served.
    pub(crate) problem: Option<SourceProblem>,
    /// The page cache over it, if there is one.
    pub(crate) pages: Option<Arc<PageCache>>,
    /// The disk cache of files over it, if there is one.
    pub(crate) files: Option<Arc<DiskCache>>,
    /// The counters of its calls, if it is on another server.
    pub(crate) remote: Option<Arc<RemoteCounters>>,
    /// The limits of the share, if there are any or they may change.
    pub(crate) limiter: Option<Arc<Limiter>>,
    /// The quota of the share, if it has one.
    pub(crate) quota: Option<ObservedQuota>,
}

/// Returns the reason why a source is not open, or `None` if it is.
pub(crate) type SourceProblem = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The quota of a share.
#[derive(Clone)]
pub(crate) struct ObservedQuota {
    pub(crate) limits: DiskLimits,
    /// The layer that counts; `None` if the kernel does.
    pub(crate) counted: Option<Arc<DiskQuota>>,
}

/// The sources that are being served, and the state that is stored for them.
pub(crate) struct ObservedSources {
    all: Mutex<Vec<ProbedSource>>,
    storage: Arc<Problems>,
}

/// A source and its health check.
struct ProbedSource {
    source: ObservedSource,
    probe: Arc<Probe>,
}

impl ProbedSource {
    fn new(source: ObservedSource) -> ProbedSource {
        let probe = Probe::new(source.fs.clone());
        ProbedSource { source, probe }
    }
}

impl ObservedSources {
    pub(crate) fn new(sources: Vec<ObservedSource>) -> ObservedSources {
        ObservedSources {
            all: Mutex::new(sources.into_iter().map(ProbedSource::new).collect()),
            storage: Arc::default(),
        }
    }

    /// Returns the state that is stored for the sources, with the problems of it.
    pub(crate) fn storage(&self) -> &Arc<Problems> {
        &self.storage
    }

    /// Probes all sources, and returns a check for each. Waits for the slowest one or the timeout.
    fn checks(&self) -> Vec<Check> {
        let probe = |seen: &ProbedSource| {
            let source = &seen.source;
            let problem = source.problem.as_ref().and_then(|problem| problem());
            (
                source.name.clone(),
                source.source.clone(),
                problem,
                seen.probe.clone(),
            )
        };
        let probes: Vec<_> = self.lock().iter().map(probe).collect();
        probes.iter().for_each(|(.., probe)| probe.start());
        let checks = probes.into_iter().map(|(name, source, problem, probe)| {
            let failed = probe.result().err();
            let hangs = matches!(failed, Some(Unhealthy::Hangs(_)));
            // Of a source that is not open, the probe knows EIO alone.
            let problem = problem.or_else(|| Some(format!("{source}: {}", failed?)));
            let name = match name.as_str() {
                "" => "source".to_owned(),
                name => format!("source/{name}"),
            };
            Check::new(CheckKind::Source, name, problem.into_iter().collect()).hanging(hangs)
        });
        checks.collect()
    }

    /// Releases what the source called `name` caches, or all do. Returns the names of the sources,
    /// each with the size of what it released.
    pub(crate) fn evict(&self, name: Option<&str>) -> Vec<(String, Evicted)> {
        let is_wanted = |seen: &&ProbedSource| name.is_none_or(|name| seen.source.name == name);
        let source = |seen: &ProbedSource| (seen.source.name.clone(), seen.source.fs.clone());
        let sources: Vec<_> = self.lock().iter().filter(is_wanted).map(source).collect();
        // Without the lock, as it may take a while.
        let sources = sources.into_iter();
        sources.map(|(name, fs)| (name, fs.evict())).collect()
    }

    /// Adds `source`, replacing one of the same name.
    pub(crate) fn put(&self, source: ObservedSource) {
        let mut all = self.lock();
        let seen = ProbedSource::new(source);
        match all
            .iter_mut()
            .find(|other| other.source.name == seen.source.name)
        {
            Some(other) => *other = seen,
            None => all.push(seen),
        }
    }

    /// Removes the source called `name`.
    pub(crate) fn remove(&self, name: &str) {
        self.lock().retain(|seen| seen.source.name != name);
    }

    fn snapshot(&self) -> Vec<Export> {
        self.lock()
            .iter()
            .map(|seen| seen.source.snapshot())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ProbedSource>> {
        self.all.lock()
    }
}

impl ObservedSource {
    fn snapshot(&self) -> Export {
        let mut stats = self.fs.source_stats();
        if let Some(pages) = &self.pages {
            stats.cache = Some(pages.stats());
        }
        if let Some(files) = &self.files {
            stats.disk_cache = Some(files.stats());
        }
        if let Some(remote) = &self.remote {
            stats.remote = Some(remote.stats());
        }
        Export {
            name: self.name.clone(),
            source: self.source.clone(),
            cache: stats.cache.map(Cache::from),
            disk_cache: stats.disk_cache.map(Cache::from),
            remote: stats.remote.map(Remote::from),
            limit: self.limiter.as_ref().and_then(|it| limit_of(it)),
            quota: self.quota.as_ref().and_then(|it| it.snapshot(&*self.fs)),
        }
    }
}

impl ObservedQuota {
    /// Returns the usage of the share, whose source is `fs`; `None` if it is unknown.
    fn snapshot(&self, fs: &dyn FileSystem) -> Option<Quota> {
        let used = match &self.counted {
            Some(quota) => quota.used(),
            // The size of the file system is that of the project. The kernel knows it without I/O.
            None => {
                let call = Call::detached();
                let cx = Cx::new(&Caller::ROOT, &call);
                let stat = fs.root(&cx).and_then(|root| root.statfs(&cx)).ok()?;
                let blocks = stat.blocks.saturating_sub(stat.bfree);
                Amount {
                    bytes: blocks.saturating_mul(stat.bsize.into()),
                    inodes: stat.files.saturating_sub(stat.ffree),
                }
            }
        };
        Some(Quota {
            bytes: used.bytes,
            limit_bytes: self.limits.bytes,
            inodes: used.inodes,
            limit_inodes: self.limits.inodes,
        })
    }
}

/// Returns the limits of a share and their figures, unless it has none and never had any.
fn limit_of(limiter: &Limiter) -> Option<Limit> {
    let stats = limiter.stats();
    let shown = |rates: Rates| (!rates.is_unlimited()).then(|| rates.to_string());
    let unused = stats.limits.is_unlimited() && stats.delayed == 0;
    (!unused).then(|| Limit {
        limit: shown(stats.limits.share),
        client_limit: shown(stats.limits.client),
        delayed: stats.delayed,
        waited: stats.waited.as_secs_f64(),
        waiting: stats.waiting,
        clients: stats.clients,
    })
}

impl Observer {
    /// Returns the observer of an engine that serves `sources`, with the current time as its start.
    /// `process` is the process id that users know.
    pub(crate) fn new(
        engine: Arc<Engine>,
        sources: Arc<ObservedSources>,
        process: u32,
    ) -> Observer {
        Observer {
            engine,
            sources,
            process,
            started: Instant::now(),
            serving: OnceLock::new(),
            #[cfg(feature = "otel")]
            spans: OnceLock::new(),
        }
    }

    /// Reports that clients can connect, as long as `serving` does not return otherwise. `serving`
    /// must not own this.
    pub(crate) fn set_started(&self, serving: impl Fn() -> Serving + Send + Sync + 'static) {
        self.serving.get_or_init(|| Box::new(serving));
    }

    /// Adds the numbers of exported spans to the figures.
    #[cfg(feature = "otel")]
    pub(crate) fn set_spans(&self, counts: Arc<crate::otel::SpanCounts>) {
        self.spans.get_or_init(|| counts);
    }

    fn state_problem(&self) -> Option<&'static str> {
        if self.engine.is_stopping() {
            return Some("the server is stopping");
        }
        match self.serving.get().map(|serving| serving()) {
            None => Some("the server is starting"),
            Some(Serving::Draining) => Some("all shares or endpoints are being drained"),
            Some(Serving::Accepting) => None,
        }
    }
}

impl Figures for Observer {
    fn status(&self) -> Status {
        let exports = self.sources.snapshot();
        let uptime = self.started.elapsed().as_secs_f64();
        let refused = self.engine.connection_refusals().into_iter();
        let throttled = self.engine.throttles().into_iter();
        let budget = self.engine.budget();
        Status {
            pid: self.process,
            refused: refused
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
            throttled: throttled
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
            memory: Memory {
                used: budget.used() as u64,
                limit: budget.limit() as u64,
            },
            #[cfg(feature = "otel")]
            spans: self
                .spans
                .get()
                .map_or_else(Default::default, |counts| counts.by_result()),
            ..Status::new(
                self.engine.snapshot(),
                self.engine.refusals(),
                uptime,
                exports,
            )
        }
    }

    fn checks(&self, sources: bool) -> Vec<Check> {
        let state = self.state_problem().map(str::to_owned);
        let lost = self.engine.failed_listeners().into_iter();
        let lost = lost.map(|addr| format!("no longer listening at {addr}"));
        let mut checks = vec![
            Check::new(CheckKind::State, "state", state.into_iter().collect()),
            Check::new(CheckKind::Listeners, "listeners", lost.collect()),
        ];
        checks.extend(self.sources.storage().checks());
        if sources {
            checks.extend(self.sources.checks());
        }
        checks
    }
}

impl StatusServer {
    /// Returns a server of `figures`, whose connections `engine` stops.
    pub(crate) fn new(engine: Arc<Engine>, figures: Arc<dyn Figures>) -> StatusServer {
        StatusServer { engine, figures }
    }

    /// Serves the status to clients of `listener` that `admission` admits, until the engine stops.
    pub(crate) fn serve(
        self,
        listener: Listener,
        admission: &StatusAdmission,
    ) -> Result<(), Failure> {
        let names = HostNames::new(listener.addr(), &admission.names);
        let (users, group) = (admission.users.clone(), admission.socket_group);
        let engine = self.engine.clone();
        engine
            .spawn_listener("http", move |stop| {
                let answer = |request: &Request| self.respond(request);
                let admits = |origin: Origin| {
                    let peer = self.engine.peer(origin);
                    if let Origin::Local { owner, .. } = peer.origin() {
                        peer.set_owner(transports::caller_of(owner));
                    }
                    let admits = peer.is_admitted(&users, group);
                    if !admits && peer.refuse(Refusal::LocalUser) {
                        layers::clients::log_local_user(&peer);
                    }
                    admits
                };
                let service = http::Service {
                    names: &names,
                    admits: &admits,
                    answer: &answer,
                };
                if let Err(error) = http::serve(&listener, &service, stop) {
                    self.engine.report_failed_listener(listener.addr(), &error);
                }
            })
            .map_err(Failure::new)
    }

    fn respond(&self, request: &Request) -> Response {
        if let Some(probes) = Probes::at(&request.path) {
            let checks = self.figures.checks(probes.include_sources());
            return probes.response(&checks, request.has_key("verbose"));
        }
        match request.path.as_str() {
            "/" => page::response(),
            "/status.json" => match serde_json::to_vec(&self.figures.status()) {
                Ok(json) => Response::new("application/json", json),
                Err(error) => internal_error(&error),
            },
            "/metrics" => match self.metrics() {
                Ok(text) => Response::new(metrics::CONTENT_TYPE, text),
                Err(error) => internal_error(&error),
            },
            _ => Response::error(
                "404 Not Found",
                "expected /, /healthz, /livez, /metrics, /readyz or /status.json",
            ),
        }
    }

    fn metrics(&self) -> Result<String, std::fmt::Error> {
        let status = self.figures.status();
        metrics::text(&status, is_ready(&*self.figures))
    }
}

/// Returns whether the checks of `/readyz` pass. Runs them.
pub(crate) fn is_ready(figures: &dyn Figures) -> bool {
    Probes::Ready.passed(&figures.checks(true))
}

fn internal_error(error: &dyn std::fmt::Display) -> Response {
    Response::error("500 Internal Server Error", &error.to_string())
}

/// Parses the address of `--http`. A port alone is one of the loopback address.
pub(crate) fn parse_addr(text: &str) -> Result<Addr, String> {
    let addr = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("tcp:127.0.0.1:{text}"),
        false => text.to_owned(),
    };
    let with_scheme = addr.parse();
    match with_scheme.or_else(|_| format!("tcp:{addr}").parse()) {
        Ok(addr @ (Addr::Tcp { .. } | Addr::Unix(_))) => Ok(addr),
        _ => Err(format!(
            "expected PORT (of this host only), HOST:PORT, tcp:HOST:PORT or unix:PATH, got '{text}'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_a_host_with_a_port_or_a_socket() {
        let tcp = |host: &str| Addr::Tcp {
            host: host.into(),
            port: 5641,
        };
        assert_eq!(parse_addr("5641"), Ok(tcp("127.0.0.1")));
        assert_eq!(parse_addr("localhost:5641"), Ok(tcp("localhost")));
        assert_eq!(parse_addr("tcp:0.0.0.0:5641"), Ok(tcp("0.0.0.0")));
        assert_eq!(parse_addr("[::1]:5641"), parse_addr("tcp:[::1]:5641"));
        assert_eq!(parse_addr("unix:/run/s"), Ok(Addr::Unix("/run/s".into())));
        for bad in ["", "65536", "localhost", "/run/s", "vsock:1:2", "fd:3"] {
            assert!(parse_addr(bad).is_err(), "{bad}");
        }
    }
}
