//! Differences between two snapshots of a server's figures.

use std::collections::HashMap;

use super::json::{Counts, Operation, Status};

/// Two snapshots of one server; there may be no earlier one.
pub(super) struct StatusDelta<'a> {
    pub(super) now: &'a Status,
    before: Option<&'a Status>,
    /// Time between the snapshots, or since the start of the server.
    seconds: f64,
}

/// The difference for operations of one kind.
pub(super) struct OperationDelta<'a> {
    pub(super) now: &'a Operation,
    /// Operations per second.
    pub(super) rate: f64,
    pub(super) error_rate: f64,
    latencies: Vec<(u64, u64)>,
}

impl<'a> StatusDelta<'a> {
    /// Compares `now` with `before`, or with the start of the server if `before` is absent or of
    /// another server.
    pub(super) fn new(now: &'a Status, before: Option<&'a Status>) -> StatusDelta<'a> {
        let before = before.filter(|before| before.pid == now.pid && before.uptime < now.uptime);
        let since = before.map_or(0.0, |before| before.uptime);
        StatusDelta {
            now,
            before,
            seconds: (now.uptime - since).max(0.001),
        }
    }

    /// Returns the increase of a figure per second.
    pub(super) fn rate(&self, figure: impl Fn(&Counts) -> u64) -> f64 {
        let before = self.before.map_or(0, |before| figure(&before.done));
        figure(&self.now.done).saturating_sub(before) as f64 / self.seconds
    }

    /// Returns the differences for each kind of operation, the most frequent first.
    pub(super) fn operations(&self) -> Vec<OperationDelta<'a>> {
        let key = |operation: &'a Operation| (&*operation.protocol, &*operation.name);
        let before = self
            .before
            .into_iter()
            .flat_map(|before| &before.operations);
        let before: HashMap<_, _> = before
            .map(|operation| (key(operation), operation))
            .collect();
        let per = |now: u64, then: Option<u64>| {
            now.saturating_sub(then.unwrap_or(0)) as f64 / self.seconds
        };
        let operations = self.now.operations.iter().map(|now| {
            let then = before.get(&key(now)).copied();
            OperationDelta {
                now,
                rate: per(now.count, then.map(|then| then.count)),
                error_rate: per(now.failures(), then.map(Operation::failures)),
                latencies: bucket_differences(&now.buckets, then.map_or(&[], |then| &then.buckets)),
            }
        });
        let mut operations: Vec<_> = operations.collect();
        operations.sort_by(|one, other| {
            let by_rate = other.rate.total_cmp(&one.rate);
            by_rate.then(other.now.count.cmp(&one.now.count))
        });
        operations
    }
}

impl OperationDelta<'_> {
    /// Returns a quantile of the operations' times in nanoseconds, if there were any operations.
    pub(super) fn quantile(&self, part: f64) -> Option<u64> {
        quantile(&self.latencies, part)
    }
}

/// Returns a quantile of all kinds together.
pub(super) fn quantile_of_all(operations: &[OperationDelta<'_>], part: f64) -> Option<u64> {
    let mut all = std::collections::BTreeMap::new();
    for (end, count) in operations.iter().flat_map(|operation| &operation.latencies) {
        *all.entry(*end).or_default() += count;
    }
    let all: Vec<_> = all.into_iter().collect();
    quantile(&all, part)
}

fn quantile(times: &[(u64, u64)], part: f64) -> Option<u64> {
    let all: u64 = times.iter().map(|(_, count)| count).sum();
    let mut rest = part * all as f64;
    let at = times.iter().find(|(_, count)| {
        rest -= *count as f64;
        rest <= 0.0
    });
    at.or(times.last()).map(|(end, _)| *end)
}

/// Returns the increase of each bucket. Both arguments are in ascending order.
fn bucket_differences(now: &[(u64, u64)], before: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let then = |end| match before.binary_search_by_key(&end, |bucket| bucket.0) {
        Ok(at) => before[at].1,
        Err(_) => 0,
    };
    let added = now
        .iter()
        .map(|&(end, count)| (end, count.saturating_sub(then(end))));
    added.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uptime: f64, count: u64, buckets: &[(u64, u64)]) -> Status {
        Status {
            pid: 7,
            uptime,
            done: Counts {
                requests: count,
                ..Counts::default()
            },
            operations: vec![Operation {
                protocol: "9p".into(),
                name: "Tread".into(),
                count,
                errors: [("EIO".to_owned(), count / 10)].into(),
                nanos: 0,
                buckets: buckets.into(),
            }],
            ..Status::default()
        }
    }

    #[test]
    fn rates_and_quantiles_are_of_what_came_between() {
        let before = status(10.0, 100, &[(1000, 100)]);
        let now = status(12.0, 300, &[(1000, 120), (2000, 170), (4000, 10)]);
        let change = StatusDelta::new(&now, Some(&before));
        assert_eq!(change.rate(|done| done.requests), 100.0);
        let operations = change.operations();
        assert_eq!(
            (operations[0].rate, operations[0].error_rate),
            (100.0, 10.0)
        );
        let quantiles = [0.05, 0.5, 0.99].map(|part| operations[0].quantile(part));
        assert_eq!(quantiles, [Some(1000), Some(2000), Some(4000)]);
        assert_eq!(quantile_of_all(&operations, 1.0), Some(4000));
    }

    #[test]
    fn another_servers_figures_are_no_past_of_this_one() {
        let now = status(2.0, 300, &[(1000, 300)]);
        let other = Status {
            pid: 8,
            ..status(1.0, 290, &[])
        };
        for before in [None, Some(&other), Some(&now)] {
            assert_eq!(
                StatusDelta::new(&now, before).rate(|done| done.requests),
                150.0
            );
        }
        assert_eq!(
            StatusDelta::new(&now, None).operations()[0].quantile(0.5),
            Some(1000)
        );
    }
}
