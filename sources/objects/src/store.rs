//! An object of a store, through the client library.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetRange, ObjectMeta, ObjectStore};
use vfs::Errno;

use crate::connector::{Attempt, Connector, Rehearsal, TransferCounters};
use crate::containment::contained;
use crate::environment::Environment;
use crate::ranges::{Fetch, Receive};
use crate::redirect::Refused;
use crate::request::{RequestError, Requests, Tuning};
use crate::settings::{BadSetting, Settings};
use crate::url::Url;

/// The number of bytes fetched on opening, since an image's reader needs them first (a segment of
/// its cache).
const HEAD_BYTES: u64 = 16 << 10;

/// The maximum number of characters of a server's error message that are repeated.
const MAX_MESSAGE_CHARS: usize = 200;

/// An object of a store, of which the identity is fixed.
pub(crate) struct StoreObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    identity: Identity,
    len: u64,
}

/// The value that tells an object from its replacement under the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    ETag(String),
    /// Seconds since the epoch.
    Modified(i64),
}

/// An object's identity, length and first bytes.
type Head = (Identity, u64, Vec<u8>);

impl StoreObject {
    /// Opens the object that `url` names, with its first bytes. If it is unchanged from `known`, no
    /// bytes are fetched; if the store cannot be reached, it is assumed to be unchanged.
    pub(crate) fn open(
        url: &Url,
        settings: &Settings,
        requests: &Requests,
        counters: &Arc<TransferCounters>,
        known: Option<(Identity, u64)>,
    ) -> Result<(StoreObject, Vec<u8>), RequestError> {
        let (store, path) = contained(|| {
            let opened = settings.store(requests.tuning(), Connector::new(settings, counters));
            opened.map_err(|error| failure(&error, None))
        })?;
        let name = url.to_string();
        let head = requests.retry(&name, async || head(&*store, &path, known.as_ref()).await);
        let (identity, len, bytes) = match (requests.run(head), known) {
            (Ok(Some(head)), _) => head,
            (Ok(None), Some((identity, len))) => (identity, len, Vec::new()),
            (Err(error), Some((identity, len))) if error.is_transient => {
                tracing::warn!("{url}: using only the disk cache: {}", error.message);
                (identity, len, Vec::new())
            }
            (Ok(None), None) => return Err(replaced()),
            (Err(error), _) => return Err(error),
        };
        let object = StoreObject {
            store,
            path,
            identity,
            len,
        };
        Ok((object, bytes))
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

/// Prepares the first request for the object that `url` names, without sending anything, and
/// returns the addresses that it would have been sent to: scheme, host and port. The error is that
/// of settings which the store does not accept.
pub fn rehearse(url: &Url, environment: &Environment) -> io::Result<Vec<String>> {
    let settings = Settings::new(url, environment).map_err(invalid)?;
    let requests = Requests::new(Tuning {
        attempts: 1,
        ..Tuning::default()
    })?;
    let rehearsal = Rehearsal::new(&settings);
    let prepared = contained(|| {
        let opened = settings.store(requests.tuning(), rehearsal.clone());
        opened.map_err(|error| failure(&error, None))
    });
    let (store, path) = prepared.map_err(RequestError::into_io)?;
    match requests.run(head(&*store, &path, None)) {
        Err(error) if error.message != Refused::REHEARSED.to_string() => Err(error.into_io()),
        _ => Ok(rehearsal.addresses()),
    }
}

/// Returns the error for settings that the store does not accept.
pub(crate) fn invalid(bad: BadSetting) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, bad)
}

