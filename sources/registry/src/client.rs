//! Requests to the hosts of one repository: authorization, redirects, mirrors, and documents.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use objects::{
    Destination, Environment, Redirects, Refused, RequestError, Requests, Resolver,
    TransferCounters, is_transient, parse_url, read_bounded, retry_after,
};
use pack::oci::{Descriptor, Digest, Document, MAX_DOCUMENT, MAX_NESTING, Manifest, Platform};
use parking_lot::Mutex;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RANGE,
    WWW_AUTHENTICATE,
};
use reqwest::{
    Certificate, Client, Identity, Method, Request, RequestBuilder, Response, StatusCode, redirect,
};
use serde_json::Value;
use url::Url;
use vfs::Errno;

use crate::challenge::Challenge;
use crate::credentials::Login;
use crate::hosts::{self, Host};
use crate::image::Options;
use crate::url::Reference;

/// Maximum size in bytes of a token server's reply; tokens have a few thousand.
const MAX_TOKEN_REPLY: usize = 128 << 10;

/// Maximum size in bytes of an error's description that is read.
const MAX_ERROR: usize = 4096;

/// Maximum number of characters of a server's error message that are repeated.
const MAX_MESSAGE_CHARS: usize = 200;

/// Maximum time of a connection's setup: several unreachable mirrors fit into one call's time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size in bytes of a file with certificates.
const MAX_PEM: u64 = 4 << 20;

/// The accepted types of documents.
const DOCUMENTS: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// One repository of a registry. Methods may be called concurrently from any number of threads.
pub(crate) struct Repository {
    reference: Reference,
    hosts: Vec<ConnectedHost>,
    /// The tenant for whom images are opened, if there is one.
    tenant: Option<String>,
    /// The host to try first: the last one that succeeded.
    preferred: AtomicUsize,
    pub(crate) requests: Arc<Requests>,
    pub(crate) counters: Arc<TransferCounters>,
}

struct ConnectedHost {
    host: Host,
    destination: Destination,
    /// Follows no redirects by itself.
    client: Client,
    /// The client for other servers that the host leads to, of a tenant.
    guarded: Option<Client>,
    headers: HeaderMap,
    login: Login,
    /// The value of `Authorization` that the host accepted last.
    authorization: Mutex<Option<HeaderValue>>,
}

/// The protection of connections, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protection {
    /// HTTP.
    Plain,
    /// HTTPS without verification of the certificate.
    Unverified,
    /// HTTPS.
    Verified,
}

/// A request to a host. If it is dropped before the end, because the call takes too long, the next
/// call tries the next host first: a silent mirror does not hide the registry.
struct Attempt<'a> {
    repository: &'a Repository,
    host: usize,
}

impl Attempt<'_> {
    fn finish(self) {
        std::mem::forget(self);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.repository.prefer_next(self.host);
    }
}

/// The object of a request.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// The document of a tag.
    Tag(String),
    /// The document with this digest.
    Document(Digest),
    /// A range of bytes, first and last, of the blob with this digest.
    Blob(Digest, (u64, u64)),
}

impl Repository {
    /// Prepares requests to the repository of `url`. Reads the configuration of its hosts and the
    /// user's credentials.
    pub(crate) fn new(url: &crate::Url, options: &Options) -> io::Result<Repository> {
        Repository::of(url, options, Environment::of_process().tenant())
    }

    /// Prepares requests for a tenant likewise.
    pub(crate) fn of(
        url: &crate::Url,
        options: &Options,
        tenant: Option<String>,
    ) -> io::Result<Repository> {
        let reference = url.reference().clone();
        let dir = url.hosts_dir().unwrap_or(hosts::DEFAULT_DIR.as_ref());
        let hosts = Host::read(dir, reference.host(), url.plain_http())?;
        // Installs the provider of TLS, which clients need.
        let requests = Requests::new(options.tuning.clone())?;
        let is_tenant = tenant.is_some();
        let connect = |host| ConnectedHost::new(host, &reference, options, is_tenant);
        Ok(Repository {
            hosts: hosts.into_iter().map(connect).collect::<io::Result<_>>()?,
            reference,
            tenant,
            preferred: AtomicUsize::new(0),
            requests: Arc::new(requests),
            counters: Arc::default(),
        })
    }

