//! The cluster over gRPC.
//!
//! A call goes to one member. If it fails, the next call goes to the next member. A channel
//! connects again by itself. The runtime's thread serves the connections; callers wait in their
//! own threads.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::proto::{
    AuthenticateRequest, AuthenticateResponse, Compare, Compared, DeleteRangeRequest,
    LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest, RequestKind, RequestOp,
    TARGET_CREATE, TARGET_MOD, TxnRequest, TxnResponse,
};
use crate::{CallError, Cluster, Condition, Entry, Granted, Operation, Outcome, Transaction};

/// Maximum length of a reply in bytes: [`crate::records`] asks for less.
pub const MAX_REPLY: usize = 4 << 20;

/// Maximum length of an error text of etcd that is shown.
const MAX_ERROR: usize = 256;

/// The members of a cluster, and the prefix of the keys: `etcd://HOST:PORT[,HOST:PORT...]/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// `HOST:PORT` of each member.
    members: Vec<(String, u16)>,
    /// The prefix, with a slash at its start and none at its end.
    prefix: String,
}

/// Maximum number of members in an address.
const MAX_MEMBERS: usize = 16;

/// Maximum length of a prefix in bytes.
const MAX_PREFIX: usize = 512;

impl Endpoints {
    /// Returns the prefix of the keys.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns whether all members are at loopback addresses.
    pub fn is_local(&self) -> bool {
        let mut hosts = self.members.iter().map(|(host, _)| host);
        hosts.all(|host| {
            let addr = host.parse::<IpAddr>();
            host == "localhost" || addr.is_ok_and(|addr| addr.is_loopback())
        })
    }
}

impl FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoints, String> {
        // Without the text, which may have a password.
        let expected = || "expected etcd://HOST:PORT[,HOST:PORT...]/PREFIX".to_owned();
        let rest = text.strip_prefix("etcd://").ok_or_else(expected)?;
        let (members, prefix) = rest.split_once('/').ok_or_else(expected)?;
        let prefix = prefix.trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_graphic() && !"@?#".contains(c);
        if prefix.is_empty() || prefix.len() > MAX_PREFIX || !prefix.chars().all(is_plain) {
            return Err(expected());
        }
        let member = |text: &str| {
            let (host, port) = text.rsplit_once(':')?;
            let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
            let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
            let valid = match bare {
                Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
                None => !host.is_empty() && host.chars().all(is_name),
            };
            let port = port.parse().ok().filter(|port| *port > 0)?;
            valid.then(|| (bare.unwrap_or(host).to_owned(), port))
        };
        let members: Option<Vec<_>> = members.split(',').map(member).collect();
        let members = members.filter(|all| all.len() <= MAX_MEMBERS);
        Ok(Endpoints {
            members: members.ok_or_else(expected)?,
            prefix: format!("/{prefix}"),
        })
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd://")?;
        for (number, (host, port)) in self.members.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{}", authority(host, *port))?;
        }
        f.write_str(&self.prefix)
    }
}

