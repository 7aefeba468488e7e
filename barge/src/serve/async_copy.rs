//! Threads for NFS copies that continue after the reply (asynchronous COPY). They are apart from
//! the engine's workers, which requests wait for.

use std::sync::Arc;

use concurrency::ThreadPool;
use nfs::server::Work;

/// Number of copies that run at once; further copies take turns, step by step.
const THREADS: usize = 4;

/// Returns a function that runs work on a pool of threads, which end when the function is dropped.
/// The NFS server bounds the amount of queued work.
pub(super) fn executor() -> Arc<dyn Fn(Work) + Send + Sync> {
    let pool = ThreadPool::new("barge-nfs-copy", THREADS, usize::MAX);
    Arc::new(move |work| pool.run(work))
}
