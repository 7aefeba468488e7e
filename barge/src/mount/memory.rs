//! The memory of a mount in a control group with a limit: caches, written data that an NFS server
//! has not made durable, and requests in flight within half of what the limit leaves to the
//! program, as of `barge serve`. The kernel's memory for sockets and for the host's files is not
//! counted.

use super::options::ResolvedOptions;
use crate::Failure;
use crate::serve::plan::client_memory;
use crate::source::Source;

/// The smallest limit of a control group in bytes: the two processes take 16 MiB, and the smallest
/// cache and requests are as large.
const MIN_LIMIT: u64 = 32 << 20;

/// The number of requests of the largest size, with their replies, whose memory limits those in
/// flight: some of the kernel's read-ahead and write-back, and those of programs. More stay in the
/// kernel.
const LARGE_REQUESTS: usize = 32;

/// The sizes of the largest write and read, in bytes.
const REQUEST_SIZES: (usize, usize) = (64 << 10, 1 << 20);

/// Reduces the caches, and the size of requests, to what a control group with this memory limit
/// allows. Returns the memory for requests in flight, `None` without a limit. Returns an error if
/// the limit is too small for any.
pub(super) fn fit(
    options: &mut ResolvedOptions,
    limit: Option<u64>,
) -> Result<Option<usize>, Failure> {
    let Some(limit) = limit else {
        return Ok(None);
    };
    if limit < MIN_LIMIT {
        return Err(Failure::new(format!(
            "the control group's memory limit is {} MiB, and a mount takes {} MiB at least",
            limit >> 20,
            MIN_LIMIT >> 20
        )));
    }
    let (mut cache, request) = shares(client_memory(limit));
    let uncommitted = match &mut options.source {
        Source::Tree(sources::Source::Remote(url)) => url.uncommitted(),
        _ => None,
    };
    if let Some(uncommitted) = uncommitted {
        cache /= 2;
        *uncommitted = Some(cache);
    }
    if let Some(pages) = &mut options.page_cache {
        pages.message = pages.message.min(request);
    }
    if let Some(pages) = &mut options.page_cache
        && pages.memory > cache
    {
        tracing::info!(
            "cache_size= is {} MiB, not {}: the control group's memory limit is {} MiB",
            cache >> 20,
            pages.memory >> 20,
            limit >> 20
        );
        pages.memory = cache;
    }
    options.fuse.max_write = options.fuse.max_write.min(request as u32);
    Ok(Some(LARGE_REQUESTS * request))
}

/// The memory of the messages that threads write from the cache, and of their buffers, in bytes.
const MESSAGES: usize = 4 << 20;

/// Returns the largest cache and the largest request in `budget` bytes: each has half, less
/// [`MESSAGES`] for the cache.
fn shares(budget: usize) -> (usize, usize) {
    let half = budget / 2;
    let cache = half.saturating_sub(MESSAGES).max(half / 2);
    let (least, most) = REQUEST_SIZES;
    // A power of two, as disks and servers prefer.
    let request = 1 << (half / LARGE_REQUESTS).max(1).ilog2();
    (cache, usize::clamp(request, least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn cache_and_requests_are_within_half_of_the_limit() {
        for limit in [32, 48, 64, 96, 128, 256, 1024] {
            let (cache, request) = shares(client_memory(limit * MIB));
            let most = (limit * MIB / 2) as usize;
            assert!(cache + LARGE_REQUESTS * request <= most, "{limit} MiB");
            assert!(cache >= 2 * MIB as usize, "{limit} MiB");
        }
        let requests = |limit: u64| shares(client_memory(limit * MIB)).1 >> 10;
        assert_eq!([48, 128, 1024].map(requests), [256, 512, 1024]);
    }
}
