//! Metrics as the protocol has them, from the families of the page for Prometheus.

use super::proto::{
    CUMULATIVE, Data, Gauge, Histogram, HistogramPoint, KeyValue, Metric, MetricsRequest, Number,
    NumberPoint, Resource, ResourceMetrics, ScopeMetrics, Sum, scope,
};
use crate::status::metrics::{Family, Kind, PREFIX, Sample, Value};

/// The times of an export, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// The start of the server, since when sums grow.
    pub(super) start: u64,
    pub(super) now: u64,
}

/// Returns the request to export `families`.
pub(super) fn request(families: Vec<Family>, times: Times, resource: Resource) -> MetricsRequest {
    let with_values = families.into_iter().filter(|it| !it.samples.is_empty());
    let metrics = with_values.map(|family| metric(family, times)).collect();
    let metrics = ScopeMetrics {
        scope: scope(),
        metrics,
    };
    MetricsRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![metrics],
        }],
    }
}

/// Returns a family under its name of OpenMetrics, from which exporters for Prometheus make the one
/// of `/metrics` again.
fn metric(family: Family, times: Times) -> Metric {
    let suffix = if family.kind == Kind::Info {
        "_info"
    } else {
        ""
    };
    let unit = match family.name {
        name if name.ends_with("_seconds") => "s",
        name if name.ends_with("_bytes") => "By",
        _ => "",
    };
    let samples = family.samples.into_iter();
    let data = match family.kind {
        Kind::Gauge => Data::Gauge(Gauge {
            data_points: samples.map(|sample| number(sample, times)).collect(),
        }),
        // An info becomes a sum that does not grow.
        kind @ (Kind::Counter | Kind::Info) => Data::Sum(Sum {
            data_points: samples.map(|sample| number(sample, times)).collect(),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: kind == Kind::Counter,
        }),
        Kind::Histogram => Data::Histogram(Histogram {
            data_points: samples.map(|sample| histogram(sample, times)).collect(),
            aggregation_temporality: CUMULATIVE,
        }),
    };
    Metric {
        name: format!("{PREFIX}_{}{suffix}", family.name),
        description: family.help.into(),
        unit: unit.into(),
        data: Some(data),
    }
}

fn attributes(labels: Vec<(&'static str, String)>) -> Vec<KeyValue> {
    let labels = labels.into_iter();
    labels
        .map(|(name, text)| KeyValue::new(name, &*text))
        .collect()
}

fn number(sample: Sample, times: Times) -> NumberPoint {
    let value = match sample.value {
        Value::Integer(number) => Number::Integer(i64::try_from(number).unwrap_or(i64::MAX)),
        Value::Float(number) => Number::Double(number),
        Value::Histogram { sum, .. } => Number::Double(sum),
    };
    NumberPoint {
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        value: Some(value),
        attributes: attributes(sample.labels),
    }
}

fn histogram(sample: Sample, times: Times) -> HistogramPoint {
    let mut point = HistogramPoint {
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        attributes: attributes(sample.labels),
        ..HistogramPoint::default()
    };
    if let Value::Histogram { sum, buckets, .. } = sample.value {
        // The counters of a snapshot may differ by requests that end meanwhile; here they must not.
        point.count = buckets.iter().map(|(_, count)| count).sum();
        point.sum = Some(sum);
        point.bucket_counts = buckets.iter().map(|&(_, count)| count).collect();
        let bounds = buckets.iter().map(|&(bound, _)| bound);
        point.explicit_bounds = bounds.filter(|bound| bound.is_finite()).collect();
    }
    point
}
