//! Export of metrics and traces to an OpenTelemetry collector, over OTLP as protobuf over HTTP
//! (feature `otel`).
//!
//! An exporter is a thread of the process that serves, which has the figures. Its parent connects,
//! as a confined process may not ([`Connect`]). No request waits for it: requests for spans are in
//! a bounded queue ([`engine::TraceQueue`]), metrics are sums that it reads. Deliberately absent:
//! gRPC, compression, certificates of clients, logs.

mod config;
mod http;
mod metrics;
mod proto;
mod spans;

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use engine::{RequestTrace, TraceOptions, TraceQueue};
use parking_lot::Mutex;
use prost::Message;

pub(crate) use self::config::{Config, Endpoint, Url};
use self::http::PostError;
use self::metrics::{Sums, Times};
use self::proto::{KeyValue, Resource, Response};
use crate::Failure;
use crate::status::{Figures, metrics::families};
use crate::version::VERSION;

/// Time for the last export at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for a connection to each address of a collector.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time between attempts to send spans: the first one, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The longest time between attempts that a collector may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Connects to a host and port of the configuration.
pub(crate) type Connect = Box<dyn Fn(&str, u16) -> io::Result<TcpStream> + Send>;

/// Connects to `host` at `port`, from a process that is not confined.
pub(crate) fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The numbers of spans of a process, by result.
pub(crate) struct SpanCounts {
    queue: Arc<TraceQueue>,
    exported: AtomicU64,
    rejected: AtomicU64,
}

impl SpanCounts {
    /// Returns the numbers by result: `exported`, `dropped` because the queue was full, and
    /// `rejected` by the collector.
    pub(crate) fn by_result(&self) -> BTreeMap<String, u64> {
        [
            ("exported", self.exported.load(Ordering::Relaxed)),
            ("dropped", self.queue.dropped()),
            ("rejected", self.rejected.load(Ordering::Relaxed)),
        ]
        .map(|(result, count)| (result.to_owned(), count))
        .into()
    }
}

/// The figures and traces to export.
pub(crate) struct Exported {
    pub(crate) figures: Arc<dyn Figures>,
    /// Whether the figures are those of this process alone. Otherwise they are not read at its end,
    /// as other processes may have ended.
    pub(crate) own: bool,
    /// The queue of the engine, if it records requests.
    pub(crate) traces: Option<Arc<TraceQueue>>,
    /// The id of the process that users know as the server.
    pub(crate) process: u32,
}

/// The thread that exports.
pub(crate) struct Exporter {
    queue: Arc<TraceQueue>,
    counts: Arc<SpanCounts>,
    end: Arc<Mutex<Option<Instant>>>,
    /// Is closed when the thread has ended.
    ended: Receiver<()>,
}

impl Exporter {
    /// Starts the thread.
    pub(crate) fn start(
        config: Config,
        exported: Exported,
        connect: Connect,
    ) -> Result<Exporter, Failure> {
        let queue = exported.traces.clone().unwrap_or_else(|| {
            let options = TraceOptions {
                ratio: 0.0,
                capacity: 0,
            };
            Arc::new(TraceQueue::new(&options))
        });
        let counts = Arc::new(SpanCounts {
            queue: queue.clone(),
            exported: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        });
        let end = Arc::new(Mutex::new(None));
        let (sender, ended) = channel();
        let worker = Worker {
            resource: resource(&config, exported.process),
            config,
            exported,
            connect,
            queue: queue.clone(),
            counts: counts.clone(),
            end: end.clone(),
            started: None,
            sums: Sums::default(),
            failing: [false; 2],
            _ended: sender,
        };
        let thread = std::thread::Builder::new().name("barge-otlp".into());
        thread.spawn(|| worker.run()).map_err(Failure::new)?;
        Ok(Exporter {
            queue,
            counts,
            end,
            ended,
        })
    }

    /// Returns the numbers of spans.
    pub(crate) fn counts(&self) -> Arc<SpanCounts> {
        self.counts.clone()
    }

