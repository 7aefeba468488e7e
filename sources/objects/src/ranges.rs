//! An object's bytes.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use image::{Held, Known, Piece, RangeSource, Tier};
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetRange, ObjectMeta, ObjectStore};
use tokio::runtime::{Builder, Runtime};
use vfs::{Errno, Patience};

use crate::plan::{GAP, MOST, Span, plan};
use crate::url::Url;
use crate::wire::{Attempt, Counts, Fetched};

/// Bytes that opening asks for, since whoever opens an image reads them first (a segment of the cache's).
const HEAD: u64 = 16 << 10;

/// Bytes that a run grows to: they take longer than a round trip does, over most networks. `docs/design/images.md` has what was measured.
const RUN: u64 = 4 << 20;

/// Requests of one call that are under way at a time: what it takes to fill a connection's bandwidth with requests of [`MOST`] bytes.
const IN_FLIGHT: usize = 8;

/// The most characters of a server's words that are repeated.
const WORDS: usize = 200;

/// How long things are tried.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// How often one request is sent at most.
    pub attempts: u32,
    /// How long is waited before the second time, at least half of it; each further wait is twice as long, until [`Tuning::longest`].
    pub pause: Duration,
    /// The longest wait between two attempts, whatever the server wants.
    pub longest: Duration,
    /// How long one request may take, its answer's bytes included.
    pub request: Duration,
    /// How long a call may take, whatever is left to be tried.
    pub all: Duration,
}

impl Default for Tuning {
    /// As long as a person or a program waits for a disk before it gives up.
    fn default() -> Tuning {
        Tuning {
            attempts: 6,
            pause: Duration::from_millis(200),
            longest: Duration::from_secs(15),
            request: Duration::from_secs(30),
            all: Duration::from_secs(60),
        }
    }
}

/// An object, opened. Calls may come from any number of threads at a time, and block them: none of them may be one of an asynchronous runtime.
pub struct Object {
    shown: String,
    store: Arc<dyn ObjectStore>,
    path: Path,
    identity: Identity,
    len: u64,
    /// Its first bytes, as they were when it was opened.
    head: Vec<u8>,
    tuning: Tuning,
    counts: Arc<Counts>,
    /// Why the last call failed, so that it is told once.
    failing: Mutex<Option<Errno>>,
    runtime: Arc<Runtime>,
}

/// What an object is told from another by that has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity {
    ETag(String),
    /// Seconds since the epoch.
    Modified(i64),
}

/// Why a request failed.
#[derive(Debug)]
struct Failed {
    errno: Errno,
    what: String,
    /// Whether it may be different the next time.
    passes: bool,
}

