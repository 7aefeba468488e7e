//! Metrics as the protocol has them, from the families of the page for Prometheus.

use std::collections::HashMap;

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

/// The sums of the last export. One that has decreased since, because a process was replaced or a
/// share removed, starts again after that export.
#[derive(Default)]
pub(super) struct Sums {
    all: HashMap<Series, LastSum>,
    /// The time of the export, in nanoseconds since 1970.
    exported: u64,
}

/// The name of a family, and labels.
type Series = (&'static str, Vec<(&'static str, String)>);

struct LastSum {
    value: f64,
    /// Its start, if that is not the server's.
    restarted: Option<u64>,
}

impl Sums {
    /// Returns the start of each sum of `families`, in order, and remembers their values.
    fn starts(&mut self, families: &[Family], times: Times) -> Vec<u64> {
        let mut all = HashMap::new();
        let mut starts = Vec::new();
        for family in families {
            for Sample { labels, value } in &family.samples {
                let value = match value {
                    Value::Integer(number) => *number as f64,
                    Value::Float(number) => *number,
                    Value::Histogram { buckets, .. } => {
                        buckets.iter().map(|(_, count)| count).sum::<u64>() as f64
                    }
                };
                let series = (family.name, labels.clone());
                let restarted = self.all.get(&series).and_then(|last| {
                    let decreased = family.kind != Kind::Gauge && value < last.value;
                    decreased.then_some(self.exported).or(last.restarted)
                });
                starts.push(restarted.unwrap_or(times.start));
                all.insert(series, LastSum { value, restarted });
            }
        }
        *self = Sums {
            all,
            exported: times.now,
        };
        starts
    }
}

/// Returns the request to export `families`, after the one of `sums`.
pub(super) fn request(
    families: Vec<Family>,
    sums: &mut Sums,
    times: Times,
    resource: Resource,
) -> MetricsRequest {
    let starts = sums.starts(&families, times).into_iter();
    let mut points = starts.map(|start| Times { start, ..times });
    let with_values = families.into_iter().filter(|it| !it.samples.is_empty());
    let metrics = with_values
        .map(|family| metric(family, points.by_ref()))
        .collect();
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
/// of `/metrics` again. `times` has those of each sample.
fn metric(family: Family, times: impl Iterator<Item = Times>) -> Metric {
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
    // In this order, so that no time is taken after the last sample.
    let samples = family.samples.into_iter().zip(times);
    let data = match family.kind {
        Kind::Gauge => Data::Gauge(Gauge {
            data_points: samples
                .map(|(sample, times)| number(sample, times))
                .collect(),
        }),
        // An info becomes a sum that does not grow.
        kind @ (Kind::Counter | Kind::Info) => Data::Sum(Sum {
            data_points: samples
                .map(|(sample, times)| number(sample, times))
                .collect(),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: kind == Kind::Counter,
        }),
        Kind::Histogram => Data::Histogram(Histogram {
            data_points: samples
                .map(|(sample, times)| histogram(sample, times))
                .collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_decreases_starts_after_the_export_before() {
        let mut sums = Sums::default();
        let mut starts = |now, values: [u64; 3]| {
            let names = ["requests", "received_bytes"];
            let family = |(name, values): (&'static str, &[u64])| Family {
                name,
                help: "",
                kind: Kind::Counter,
                samples: values
                    .iter()
                    .enumerate()
                    .map(|(at, value)| Sample {
                        labels: vec![("export", at.to_string())],
                        value: Value::Integer(*value),
                    })
                    .collect(),
            };
            let families = names.into_iter().zip([&values[..1], &values[1..]]);
            let families = families.map(family).collect();
            let times = Times { start: 1, now };
            let request = request(families, &mut sums, times, Resource::default());
            let metrics = request.resource_metrics[0].scope_metrics[0].metrics.iter();
            let points = metrics.flat_map(|metric| match &metric.data {
                Some(Data::Sum(sum)) => sum.data_points.clone(),
                other => panic!("{other:?}"),
            });
            points
                .map(|point| point.start_time_unix_nano)
                .collect::<Vec<_>>()
        };
        assert_eq!(starts(10, [5, 5, 5]), [1, 1, 1]);
        assert_eq!(starts(20, [6, 4, 5]), [1, 10, 1]);
        assert_eq!(starts(30, [6, 7, 5]), [1, 10, 1]);
        assert_eq!(starts(40, [7, 6, 0]), [1, 30, 30]);
    }
}