    /// Exports the last metrics and spans. Returns after two seconds, also if the collector does
    /// not answer.
    pub(crate) fn finish(self) {
        *self.end.lock() = Some(Instant::now() + FLUSH_TIMEOUT);
        self.queue.wake();
        // Either the thread has ended, or the time has passed.
        let _ = self.ended.recv_timeout(FLUSH_TIMEOUT);
    }
}

/// Returns the attributes of the server. Those of the environment take precedence.
fn resource(config: &Config, process: u32) -> Resource {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let instance = format!("{host}:{process}");
    let own = [
        ("service.name", "barge"),
        ("service.version", VERSION),
        ("service.instance.id", &*instance),
        ("host.name", &*host),
    ];
    let is_set = |key: &str| config.attributes.iter().any(|(other, _)| other == key);
    let own = own.into_iter().filter(|(key, _)| !is_set(key));
    let set = config.attributes.iter();
    let set = set.map(|(key, value)| (&**key, &**value));
    Resource {
        attributes: own
            .chain(set)
            .map(|(key, value)| KeyValue::new(key, value))
            .collect(),
    }
}

/// Spans that are being sent.
struct Batch {
    body: Vec<u8>,
    count: u64,
    /// The number of failed attempts.
    attempts: u32,
}

/// The state of the thread.
struct Worker {
    config: Config,
    exported: Exported,
    resource: Resource,
    connect: Connect,
    queue: Arc<TraceQueue>,
    counts: Arc<SpanCounts>,
    /// The time at which the last export ends, once the process ends.
    end: Arc<Mutex<Option<Instant>>>,
    /// The start of the server.
    started: Option<SystemTime>,
    /// Those of the last export of metrics.
    sums: Sums,
    /// Whether the last export of metrics, and of traces, has failed.
    failing: [bool; 2],
    _ended: Sender<()>,
}

impl Worker {
    fn run(mut self) {
        let mut next_metrics = Instant::now() + self.config.interval;
        let mut next_spans = Instant::now() + self.config.delay;
        let mut batch: Option<Batch> = None;
        loop {
            let next = match self.config.metrics.is_some() {
                true => next_metrics.min(next_spans),
                false => next_spans,
            };
            // A full queue does not shorten the wait for a collector that is away.
            let enough = match batch {
                Some(_) => usize::MAX,
                None => self.config.wake_at(),
            };
            self.queue.wait(next, enough);
            let end = *self.end.lock();
            let now = Instant::now();
            if end.is_some() || now >= next_metrics {
                self.export_metrics(end);
                next_metrics = (next_metrics + self.config.interval).max(Instant::now());
            }
            // A batch that failed is sent again in its time.
            if end.is_some() || batch.is_none() || now >= next_spans {
                let delay = self.export_spans(&mut batch, end);
                next_spans = Instant::now() + delay;
            }
            if end.is_some() {
                break;
            }
        }
    }

    fn export_metrics(&mut self, end: Option<Instant>) {
        if self.config.metrics.is_none() || end.is_some() && !self.exported.own {
            return;
        }
        let figures = &self.exported.figures;
        let status = figures.status();
        // A server that ends is not ready, and its sources are no longer asked.
        let ready = end.is_none() && crate::status::is_ready(&**figures);
        let now = SystemTime::now();
        let started = now - Duration::from_secs_f64(status.uptime.clamp(0.0, 1e9));
        // The same start each time, unless the server has another one.
        let is_same = |known: &SystemTime| {
            let later = started.duration_since(*known);
            later.unwrap_or_else(|earlier| earlier.duration()) < Duration::from_secs(5)
        };
        let started = self.started.filter(is_same).unwrap_or(started);
        self.started = Some(started);
        let times = Times {
            start: spans::nanos(started),
            now: spans::nanos(now),
        };
        let (families, resource) = (families(&status, ready), self.resource.clone());
        let request = metrics::request(families, &mut self.sums, times, resource);
        // The next export has these values as well, so there is no second attempt.
        let _ = self.send(Signal::Metrics, &request.encode_to_vec(), end);
    }