    /// Returns the manifest or index that the reference names, and its digest.
    pub(crate) fn named_document(&self) -> io::Result<(Digest, Document)> {
        let target = match self.reference.digest() {
            Some(digest) => Target::Document(digest.clone()),
            None => Target::Tag(self.reference.tag().to_owned()),
        };
        let document = self.document(&target, None, Document::parse);
        document.map_err(RequestError::into_io)
    }

    /// Returns the manifest that `document` is, or the index leads to for `platform`.
    pub(crate) fn manifest(
        &self,
        mut document: Document,
        platform: &Platform,
    ) -> io::Result<Manifest> {
        for _ in 0..=MAX_NESTING {
            let entries = match document {
                Document::Manifest(manifest) => return Ok(manifest),
                Document::Index(entries) => entries,
            };
            let Descriptor { digest, size, .. } = platform.select(&entries).map_err(invalid)?;
            let target = Target::Document(digest.clone());
            let next = self.document(&target, Some(*size), Document::parse);
            (_, document) = next.map_err(RequestError::into_io)?;
        }
        Err(invalid("expected an image, got indexes of indexes"))
    }

    /// Returns a document as `parse` does, and its digest, verified if `target` has one. The
    /// document has `size` bytes, if that is known.
    pub(crate) fn document<T>(
        &self,
        target: &Target,
        size: Option<u64>,
        parse: impl Fn(&[u8]) -> pack::Result<T>,
    ) -> Result<(Digest, T), RequestError> {
        let name = self.reference.to_string();
        let request = async || self.request_document(target, size, &parse).await;
        self.requests.run(self.requests.retry(&name, request))
    }

    /// Requests a document once.
    async fn request_document<T>(
        &self,
        target: &Target,
        size: Option<u64>,
        parse: impl Fn(&[u8]) -> pack::Result<T>,
    ) -> Result<(Digest, T), RequestError> {
        let (at, mut response) = self.send(target).await?;
        let document = async {
            let text = body(&mut response, MAX_DOCUMENT as usize).await?;
            // A tag has no digest; what the registry reports detects damage.
            let digest = match target {
                Target::Document(digest) => Some(digest.clone()),
                _ => response
                    .headers()
                    .get("docker-content-digest")
                    .and_then(|digest| digest.to_str().ok()?.parse().ok()),
            };
            let digest = digest.unwrap_or_else(|| Digest::sha256(&text));
            if !digest.matches(&text) {
                let got = Digest::sha256(&text);
                let message = format!("expected the manifest {digest}, got {got}");
                return Err(RequestError::transient(message));
            }
            if let Some(size) = size.filter(|size| *size != text.len() as u64) {
                let message = format!("expected a manifest of {size} bytes, got {}", text.len());
                return Err(RequestError::permanent(Errno::EIO, message));
            }
            let parsed = parse(&text);
            let parsed = parsed
                .map_err(|error| RequestError::permanent(Errno::EINVAL, error.to_string()))?;
            Ok((digest, parsed))
        };
        document.await.map_err(|error| self.reject_body(at, error))
    }

