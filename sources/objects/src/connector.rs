//! HTTP connector that follows redirects, counts requests and records response headers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use parking_lot::Mutex;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Certificate, Client, NoProxy, Proxy, redirect};
use url::Url;
use vfs::source_stats::RemoteCounters;

use crate::redirect::{Destination, Redirects, Refused, Resolver};
use crate::settings::Settings;

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

/// A connector for one store, whose clients count requests.
#[derive(Debug)]
pub(crate) struct Connector {
    servers: Servers,
    counts: Arc<TransferCounters>,
}

/// The servers that clients of a store may send requests to.
#[derive(Clone, Debug)]
struct Servers {
    store: Destination,
    /// The addresses that requests begin with, for a tenant: the store, and the server of its
    /// tokens. A metadata service is never among them.
    only: Option<Vec<Url>>,
}

impl Servers {
    fn of(settings: &Settings) -> Servers {
        let store = settings.address();
        let only = || std::iter::once(store.clone()).chain(settings.authority());
        Servers {
            store: Destination::new(store, settings.is_tenant()),
            only: settings.is_tenant().then(|| only().collect()),
        }
    }

    /// Returns an error if no request may begin with this URL.
    fn check(&self, url: &Url) -> Result<(), Refused> {
        match &self.only {
            Some(only) if !only.iter().any(|one| one.origin() == url.origin()) => {
                Err(Refused::ELSEWHERE)
            }
            _ => Ok(()),
        }
    }
}

impl Connector {
    /// Returns a connector for the store of these settings.
    pub(crate) fn new(settings: &Settings, counts: &Arc<TransferCounters>) -> Connector {
        Connector {
            servers: Servers::of(settings),
            counts: counts.clone(),
        }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let guarded = match self.servers.only {
            Some(_) => Some(HttpClient::new(client(options, true)?)),
            None => None,
        };
        Ok(HttpClient::new(FollowingService {
            client: HttpClient::new(client(options, false)?),
            guarded,
            servers: self.servers.clone(),
            counts: self.counts.clone(),
        }))
    }
}

/// Returns a client that follows no redirects, with the options of a store.
fn client(options: &ClientOptions, is_guarded: bool) -> object_store::Result<Client> {
    let text = |key| options.get_config_value(&key);
    let is_on = |key| {
        let value = text(key).unwrap_or_default().to_ascii_lowercase();
        matches!(&*value, "1" | "true" | "on" | "yes" | "y")
    };
    let duration = |key: ClientConfigKey| match text(key) {
        None => Ok(None),
        Some(value) => humantime::parse_duration(&value).map(Some).map_err(failed),
    };
    let mut builder = Client::builder()
        .redirect(redirect::Policy::none())
        .referer(false)
        .user_agent(match text(ClientConfigKey::UserAgent) {
            Some(agent) => agent,
            None => concat!("barge/", env!("CARGO_PKG_VERSION")).to_owned(),
        })
        .tls_danger_accept_invalid_certs(is_on(ClientConfigKey::AllowInvalidCertificates))
        .https_only(!is_on(ClientConfigKey::AllowHttp));
    if let Some(proxy) = text(ClientConfigKey::ProxyUrl) {
        let mut proxy = Proxy::all(proxy).map_err(failed)?;
        if let Some(excluded) = text(ClientConfigKey::ProxyExcludes) {
            proxy = proxy.no_proxy(NoProxy::from_string(&excluded));
        }
        builder = builder.proxy(proxy);
    }
    if let Some(pem) = text(ClientConfigKey::ProxyCaCertificate) {
        builder = builder.tls_certs_merge([Certificate::from_pem(pem.as_bytes()).map_err(failed)?]);
    }
    if is_on(ClientConfigKey::NoSystemCertificates) {
        builder = builder.tls_certs_only([]);
    }
    if let Some(timeout) = duration(ClientConfigKey::Timeout)? {
        builder = builder.timeout(timeout);
    }
    if let Some(timeout) = duration(ClientConfigKey::ConnectTimeout)? {
        builder = builder.connect_timeout(timeout);
    }
    if let Some(timeout) = duration(ClientConfigKey::ReadTimeout)? {
        builder = builder.read_timeout(timeout);
    }
    if let Some(timeout) = duration(ClientConfigKey::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(timeout);
    }
    if let Some(most) = text(ClientConfigKey::PoolMaxIdlePerHost) {
        builder = builder.pool_max_idle_per_host(most.parse().map_err(failed)?);
    }
    // Every request is one response after the other: HTTP/2 has no use here, unless it is required.
    if is_on(ClientConfigKey::Http2Only) {
        builder = builder.http2_prior_knowledge();
    } else if is_on(ClientConfigKey::Http1Only) {
        builder = builder.http1_only();
    }
    if is_guarded {
        builder = builder.dns_resolver(Arc::new(Resolver::guarded()));
    } else if is_on(ClientConfigKey::RandomizeAddresses) {
        builder = builder.dns_resolver(Arc::new(Resolver::spreading()));
    }
    builder.build().map_err(failed)
}

/// Returns the error for an option of a client that is none.
fn failed(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic {
        store: "HTTP",
        source: Box::new(error),
    }
}

#[derive(Debug)]
struct FollowingService {
    client: HttpClient,
    /// The client for other servers than the store, of a tenant.
    guarded: Option<HttpClient>,
    servers: Servers,
    counts: Arc<TransferCounters>,
}

impl FollowingService {
    async fn send(&self, url: &Url, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_restricted = self.servers.store.is_restricted(url).map_err(refused)?;
        let client = match &self.guarded {
            Some(guarded) if is_restricted => guarded,
            _ => &self.client,
        };
        self.counts.add_request();
        client.execute(request).await
    }

    /// Sends a request, and then another one for each redirect, if it asks for data.
    async fn follow(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = Url::parse(&request.uri().to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        self.servers.check(&url).map_err(refused)?;
        let (method, mut headers) = (request.method().clone(), request.headers().clone());
        let mut redirects = Redirects::new(url.clone());
        let mut response = self.send(&url, request).await?;
        while method.is_safe() {
            let next = redirects.next(response.status(), response.headers(), &mut headers);
            let Some(url) = next.map_err(refused)? else {
                break;
            };
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method.clone();
            *request.headers_mut() = headers.clone();
            *request.uri_mut() = url.as_str().parse().map_err(|_| refused(Refused::NO_URL))?;
            response = self.send(&url, request).await?;
        }
        Ok(response)
    }
}

fn refused(error: Refused) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

#[async_trait]
impl HttpService for FollowingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let attempt = request.extensions().get::<Attempt>().cloned();
        let response = self.follow(request).await?;
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

/// A connector that sends nothing: it records the addresses of requests, and refuses them.
#[derive(Clone, Debug)]
pub(crate) struct Rehearsal {
    servers: Servers,
    addresses: Arc<Mutex<Vec<String>>>,
}

impl Rehearsal {
    pub(crate) fn new(settings: &Settings) -> Rehearsal {
        Rehearsal {
            servers: Servers::of(settings),
            addresses: Arc::default(),
        }
    }

    /// Returns the addresses of the requests so far: scheme, host and port.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.lock().clone()
    }
}

impl HttpConnector for Rehearsal {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Rehearsal {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = Url::parse(&request.uri().to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        self.servers.check(&url).map_err(refused)?;
        let origin = url.origin().ascii_serialization();
        self.addresses.lock().push(origin);
        Err(refused(Refused::REHEARSED))
    }
}