    /// Sends `batch`, which failed before, or else all spans of the queue. Returns the time until
    /// the next attempt.
    fn export_spans(&mut self, batch: &mut Option<Batch>, end: Option<Instant>) -> Duration {
        if self.config.traces.is_none() {
            self.queue.take(usize::MAX);
            return self.config.delay;
        }
        loop {
            let mut next = match batch.take() {
                Some(failed) => failed,
                None => match self.queue.take(self.config.batch) {
                    traces if traces.is_empty() => return self.config.delay,
                    traces => self.batch(traces),
                },
            };
            match self.send(Signal::Traces, &next.body, end) {
                Ok(rejected) => {
                    let rejected = rejected.min(next.count);
                    let exported = next.count - rejected;
                    self.counts.exported.fetch_add(exported, Ordering::Relaxed);
                    self.counts.rejected.fetch_add(rejected, Ordering::Relaxed);
                }
                Err(PostError::Refused(_)) => {
                    let count = next.count;
                    self.counts.rejected.fetch_add(count, Ordering::Relaxed);
                }
                Err(PostError::Later { after, .. }) => {
                    let backoff = BACKOFF.0 * 2_u32.pow(next.attempts.min(10));
                    next.attempts += 1;
                    *batch = Some(next);
                    let backoff = match after {
                        Some(after) => after.min(MAX_RETRY_AFTER),
                        None => backoff.min(BACKOFF.1),
                    };
                    // Servers do not all return at the same time.
                    return backoff.mul_f64(1.0 + fastrand::f64() / 2.0);
                }
            }
            // Otherwise metrics have their turn; the wait ends at once if enough spans are queued.
            if end.is_none_or(|end| Instant::now() >= end) {
                return self.config.delay;
            }
        }
    }

    fn batch(&self, traces: Vec<RequestTrace>) -> Batch {
        let count = traces.len() as u64;
        let request = spans::request(traces, self.resource.clone());
        Batch {
            body: request.encode_to_vec(),
            count,
            attempts: 0,
        }
    }

    /// Sends a request, and returns the number of points or spans that the collector rejected.
    /// Logs the first of several failures, and the end of them.
    fn send(
        &mut self,
        signal: Signal,
        body: &[u8],
        end: Option<Instant>,
    ) -> Result<u64, PostError> {
        let (endpoint, name) = match signal {
            Signal::Metrics => (&self.config.metrics, "metrics"),
            Signal::Traces => (&self.config.traces, "traces"),
        };
        let Some(endpoint) = endpoint else {
            return Ok(0);
        };
        let sent = self.post(endpoint, body, end);
        let url = &endpoint.url;
        let failing = &mut self.failing[signal as usize];
        match &sent {
            Ok(Response { partial_success }) => {
                if std::mem::replace(failing, false) {
                    tracing::info!("OpenTelemetry: {name} are exported to {url} again");
                }
                if let Some(partial) = partial_success
                    && (partial.rejected != 0 || !partial.error_message.is_empty())
                {
                    let (rejected, why) = (partial.rejected, &partial.error_message);
                    tracing::debug!("OpenTelemetry: {url} rejected {rejected}: {why:?}");
                }
            }
            Err(PostError::Later { why, .. } | PostError::Refused(why)) => {
                if std::mem::replace(failing, true) {
                    tracing::debug!("OpenTelemetry: {name} are not exported to {url}: {why}");
                } else {
                    tracing::warn!("OpenTelemetry: {name} are not exported to {url}: {why}");
                }
            }
        }
        let partial = sent?.partial_success;
        Ok(partial.map_or(0, |it| u64::try_from(it.rejected).unwrap_or(0)))
    }

    fn post(
        &self,
        endpoint: &Endpoint,
        body: &[u8],
        end: Option<Instant>,
    ) -> Result<Response, PostError> {
        let deadline = Instant::now() + endpoint.timeout;
        let deadline = end.map_or(deadline, |end| end.min(deadline));
        let (host, port) = endpoint.url.address();
        let stream = (self.connect)(host, port)?;
        let reply = http::post(endpoint, stream, body, deadline)?;
        // A reply of another type means success, too.
        Ok(Response::decode(&*reply).unwrap_or_default())
    }
}

#[derive(Clone, Copy)]
enum Signal {
    Metrics,
    Traces,
}
