//! Threads for what goes on behind NFS's answers: copies. Apart from the engine's, which requests wait for.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use nfs::server::Work;

/// How many copies are carried out at once; more take turns, step by step.
const THREADS: usize = 4;

/// What runs work in threads of its own, which end with it. How much there is at once its maker bounds.
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
                        tracing::error!("a copy has ended with a panic");
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