#[async_trait]
impl Fetch for StoreObject {
    async fn fetch(
        &self,
        range: Range<u64>,
        receive: &mut Receive<'_>,
    ) -> Result<(), RequestError> {
        attempt(async |extensions| {
            let options = GetOptions {
                range: Some(GetRange::Bounded(range.clone())),
                if_match: self.identity.strong_etag(),
                extensions,
                ..GetOptions::default()
            };
            let got = self.store.get_opts(&self.path, options).await?;
            if Identity::of(&got.meta).as_ref() != Some(&self.identity) || got.meta.size != self.len
            {
                return Err(replaced());
            }
            if got.range != range {
                return Err(mismatch(&range, &got.range));
            }
            let mut stream = got.into_stream();
            while let Some(bytes) = stream.next().await {
                receive(&bytes?)?;
            }
            Ok(())
        })
        .await
    }
}

/// Returns the identity, length and first bytes of an object, or nothing if its ETag is that of
/// `known`.
async fn head(
    store: &dyn ObjectStore,
    path: &Path,
    known: Option<&(Identity, u64)>,
) -> Result<Option<Head>, RequestError> {
    let etag = match known {
        Some((Identity::ETag(etag), _)) => Some(etag),
        _ => None,
    };
    attempt(async |extensions| {
        let options = GetOptions {
            range: Some(GetRange::Bounded(0..HEAD_BYTES)),
            if_none_match: etag.cloned(),
            extensions,
            ..GetOptions::default()
        };
        let got = match store.get_opts(path, options).await {
            Err(object_store::Error::NotModified { .. }) if etag.is_some() => return Ok(None),
            got => got?,
        };
        let (len, range) = (got.meta.size, got.range.clone());
        if range != (0..len.min(HEAD_BYTES)) {
            return Err(mismatch(&(0..len.min(HEAD_BYTES)), &range));
        }
        let identity = Identity::of(&got.meta).ok_or_else(|| {
            let message = "expected an ETag or Last-Modified, to detect a replaced object";
            RequestError::permanent(Errno::EIO, message)
        })?;
        let mut head = Vec::with_capacity(range.end as usize);
        let mut stream = got.into_stream();
        while let Some(bytes) = stream.next().await {
            head.extend_from_slice(&bytes?);
            if head.len() as u64 > range.end {
                break;
            }
        }
        match head.len() as u64 == range.end {
            true => Ok(Some((identity, len, head))),
            false => Err(RequestError::transient(format!(
                "expected {} bytes, got {}",
                range.end,
                head.len()
            ))),
        }
    })
    .await
}

/// Runs one attempt of a request; a failure has the properties of its response.
async fn attempt<T>(
    request: impl AsyncFnOnce(Extensions) -> Result<T, RequestError>,
) -> Result<T, RequestError> {
    let attempt = Attempt::default();
    let mut extensions = Extensions::new();
    extensions.insert(attempt.clone());
    request(extensions).await.map_err(|error| {
        let response = attempt.response();
        match response.status {
            Some(status) => error.with_response(status, response.retry_after),
            None => error,
        }
    })
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
    pub(crate) fn bytes(&self, url: &Url) -> Vec<u8> {
        match self {
            Identity::ETag(etag) => format!("etag {etag}").into(),
            Identity::Modified(time) => format!("modified {time} {}", url.query_hash()).into(),
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Identity> {
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
    let mut is_refused = false;
    while let Some(below) = reason.source() {
        reason = below;
        is_refused |= reason.is::<Refused>();
    }
    let words: String = reason.to_string().chars().take(MAX_MESSAGE_CHARS).collect();
    let what = match error {
        Error::NotSupported { .. } => "expected a server with support for ranges".to_owned(),
        Error::NotFound { .. } => "404, no such object".to_owned(),
        _ => words.trim().escape_debug().to_string(),
    };
    RequestError {
        is_transient: matches!(error, Error::Generic { .. }) && !is_refused,
        ..RequestError::permanent(errno.unwrap_or(Errno::EINVAL), what)
    }
}

fn replaced() -> RequestError {
    let message = "the object was replaced after it was opened";
    RequestError::permanent(Errno::ESTALE, message)
}

fn mismatch(expected: &Range<u64>, got: &Range<u64>) -> RequestError {
    RequestError::transient(format!("expected the bytes {expected:?}, got {got:?}"))
}
