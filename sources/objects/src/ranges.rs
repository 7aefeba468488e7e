//! The bytes of an object.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use image::{DiskCacheEntry, FileGuard, ImageIdentity, LazyName, Piece, RangeSource};
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetRange, ObjectMeta, ObjectStore};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use vfs::{Errno, Patience};

use crate::coalesce::{MAX_GAP, MAX_REQUEST, RangeRequest, coalesce};
use crate::connector::{Attempt, TransferCounters, TransferStats};
use crate::url::Url;

/// The number of bytes fetched on opening, since an image's reader needs them first (a segment of
/// its cache).
const HEAD_BYTES: u64 = 16 << 10;

/// The read-ahead length in bytes: transferring it takes longer than a round trip on most networks.
/// Measurements are in `docs/notes/images.md`.
const READAHEAD: u64 = 4 << 20;

/// The maximum number of concurrent requests of one call: enough to fill a connection's bandwidth
/// with requests of [`MAX_REQUEST`] bytes.
const IN_FLIGHT: usize = 8;

/// The maximum number of characters of a server's error message that are repeated.
const MAX_MESSAGE_CHARS: usize = 200;

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

/// An opened object. Methods may be called concurrently from any number of threads. They block, so
/// they must not be called on threads of an asynchronous runtime.
pub struct Object {
    display_url: String,
    store: Arc<dyn ObjectStore>,
    path: Path,
    identity: Identity,
    len: u64,
    /// Its first bytes, fetched on opening.
    head: Vec<u8>,
    tuning: Tuning,
    counters: Arc<TransferCounters>,
    /// The last call's error, so that it is logged once.
    last_error: Mutex<Option<Errno>>,
    runtime: Arc<Runtime>,
}

/// The value that tells an object from its replacement under the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity {
    ETag(String),
    /// Seconds since the epoch.
    Modified(i64),
}

/// A request's failure.
#[derive(Debug)]
struct RequestError {
    errno: Errno,
    message: String,
    /// Whether a retry may succeed.
    is_transient: bool,
}