    /// Sends a request to each host until one succeeds. Returns the number of the host, for
    /// [`Repository::reject_body`], and a successful response. The error is that of the last host.
    pub(crate) async fn send(&self, target: &Target) -> Result<(usize, Response), RequestError> {
        let first = self.preferred.load(Ordering::Relaxed);
        let count = self.hosts.len();
        let mut last = None;
        for at in (first..count).chain(0..first) {
            let host = &self.hosts[at];
            let usable = match target {
                Target::Tag(_) => host.host.resolve,
                Target::Document(_) | Target::Blob(..) => host.host.pull,
            };
            if !usable {
                continue;
            }
            let attempt = Attempt {
                repository: self,
                host: at,
            };
            let sent = host.send(target, &self.reference, &self.counters).await;
            attempt.finish();
            match sent {
                Ok(response) => {
                    if let Target::Document(_) | Target::Blob(..) = target {
                        self.preferred.store(at, Ordering::Relaxed);
                    }
                    return Ok((at, response));
                }
                Err(error) => {
                    if count > 1 {
                        tracing::debug!("{}: {}", host.host.base, error.message);
                    }
                    // The registry's own error matters most.
                    if last.is_none() || host.host.is_origin {
                        last = Some(error);
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| {
            let message = "no host of the registry has the capability in hosts.toml";
            RequestError::permanent(Errno::EINVAL, message)
        }))
    }

    /// Returns whether another server has sent the response to a request to `host`.
    pub(crate) fn is_redirected(&self, host: usize, response: &Response) -> bool {
        response.url().origin() != self.hosts[host].host.base.origin()
    }

    /// Requests a range from the server that `host` redirected to, without authorization.
    pub(crate) async fn send_redirected(
        &self,
        host: usize,
        url: Url,
        (first, last): (u64, u64),
    ) -> Result<Response, RequestError> {
        let host = &self.hosts[host];
        let request = host.client.get(url);
        let request = request.header(RANGE, format!("bytes={first}-{last}"));
        check(host.execute(request, &self.counters).await?).await
    }

    /// Tries another host first from now on, because the body that `host` has sent fails with
    /// `error`. Returns the error; that of a mirror is transient, as the registry may do better.
    pub(crate) fn reject_body(&self, host: usize, mut error: RequestError) -> RequestError {
        self.prefer_next(host);
        error.is_transient |= !self.hosts[host].host.is_origin;
        error
    }

    /// Tries the host after `host` first from now on.
    fn prefer_next(&self, host: usize) {
        let next = (host + 1) % self.hosts.len();
        self.preferred.store(next, Ordering::Relaxed);
    }

    /// Returns the weakest protection of the connections to hosts that send blobs.
    pub(crate) fn protection(&self) -> Protection {
        let hosts = self.hosts.iter().map(|host| &host.host);
        hosts
            .filter(|host| host.pull)
            .map(|host| match host.base.scheme() {
                "https" if host.skip_verify => Protection::Unverified,
                "https" => Protection::Verified,
                _ => Protection::Plain,
            })
            .min()
            .unwrap_or(Protection::Plain)
    }

    /// Returns the tenant for whom images are opened, if there is one.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Returns the name of the repository, for messages.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.reference.host(), self.reference.repository())
    }
}

impl ConnectedHost {
    fn new(
        host: Host,
        reference: &Reference,
        options: &Options,
        is_tenant: bool,
    ) -> io::Result<ConnectedHost> {
        let mut headers = HeaderMap::new();
        for (name, value) in &host.headers {
            let name: Result<HeaderName, _> = name.parse();
            let value = HeaderValue::from_str(value);
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(invalid("header: expected names and values of HTTP headers"));
            };
            headers.append(name, value);
        }
        // Credentials of a mirror are its own.
        let registry = match host.is_origin {
            true => reference.host().to_owned(),
            false => authority(&host.base),
        };
        let login = match &options.docker_config {
            Some(file) => Login::read(file, &registry)?,
            None => Login::Anonymous,
        };
        Ok(ConnectedHost {
            destination: Destination::new(&host.base, is_tenant),
            client: client(&host, options, None)?,
            guarded: if is_tenant {
                Some(client(&host, options, Some(Resolver::guarded()))?)
            } else {
                None
            },
            headers,
            login,
            host,
            authorization: Mutex::new(None),
        })
    }

