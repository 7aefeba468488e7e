//! Observability: the activity of a server over HTTP (`--http`) and in the terminal (`barge top`).
//!
//! No figures are stored here: each request sums up the engine's current ones.

mod change;
mod health;
mod http;
mod json;
mod metrics;
mod page;
pub(crate) mod top;

use std::sync::Arc;
use std::time::Instant;

use engine::Engine;
use image::ImageFs;
use layers::limit::Rates;
use layers::{Limiter, PageCache};
use parking_lot::{Mutex, MutexGuard};
use transports::{Addr, Listener};
use vfs::FileSystem;

use self::health::Probe;
use self::http::{HostNames, Request, Response};
pub(crate) use self::json::Status;
use self::json::{Cache, Export, Limit};
pub(crate) use self::top::{TopArgs, run as top};
use crate::Failure;

/// Default port of `barge top`: the one after that of 9P.
const DEFAULT_PORT: &str = "5641";

/// The figures of a server, of this process or of several.
pub(crate) trait Figures: Send + Sync {
    fn status(&self) -> Status;

    /// Returns a line for each problem that keeps clients from being served.
    fn troubles(&self) -> Vec<String>;
}

/// The figures of an engine and its sources.
pub(crate) struct Observer {
    engine: Arc<Engine>,
    sources: Arc<ObservedSources>,
    started: Instant,
    process: u32,
}

/// A server of the status page.
pub(crate) struct StatusServer {
    engine: Arc<Engine>,
    figures: Arc<dyn Figures>,
}

/// A source as it was opened, without layers.
pub(crate) struct ObservedSource {
    pub(crate) name: String,
    /// SOURCE on the command line.
    pub(crate) source: String,
    pub(crate) cache: SourceCache,
    /// The limits of the share, if there are any or they may change.
    pub(crate) limiter: Option<Arc<Limiter>>,
}

/// The cache of a source.
pub(crate) enum SourceCache {
    /// The cache of an image; other sources have none.
    Image(Arc<dyn FileSystem>),
    Pages(Arc<PageCache>),
}

/// The sources that are being served.
pub(crate) struct ObservedSources(Mutex<Vec<ProbedSource>>);

/// A source and its health check.
struct ProbedSource {
    source: ObservedSource,
    probe: Option<Arc<Probe>>,
}

impl ProbedSource {
    fn new(source: ObservedSource) -> ProbedSource {
        let probe = match &source.cache {
            SourceCache::Image(fs) => Some(Probe::new(fs.clone())),
            SourceCache::Pages(_) => None,
        };
        ProbedSource { source, probe }
    }
}

impl ObservedSources {
    pub(crate) fn new(sources: Vec<ObservedSource>) -> ObservedSources {
        ObservedSources(Mutex::new(
            sources.into_iter().map(ProbedSource::new).collect(),
        ))
    }

    /// Probes all sources, and returns a line for each that fails. Waits for the slowest one or the
    /// timeout.
    fn probe_failures(&self) -> Vec<String> {
        let probe = |seen: &ProbedSource| Some((seen.source.source.clone(), seen.probe.clone()?));
        let probes: Vec<_> = self.lock().iter().filter_map(probe).collect();
        probes.iter().for_each(|(_, probe)| probe.start());
        let troubles = probes.iter().filter_map(|(source, probe)| {
            let why = probe.result().err()?;
            Some(format!("{source}: {why}"))
        });
        troubles.collect()
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
        self.0.lock()
    }
}

impl ObservedSource {
    fn snapshot(&self) -> Export {
        Export {
            name: self.name.clone(),
            source: self.source.clone(),
            cache: self.cache.snapshot(),
            limit: self.limiter.as_ref().and_then(|it| limit_of(it)),
        }
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

impl SourceCache {
    fn snapshot(&self) -> Option<Cache> {
        match self {
            SourceCache::Image(fs) => {
                let figures = fs.as_any().downcast_ref::<ImageFs>()?.cache_stats();
                Some(Cache {
                    hits: figures.hits,
                    misses: figures.misses,
                    bytes: figures.bytes,
                })
            }
            SourceCache::Pages(pages) => {
                let figures = pages.stats();
                Some(Cache {
                    hits: figures.hits,
                    misses: figures.misses,
                    bytes: figures.bytes,
                })
            }
        }
    }
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
        }
    }
}

impl Figures for Observer {
    fn status(&self) -> Status {
        let exports = self.sources.snapshot();
        let uptime = self.started.elapsed().as_secs_f64();
        let refused = self.engine.connection_refusals().into_iter();
        Status {
            pid: self.process,
            refused: refused
                .map(|(reason, count)| (reason.to_owned(), count))
                .collect(),
            ..Status::new(
                self.engine.snapshot(),
                self.engine.refusals(),
                uptime,
                exports,
            )
        }
    }

    fn troubles(&self) -> Vec<String> {
        let lost = self.engine.failed_listeners().into_iter();
        let mut troubles: Vec<_> = lost
            .map(|addr| format!("no longer listening at {addr}"))
            .collect();
        troubles.extend(self.sources.probe_failures());
        troubles
    }
}

impl StatusServer {
    /// Returns a server of `figures`, whose connections `engine` stops.
    pub(crate) fn new(engine: Arc<Engine>, figures: Arc<dyn Figures>) -> StatusServer {
        StatusServer { engine, figures }
    }

    /// Serves the status to clients of `listener` that use its address or one of `names` as the
    /// host, until the engine stops.
    pub(crate) fn serve(self, listener: Listener, names: &[String]) -> Result<(), Failure> {
        let names = HostNames::new(listener.addr(), names);
        let engine = self.engine.clone();
        engine
            .spawn_listener("http", move |stop| {
                let answer = |request: &Request| self.respond(request);
                if let Err(error) = http::serve(&listener, &names, &answer, stop) {
                    self.engine.report_failed_listener(listener.addr(), &error);
                }
            })
            .map_err(Failure::new)
    }

    fn respond(&self, request: &Request) -> Response {
        match request.path.as_str() {
            "/" => page::response(),
            "/healthz" => self.health(),
            "/status.json" => match serde_json::to_vec(&self.figures.status()) {
                Ok(json) => Response::new("application/json", json),
                Err(error) => internal_error(&error),
            },
            "/metrics" => match metrics::text(self.figures.status()) {
                Ok(text) => Response::new(metrics::CONTENT_TYPE, text),
                Err(error) => internal_error(&error),
            },
            _ => Response::error(
                "404 Not Found",
                "expected /, /healthz, /metrics or /status.json",
            ),
        }
    }

    /// Returns 200 if clients can connect and all sources answer, otherwise 503 with one line per
    /// problem.
    fn health(&self) -> Response {
        let troubles = self.figures.troubles();
        match troubles.is_empty() {
            true => Response::new("text/plain; charset=utf-8", "ok\n"),
            false => Response::error("503 Service Unavailable", &troubles.join("\n")),
        }
    }
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
