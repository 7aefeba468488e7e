//! Statistics of sources: requests to other servers, and caches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Errno;
use crate::histogram::{Histogram, Latencies};

/// Statistics of a source, as far as it has any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// The requests to the server that has the data.
    pub remote: Option<RemoteStats>,
    /// The cache in memory.
    pub cache: Option<CacheStats>,
    /// The cache on a disk of this host.
    pub disk_cache: Option<CacheStats>,
}

impl SourceStats {
    /// Adds the statistics of another part of the same source.
    pub fn add(&mut self, other: &SourceStats) {
        if let Some(other) = &other.remote {
            self.remote.get_or_insert_default().add(other);
        }
        if let Some(other) = &other.cache {
            self.cache.get_or_insert_default().add(other);
        }
        if let Some(other) = &other.disk_cache {
            self.disk_cache.get_or_insert_default().add(other);
        }
    }
}

/// Statistics of a cache. All but `bytes` and `limit` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups that the cache served alone, in a unit of the cache.
    pub hits: u64,
    /// Lookups that needed data from below.
    pub misses: u64,
    /// The size of the contents, in bytes.
    pub bytes: u64,
    /// The size in bytes from which on contents are evicted.
    pub limit: u64,
    /// The bytes that were evicted.
    pub evicted: u64,
}

impl CacheStats {
    fn add(&mut self, other: &CacheStats) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.bytes += other.bytes;
        self.limit += other.limit;
        self.evicted += other.evicted;
    }
}

/// The contents of caches that [`crate::FileSystem::evict`] released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the disk cache.
    pub disk: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// Counters of the requests to another server. Any thread may count.
#[derive(Default)]
pub struct RemoteCounters {
    latencies: Histogram,
    errors: AtomicU64,
    received: AtomicU64,
}

impl RemoteCounters {
    /// Counts a request that took `time`, and whether it failed ([`is_failure`]).
    pub fn count(&self, time: Duration, failed: bool) {
        self.latencies.count(time);
        self.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    /// Counts bytes of contents that were received.
    pub fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the bytes of contents that were received.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the values so far.
    pub fn stats(&self) -> RemoteStats {
        RemoteStats {
            latencies: self.latencies.snapshot(),
            errors: self.errors.load(Ordering::Relaxed),
            received: self.received(),
        }
    }
}

/// The values of [`RemoteCounters`] at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// The times that requests took, those that failed included.
    pub latencies: Latencies,
    /// The number of requests that failed.
    pub errors: u64,
    /// The bytes of contents that were received.
    pub received: u64,
}

impl RemoteStats {
    fn add(&mut self, other: &RemoteStats) {
        self.latencies.add(&other.latencies);
        self.errors += other.errors;
        self.received += other.received;
    }
}

/// Returns whether an error is a failure of the server, or of the connection to it, rather than a
/// result such as `ENOENT`.
pub fn is_failure(errno: Errno) -> bool {
    // EIO, ENODEV, and ENETDOWN to EHOSTUNREACH: no connection, a lost one, or a time-out.
    matches!(errno.raw(), 5 | 19 | 100..=113)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_source_are_added() {
        let counters = RemoteCounters::default();
        counters.count(Duration::from_millis(3), false);
        counters.count(Duration::from_millis(4), true);
        counters.add_received(70);
        let cache = CacheStats {
            hits: 1,
            misses: 2,
            bytes: 3,
            limit: 4,
            evicted: 5,
        };
        let part = SourceStats {
            remote: Some(counters.stats()),
            cache: Some(cache),
            disk_cache: None,
        };
        let mut sum = SourceStats::default();
        sum.add(&part);
        assert_eq!(sum, part);
        sum.add(&part);
        let remote = sum.remote.expect("added");
        assert_eq!(
            (remote.latencies.count(), remote.errors, remote.received),
            (4, 2, 140)
        );
        assert_eq!(
            sum.cache.map(|cache| (cache.hits, cache.evicted)),
            Some((2, 10))
        );
        assert_eq!(sum.disk_cache, None);
    }

    #[test]
    fn a_missing_file_is_no_failure_of_the_server() {
        let timed_out = Errno::from_raw(110);
        assert!(is_failure(Errno::EIO) && is_failure(timed_out));
        assert!(!is_failure(Errno::ENOENT) && !is_failure(Errno::EACCES));
    }
}