    /// Sends a request, with authorization if the host demands it.
    async fn send(
        &self,
        target: &Target,
        reference: &Reference,
        counters: &TransferCounters,
    ) -> Result<Response, RequestError> {
        let mut url = self.host.base.clone();
        let rest = match target {
            Target::Tag(tag) => format!("manifests/{tag}"),
            Target::Document(digest) => format!("manifests/{digest}"),
            Target::Blob(digest, _) => format!("blobs/{digest}"),
        };
        let base = url.path().trim_end_matches('/');
        url.set_path(&format!("{base}/{}/{rest}", reference.repository()));
        if authority(&url) != authority_of(reference.host(), url.scheme()) {
            // Mirrors of several registries distinguish them by it (containerd).
            url.query_pairs_mut().append_pair("ns", reference.host());
        }
        let mut used = self.authorization.lock().clone();
        let mut authorized = false;
        loop {
            let mut request = self.client.get(url.clone()).headers(self.headers.clone());
            request = match target {
                Target::Blob(_, (first, last)) => {
                    request.header(RANGE, format!("bytes={first}-{last}"))
                }
                Target::Tag(_) | Target::Document(_) => request.header(ACCEPT, DOCUMENTS),
            };
            if let Some(value) = &used {
                request = request.header(AUTHORIZATION, value.clone());
            }
            let response = self.execute(request, counters).await?;
            // Another server may answer after a redirect: its challenge is not the registry's.
            let is_challenge = response.status() == StatusCode::UNAUTHORIZED
                && response.url().origin() == url.origin();
            if !is_challenge || authorized {
                return check(response).await;
            }
            // Another request may have renewed it meanwhile.
            let current = self.authorization.lock().clone();
            if current.is_some() && current != used {
                used = current;
                continue;
            }
            let value = self
                .authorize(response.headers(), reference, counters)
                .await?;
            *self.authorization.lock() = Some(value.clone());
            (used, authorized) = (Some(value), true);
        }
    }

    /// Sends a request, and then another one for each redirect, unless it posts a refresh token:
    /// that is for one server alone.
    async fn execute(
        &self,
        request: RequestBuilder,
        counters: &TransferCounters,
    ) -> Result<Response, RequestError> {
        let mut request = request.build().map_err(|error| transport(&error))?;
        let mut redirects = Redirects::new(request.url().clone());
        let (method, mut headers) = (request.method().clone(), request.headers().clone());
        loop {
            let response = self.send_once(request, counters).await?;
            if method != Method::GET {
                return Ok(response);
            }
            let next = redirects.next(response.status(), response.headers(), &mut headers);
            let Some(url) = next.map_err(refused)? else {
                return Ok(response);
            };
            request = Request::new(Method::GET, url);
            *request.headers_mut() = headers.clone();
        }
    }

    async fn send_once(
        &self,
        request: Request,
        counters: &TransferCounters,
    ) -> Result<Response, RequestError> {
        let is_restricted = self.destination.is_restricted(request.url());
        let client = match &self.guarded {
            Some(guarded) if is_restricted.map_err(refused)? => guarded,
            _ => &self.client,
        };
        counters.add_request();
        let sent = client.execute(request).await;
        sent.map_err(|error| transport(&error))
    }

