//! Records of the active server: lists of keys without values, and the key `server`.
//!
//! Each write is a transaction with two conditions: this server is active, and the key `serial`,
//! which each write changes, is as it was after the last one. So a write that arrives late, or
//! twice, has no effect once a later one was carried out: a removed record does not come back. A
//! write whose reply was lost is repeated; the value of `serial` shows whether the first attempt
//! was carried out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::{
    Active, CallError, Clock, Cluster, Condition, Entry, Fence, Lease, Operation, Outcome,
    Transaction,
};

/// Maximum number of records of a list. A list with more is an error.
pub const MAX_RECORDS: usize = 32_768;

/// Maximum length of a record, and of the value that one server leaves to the next, in bytes. A
/// longer one is an error.
pub const MAX_RECORD: usize = 4096;

/// Number of records that a call returns.
const PAGE: i64 = 256;

/// The records of the active server. Writes wait for each other.
pub struct Records {
    lease: Lease,
    condition: Condition,
    cluster: Arc<dyn Cluster>,
    clock: Arc<dyn Clock>,
    fence: Arc<Fence>,
    serial: Mutex<Serial>,
}

/// The last write.
struct Serial {
    /// The revision that changed the key; `None` if it has to be read.
    modified: Option<i64>,
    /// The number of the last write.
    number: u64,
    /// A prefix of the numbers of this server's writes.
    server: String,
}

impl Records {
    /// Returns the records of `active`. There is one for a server.
    pub fn new(active: &Active) -> Records {
        let Condition::Created(_, revision) = active.condition() else {
            unreachable!("a server is active as long as its key was not created again")
        };
        Records {
            lease: active.lease().clone(),
            condition: active.condition(),
            cluster: active.cluster().clone(),
            clock: active.clock().clone(),
            fence: active.fence().clone(),
            serial: Mutex::new(Serial {
                modified: None,
                number: 0,
                server: revision.to_string(),
            }),
        }
    }

    /// Returns what the last active server left, to a server that need not be active.
    pub fn peek_server(lease: &Lease, cluster: &dyn Cluster) -> io::Result<Option<Vec<u8>>> {
        let look = Transaction {
            then: vec![Operation::Get(lease.key("server"))],
            ..Transaction::default()
        };
        let found = cluster.transact(&look, lease.call_timeout());
        let found = found.map_err(io::Error::other)?;
        server_value(found.first(0))
    }

    /// Returns what the last active server left, if there was one.
    pub fn server(&self) -> io::Result<Option<Vec<u8>>> {
        let found = self.read(Operation::Get(self.lease.key("server")))?;
        server_value(found.first())
    }

    /// Replaces what this server leaves to the next.
    pub fn set_server(&self, value: &[u8]) -> io::Result<()> {
        self.write(Operation::Put {
            key: self.lease.key("server"),
            value: value.into(),
            lease: 0,
        })
    }

    /// Returns the records of `list`.
    pub fn list(&self, list: &str) -> io::Result<Vec<Box<[u8]>>> {
        let prefix = self.list_prefix(list);
        let mut until = prefix.clone();
        // A slash is followed by 0.
        *until.last_mut().expect("a slash") = b'0';
        let (mut from, mut records) = (prefix.clone(), Vec::new());
        loop {
            let page = self.read(Operation::Keys {
                from: from.clone(),
                until: until.clone(),
                limit: PAGE,
            })?;
            let last = page.len() < PAGE as usize;
            for entry in page {
                let Some(record) = entry.key.strip_prefix(&prefix[..]) else {
                    return Err(invalid("a key beyond the range"));
                };
                if record.len() > MAX_RECORD {
                    return Err(too_long(record.len()));
                }
                if entry.key < from {
                    return Err(invalid("keys out of order"));
                }
                if records.len() == MAX_RECORDS {
                    let why = format!("expected at most {MAX_RECORDS} keys of {list}, got more");
                    return Err(invalid(why));
                }
                records.push(record.into());
                from = [&entry.key[..], &[0]].concat();
            }
            if last {
                return Ok(records);
            }
        }
    }