/// Returns a host and a port as they stand in a URL.
fn authority(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// The PEM texts of TLS.
#[derive(Clone)]
pub struct Tls {
    /// The authorities that the members' certificates are from.
    pub ca: Vec<u8>,
    /// The certificate chain and the key of this client, if it has any.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

/// A user of etcd.
#[derive(Clone)]
pub struct Login {
    /// The name of the user.
    pub user: String,
    /// The password.
    pub password: String,
}

/// A client of a cluster.
pub struct Client {
    runtime: ClientRuntime,
    members: Vec<(String, Channel)>,
    /// The number of the member that the next call goes to.
    current: AtomicUsize,
    login: Option<Login>,
    /// The token of the login.
    token: Mutex<Option<AsciiMetadataValue>>,
}

/// A runtime, which is `None` only while it is dropped.
struct ClientRuntime(Option<Runtime>);

impl Deref for ClientRuntime {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("it runs until it is dropped")
    }
}

impl Drop for ClientRuntime {
    fn drop(&mut self) {
        // Without waiting for a thread that resolves a name, as a server that stops would.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    /// Returns a client, which connects at its first call. Starts a thread. Fails if a certificate
    /// or key is invalid.
    pub fn new(
        endpoints: &Endpoints,
        tls: Option<&Tls>,
        login: Option<Login>,
    ) -> Result<Client, String> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("barge-etcd")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let runtime = ClientRuntime(Some(runtime));
        let in_runtime = runtime.enter();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let member = |(host, port): &(String, u16)| {
            let at = authority(host, *port);
            let endpoint = Endpoint::from_shared(format!("{scheme}://{at}"));
            let mut endpoint = endpoint
                .map_err(|error| error.to_string())?
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
                .keep_alive_while_idle(true);
            if let Some(tls) = tls {
                let mut config = ClientTlsConfig::new()
                    .domain_name(host)
                    .ca_certificate(Certificate::from_pem(&tls.ca));
                if let Some((certificate, key)) = &tls.client {
                    config = config.identity(Identity::from_pem(certificate, key));
                }
                let configured = endpoint.tls_config(config);
                endpoint = configured.map_err(|error| with_source(&error))?;
            }
            Ok((at, endpoint.connect_lazy()))
        };
        let members = endpoints.members.iter().map(member);
        let members = members.collect::<Result<_, String>>()?;
        drop(in_runtime);
        Ok(Client {
            runtime,
            members,
            current: AtomicUsize::new(0),
            login,
            token: Mutex::default(),
        })
    }

    /// Makes a call with one attempt. If its token has expired it fails, and the next call logs in.
    fn call<Q, R>(&self, path: &'static str, message: &Q, timeout: Duration) -> Result<R, CallError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let number = self.current.load(Ordering::Relaxed);
        let (name, channel) = &self.members[number % self.members.len()];
        let attempt = async {
            if let Some(login) = &self.login
                && self.token.lock().is_none()
            {
                self.log_in(channel, login).await?;
            }
            let token = self.token.lock().clone();
            match unary(channel, path, message.clone(), token).await {
                Err(status) if self.login.is_some() && is_token_error(&status) => {
                    *self.token.lock() = None;
                    Err(status)
                }
                done => done,
            }
        };
        let done = self.runtime.block_on(async {
            let limited = tokio::time::timeout(timeout, attempt).await;
            limited.unwrap_or_else(|_| Err(Status::deadline_exceeded("no reply in time")))
        });
        done.map_err(|status| {
            // The other members may be reachable.
            let next = number.wrapping_add(1);
            let order = Ordering::Relaxed;
            let _ = self.current.compare_exchange(number, next, order, order);
            CallError(format!("{name}: {}", shown(&status)))
        })
    }

    async fn log_in(&self, channel: &Channel, login: &Login) -> Result<(), Status> {
        let request = AuthenticateRequest {
            name: login.user.clone(),
            password: login.password.clone(),
        };
        let path = "/etcdserverpb.Auth/Authenticate";
        let reply: AuthenticateResponse = unary(channel, path, request, None).await?;
        let token = AsciiMetadataValue::try_from(reply.token);
        let mut token = token.map_err(|_| Status::internal("an invalid token"))?;
        // It does not appear in the debug output of requests.
        token.set_sensitive(true);
        *self.token.lock() = Some(token);
        Ok(())
    }
}

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval and timeout of probes of an idle connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

async fn unary<Q, R>(
    channel: &Channel,
    path: &'static str,
    message: Q,
    token: Option<AsciiMetadataValue>,
) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(MAX_REPLY);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(with_source(&error)))?;
    let mut request = Request::new(message);
    // A member without a leader fails at once.
    let metadata = request.metadata_mut();
    metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token);
    }
    let path = PathAndQuery::from_static(path);
    let codec: ProstCodec<Q, R> = ProstCodec::default();
    let reply = grpc.unary(request, path, codec).await?;
    Ok(reply.into_inner())
}

/// Returns whether a login may help (etcd's ErrInvalidAuthToken, ErrUserEmpty, ErrAuthOldRevision).
fn is_token_error(status: &Status) -> bool {
    let message = status.message();
    status.code() == Code::Unauthenticated
        || message.contains("user name is empty")
        || message.contains("revision of auth store is old")
}

