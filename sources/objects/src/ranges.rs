//! The bytes of an object.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use image::{DiskCacheEntry, FileGuard, ImageIdentity, LazyName, Piece, RangeSource};
use parking_lot::Mutex;
use vfs::{Errno, Patience, SourceStats};

use crate::coalesce::{MAX_GAP, MAX_REQUEST, RangeRequest, coalesce};
use crate::connector::{TransferCounters, TransferStats};
use crate::environment::Environment;
use crate::request::{RequestError, Requests, Tuning};
use crate::settings::Settings;
use crate::store::{Identity, StoreObject, invalid};
use crate::url::Url;

/// The read-ahead length in bytes: transferring it takes longer than a round trip on most networks.
/// Measurements are in `docs/notes/images.md`.
const READAHEAD: u64 = 4 << 20;

/// The maximum number of concurrent requests of one call: enough to fill a connection's bandwidth
/// with requests of [`MAX_REQUEST`] bytes.
const IN_FLIGHT: usize = 8;

/// A receiver of a response's body, part by part. An error ends the transfer.
pub type Receive<'a> = dyn FnMut(&[u8]) -> Result<(), RequestError> + Send + 'a;

/// The server of one object whose bytes never change.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// Requests `range` once, and passes the body to `receive`, which reports wrong lengths.
    async fn fetch(&self, range: Range<u64>, receive: &mut Receive<'_>)
    -> Result<(), RequestError>;
}

/// An opened object. Methods may be called concurrently from any number of threads. They block, so
/// they must not be called on threads of an asynchronous runtime.
pub struct Object {
    name: String,
    server: Box<dyn Fetch>,
    len: u64,
    /// Its first bytes, as far as they were fetched on opening.
    head: Vec<u8>,
    counters: Arc<TransferCounters>,
    /// The last call's error, so that it is logged once.
    last_error: Mutex<Option<Errno>>,
    requests: Arc<Requests>,
}

impl Object {
    /// Opens the object that `url` names, through the disk cache if `url` has one.
    pub fn open(url: &Url, tuning: Tuning) -> io::Result<Arc<dyn RangeSource>> {
        Object::open_in(url, tuning, &Environment::of_process())
    }

