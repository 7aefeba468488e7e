//! The status in the text format of OpenMetrics, for Prometheus.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::json::{Cache, Export, Remote, Status};

/// Content type of the text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Exponents of the histogram buckets, powers of two of nanoseconds: 1 µs to 17 s.
const BUCKET_EXPONENTS: std::ops::RangeInclusive<u32> = 10..=34;

/// Formats `status`, and whether the server is ready.
pub(super) fn text(status: Status, ready: bool) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("barge");
    registry.register_collector(Box::new(StatusCollector(status, ready)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct StatusCollector(Status, bool);

type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

impl Collector for StatusCollector {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let StatusCollector(status, ready) = self;
        let done = &status.done;
        let build: Labels<'_, 4> = [
            ("version", &status.version),
            ("commit", &status.build.commit),
            ("features", &status.build.features),
            ("rustc", &status.build.rustc),
        ];
        let help = "Version of the program, and its build";
        to.encode_descriptor("build", help, None, MetricType::Info)?
            .encode_info(&build)?;
        for (name, help, value) in [
            (
                "ready",
                "Whether the checks of /readyz passed: 1, or 0",
                f64::from(u8::from(*ready)),
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
            to.encode_descriptor(name, help, None, MetricType::Gauge)?
                .encode_gauge(&value)?;
        }
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
            to.encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        let help = "Clients denied access by export lists or because of credentials, by reason";
        encode_counts(&mut to, "clients_denied", help, "reason", &self.0.denied)?;
        let help = "Connections refused or closed by the server, by reason";
        encode_counts(
            &mut to,
            "connections_refused",
            help,
            "reason",
            &self.0.refused,
        )?;
        let help = "Times that a connection was not read for a while, by the limit";
        let throttled = &self.0.throttled;
        encode_counts(&mut to, "connections_throttled", help, "reason", throttled)?;
        let help = "Requests slower than --slow-ms, by protocol";
        encode_counts(&mut to, "slow_requests", help, "protocol", &self.0.slow)?;
        let help = "Slow requests without a line in the log because of its rate limit";
        let suppressed = &self.0.slow_suppressed;
        encode_counts(
            &mut to,
            "slow_requests_suppressed",
            help,
            "protocol",
            suppressed,
        )?;
        self.caches(&mut to)?;
        self.remotes(&mut to)?;
        self.limits(&mut to)?;
        self.clients(&mut to)?;
        self.operations(&mut to)
    }
}

impl StatusCollector {
    fn caches(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let cache = |export: &Export| export.cache;
        encode_cache(to, &self.0.exports, &cache, &CACHE)?;
        let disk_cache = |export: &Export| export.disk_cache;
        encode_cache(to, &self.0.exports, &disk_cache, &DISK_CACHE)
    }

    fn remotes(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let remotes = || {
            let exports = self.0.exports.iter();
            exports.filter_map(|export| Some((&*export.name, export.remote.as_ref()?)))
        };
        let help = "Seconds that requests to the server of a source took";
        let name = "remote_request_seconds";
        let mut family = to.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (export, remote) in remotes() {
            let labels: Labels<'_, 1> = [("export", export)];
            let sum = remote.nanos as f64 / 1e9;
            let buckets = buckets(&remote.buckets);
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(sum, remote.requests, &buckets, None)?;
        }
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
            let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (export, remote) in remotes() {
                let labels: Labels<'_, 1> = [("export", export)];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&value(remote), None)?;
            }
        }
        Ok(())
    }

    fn limits(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let limits = || {
            let exports = self.0.exports.iter();
            exports.filter_map(|export| {
                let labels: Labels<'_, 1> = [("export", &export.name)];
                Some((labels, export.limit.as_ref()?))
            })
        };
        let help = "Requests that had to wait for a limit of their share or client";
        let mut family =
            to.encode_descriptor("limit_delayed_requests", help, None, MetricType::Counter)?;
        for (labels, limit) in limits() {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&limit.delayed, None)?;
        }
        let help = "Seconds that requests waited for a limit of their share or client";
        let mut family =
            to.encode_descriptor("limit_wait_seconds", help, None, MetricType::Counter)?;
        for (labels, limit) in limits() {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, f64>(&limit.waited, None)?;
        }
        let help = "Requests waiting for a limit of their share or client";
        let mut family =
            to.encode_descriptor("limit_waiting_requests", help, None, MetricType::Gauge)?;
        for (labels, limit) in limits() {
            let waiting = limit.waiting as u64;
            family.encode_family(&labels)?.encode_gauge(&waiting)?;
        }
        Ok(())
    }

    fn clients(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut by_version = std::collections::BTreeMap::<_, u64>::new();
        for client in &self.0.clients {
            *by_version
                .entry((&*client.protocol, &*client.version))
                .or_default() += 1;
        }
        let help = "Clients among the 256 with the most requests, by protocol and version";
        let mut family = to.encode_descriptor("clients", help, None, MetricType::Gauge)?;
        for ((protocol, version), count) in by_version {
            let labels: Labels<'_, 2> = [("protocol", protocol), ("version", version)];
            family.encode_family(&labels)?.encode_gauge(&count)?;
        }
        Ok(())
    }

    fn operations(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help =
            "Seconds from the receipt of a request until its reply is complete, by operation";
        let mut family =
            to.encode_descriptor("operation_seconds", help, None, MetricType::Histogram)?;
        for operation in &self.0.operations {
            let labels: Labels<'_, 2> =
                [("protocol", &operation.protocol), ("op", &operation.name)];
            let sum = operation.nanos as f64 / 1e9;
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(
                    sum,
                    operation.count,
                    &buckets(&operation.buckets),
                    None,
                )?;
        }
        let help = "Failed requests, by operation and error";
        let mut family =
            to.encode_descriptor("operation_errors", help, None, MetricType::Counter)?;
        for operation in &self.0.operations {
            for (errno, count) in &operation.errors {
                let labels: Labels<'_, 3> = [
                    ("protocol", &operation.protocol),
                    ("op", &operation.name),
                    ("errno", errno),
                ];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        Ok(())
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

/// Encodes the caches of `exports` that `of` returns.
fn encode_cache(
    to: &mut DescriptorEncoder<'_>,
    exports: &[Export],
    of: &dyn Fn(&Export) -> Option<Cache>,
    metrics: &CacheMetrics,
) -> fmt::Result {
    let caches = || {
        let caches = exports.iter();
        caches.filter_map(|export| Some((&*export.name, of(export)?)))
    };
    let (name, help) = metrics.lookups;
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (export, cache) in caches() {
        for (found, value) in [("hit", cache.hits), ("miss", cache.misses)] {
            let labels: Labels<'_, 2> = [("export", export), ("found", found)];
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
    }
    for ((name, help), value) in [
        (metrics.bytes, (|cache| cache.bytes) as fn(&Cache) -> u64),
        (metrics.limit, |cache| cache.limit),
    ] {
        let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (export, cache) in caches() {
            let labels: Labels<'_, 1> = [("export", export)];
            family
                .encode_family(&labels)?
                .encode_gauge(&value(&cache))?;
        }
    }
    let (name, help) = metrics.evicted;
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (export, cache) in caches() {
        let labels: Labels<'_, 1> = [("export", export)];
        family
            .encode_family(&labels)?
            .encode_counter::<NoLabelSet, _, u64>(&cache.evicted, None)?;
    }
    Ok(())
}

/// Encodes a counter with one label.
fn encode_counts(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    counts: &BTreeMap<String, u64>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (value, count) in counts {
        let labels: Labels<'_, 1> = [(label, value)];
        family
            .encode_family(&labels)?
            .encode_counter::<NoLabelSet, _, u64>(count, None)?;
    }
    Ok(())
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
}