/// Returns an error with its causes.
fn with_source(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Returns the text of an error of etcd, of limited length.
fn shown(status: &Status) -> String {
    let text = match std::error::Error::source(status) {
        Some(source) => format!("{}: {}", status.message(), with_source(source)),
        None => status.message().to_owned(),
    };
    let cut = text.char_indices().nth(MAX_ERROR);
    let text = cut.map_or(&text[..], |(at, _)| &text[..at]);
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

impl Cluster for Client {
    fn grant(&self, ttl: Duration, timeout: Duration) -> Result<Granted, CallError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let request = LeaseGrantRequest {
            ttl: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let reply: LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", &request, timeout)?;
        let granted = u64::try_from(reply.ttl).ok().filter(|ttl| *ttl >= seconds);
        match granted {
            Some(seconds) if reply.error.is_empty() && reply.id != 0 => Ok(Granted {
                id: reply.id,
                ttl: Duration::from_secs(seconds.min(MAX_TTL)),
            }),
            _ => Err(CallError(format!(
                "expected a lease of {seconds} s, got one of {} s",
                reply.ttl
            ))),
        }
    }

    fn transact(&self, transaction: &Transaction, timeout: Duration) -> Result<Outcome, CallError> {
        let request = TxnRequest {
            compare: transaction.conditions.iter().map(compare).collect(),
            success: transaction.then.iter().map(operation).collect(),
            failure: transaction.otherwise.iter().map(operation).collect(),
        };
        let reply: TxnResponse = self.call("/etcdserverpb.KV/Txn", &request, timeout)?;
        let entries = reply.responses.into_iter().map(|response| {
            let found = response.range.unwrap_or_default().kvs.into_iter();
            let entries = found.map(|found| Entry {
                key: found.key,
                value: found.value,
                created: found.create_revision,
                modified: found.mod_revision,
                lease: found.lease,
            });
            entries.collect()
        });
        Ok(Outcome {
            succeeded: reply.succeeded,
            revision: reply.header.map_or(0, |header| header.revision),
            entries: entries.collect(),
        })
    }
}

/// Maximum time to live that is used, in seconds, so that times do not overflow. etcd grants more
/// than requested if its members need more for an election.
const MAX_TTL: u64 = 3600;

fn compare(condition: &Condition) -> Compare {
    let (key, target, compared) = match condition {
        Condition::Created(key, revision) => {
            (key, TARGET_CREATE, Compared::CreateRevision(*revision))
        }
        Condition::Modified(key, revision) => (key, TARGET_MOD, Compared::ModRevision(*revision)),
    };
    Compare {
        target,
        key: key.clone(),
        compared: Some(compared),
    }
}

fn operation(operation: &Operation) -> RequestOp {
    let request = match operation.clone() {
        Operation::Put { key, value, lease } => RequestKind::Put(PutRequest { key, value, lease }),
        Operation::Delete(key) => RequestKind::DeleteRange(DeleteRangeRequest { key }),
        Operation::Get(key) => RequestKind::Range(RangeRequest {
            key,
            ..RangeRequest::default()
        }),
        Operation::Keys { from, until, limit } => RequestKind::Range(RangeRequest {
            key: from,
            range_end: until,
            limit,
            keys_only: true,
        }),
    };
    RequestOp {
        request: Some(request),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_members_and_a_prefix() {
        let parsed: Endpoints = "etcd://a.example:2379,[::1]:1/barge/nfs/"
            .parse()
            .expect("valid");
        assert_eq!(parsed.prefix(), "/barge/nfs");
        assert_eq!(
            parsed.to_string(),
            "etcd://a.example:2379,[::1]:1/barge/nfs"
        );
        assert!(!parsed.is_local());
        let local: Endpoints = "etcd://127.0.0.1:1,localhost:2/p".parse().expect("valid");
        assert!(local.is_local());
        for invalid in [
            "",
            "http://a:1/p",
            "etcd://a:1",
            "etcd://a:1/",
            "etcd://a/p",
            "etcd://a:0/p",
            "etcd://a:99999/p",
            "etcd://,/p",
            "etcd://u:s@a:1/p",
            "etcd://::1:1/p",
            "etcd://a:1/p q",
        ] {
            let error = invalid.parse::<Endpoints>().expect_err(invalid);
            assert_eq!(error, "expected etcd://HOST:PORT[,HOST:PORT...]/PREFIX");
        }
    }
}
