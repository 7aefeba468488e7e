//! One active server of several that share a prefix of keys in etcd, and the records of its state.
//!
//! | key below the prefix | value |
//! |---|---|
//! | `active` | the description of the active server; attached to its lease |
//! | `server` | the value that each active server leaves to the next ([`Records::set_server`]) |
//! | `serial` | the number of the last write, see [`records`] |
//! | `LIST/RECORD` | empty: the records of a list, in their own bytes |
//!
//! A server is active from the transaction that creates `active` ([`lease::acquire`]) until its
//! [`Fence`] closes, which is before the lease can have expired. All writes are transactions that
//! fail once `active` is another server's. The guarantee takes clocks that run at the same speed
//! within a quarter of the lease time, and etcd's, that a lease lasts at least its time to live
//! from the request that granted it.
//!
//! [`Cluster`] is the interface to etcd: [`Client`] is the one over gRPC, tests simulate another.
//! The async runtime stays internal. Replies of etcd are bounded ([`MAX_RECORDS`],
//! [`MAX_RECORD`], [`client::MAX_REPLY`]).

pub mod client;
mod fence;
pub mod lease;
mod proto;
pub mod records;

use std::fmt;
use std::time::Duration;

pub use client::{Client, Endpoints, Login, Tls};
pub use fence::Fence;
pub use lease::{Active, Lease};
pub use records::{MAX_RECORD, MAX_RECORDS, Records};

/// A clock of a server and its threads: it runs while the host is suspended.
pub trait Clock: Send + Sync {
    /// Returns the time since an arbitrary moment.
    fn now(&self) -> Duration;

    /// Waits for `time`, or less.
    fn sleep(&self, time: Duration);
}

/// A granted lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Its number.
    pub id: i64,
    /// The time that it lasts from the request on: at least the requested one.
    pub ttl: Duration,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The revision that created this key; 0 if there is no such key.
    Created(Vec<u8>, i64),
    /// The revision that last changed this key; 0 if there is no such key.
    Modified(Vec<u8>, i64),
}

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sets a key, which is removed with the lease, if that is not 0.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
        /// The lease.
        lease: i64,
    },
    /// Removes a key, if it exists.
    Delete(Vec<u8>),
    /// Returns a key.
    Get(Vec<u8>),
    /// Returns the first keys of a range in their order, without their values.
    Keys {
        /// The first key.
        from: Vec<u8>,
        /// The key after the last.
        until: Vec<u8>,
        /// The maximum number of keys.
        limit: i64,
    },
}

/// A transaction: `then` is carried out if all conditions hold, else `otherwise`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The operations if all of them hold.
    pub then: Vec<Operation>,
    /// The operations if one does not.
    pub otherwise: Vec<Operation>,
}

/// A key in a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision that created the key.
    pub created: i64,
    /// The revision that changed it last.
    pub modified: i64,
    /// Its lease, or 0.
    pub lease: i64,
}

/// The result of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether all conditions held.
    pub succeeded: bool,
    /// The revision after the transaction: that of its changes, if it made any.
    pub revision: i64,
    /// The entries that each operation returned.
    pub entries: Vec<Vec<Entry>>,
}

impl Outcome {
    /// Returns the first entry of an operation.
    fn first(&self, operation: usize) -> Option<&Entry> {
        self.entries.get(operation)?.first()
    }
}

/// The failure of a call. It may have been carried out all the same, or may be later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError(pub String);

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CallError {}

/// A cluster of etcd. Each call is an agreement of its members, waits for at most `timeout` and
/// makes one attempt.
pub trait Cluster: Send + Sync {
    /// Grants a lease of at least `ttl`.
    fn grant(&self, ttl: Duration, timeout: Duration) -> Result<Granted, CallError>;

    /// Carries out a transaction.
    fn transact(&self, transaction: &Transaction, timeout: Duration) -> Result<Outcome, CallError>;
}
