//! Threads for NFS copies that continue after the reply (asynchronous COPY). They are apart from
//! the engine's workers, which requests wait for.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use nfs::server::Work;

/// Number of copies that run at once; further copies take turns, step by step.
const THREADS: usize = 4;

/// Returns a function that runs work on a pool of threads, which end when the function is dropped.
/// The NFS server bounds the amount of queued work.
pub(super) fn runner() -> io::Result<Arc<dyn Fn(Work) + Send + Sync>> {
    let (send, work) = channel::<Work>();
    let work = Arc::new(Mutex::new(work));
    for _ in 0..THREADS {
        let work = work.clone();
        std::thread::Builder::new()
            .name("barge-nfs-copy".into())
            .spawn(move || {
                let next = || work.lock().expect("no panic holds it").recv();
                while let Ok(work) = next() {
                    if catch_unwind(AssertUnwindSafe(work)).is_err() {
                        tracing::error!("a server-side copy panicked");
                    }
                }
            })?;
    }
    Ok(Arc::new(move |work| drop(send.send(work))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_is_done_behind_work_that_panics() {
        let run = runner().expect("threads");
        for _ in 0..2 * THREADS {
            run(Box::new(|| panic!("as a test wants it")));
        }
        let (done, is_done) = channel();
        run(Box::new(move || done.send(()).expect("somebody waits")));
        assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(()));
    }
}