impl Object {
    /// Opens the object that `url` names, over its segments on disk if it says where these are.
    pub fn open(url: &Url, tuning: Tuning) -> io::Result<Arc<dyn RangeSource>> {
        let Some(options) = url.tier() else {
            return Ok(Arc::new(Object::connect(url, tuning, None)?));
        };
        match Tier::open(options, &url.unique()) {
            Ok(tier) => {
                let object = match Object::connect(url, tuning, tier.known()) {
                    Ok(object) => object,
                    Err(error) if tier.known().is_none() => {
                        tier.discard();
                        return Err(error);
                    }
                    Err(error) => return Err(error),
                };
                let identity = object.identity.bytes(url);
                Ok(Arc::new(tier.over(Arc::new(object), &identity)?))
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tracing::warn!("{url}: nothing is kept on disk, for another process does: {error}");
                Ok(Arc::new(Object::connect(url, tuning, None)?))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the object that `url` names; of the one that is `known` no bytes are fetched, and if the store cannot be reached, it is taken to be that.
    pub fn connect(url: &Url, tuning: Tuning, known: Option<&Known>) -> io::Result<Object> {
        // Fails if there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("image-object")
            .enable_all()
            .build()?;
        let counts = Arc::<Counts>::default();
        let opened = url.store(&tuning, &counts);
        let (store, path) = opened.map_err(|error| failure(&error, None).into_io())?;
        let known = known.and_then(|known| Some((Identity::parse(known.identity())?, known.len())));
        let mut object = Object {
            shown: url.to_string(),
            store,
            path,
            identity: Identity::Modified(0),
            len: 0,
            head: Vec::new(),
            tuning,
            counts,
            failing: Mutex::new(None),
            runtime: Arc::new(runtime),
        };
        let runtime = object.runtime.clone();
        match runtime.block_on(object.within(object.head(known.as_ref()))) {
            Ok(Some((identity, len, head))) => {
                (object.identity, object.len, object.head) = (identity, len, head);
            }
            Ok(None) => (object.identity, object.len) = known.expect("it was asked for"),
            Err(Failed {
                what, passes: true, ..
            }) if known.is_some() => {
                tracing::warn!("{url}: what is on disk has to do: {what}");
                (object.identity, object.len) = known.expect("there is one");
            }
            Err(failed) => return Err(failed.into_io()),
        }
        Ok(object)
    }

    /// What was fetched until now.
    pub fn fetched(&self) -> Fetched {
        self.counts.fetched()
    }

    /// What the object is, how long, and its first bytes; nothing if it is the one that is known.
    async fn head(
        &self,
        known: Option<&(Identity, u64)>,
    ) -> Result<Option<(Identity, u64, Vec<u8>)>, Failed> {
        let etag = match known {
            Some((Identity::ETag(etag), _)) => Some(etag),
            _ => None,
        };
        let asked = |extensions| async {
            let options = GetOptions {
                range: Some(GetRange::Bounded(0..HEAD)),
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
            if range != (0..len.min(HEAD)) {
                return Err(mismatch(&(0..len.min(HEAD)), &range));
            }
            let identity = Identity::of(&got.meta).ok_or_else(|| Failed {
                errno: Errno::EIO,
                what: "expected an ETag or Last-Modified, which tell whether it is replaced".into(),
                passes: false,
            })?;
            let mut head = vec![0; range.end as usize];
            let piece = Piece {
                at: 0,
                into: &mut head,
            };
            let mut span = Span {
                range,
                pieces: vec![piece],
            };
            self.receive(got, &mut span).await?;
            Ok(Some((identity, len, head)))
        };
        self.again(async |extensions| asked(extensions).await).await
    }

    /// Asks for what `span` wants.
    async fn fetch(&self, span: &mut Span<'_>) -> Result<(), Failed> {
        self.again(async |extensions| {
            let options = GetOptions {
                range: Some(GetRange::Bounded(span.range.clone())),
                if_match: self.identity.strong(),
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

    /// Takes the bytes of an answer, which have to be as many as were asked for.
    async fn receive(
        &self,
        got: object_store::GetResult,
        span: &mut Span<'_>,
    ) -> Result<(), Failed> {
        let Range { start, end } = span.range;
        let wrong = |came: u64| Failed {
            errno: Errno::EIO,
            what: format!("expected {} bytes, got {came}", end - start),
            passes: true,
        };
        let mut at = start;
        let mut stream = got.into_stream();
        while let Some(bytes) = stream.next().await {
            let bytes = bytes?;
            self.counts.came(bytes.len());
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

    /// Does `what` until it succeeds, fails for good, or has failed too often.
    async fn again<T>(
        &self,
        mut what: impl AsyncFnMut(Extensions) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let mut pause = self.tuning.pause;
        let mut attempts = 1;
        loop {
            let attempt = Attempt::default();
            let mut extensions = Extensions::new();
            extensions.insert(attempt.clone());
            let mut failed = match what(extensions).await {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            let answer = attempt.answer();
            failed.passes &= answer.status.is_none_or(passes);
            if attempts >= self.tuning.attempts || !failed.passes {
                return Err(failed);
            }
            tracing::debug!("{}: asking again: {}", self.shown, failed.what);
            let wait = some_of(pause).max(answer.wait.unwrap_or_default());
            tokio::time::sleep(wait.min(self.tuning.longest)).await;
            pause = (pause * 2).min(self.tuning.longest);
            attempts += 1;
        }
    }

    async fn within<T>(&self, what: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
        let done = tokio::time::timeout(self.tuning.all, what).await;
        done.unwrap_or_else(|_| {
            Err(Failed {
                errno: Errno::EIO,
                what: format!("no answer in {:?}", self.tuning.all),
                passes: true,
            })
        })
    }

    /// Tells the log that calls fail, or do no more, once each.
    fn note(&self, failed: Option<&Failed>) {
        let mut failing = self.failing.lock().expect("no panic holds it");
        let errno = failed.map(|failed| failed.errno);
        if *failing == errno {
            return;
        }
        *failing = errno;
        match failed {
            Some(failed) => tracing::warn!("{}: {}", self.shown, failed.what),
            None => tracing::warn!("{}: can be read again", self.shown),
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

    fn run(&self) -> u64 {
        RUN
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let mut missing = Vec::new();
        for Piece { at, into } in pieces {
            let from = self.head.get(*at as usize..);
            match from.and_then(|from| from.get(..into.len())) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => missing.push(Piece { at: *at, into }),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let spans = plan(&mut missing, GAP, MOST);
        let fetched = futures_util::stream::iter(spans)
            .map(async |mut span| self.fetch(&mut span).await)
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<()>();
        let done = self.runtime.block_on(self.within(fetched));
        self.note(done.as_ref().err());
        done.map_err(|failed| failed.errno.into())
    }

    fn file(&self, _at: u64, _len: usize) -> Option<Held<'_>> {
        None
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let Fetched { requests, bytes } = self.fetched();
        tracing::debug!("{}: {requests} requests, {bytes} bytes", self.shown);
    }
}

impl Identity {
    fn of(meta: &ObjectMeta) -> Option<Identity> {
        match (&meta.e_tag, meta.last_modified.timestamp()) {
            (Some(etag), _) if !etag.is_empty() => Some(Identity::ETag(etag.clone())),
            // What the store's client says when the server said nothing.
            (_, 0) => None,
            (_, time) => Some(Identity::Modified(time)),
        }
    }

    /// What the server is asked to compare; a weak one compares as another (RFC 9110, section 13.1.1).
    fn strong(&self) -> Option<String> {
        match self {
            Identity::ETag(etag) if !etag.starts_with("W/") => Some(etag.clone()),
            _ => None,
        }
    }

    /// What is kept on disk of it. Queries may be signatures that differ each time, so they tell objects apart only where nothing better does, and are not kept.
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

impl Failed {
    fn into_io(self) -> io::Error {
        io::Error::new(io::Error::from(self.errno).kind(), self.what)
    }
}

impl From<object_store::Error> for Failed {
    fn from(error: object_store::Error) -> Failed {
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

/// What is told of an error of the store's client: the reason at its bottom, for what is above repeats addresses with all their secrets.
fn failure(error: &object_store::Error, errno: Option<Errno>) -> Failed {
    use object_store::Error;
    let mut reason: &dyn std::error::Error = error;
    while let Some(below) = reason.source() {
        reason = below;
    }
    let words: String = reason.to_string().chars().take(WORDS).collect();
    let what = match error {
        Error::NotSupported { .. } => "expected a server that gives ranges".to_owned(),
        Error::NotFound { .. } => "404, there is no such object".to_owned(),
        _ => words.trim().escape_debug().to_string(),
    };
    Failed {
        errno: errno.unwrap_or(Errno::EINVAL),
        what,
        passes: matches!(error, Error::Generic { .. }),
    }
}

fn replaced() -> Failed {
    Failed {
        errno: Errno::ESTALE,
        what: "the object was replaced since it was opened".into(),
        passes: false,
    }
}

fn mismatch(expected: &Range<u64>, got: &Range<u64>) -> Failed {
    Failed {
        errno: Errno::EIO,
        what: format!("expected the bytes {expected:?}, got {got:?}"),
        passes: true,
    }
}

/// Whether what a server answered may be another answer later: too many requests, a fault of its own, or bytes that were not right.
fn passes(status: u16) -> bool {
    matches!(status, 200..=299 | 408 | 429 | 500..=599)
}

/// Between half of `pause` and all of it, so that many who failed together do not come again together.
fn some_of(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}
