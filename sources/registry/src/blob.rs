//! A blob of a repository, read in ranges.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use objects::{Fetch, Object, Receive, RequestError};
use pack::oci::{Descriptor, Digest, MAX_DOCUMENT};
use parking_lot::Mutex;
use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};
use url::Url;
use vfs::Errno;

use crate::client::{Repository, Target, invalid, transport};

struct Blob {
    repository: Arc<Repository>,
    digest: Digest,
    len: u64,
    /// The host that redirected the last request, and the URL that it led to: usually that of a
    /// store, signed for some minutes. Requests go there directly while it accepts them.
    redirect: Mutex<Option<(usize, Url)>>,
}

/// Returns the bytes of the blob that `descriptor` names, without a request.
pub(crate) fn blob(repository: &Arc<Repository>, descriptor: &Descriptor) -> Object {
    let blob = Blob {
        repository: repository.clone(),
        digest: descriptor.digest.clone(),
        len: descriptor.size,
        redirect: Mutex::new(None),
    };
    let name = format!("oci://{}@{}", repository.name(), descriptor.digest);
    let (requests, counters) = (repository.requests.clone(), repository.counters.clone());
    Object::new(name, descriptor.size, Box::new(blob), requests, counters)
}

#[async_trait]
impl Fetch for Blob {
    async fn fetch(
        &self,
        range: Range<u64>,
        receive: &mut Receive<'_>,
    ) -> Result<(), RequestError> {
        if range.end > self.len {
            let message = format!("a blob of {} bytes has no bytes {range:?}", self.len);
            return Err(RequestError::permanent(Errno::EIO, message));
        }
        let (host, mut response) = self.send((range.start, range.end - 1)).await?;
        let received = async {
            match response.status() {
                StatusCode::PARTIAL_CONTENT => {
                    let header = response.headers().get(CONTENT_RANGE);
                    let got = header.and_then(|header| parse_range(header.to_str().ok()?));
                    if got != Some((range.start, range.end - 1, self.len)) {
                        let got = header.map_or("none".into(), |got| format!("{got:?}"));
                        return Err(RequestError::transient(format!(
                            "expected the bytes {range:?} of {}, got {got}",
                            self.len
                        )));
                    }
                }
                // The whole blob is what was requested.
                StatusCode::OK if range == (0..self.len) => {}
                status => {
                    let status = status.as_u16();
                    let message =
                        format!("expected a registry with support for ranges, got {status}");
                    return Err(RequestError::permanent(Errno::EIO, message));
                }
            }
            while let Some(bytes) = response.chunk().await.map_err(|error| transport(&error))? {
                receive(&bytes)?;
            }
            Ok(())
        };
        let received = received.await;
        received.map_err(|error| {
            *self.redirect.lock() = None;
            self.repository.reject_body(host, error)
        })
    }
}

impl Blob {
    /// Requests a range of bytes, first and last. Returns the number of the host, and a successful
    /// response.
    async fn send(&self, range: (u64, u64)) -> Result<(usize, Response), RequestError> {
        let redirect = self.redirect.lock().clone();
        if let Some((host, url)) = redirect {
            match self.repository.send_redirected(host, url, range).await {
                Ok(response) => return Ok((host, response)),
                // The signature has expired, for example: the registry knows.
                Err(_) => *self.redirect.lock() = None,
            }
        }
        let target = Target::Blob(self.digest.clone(), range);
        let (host, response) = self.repository.send(&target).await?;
        if self.repository.is_redirected(host, &response) {
            *self.redirect.lock() = Some((host, response.url().clone()));
        }
        Ok((host, response))
    }
}

/// Parses `bytes FIRST-LAST/LENGTH` (RFC 9110, section 14.4).
fn parse_range(header: &str) -> Option<(u64, u64, u64)> {
    let (range, len) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, len.parse().ok()?))
}

/// Returns a blob of at most [`MAX_DOCUMENT`] bytes, verified against its digest. Errors call it
/// `expected`.
pub(crate) fn small_blob(
    repository: &Arc<Repository>,
    descriptor: &Descriptor,
    expected: &str,
) -> io::Result<Vec<u8>> {
    let size = descriptor.size;
    if size > MAX_DOCUMENT {
        let line = format!("expected {expected} of at most {MAX_DOCUMENT} bytes, got {size}");
        return Err(invalid(line));
    }
    let mut text = vec![0; size as usize];
    blob(repository, descriptor).read_at(0, &mut text)?;
    match descriptor.digest.matches(&text) {
        true => Ok(text),
        false => Err(invalid(format_args!(
            "expected {expected} with the digest {}",
            descriptor.digest
        ))),
    }
}
