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
use reqwest::header::RETRY_AFTER;

/// Transfer statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Requests sent, including retries.
    pub requests: u64,
    /// Bytes of contents received.
    pub bytes: u64,
}

/// Counters for [`Fetched`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    pub(crate) fn came(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn fetched(&self) -> Fetched {
        Fetched {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// A request in flight, carried in its extensions, with its response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempt(Arc<Mutex<Answer>>);

/// The parts of a response needed for retries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answer {
    /// The status code, if there was a response.
    pub(crate) status: Option<u16>,
    /// The requested pause (`Retry-After`).
    pub(crate) wait: Option<Duration>,
}

impl Attempt {
    pub(crate) fn answer(&self) -> Answer {
        *self.0.lock()
    }
}

/// A connector whose clients count requests.
#[derive(Debug)]
pub(crate) struct Connector(pub(crate) Arc<Counts>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Counted {
            client: ReqwestConnector::default().connect(options)?,
            counts: self.0.clone(),
        }))
    }
}

#[derive(Debug)]
struct Counted {
    client: HttpClient,
    counts: Arc<Counts>,
}

#[async_trait]
impl HttpService for Counted {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let attempt = request.extensions().get::<Attempt>().cloned();
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let response = self.client.execute(request).await?;
        if let Some(Attempt(answer)) = attempt {
            // A `Retry-After` with a date is ignored.
            let wait = response.headers().get(RETRY_AFTER);
            let wait = wait.and_then(|seconds| seconds.to_str().ok()?.trim().parse().ok());
            *answer.lock() = Answer {
                status: Some(response.status().as_u16()),
                wait: wait.map(Duration::from_secs),
            };
        }
        Ok(response)
    }
}