    /// Answers the challenge in a response: returns the value of `Authorization`.
    async fn authorize(
        &self,
        headers: &HeaderMap,
        reference: &Reference,
        counters: &TransferCounters,
    ) -> Result<HeaderValue, RequestError> {
        let all = headers.get_all(WWW_AUTHENTICATE).iter();
        let mut all = all.filter_map(|header| Challenge::parse(header.to_str().ok()?));
        let denied = |what: &str| RequestError::permanent(Errno::EACCES, what);
        let Some(mut challenge) = all.next() else {
            return Err(denied(
                "expected a challenge of type Bearer or Basic, got another",
            ));
        };
        // A token is preferred, as it is limited to the repository.
        challenge = all
            .find(|one| *one != Challenge::Basic)
            .unwrap_or(challenge);
        let (realm, service, scope) = match challenge {
            Challenge::Basic => {
                return match &self.login {
                    Login::Password(user, password) => basic(user, password),
                    _ => Err(denied(&self.missing_login())),
                };
            }
            Challenge::Bearer {
                realm,
                service,
                scope,
            } => (realm, service, scope),
        };
        let mut realm = parse_url(&realm)
            .filter(|realm| matches!(realm.scheme(), "http" | "https"))
            .ok_or_else(|| denied("expected the URL of a token server, got another realm"))?;
        if self.host.base.scheme() == "https" && realm.scheme() != "https" {
            return Err(denied(
                "expected a token server with TLS, as the registry has it",
            ));
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", reference.repository()));
        let service = service.iter().map(|service| ("service", service.as_str()));
        let pairs = service.chain([("scope", scope.as_str())]);
        let request = match &self.login {
            Login::IdentityToken(token) => {
                let form = url::form_urlencoded::Serializer::new(String::new())
                    .extend_pairs(pairs)
                    .append_pair("grant_type", "refresh_token")
                    .append_pair("client_id", "barge")
                    .append_pair("refresh_token", token)
                    .finish();
                let form_type = "application/x-www-form-urlencoded";
                let request = self.client.post(realm);
                request.header(CONTENT_TYPE, form_type).body(form)
            }
            login => {
                realm.query_pairs_mut().extend_pairs(pairs);
                let request = self.client.get(realm);
                match login {
                    Login::Password(user, password) => {
                        request.header(AUTHORIZATION, basic(user, password)?)
                    }
                    _ => request,
                }
            }
        };
        let mut response = self.execute(request, counters).await?;
        let status = response.status();
        if !status.is_success() {
            let mut message = format!("{}, from the token server", status.as_u16());
            if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                message = format!("{message}: {}", self.missing_login());
            }
            return Err(status_error(status, message, response.headers()));
        }
        let reply = body(&mut response, MAX_TOKEN_REPLY).await?;
        let reply: Value = serde_json::from_slice(&reply).unwrap_or_default();
        let token = ["token", "access_token"]
            .into_iter()
            .filter_map(|name| reply[name].as_str())
            .find(|token| !token.is_empty());
        let value = token.and_then(|token| sensitive(&format!("Bearer {token}")));
        value.ok_or_else(|| {
            let message = "expected a token in the reply of the token server, got none";
            RequestError::permanent(Errno::EIO, message)
        })
    }

    /// Returns why access is denied, in view of the user's credentials.
    fn missing_login(&self) -> String {
        match &self.login {
            Login::Anonymous => "no credentials for the registry in Docker's config.json".into(),
            Login::Helper(helper) => format!(
                "Docker's config.json leaves the credentials to the helper '{}', which barge does \
                 not run: it reads only 'auths'",
                helper.escape_debug()
            ),
            Login::Password(..) | Login::IdentityToken(_) => {
                "the credentials in Docker's config.json are not accepted".into()
            }
        }
    }
}

