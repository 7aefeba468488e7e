//! Requests: their errors, retries and timeouts, and the thread that runs them.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use vfs::Errno;

use crate::containment::contained;

/// Retry limits and timeouts.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The maximum number of attempts of one request.
    pub attempts: u32,
    /// The pause before the first retry, of which a random half to all is waited; it doubles with
    /// each retry, up to [`Tuning::max_backoff`].
    pub initial_backoff: Duration,
    /// The maximum pause between two attempts, even if the server requests a longer one.
    pub max_backoff: Duration,
    /// The timeout of one request, including its response body.
    pub request_timeout: Duration,
    /// The timeout of a call, including retries.
    pub call_timeout: Duration,
}

impl Default for Tuning {
    /// Returns timeouts as long as people and programs wait for a disk before they give up.
    fn default() -> Tuning {
        Tuning {
            attempts: 6,
            initial_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(15),
            request_timeout: Duration::from_secs(30),
            call_timeout: Duration::from_secs(60),
        }
    }
}

/// A request's failure.
#[derive(Debug)]
pub struct RequestError {
    /// The error for the caller.
    pub errno: Errno,
    /// One line, without secrets.
    pub message: String,
    /// Whether a retry may succeed.
    pub is_transient: bool,
    /// The pause that the server requests (`Retry-After`).
    pub retry_after: Option<Duration>,
}

impl RequestError {
    /// Returns an error that a retry does not change.
    pub fn permanent(errno: Errno, message: impl Into<String>) -> RequestError {
        RequestError {
            errno,
            message: message.into(),
            is_transient: false,
            retry_after: None,
        }
    }

    /// Returns an error of which a retry may be free: a failed connection, or wrong bytes.
    pub fn transient(message: impl Into<String>) -> RequestError {
        RequestError {
            is_transient: true,
            ..RequestError::permanent(Errno::EIO, message)
        }
    }

    /// Adds the response that the request had: its status may exclude a retry.
    #[must_use]
    pub fn with_response(mut self, status: u16, retry_after: Option<Duration>) -> RequestError {
        self.is_transient &= is_transient(status);
        self.retry_after = retry_after;
        self
    }

    /// Returns the error with the kind of its errno.
    pub fn into_io(self) -> io::Error {
        io::Error::new(io::Error::from(self.errno).kind(), self.message)
    }
}

/// A thread that runs requests. Any number of threads may wait for theirs at once; they block, so
/// they must not be threads of an asynchronous runtime.
pub struct Requests {
    runtime: Runtime,
    tuning: Tuning,
}

impl Requests {
    /// Starts the thread.
    pub fn new(tuning: Tuning) -> io::Result<Requests> {
        // Fails harmlessly if a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("image-object")
            .enable_all()
            .build()?;
        Ok(Requests { runtime, tuning })
    }

    /// Returns the retry limits and timeouts.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Waits for `call`, at most for [`Tuning::call_timeout`]. A panic is an error.
    pub fn run<T>(
        &self,
        call: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let limited = async {
            let done = tokio::time::timeout(self.tuning.call_timeout, call).await;
            done.unwrap_or_else(|_| {
                let message = format!("no reply within {:?}", self.tuning.call_timeout);
                Err(RequestError::transient(message))
            })
        };
        contained(|| self.runtime.block_on(limited))
    }

    /// Repeats `request` until it succeeds, fails permanently, or runs out of attempts. `name` is
    /// for the log.
    pub async fn retry<T>(
        &self,
        name: &str,
        mut request: impl AsyncFnMut() -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let mut pause = self.tuning.initial_backoff;
        let mut attempts = 1;
        loop {
            let failed = match request().await {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            if attempts >= self.tuning.attempts || !failed.is_transient {
                return Err(failed);
            }
            tracing::debug!("{name}: retrying: {}", failed.message);
            let wait = jittered(pause).max(failed.retry_after.unwrap_or_default());
            tokio::time::sleep(wait.min(self.tuning.max_backoff)).await;
            pause = (pause * 2).min(self.tuning.max_backoff);
            attempts += 1;
        }
    }
}

/// Returns whether a retry may get another status: too many requests, a server error, or success
/// with wrong bytes.
pub fn is_transient(status: u16) -> bool {
    matches!(status, 200..=299 | 408 | 429 | 500..=599)
}

/// Returns a random duration between half of `pause` and all of it, so that clients that failed
/// together do not retry together.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}