    /// Adds a record to `list`.
    pub fn put(&self, list: &str, record: &[u8]) -> io::Result<()> {
        if record.len() > MAX_RECORD {
            return Err(too_long(record.len()));
        }
        self.write(Operation::Put {
            key: self.record_key(list, record),
            value: Vec::new(),
            lease: 0,
        })
    }

    /// Removes a record from `list`, if it is there.
    pub fn remove(&self, list: &str, record: &[u8]) -> io::Result<()> {
        self.write(Operation::Delete(self.record_key(list, record)))
    }

    fn list_prefix(&self, list: &str) -> Vec<u8> {
        let mut prefix = self.lease.key(list);
        prefix.push(b'/');
        prefix
    }

    fn record_key(&self, list: &str, record: &[u8]) -> Vec<u8> {
        [&self.list_prefix(list), record].concat()
    }

    /// Carries out an operation that changes nothing, and returns its entries.
    fn read(&self, operation: Operation) -> io::Result<Vec<Entry>> {
        let transaction = Transaction {
            conditions: vec![self.condition.clone()],
            then: vec![operation],
            ..Transaction::default()
        };
        let mut outcome = self.call(&transaction)?;
        if !outcome.succeeded {
            return Err(self.lost());
        }
        match outcome.entries.is_empty() {
            true => Err(invalid("no result")),
            false => Ok(outcome.entries.swap_remove(0)),
        }
    }

    /// Carries out an operation that changes a key.
    fn write(&self, operation: Operation) -> io::Result<()> {
        let mut serial = self.serial.lock();
        serial.number += 1;
        let value = format!("{}/{}", serial.server, serial.number).into_bytes();
        let key = self.lease.key("serial");
        loop {
            let Some(modified) = serial.modified else {
                let found = self.read(Operation::Get(key.clone()))?;
                serial.modified = Some(found.first().map_or(0, |entry| entry.modified));
                continue;
            };
            let transaction = Transaction {
                conditions: vec![
                    self.condition.clone(),
                    Condition::Modified(key.clone(), modified),
                ],
                then: vec![
                    operation.clone(),
                    Operation::Put {
                        key: key.clone(),
                        value: value.clone(),
                        lease: 0,
                    },
                ],
                otherwise: vec![Operation::Get(key.clone()), self.own_key()],
            };
            // If this fails, the key may change later.
            let outcome = self.call(&transaction)?;
            if outcome.succeeded {
                serial.modified = Some(outcome.revision);
                return Ok(());
            }
            let active = outcome.first(1).map_or(0, |entry| entry.created);
            if self.condition != Condition::Created(self.lease.key("active"), active) {
                return Err(self.lost());
            }
            let entry = outcome.first(0);
            serial.modified = Some(entry.map_or(0, |entry| entry.modified));
            if entry.is_some_and(|entry| entry.value == value) {
                return Ok(());
            }
        }
    }

    fn own_key(&self) -> Operation {
        Operation::Get(self.lease.key("active"))
    }

    /// Calls until a call succeeds, or the server may no longer act, for a lease time at most.
    fn call(&self, transaction: &Transaction) -> io::Result<Outcome> {
        let end = self.clock.now() + self.lease.ttl;
        loop {
            let error = match self
                .cluster
                .transact(transaction, self.lease.call_timeout())
            {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            let now = self.clock.now();
            if now >= end || !self.fence.allows(now) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, error));
            }
            self.clock.sleep(RETRY_PAUSE);
        }
    }

    /// Ends the time of this server, and returns the error of its calls.
    fn lost(&self) -> io::Error {
        self.fence.close();
        io::Error::other(CallError("another server is active".into()))
    }
}

/// The pause after a call that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

fn server_value(entry: Option<&Entry>) -> io::Result<Option<Vec<u8>>> {
    match entry {
        Some(entry) if entry.value.len() > MAX_RECORD => Err(too_long(entry.value.len())),
        entry => Ok(entry.map(|entry| entry.value.clone())),
    }
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, CallError(why.into()))
}

fn too_long(len: usize) -> io::Error {
    invalid(format!("expected at most {MAX_RECORD} bytes, got {len}"))
}
