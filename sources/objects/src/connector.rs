//! HTTP connector that counts requests and records response headers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use parking_lot::Mutex;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use vfs::source_stats::RemoteCounters;

/// Transfer statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Requests sent, including retries.
    pub requests: u64,
    /// Bytes of contents received.
    pub bytes: u64,
}

/// Counters for [`TransferStats`].
#[derive(Default)]
pub struct TransferCounters {
    requests: AtomicU64,
    /// The times of requests for ranges, their failures, and the bytes received.
    pub(crate) ranges: RemoteCounters,
}

impl std::fmt::Debug for TransferCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

impl TransferCounters {
    /// Counts a request.
    pub fn add_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the sums so far.
    pub fn stats(&self) -> TransferStats {
        TransferStats {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.ranges.received(),
        }
    }
}

/// A request in flight, carried in its extensions, with its response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempt(Arc<Mutex<ResponseInfo>>);

/// The parts of a response needed for retries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseInfo {
    /// The status code, if there was a response.
    pub(crate) status: Option<u16>,
    /// The requested pause (`Retry-After`).
    pub(crate) retry_after: Option<Duration>,
}

impl Attempt {
    pub(crate) fn response(&self) -> ResponseInfo {
        *self.0.lock()
    }
}

/// A connector whose clients count requests.
#[derive(Debug)]
pub(crate) struct Connector(pub(crate) Arc<TransferCounters>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(CountingService {
            client: ReqwestConnector::default().connect(options)?,
            counts: self.0.clone(),
        }))
    }
}

#[derive(Debug)]
struct CountingService {
    client: HttpClient,
    counts: Arc<TransferCounters>,
}

#[async_trait]
impl HttpService for CountingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let attempt = request.extensions().get::<Attempt>().cloned();
        self.counts.add_request();
        let response = self.client.execute(request).await?;
        if let Some(Attempt(answer)) = attempt {
            *answer.lock() = ResponseInfo {
                status: Some(response.status().as_u16()),
                retry_after: retry_after(response.headers()),
            };
        }
        Ok(response)
    }
}

/// Returns the pause that a server requests, if it does so in seconds; dates are ignored.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse();
    seconds.ok().map(Duration::from_secs)
}