/// Returns a client for requests to `host`, with its certificates, which follows no redirects.
fn client(host: &Host, options: &Options, resolver: Option<Resolver>) -> io::Result<Client> {
    let mut client = Client::builder()
        .user_agent(concat!("barge/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(options.tuning.request_timeout);
    if let Some(resolver) = resolver {
        client = client.dns_resolver(Arc::new(resolver));
    }
    for file in &host.ca {
        let failed = |error| with_path(file, &error);
        let pem = read_bounded(file, MAX_PEM)?;
        let certificates = Certificate::from_pem_bundle(&pem).map_err(failed)?;
        client = client.tls_certs_merge(certificates);
    }
    if host.skip_verify {
        client = client.tls_danger_accept_invalid_certs(true);
    }
    // One certificate is presented, the first.
    if let Some((certificate, key)) = host.client.first() {
        let mut pem = read_bounded(certificate, MAX_PEM)?;
        if let Some(key) = key {
            pem.push(b'\n');
            pem.extend(read_bounded(key, MAX_PEM)?);
        }
        let failed = |error| with_path(certificate, &error);
        client = client.identity(Identity::from_pem(&pem).map_err(failed)?);
    }
    client
        .build()
        .map_err(|error| io::Error::other(reason(&error)))
}

fn refused(refused: Refused) -> RequestError {
    RequestError::permanent(Errno::EIO, refused.to_string())
}

/// Returns the host and port of a URL, the latter only if it is not the scheme's.
fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Returns a registry's host and port likewise, for this scheme.
fn authority_of(registry: &str, scheme: &str) -> String {
    let url = Url::parse(&format!("{scheme}://{registry}"));
    url.map(|url| authority(&url)).unwrap_or_default()
}

fn basic(user: &str, password: &str) -> Result<HeaderValue, RequestError> {
    let pair = STANDARD.encode(format!("{user}:{password}"));
    sensitive(&format!("Basic {pair}")).ok_or_else(|| {
        RequestError::permanent(Errno::EINVAL, "expected credentials of text, got others")
    })
}

fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Receives a body of at most `limit` bytes.
async fn body(response: &mut Response, limit: usize) -> Result<Vec<u8>, RequestError> {
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await.map_err(|error| transport(&error))? {
        if bytes.len() > limit - body.len() {
            let message = format!("expected a reply of at most {limit} bytes, got more");
            return Err(RequestError::permanent(Errno::EIO, message));
        }
        body.extend_from_slice(&bytes);
    }
    Ok(body)
}

/// Returns a successful response, or the error in another one.
async fn check(mut response: Response) -> Result<Response, RequestError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let mut message = status.as_u16().to_string();
    // The descriptions of errors are optional (distribution-spec, "Error Codes").
    let described = body(&mut response, MAX_ERROR).await.unwrap_or_default();
    let described: Value = serde_json::from_slice(&described).unwrap_or_default();
    let first = &described["errors"][0];
    let words = first["message"].as_str().filter(|words| !words.is_empty());
    match words.or(first["code"].as_str()) {
        Some(words) => {
            let words: String = words.chars().take(MAX_MESSAGE_CHARS).collect();
            message = format!("{message}, {}", words.escape_debug());
        }
        None => message.extend(
            status
                .canonical_reason()
                .map(|reason| format!(", {reason}")),
        ),
    }
    Err(status_error(status, message, response.headers()))
}

fn status_error(status: StatusCode, message: String, headers: &HeaderMap) -> RequestError {
    let errno = match status {
        StatusCode::NOT_FOUND => Errno::ENOENT,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Errno::EACCES,
        _ => Errno::EIO,
    };
    RequestError {
        is_transient: is_transient(status.as_u16()),
        retry_after: retry_after(headers),
        ..RequestError::permanent(errno, message)
    }
}

/// Converts a failure without a response.
pub(crate) fn transport(error: &reqwest::Error) -> RequestError {
    let message = reason(error);
    let mut source = std::error::Error::source(error);
    let mut is_refused = false;
    while let Some(below) = source {
        is_refused |= below.is::<Refused>();
        source = below.source();
    }
    if is_refused || error.is_builder() {
        return RequestError::permanent(Errno::EIO, message);
    }
    RequestError::transient(message)
}

/// Returns the innermost reason: the outer ones repeat URLs, which may be signed.
fn reason(error: &reqwest::Error) -> String {
    let mut reason: &dyn std::error::Error = error;
    while let Some(below) = reason.source() {
        reason = below;
    }
    let words: String = reason.to_string().chars().take(MAX_MESSAGE_CHARS).collect();
    words.escape_debug().to_string()
}

pub(crate) fn invalid(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

fn with_path(path: &std::path::Path, error: &reqwest::Error) -> io::Error {
    invalid(format_args!("{}: {}", path.display(), reason(error)))
}