impl Object {
    /// Opens the object that `url` names, through the disk cache if `url` has one.
    pub fn open(url: &Url, tuning: Tuning) -> io::Result<Arc<dyn RangeSource>> {
        let Some(options) = url.disk_cache() else {
            return Ok(Arc::new(Object::connect(url, tuning, None)?));
        };
        match DiskCacheEntry::open(options, &url.cache_name()) {
            Ok(tier) => {
                let object = match Object::connect(url, tuning, tier.identity()) {
                    Ok(object) => object,
                    Err(error) if tier.identity().is_none() => {
                        tier.discard();
                        return Err(error);
                    }
                    Err(error) => return Err(error),
                };
                let identity = object.identity.bytes(url);
                let object: Arc<dyn RangeSource> = Arc::new(object);
                match tier.over(object.clone(), &identity, &url.to_string()) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tracing::warn!(
                            "{url}: no disk cache, because another process reads an older version"
                        );
                        Ok(object)
                    }
                    opened => Ok(Arc::new(opened?)),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tracing::warn!("{url}: no disk cache, because another process opens it");
                Ok(Arc::new(Object::connect(url, tuning, None)?))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the object that `url` names. If it is unchanged from `known`, no bytes are fetched; if
    /// the store cannot be reached, it is assumed to be unchanged.
    pub fn connect(url: &Url, tuning: Tuning, known: Option<&ImageIdentity>) -> io::Result<Object> {
        // Fails harmlessly if a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("image-object")
            .enable_all()
            .build()?;
        let counts = Arc::<TransferCounters>::default();
        let opened = url.store(&tuning, &counts);
        let (store, path) = opened.map_err(|error| failure(&error, None).into_io())?;
        let known = known.and_then(|known| Some((Identity::parse(known.identity())?, known.len())));
        let mut object = Object {
            display_url: url.to_string(),
            store,
            path,
            identity: Identity::Modified(0),
            len: 0,
            head: Vec::new(),
            tuning,
            counters: counts,
            last_error: Mutex::new(None),
            runtime: Arc::new(runtime),
        };
        let runtime = object.runtime.clone();
        match runtime.block_on(object.with_timeout(object.head(known.as_ref()))) {
            Ok(Some((identity, len, head))) => {
                (object.identity, object.len, object.head) = (identity, len, head);
            }
            Ok(None) => (object.identity, object.len) = known.expect("it was asked for"),
            Err(RequestError {
                message: what,
                is_transient: true,
                ..
            }) if known.is_some() => {
                tracing::warn!("{url}: using only the disk cache: {what}");
                (object.identity, object.len) = known.expect("there is one");
            }
            Err(failed) => return Err(failed.into_io()),
        }
        Ok(object)
    }

    /// Returns the name of a local file for this version of the object at `url`.
    pub fn lazy_name(&self, url: &Url) -> LazyName {
        let identity = self.identity.bytes(url);
        LazyName {
            location: format!("{} {}", url.cache_name(), identity.escape_ascii()),
            identity,
        }
    }

    /// Returns the number of requests and bytes so far.
    pub fn transfer_stats(&self) -> TransferStats {
        self.counters.stats()
    }

    /// Returns the object's identity, length and first bytes, or nothing if its ETag is that of
    /// `known`.
    async fn head(
        &self,
        known: Option<&(Identity, u64)>,
    ) -> Result<Option<(Identity, u64, Vec<u8>)>, RequestError> {
        let etag = match known {
            Some((Identity::ETag(etag), _)) => Some(etag),
            _ => None,
        };
        let request = |extensions| async {
            let options = GetOptions {
                range: Some(GetRange::Bounded(0..HEAD_BYTES)),
                if_none_match: etag.cloned(),
                extensions,
                ..GetOptions::default()
            };
            let got = match self.store.get_opts(&self.path, options).await {
                Err(object_store::Error::NotModified { .. }) if etag.is_some() => return Ok(None),
                got => got?,
            };
            let len = got.meta.size;
            let range = got.range.clone();
            if range != (0..len.min(HEAD_BYTES)) {
                return Err(mismatch(&(0..len.min(HEAD_BYTES)), &range));
            }
            let identity = Identity::of(&got.meta).ok_or_else(|| RequestError {
                errno: Errno::EIO,
                message: "expected an ETag or Last-Modified, to detect a replaced object".into(),
                is_transient: false,
            })?;
            let mut head = vec![0; range.end as usize];
            let piece = Piece {
                offset: 0,
                buffer: &mut head,
            };
            let mut span = RangeRequest {
                range,
                pieces: vec![piece],
            };
            self.receive(got, &mut span).await?;
            Ok(Some((identity, len, head)))
        };
        self.retry(async |extensions| request(extensions).await)
            .await
    }

    /// Requests the range of `span`.
    async fn fetch(&self, span: &mut RangeRequest<'_>) -> Result<(), RequestError> {
        self.retry(async |extensions| {
            let options = GetOptions {
                range: Some(GetRange::Bounded(span.range.clone())),
                if_match: self.identity.strong_etag(),
                extensions,
                ..GetOptions::default()
            };
            let got = self.store.get_opts(&self.path, options).await?;
            if Identity::of(&got.meta).as_ref() != Some(&self.identity) || got.meta.size != self.len
            {
                return Err(replaced());
            }
            if got.range != span.range {
                return Err(mismatch(&span.range, &got.range));
            }
            self.receive(got, span).await
        })
        .await
    }

    /// Receives the body of a response, which must have the requested length.
    async fn receive(
        &self,
        got: object_store::GetResult,
        span: &mut RangeRequest<'_>,
    ) -> Result<(), RequestError> {
        let Range { start, end } = span.range;
        let wrong = |received: u64| RequestError {
            errno: Errno::EIO,
            message: format!("expected {} bytes, got {received}", end - start),
            is_transient: true,
        };
        let mut at = start;
        let mut stream = got.into_stream();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes?;
            self.counters.add_bytes(bytes.len());
            if bytes.len() as u64 > end - at {
                return Err(wrong(at - start + bytes.len() as u64));
            }
            span.take(at, &bytes);
            at += bytes.len() as u64;
        }
        match at == end {
            true => Ok(()),
            false => Err(wrong(at - start)),
        }
    }

    /// Repeats `what` until it succeeds, fails permanently, or runs out of attempts.
    async fn retry<T>(
        &self,
        mut what: impl AsyncFnMut(Extensions) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let mut pause = self.tuning.initial_backoff;
        let mut attempts = 1;
        loop {
            let attempt = Attempt::default();
            let mut extensions = Extensions::new();
            extensions.insert(attempt.clone());
            let mut failed = match what(extensions).await {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            let answer = attempt.response();
            failed.is_transient &= answer.status.is_none_or(is_transient);
            if attempts >= self.tuning.attempts || !failed.is_transient {
                return Err(failed);
            }
            tracing::debug!("{}: retrying: {}", self.display_url, failed.message);
            let wait = jittered(pause).max(answer.retry_after.unwrap_or_default());
            tokio::time::sleep(wait.min(self.tuning.max_backoff)).await;
            pause = (pause * 2).min(self.tuning.max_backoff);
            attempts += 1;
        }
    }

    async fn with_timeout<T>(
        &self,
        what: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let done = tokio::time::timeout(self.tuning.call_timeout, what).await;
        done.unwrap_or_else(|_| {
            Err(RequestError {
                errno: Errno::EIO,
                message: format!("no reply within {:?}", self.tuning.call_timeout),
                is_transient: true,
            })
        })
    }

    /// Logs when calls begin to fail and when they succeed again, once each.
    fn log_transition(&self, failed: Option<&RequestError>) {
        let mut failing = self.last_error.lock();
        let errno = failed.map(|failed| failed.errno);
        if *failing == errno {
            return;
        }
        *failing = errno;
        match failed {
            Some(failed) => tracing::warn!("{}: {}", self.display_url, failed.message),
            None => tracing::warn!("{}: readable again", self.display_url),
        }
    }
}

impl RangeSource for Object {
    fn len(&self) -> u64 {
        self.len
    }

    fn patience(&self, at: u64, len: usize) -> Patience {
        match at.saturating_add(len as u64) <= self.head.len() as u64 {
            true => Patience::None,
            false => Patience::Full,
        }
    }

    fn readahead_len(&self) -> u64 {
        READAHEAD
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let mut missing = Vec::new();
        for Piece {
            offset: at,
            buffer: into,
        } in pieces
        {
            let from = self.head.get(*at as usize..);
            match from.and_then(|from| from.get(..into.len())) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => missing.push(Piece {
                    offset: *at,
                    buffer: into,
                }),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let spans = coalesce(&mut missing, MAX_GAP, MAX_REQUEST);
        let fetched = futures_util::stream::iter(spans)
            .map(async |mut span| self.fetch(&mut span).await)
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<()>();
        let done = self.runtime.block_on(self.with_timeout(fetched));
        self.log_transition(done.as_ref().err());
        done.map_err(|failed| failed.errno.into())
    }

    fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
        None
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let TransferStats { requests, bytes } = self.transfer_stats();
        tracing::debug!("{}: {requests} requests, {bytes} bytes", self.display_url);
    }
}

impl Identity {
    fn of(meta: &ObjectMeta) -> Option<Identity> {
        match (&meta.e_tag, meta.last_modified.timestamp()) {
            (Some(etag), _) if !etag.is_empty() => Some(Identity::ETag(etag.clone())),
            // The client library's value if the server sent no time.
            (_, 0) => None,
            (_, time) => Some(Identity::Modified(time)),
        }
    }

    /// Returns the ETag for `If-Match`; weak ETags never match there (RFC 9110, section 13.1.1).
    fn strong_etag(&self) -> Option<String> {
        match self {
            Identity::ETag(etag) if !etag.starts_with("W/") => Some(etag.clone()),
            _ => None,
        }
    }

    /// Returns the identity stored in the disk cache. Queries may be signatures that differ each
    /// time, so their hash is used only if there is no ETag, and they are not stored themselves.
    fn bytes(&self, url: &Url) -> Vec<u8> {
        match self {
            Identity::ETag(etag) => format!("etag {etag}").into(),
            Identity::Modified(time) => format!("modified {time} {}", url.query_hash()).into(),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Identity> {
        match str::from_utf8(bytes).ok()?.split_once(' ')? {
            ("etag", etag) => Some(Identity::ETag(etag.into())),
            ("modified", rest) => {
                let (time, _) = rest.split_once(' ')?;
                Some(Identity::Modified(time.parse().ok()?))
            }
            _ => None,
        }
    }
}

impl RequestError {
    fn into_io(self) -> io::Error {
        io::Error::new(io::Error::from(self.errno).kind(), self.message)
    }
}

impl From<object_store::Error> for RequestError {
    fn from(error: object_store::Error) -> RequestError {
        use object_store::Error;
        let errno = match &error {
            Error::NotFound { .. } => Errno::ENOENT,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Errno::EACCES,
            Error::Precondition { .. } => return replaced(),
            _ => Errno::EIO,
        };
        failure(&error, Some(errno))
    }
}

/// Converts an error of the client library, using its innermost source: the outer messages repeat
/// URLs, including secrets.
fn failure(error: &object_store::Error, errno: Option<Errno>) -> RequestError {
    use object_store::Error;
    let mut reason: &dyn std::error::Error = error;
    while let Some(below) = reason.source() {
        reason = below;
    }
    let words: String = reason.to_string().chars().take(MAX_MESSAGE_CHARS).collect();
    let what = match error {
        Error::NotSupported { .. } => "expected a server with support for ranges".to_owned(),
        Error::NotFound { .. } => "404, no such object".to_owned(),
        _ => words.trim().escape_debug().to_string(),
    };
    RequestError {
        errno: errno.unwrap_or(Errno::EINVAL),
        message: what,
        is_transient: matches!(error, Error::Generic { .. }),
    }
}

fn replaced() -> RequestError {
    RequestError {
        errno: Errno::ESTALE,
        message: "the object was replaced after it was opened".into(),
        is_transient: false,
    }
}

fn mismatch(expected: &Range<u64>, got: &Range<u64>) -> RequestError {
    RequestError {
        errno: Errno::EIO,
        message: format!("expected the bytes {expected:?}, got {got:?}"),
        is_transient: true,
    }
}

/// Returns whether a retry may get another status: too many requests, a server error, or success
/// with wrong bytes.
fn is_transient(status: u16) -> bool {
    matches!(status, 200..=299 | 408 | 429 | 500..=599)
}

/// Returns a random duration between half of `pause` and all of it, so that clients that failed
/// together do not retry together.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}
