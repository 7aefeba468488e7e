//! The lease of the active server.
//!
//! A server becomes active by a transaction that creates the key `active` with a new lease, and
//! stays active by attaching the key to another new lease, four times in its time to live. Such a
//! lease is granted by an agreement of the cluster, so that it lasts from that request on. A lease
//! that is kept alive would not do: a member that takes itself for the leader may confirm that
//! without an agreement. Replaced leases have no keys, and expire.
//!
//! | time since the request for the lease | |
//! |---|---|
//! | a quarter of its time to live | the next lease is requested |
//! | three quarters | the [`Fence`] closes |
//! | seven eighths | the server is no longer active, for good ([`Active::hold`] returns) |
//!
//! The rest is for clocks that run at different speeds, and for operations that were begun before
//! the fence closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{CallError, Clock, Cluster, Condition, Fence, Granted, Operation, Transaction};

/// The settings of a lease.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The prefix of the keys, without a slash at its end.
    pub prefix: Vec<u8>,
    /// The time to live. etcd may grant more.
    pub ttl: Duration,
    /// The description of this server, for people.
    pub description: String,
}

impl Lease {
    /// Returns the time for a call: three of them fit between a renewal and the end of the fence.
    pub fn call_timeout(&self) -> Duration {
        (self.ttl / 8).max(Duration::from_millis(100))
    }

    /// Returns the pause between attempts of a waiting server. An active server looks at its clock
    /// as often.
    fn pause(&self) -> Duration {
        (self.ttl / 10).min(Duration::from_secs(1))
    }

    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        [&self.prefix[..], b"/", name.as_bytes()].concat()
    }

    /// Returns the operation that attaches the key of the active server to the lease `id`.
    fn attach(&self, id: i64) -> Operation {
        Operation::Put {
            key: self.key("active"),
            value: self.description.clone().into(),
            lease: id,
        }
    }

    /// Requests a lease, and adds it to `granted` in place of those that have expired.
    fn request(
        &self,
        cluster: &dyn Cluster,
        clock: &dyn Clock,
        granted: &mut Vec<LeaseAttempt>,
        timeout: Duration,
    ) -> Result<LeaseAttempt, CallError> {
        let sent = clock.now();
        let Granted { id, ttl } = cluster.grant(self.ttl, timeout)?;
        let now = clock.now();
        granted.retain(|attempt| now < attempt.sent + attempt.ttl);
        let attempt = LeaseAttempt { id, sent, ttl };
        granted.push(attempt);
        Ok(attempt)
    }
}