    /// Opens the object that `url` names, as [`Object::open`] does, with the variables of an
    /// environment.
    pub fn open_in(
        url: &Url,
        tuning: Tuning,
        environment: &Environment,
    ) -> io::Result<Arc<dyn RangeSource>> {
        let settings = Settings::new(url, environment).map_err(invalid)?;
        let connect = |tuning| Object::identify(url, &settings, tuning, None);
        let Some(options) = url.image().disk_cache() else {
            return Ok(Arc::new(connect(tuning)?.0));
        };
        match DiskCacheEntry::open(options, &settings.cache_name()) {
            Ok(tier) => {
                let known = tier.identity();
                let (object, identity) = match Object::identify(url, &settings, tuning, known) {
                    Ok(opened) => opened,
                    Err(error) if tier.identity().is_none() => {
                        tier.discard();
                        return Err(error);
                    }
                    Err(error) => return Err(error),
                };
                tier.over_if_free(Arc::new(object), &identity, &url.to_string())
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                tracing::warn!("{url}: no disk cache, because another process opens it");
                Ok(Arc::new(connect(tuning)?.0))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the object that `url` names. If it is unchanged from `known`, no bytes are fetched; if
    /// the store cannot be reached, it is assumed to be unchanged.
    pub fn connect(url: &Url, tuning: Tuning, known: Option<&ImageIdentity>) -> io::Result<Object> {
        let settings = Settings::new(url, &Environment::of_process()).map_err(invalid)?;
        Ok(Object::identify(url, &settings, tuning, known)?.0)
    }

    /// Opens the object that `url` names, and returns it with the name of a local file for this
    /// version of it.
    pub fn connect_lazy(url: &Url, tuning: Tuning) -> io::Result<(Object, LazyName)> {
        let settings = Settings::new(url, &Environment::of_process()).map_err(invalid)?;
        let (object, identity) = Object::identify(url, &settings, tuning, None)?;
        let name = LazyName {
            location: format!("{} {}", settings.cache_name(), identity.escape_ascii()),
            identity,
        };
        Ok((object, name))
    }

    /// Opens the object that `url` names, and returns it with its identity for the disk cache.
    fn identify(
        url: &Url,
        settings: &Settings,
        tuning: Tuning,
        known: Option<&ImageIdentity>,
    ) -> io::Result<(Object, Vec<u8>)> {
        let requests = Arc::new(Requests::new(tuning)?);
        let counters = Arc::<TransferCounters>::default();
        let known = known.and_then(|known| Some((Identity::parse(known.identity())?, known.len())));
        let opened = StoreObject::open(url, settings, &requests, &counters, known);
        let (server, head) = opened.map_err(RequestError::into_io)?;
        let identity = server.identity().bytes(url);
        let len = server.len();
        let mut object = Object::new(url.to_string(), len, Box::new(server), requests, counters);
        object.head = head;
        Ok((object, identity))
    }

    /// Returns an object of `len` bytes, without a request. `name` is for messages; `counters` may
    /// have other objects of the same server.
    pub fn new(
        name: String,
        len: u64,
        server: Box<dyn Fetch>,
        requests: Arc<Requests>,
        counters: Arc<TransferCounters>,
    ) -> Object {
        Object {
            name,
            server,
            len,
            head: Vec::new(),
            counters,
            last_error: Mutex::new(None),
            requests,
        }
    }

    /// Returns the number of requests and bytes so far.
    pub fn transfer_stats(&self) -> TransferStats {
        self.counters.stats()
    }

    /// Fills `buffer` with the bytes from `offset` on, as [`RangeSource::read`] does. The error has
    /// the server's message, and is not logged.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let piece = Piece { offset, buffer };
        self.read_pieces(&mut [piece])
            .map_err(RequestError::into_io)
    }

    fn read_pieces(&self, pieces: &mut [Piece<'_>]) -> Result<(), RequestError> {
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
        self.requests.run(fetched)
    }

    /// Requests the range of `span`, and receives a body of that length.
    async fn fetch(&self, span: &mut RangeRequest<'_>) -> Result<(), RequestError> {
        let Range { start, end } = span.range;
        let wrong = |received: u64| {
            let message = format!("expected {} bytes, got {received}", end - start);
            Err(RequestError::transient(message))
        };
        let request = async || {
            let mut at = start;
            let mut receive = |bytes: &[u8]| {
                self.counters.ranges.add_received(bytes.len());
                if bytes.len() as u64 > end - at {
                    return wrong(at - start + bytes.len() as u64);
                }
                span.take(at, bytes);
                at += bytes.len() as u64;
                Ok(())
            };
            let begun = Instant::now();
            let fetched = self.server.fetch(start..end, &mut receive).await;
            let ranges = &self.counters.ranges;
            ranges.count(begun.elapsed(), fetched.is_err());
            fetched?;
            match at == end {
                true => Ok(()),
                false => wrong(at - start),
            }
        };
        self.requests.retry(&self.name, request).await
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
            Some(failed) => tracing::warn!("{}: {}", self.name, failed.message),
            None => tracing::warn!("{}: readable again", self.name),
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

    fn stats(&self) -> SourceStats {
        SourceStats {
            remote: Some(self.counters.ranges.stats()),
            ..SourceStats::default()
        }
    }

    /// Requests the last byte.
    fn ping(&self) -> io::Result<()> {
        let Some(last) = self.len.checked_sub(1) else {
            return Ok(());
        };
        let mut ignore = |_: &[u8]| Ok(());
        let request = self.server.fetch(last..self.len, &mut ignore);
        let done = self.requests.run(request);
        done.map_err(|failed| failed.errno.into())
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let done = self.read_pieces(pieces);
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
        tracing::debug!("{}: {requests} requests, {bytes} bytes", self.name);
    }
}
