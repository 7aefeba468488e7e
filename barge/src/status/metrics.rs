//! The metrics of a status: their one definition, and the text format of OpenMetrics, for
//! Prometheus.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::json::{Cache, Export, Quota, Remote, Status};

/// Content type of the text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The beginning of all names, without the underscore after it.
pub(crate) const PREFIX: &str = "barge";

/// Exponents of the histogram buckets, powers of two of nanoseconds: 1 µs to 17 s.
const BUCKET_EXPONENTS: std::ops::RangeInclusive<u32> = 10..=34;

/// A metric family of OpenMetrics.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Family {
    /// The name, without [`PREFIX`] and without the suffix of its type (`_total`, `_info`).
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    /// The values, each with other labels.
    pub(crate) samples: Vec<Sample>,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Constant labels, with the value 1.
    Info,
    Gauge,
    /// A sum that only grows.
    Counter,
    Histogram,
}

/// A value of a family.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Integer(u64),
    Float(f64),
    Histogram {
        sum: f64,
        count: u64,
        /// Upper bounds, the last of which is infinite, and the number of values from the bound
        /// before, exclusive, to this one, inclusive.
        buckets: Vec<(f64, u64)>,
    },
}

/// Formats `status`, and whether the server is ready.
pub(super) fn text(status: &Status, ready: bool) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Families::of(status, ready)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Returns the metrics of `status`, and of whether the server is ready.
#[cfg(feature = "otel")]
pub(crate) fn families(status: &Status, ready: bool) -> Vec<Family> {
    Families::of(status, ready).0
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let kind = match family.kind {
                Kind::Info => MetricType::Info,
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut encoder = to.encode_descriptor(family.name, family.help, None, kind)?;
            for Sample { labels, value } in &family.samples {
                match labels.as_slice() {
                    labels if family.kind == Kind::Info => encoder.encode_info(&labels)?,
                    [] => encode_value(&mut encoder, family.kind, value)?,
                    labels => {
                        let mut encoder = encoder.encode_family(&labels)?;
                        encode_value(&mut encoder, family.kind, value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn encode_value(to: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Integer(count)) => {
            to.encode_counter::<NoLabelSet, _, u64>(count, None)
        }
        (Kind::Counter, Value::Float(sum)) => to.encode_counter::<NoLabelSet, _, u64>(sum, None),
        (_, Value::Integer(number)) => to.encode_gauge(number),
        (_, Value::Float(number)) => to.encode_gauge(number),
        (
            _,
            Value::Histogram {
                sum,
                count,
                buckets,
            },
        ) => to.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None),
    }
}

impl Sample {
    /// Returns a value without labels.
    fn plain(value: impl Into<Value>) -> Sample {
        Sample::new([], value)
    }

    fn new<const N: usize>(labels: [(&'static str, &str); N], value: impl Into<Value>) -> Sample {
        let labels = labels.into_iter();
        Sample {
            labels: labels.map(|(name, text)| (name, text.to_owned())).collect(),
            value: value.into(),
        }
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Integer(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Float(number)
    }
}

impl Families {
    fn of(status: &Status, ready: bool) -> Families {
        let mut all = Families(Vec::new());
        let build = &status.build;
        let labels = [
            ("version", &*status.version),
            ("commit", &*build.commit),
            ("features", &*build.features),
            ("rustc", &*build.rustc),
        ];
        let help = "Version of the program, and its build";
        all.add("build", help, Kind::Info, [Sample::new(labels, 1)]);
        for (name, help, value) in [
            (
                "ready",
                "Whether the checks of /readyz passed: 1, or 0",
                f64::from(u8::from(ready)),
            ),
            (
                "uptime_seconds",
                "Seconds since the process started",
                status.uptime,
            ),
            (
                "connections",
                "Open connections and device queues",
                status.connections as f64,
            ),
            (
                "requests_in_flight",
                "Requests in flight: with a worker, or waiting for one or for an event",
                status.in_flight as f64,
            ),
            (
                "requests_parked",
                "Requests waiting for an event, such as a lock",
                status.parked as f64,
            ),
            (
                "memory_bytes",
                "Bytes of memory for clients in use",
                status.memory.used as f64,
            ),
            (
                "memory_limit_bytes",
                "Limit of memory for clients, --memory",
                status.memory.limit as f64,
            ),
        ] {
            all.add(name, help, Kind::Gauge, [Sample::plain(value)]);
        }
        let done = &status.done;
        for (name, help, value) in [
            ("requests", "Requests received", done.requests),
            (
                "requests_offloaded",
                "Requests served by a worker",
                done.offloaded,
            ),
            (
                "requests_cancelled",
                "Requests that the client cancelled in flight",
                done.cancelled,
            ),
            ("received_bytes", "Bytes received", done.received),
            ("sent_bytes", "Bytes sent", done.sent),
        ] {
            all.add(name, help, Kind::Counter, [Sample::plain(value)]);
        }
        for (name, help, label, counts) in [
            (
                "clients_denied",
                "Clients denied access by export lists or because of credentials, by reason",
                "reason",
                &status.denied,
            ),
            (
                "connections_refused",
                "Connections refused or closed by the server, by reason",
                "reason",
                &status.refused,
            ),
            (
                "connections_throttled",
                "Times that a connection was not read for a while, by the limit",
                "reason",
                &status.throttled,
            ),
            (
                "slow_requests",
                "Requests slower than --slow-ms, by protocol",
                "protocol",
                &status.slow,
            ),
            (
                "slow_requests_suppressed",
                "Slow requests without a line in the log because of its rate limit",
                "protocol",
                &status.slow_suppressed,
            ),
            #[cfg(feature = "otel")]
            (
                "otlp_spans",
                "Spans for the OpenTelemetry collector, by result",
                "result",
                &status.spans,
            ),
        ] {
            let counts = counts.iter();
            let counts = counts.map(|(value, count)| Sample::new([(label, value)], *count));
            all.add(name, help, Kind::Counter, counts);
        }
        all.add_cache(&status.exports, &|export| export.cache, &CACHE);
        all.add_cache(&status.exports, &|export| export.disk_cache, &DISK_CACHE);
        all.add_remotes(&status.exports);
        all.add_limits(&status.exports);
        all.add_quotas(&status.exports);
        all.add_clients(status);
        all.add_operations(status);
        all
    }

    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        samples: impl IntoIterator<Item = Sample>,
    ) {
        self.0.push(Family {
            name,
            help,
            kind,
            samples: samples.into_iter().collect(),
        });
    }

    /// Adds the caches of `exports` that `of` returns.
    fn add_cache(
        &mut self,
        exports: &[Export],
        of: &dyn Fn(&Export) -> Option<Cache>,
        metrics: &CacheMetrics,
    ) {
        let caches = || {
            let caches = exports.iter();
            caches.filter_map(|export| Some((&*export.name, of(export)?)))
        };
        let (name, help) = metrics.lookups;
        let lookups = caches().flat_map(|(export, cache)| {
            [("hit", cache.hits), ("miss", cache.misses)]
                .map(|(found, count)| Sample::new([("export", export), ("found", found)], count))
        });
        self.add(name, help, Kind::Counter, lookups);
        for ((name, help), kind, value) in [
            (
                metrics.bytes,
                Kind::Gauge,
                (|cache| cache.bytes) as fn(&Cache) -> u64,
            ),
            (metrics.limit, Kind::Gauge, |cache| cache.limit),
            (metrics.evicted, Kind::Counter, |cache| cache.evicted),
        ] {
            let values =
                caches().map(|(export, cache)| Sample::new([("export", export)], value(&cache)));
            self.add(name, help, kind, values);
        }
    }

    fn add_remotes(&mut self, exports: &[Export]) {
        let remotes = || {
            let exports = exports.iter();
            exports.filter_map(|export| Some((&*export.name, export.remote.as_ref()?)))
        };
        let times = remotes().map(|(export, remote)| {
            let times = histogram(remote.nanos, remote.requests, &remote.buckets);
            Sample::new([("export", export)], times)
        });
        self.add(
            "remote_request_seconds",
            "Seconds that requests to the server of a source took",
            Kind::Histogram,
            times,
        );
        for (name, help, value) in [
            (
                "remote_errors",
                "Requests to the server of a source that failed: no reply, or an I/O error",
                (|remote| remote.errors) as fn(&Remote) -> u64,
            ),
            (
                "remote_received_bytes",
                "Bytes of contents received from the server of a source",
                |remote| remote.received,
            ),
        ] {
            let counts =
                remotes().map(|(export, remote)| Sample::new([("export", export)], value(remote)));
            self.add(name, help, Kind::Counter, counts);
        }
    }

    fn add_limits(&mut self, exports: &[Export]) {
        let limits = || {
            let exports = exports.iter();
            exports.filter_map(|export| Some(([("export", &*export.name)], export.limit.as_ref()?)))
        };
        self.add(
            "limit_delayed_requests",
            "Requests that had to wait for a limit of their share or client",
            Kind::Counter,
            limits().map(|(labels, limit)| Sample::new(labels, limit.delayed)),
        );
        self.add(
            "limit_wait_seconds",
            "Seconds that requests waited for a limit of their share or client",
            Kind::Counter,
            limits().map(|(labels, limit)| Sample::new(labels, limit.waited)),
        );
        self.add(
            "limit_waiting_requests",
            "Requests waiting for a limit of their share or client",
            Kind::Gauge,
            limits().map(|(labels, limit)| Sample::new(labels, limit.waiting as u64)),
        );
    }

    fn add_quotas(&mut self, exports: &[Export]) {
        for (name, help, value) in [
            (
                "quota_bytes",
                "Bytes of shares with a quota",
                (|quota| Some(quota.bytes)) as fn(&Quota) -> Option<u64>,
            ),
            (
                "quota_limit_bytes",
                "Maximum bytes of shares, --quota",
                |quota| quota.limit_bytes,
            ),
            (
                "quota_inodes",
                "Files and directories of shares with a quota",
                |quota| Some(quota.inodes),
            ),
            (
                "quota_limit_inodes",
                "Maximum number of files and directories of shares, --quota-inodes",
                |quota| quota.limit_inodes,
            ),
        ] {
            let values = exports.iter().filter_map(|export| {
                let value = value(export.quota.as_ref()?)?;
                Some(Sample::new([("export", &*export.name)], value))
            });
            self.add(name, help, Kind::Gauge, values);
        }
    }

    fn add_clients(&mut self, status: &Status) {
        let mut by_version = BTreeMap::<_, u64>::new();
        for client in &status.clients {
            *by_version
                .entry((&*client.protocol, &*client.version))
                .or_default() += 1;
        }
        let counts = by_version.into_iter().map(|((protocol, version), count)| {
            Sample::new([("protocol", protocol), ("version", version)], count)
        });
        self.add(
            "clients",
            "Clients among the 256 with the most requests, by protocol and version",
            Kind::Gauge,
            counts,
        );
    }

    fn add_operations(&mut self, status: &Status) {
        let operations = status.operations.iter();
        let times = operations.clone().map(|operation| {
            let labels = [("protocol", &*operation.protocol), ("op", &*operation.name)];
            let times = histogram(operation.nanos, operation.count, &operation.buckets);
            Sample::new(labels, times)
        });
        self.add(
            "operation_seconds",
            "Seconds from the receipt of a request until its reply is complete, by operation",
            Kind::Histogram,
            times,
        );
        let errors = operations.flat_map(|operation| {
            operation.errors.iter().map(|(errno, count)| {
                let labels = [
                    ("protocol", &*operation.protocol),
                    ("op", &*operation.name),
                    ("errno", &**errno),
                ];
                Sample::new(labels, *count)
            })
        });
        self.add(
            "operation_errors",
            "Failed requests, by operation and error",
            Kind::Counter,
            errors,
        );
    }
}

/// The names and descriptions of the metrics of a kind of cache.
struct CacheMetrics {
    lookups: (&'static str, &'static str),
    bytes: (&'static str, &'static str),
    limit: (&'static str, &'static str),
    evicted: (&'static str, &'static str),
}

const CACHE: CacheMetrics = CacheMetrics {
    lookups: ("cache_lookups", "Lookups in caches of sources, by result"),
    bytes: ("cache_bytes", "Bytes in caches of sources"),
    limit: ("cache_limit_bytes", "Maximum size of caches of sources"),
    evicted: (
        "cache_evicted_bytes",
        "Bytes evicted from caches of sources",
    ),
};

const DISK_CACHE: CacheMetrics = CacheMetrics {
    lookups: (
        "disk_cache_lookups",
        "Lookups in disk caches, by result: opened files, or 16 KiB segments of images",
    ),
    bytes: ("disk_cache_bytes", "Bytes in disk caches, as far as known"),
    limit: ("disk_cache_limit_bytes", "Maximum size of disk caches"),
    evicted: (
        "disk_cache_evicted_bytes",
        "Bytes that this process evicted from disk caches",
    ),
};

/// Returns a histogram of `count` times, which have the sum `nanos` and are in the buckets `fine`.
fn histogram(nanos: u64, count: u64, fine: &[(u64, u64)]) -> Value {
    Value::Histogram {
        sum: nanos as f64 / 1e9,
        count,
        buckets: buckets(fine),
    }
}

/// Returns histogram buckets with powers of two as upper bounds, in seconds. The last has no bound.
fn buckets(fine: &[(u64, u64)]) -> Vec<(f64, u64)> {
    let mut all: Vec<(u64, u64)> = BUCKET_EXPONENTS.map(|power| (1 << power, 0)).collect();
    all.push((u64::MAX, 0));
    for &(end, count) in fine {
        let at = all.partition_point(|&(coarse, _)| coarse < end);
        all[at].1 += count;
    }
    let seconds = |end| match end {
        u64::MAX => f64::INFINITY,
        end => end as f64 / 1e9,
    };
    let all = all.into_iter();
    all.map(|(end, count)| (seconds(end), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_lost_between_buckets() {
        let fine = [(256, 1), (1024, 2), (1280, 4), (1 << 34, 8), (u64::MAX, 16)];
        let coarse = buckets(&fine);
        assert_eq!(coarse.iter().map(|(_, count)| count).sum::<u64>(), 31);
        assert_eq!((coarse[0].1, coarse[1].1), (3, 4));
        assert_eq!(coarse.last().map(|last| last.1), Some(16));
    }

    #[test]
    fn values_have_the_format_of_their_type() {
        let status = Status {
            slow: [("9p".to_owned(), 3)].into(),
            uptime: 2.0,
            ..Status::default()
        };
        let text = text(&status, true).expect("text");
        for line in [
            "# TYPE barge_build info",
            "barge_ready 1.0",
            "barge_uptime_seconds 2.0",
            "barge_requests_total 0",
            "barge_slow_requests_total{protocol=\"9p\"} 3",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
    }
}