/// An event of a server that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting<'a> {
    /// Another server is active: its description.
    Held(&'a str),
    /// etcd does not answer.
    Unreachable(&'a CallError),
}

/// The maximum length of a description that is shown.
const MAX_DESCRIPTION: usize = 256;

/// Waits until this server is active. Reports why it waits after each look, and returns `None` if
/// `report` returns `false` then.
pub fn acquire(
    lease: Lease,
    cluster: Arc<dyn Cluster>,
    clock: Arc<dyn Clock>,
    mut report: impl FnMut(Waiting<'_>) -> bool,
) -> Option<Active> {
    let key = lease.key("active");
    let mut own = Vec::new();
    loop {
        let goes_on = match attempt(&lease, &*cluster, &*clock, &mut own) {
            Ok(Attempt::Active {
                created,
                modified,
                with,
            }) => {
                let fence = Arc::new(Fence::default());
                fence.extend(with.fence_end());
                return Some(Active {
                    lease,
                    key,
                    cluster,
                    clock,
                    created,
                    modified,
                    fence,
                    renewed: with,
                    attempts: own,
                });
            }
            Ok(Attempt::Held(by)) => report(Waiting::Held(&by)),
            Err(error) => report(Waiting::Unreachable(&error)),
        };
        if !goes_on {
            return None;
        }
        clock.sleep(lease.pause());
    }
}

enum Attempt {
    /// This server is active: the revisions that created and changed its key, and its lease.
    Active {
        created: i64,
        modified: i64,
        with: LeaseAttempt,
    },
    /// Another one is.
    Held(String),
}

/// Makes an attempt to become active. `own` has the leases of earlier attempts that may have
/// succeeded although their calls failed.
fn attempt(
    lease: &Lease,
    cluster: &dyn Cluster,
    clock: &dyn Clock,
    own: &mut Vec<LeaseAttempt>,
) -> Result<Attempt, CallError> {
    let (key, timeout) = (lease.key("active"), lease.call_timeout());
    let absent = Condition::Created(key.clone(), 0);
    let look = Transaction {
        conditions: vec![absent],
        otherwise: vec![Operation::Get(key)],
        ..Transaction::default()
    };
    let mut found = cluster.transact(&look, timeout)?;
    if found.succeeded {
        let with = lease.request(cluster, clock, own, timeout)?;
        let create = Transaction {
            then: vec![lease.attach(with.id)],
            ..look
        };
        found = cluster.transact(&create, timeout)?;
        if found.succeeded {
            return Ok(Attempt::Active {
                created: found.revision,
                modified: found.revision,
                with,
            });
        }
    }
    let entry = found.first(0).cloned().unwrap_or_default();
    // An earlier attempt may have succeeded, and its reply was lost.
    let known = own.iter().find(|attempt| attempt.id == entry.lease);
    if let Some(&with) = known
        && clock.now() < with.fence_end()
    {
        return Ok(Attempt::Active {
            created: entry.created,
            modified: entry.modified,
            with,
        });
    }
    let shown = entry.value.get(..MAX_DESCRIPTION).unwrap_or(&entry.value);
    Ok(Attempt::Held(shown.escape_ascii().to_string()))
}

/// The active server.
pub struct Active {
    lease: Lease,
    key: Vec<u8>,
    cluster: Arc<dyn Cluster>,
    clock: Arc<dyn Clock>,
    /// The revision that created its key: the condition of all its writes.
    created: i64,
    fence: Arc<Fence>,
    /// The revision that changed its key last.
    modified: i64,
    /// The lease that its key was last seen attached to.
    renewed: LeaseAttempt,
    /// The leases that its key is attached to, or may be.
    attempts: Vec<LeaseAttempt>,
}

/// A lease of this server.
#[derive(Clone, Copy, Debug)]
struct LeaseAttempt {
    id: i64,
    /// The time of the request for it.
    sent: Duration,
    ttl: Duration,
}

impl LeaseAttempt {
    /// Returns the time until which the server may act with this lease.
    fn fence_end(&self) -> Duration {
        self.sent + self.ttl * 3 / 4
    }
}

/// The reason why [`Active::hold`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was stopped.
    Stopped,
    /// Another server is active, or may be soon: the reason.
    Lost(String),
}

impl Active {
    /// Returns the time until which the server may act.
    pub fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn cluster(&self) -> &Arc<dyn Cluster> {
        &self.cluster
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the condition that this server is active.
    pub(crate) fn condition(&self) -> Condition {
        Condition::Created(self.key.clone(), self.created)
    }

    /// Renews the lease until `stop` is set, or the server is no longer active: its fence is closed
    /// in that case, and otherwise by [`Active::release`].
    pub fn hold(&mut self, stop: &AtomicBool) -> End {
        let mut failure = None;
        loop {
            let LeaseAttempt { sent, ttl, .. } = self.renewed;
            let (now, end) = (self.clock.now(), sent + ttl * 7 / 8);
            if stop.load(Ordering::SeqCst) {
                return End::Stopped;
            }
            if now >= end {
                self.fence.close();
                let why = failure.unwrap_or_else(|| "this host was suspended".to_owned());
                return End::Lost(format!("the lease was not renewed in time: {why}"));
            }
            let due = sent + ttl / 4;
            if now < due {
                self.clock.sleep((due - now).min(self.lease.pause()));
                continue;
            }
            match self.renew(end) {
                Ok(true) => failure = None,
                Ok(false) => {
                    self.fence.close();
                    return End::Lost("another server is active".into());
                }
                Err(error) => {
                    if failure.is_none() {
                        tracing::warn!("etcd: cannot renew the lease of the server: {error}");
                    }
                    failure = Some(error.to_string());
                    let left = end.saturating_sub(self.clock.now());
                    self.clock.sleep(left.min(self.lease.pause() / 4));
                }
            }
        }
    }

    /// Attaches the key to a new lease, until `end` at most. Returns `false` if the key is another
    /// server's or gone.
    ///
    /// The key has to be as it was last seen, or an attempt that arrives late would attach it to a
    /// lease that expires earlier than a newer one.
    fn renew(&mut self, end: Duration) -> Result<bool, CallError> {
        let longest = self.lease.call_timeout();
        let timeout = |now: Duration| longest.min(end.saturating_sub(now));
        let (cluster, clock) = (&*self.cluster, &*self.clock);
        let granted = &mut self.attempts;
        let left = timeout(clock.now());
        let LeaseAttempt { id, .. } = self.lease.request(cluster, clock, granted, left)?;
        let attach = Transaction {
            conditions: vec![
                self.condition(),
                Condition::Modified(self.key.clone(), self.modified),
            ],
            then: vec![self.lease.attach(id)],
            otherwise: vec![Operation::Get(self.key.clone())],
        };
        let outcome = cluster.transact(&attach, timeout(clock.now()))?;
        let (modified, attached) = match outcome.first(0) {
            _ if outcome.succeeded => (outcome.revision, id),
            Some(entry) if entry.created == self.created => (entry.modified, entry.lease),
            _ => return Ok(false),
        };
        self.modified = modified;
        // Otherwise it is the lease of an earlier attempt, whose reply was lost.
        let of = |attempt: &&LeaseAttempt| attempt.id == attached;
        if let Some(&attempt) = self.attempts.iter().find(of) {
            self.renewed = attempt;
            self.fence.extend(attempt.fence_end());
        }
        Ok(true)
    }

    /// Lets another server become active at once. This one must have stopped.
    pub fn release(self) -> Result<(), CallError> {
        self.fence.close();
        let release = Transaction {
            conditions: vec![self.condition()],
            then: vec![Operation::Delete(self.key.clone())],
            ..Transaction::default()
        };
        let timeout = self.lease.call_timeout();
        self.cluster.transact(&release, timeout).map(drop)
    }
}
