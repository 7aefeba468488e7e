//! Recovery of locks after a restart of the server (X/Open XNFS chapter 11). Stable storage lists
//! the clients with locks, and the driver notifies them ([`Server::to_notify`]). A notified client
//! reclaims its locks. Until it has had time to do so no new locks are granted, also not by v4; nor
//! to clients of v3 while those of v4 reclaim. There is no such grace period if no client is
//! listed. Only a listed client may reclaim, because others may have been granted locks that
//! conflict with what an unlisted one claims.
//!
//! A client at a loopback address or without an address is not listed: to call it would be to call
//! this host, or the host's side of a virtual machine's network.
//!
//! Lock order: the only mutex here, then that of `clients`. It is held while a record is written.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use vfs::Errno;

use super::Clients;
use super::clients::Name;
use crate::nlm::Status;
use crate::server::v4::state::Stable;
use crate::server::{CallError, RequestContext, Server};

/// A client that had locks during an earlier run of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitored {
    /// The name that it claims.
    pub name: Box<[u8]>,
    /// Its address.
    pub addr: IpAddr,
}

impl Monitored {
    /// Returns its stable record: an IPv6 address, then the name.
    fn record(&self) -> Box<[u8]> {
        let addr = match self.addr {
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        [&addr.octets()[..], &self.name].concat().into()
    }

    fn name(&self) -> Name {
        (Some(self.addr), self.name.clone())
    }

    fn read(record: &[u8]) -> Option<Monitored> {
        let (addr, name) = record.split_first_chunk::<16>()?;
        Some(Monitored {
            name: name.into(),
            addr: IpAddr::V6(Ipv6Addr::from(*addr)).to_canonical(),
        })
    }
}

/// The clients on stable storage.
pub(in crate::server) struct Recovery {
    stable: Arc<dyn Stable>,
    /// The clients of an earlier run.
    listed: HashSet<Name>,
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    /// The time of the latest lock request of each client.
    current: HashMap<Name, Duration>,
    /// The clients of an earlier run that are still on stable storage.
    earlier: Vec<Monitored>,
}

impl Recovery {
    /// The duration of the grace period for clients to be notified: several attempts of a second
    /// each.
    pub(in crate::server) const NOTIFICATION_TIME: Duration = Duration::from_secs(10);

    /// The maximum number of clients on stable storage, and of those at one address. Each is a
    /// record on disk.
    const MAX_CLIENTS: usize = 4096;
    const MAX_OF_AN_ADDRESS: usize = 256;

    /// The maximum number of records removed at a time: each is a commit to disk.
    const MAX_REMOVED: usize = 16;

    /// Reads the records in `stable`.
    pub(in crate::server) fn new(stable: Arc<dyn Stable>) -> Recovery {
        let records = stable.list();
        let earlier: Vec<_> = records
            .iter()
            .filter_map(|it| Monitored::read(it))
            .collect();
        Recovery {
            stable,
            listed: earlier.iter().map(Monitored::name).collect(),
            records: Mutex::new(Records {
                earlier,
                ..Records::default()
            }),
        }
    }

    /// Returns whether any client may reclaim locks.
    pub(in crate::server) fn is_needed(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Records a client on stable storage, which may wait for the disk. Returns `WOULD_BLOCK` if
    /// that is necessary and `may_wait` is false. If there is no room, the client replaces one that
    /// has no locks ([`Records::forget_idle`]), or else cannot reclaim. Returns the error of the
    /// storage if clients without a record must not lock.
    fn record(
        &self,
        clients: &Clients,
        client: Monitored,
        now: Duration,
        may_wait: bool,
    ) -> vfs::Result<()> {
        let mut records = self.records();
        let name = client.name();
        if let Some(last) = records.current.get_mut(&name) {
            *last = now;
            return Ok(());
        }
        let of_addr = records
            .current
            .keys()
            .filter(|(addr, _)| *addr == name.0)
            .count();
        let is_full_for_addr = of_addr >= Recovery::MAX_OF_AN_ADDRESS;
        let is_full = is_full_for_addr || records.current.len() >= Recovery::MAX_CLIENTS;
        if !may_wait {
            return Err(Errno::WOULD_BLOCK);
        }
        if is_full {
            let addr = is_full_for_addr.then_some(client.addr);
            match records.forget_idle(clients, addr, now) {
                Some(idle) => drop(self.stable.remove(&idle.record())),
                None => return Ok(()),
            }
        }
        // The storage logs a failure to write; the client then cannot reclaim.
        match self.stable.put(&client.record()) {
            Ok(()) => {
                records.earlier.retain(|earlier| *earlier != client);
                records.current.insert(name, now);
                Ok(())
            }
            Err(_) if !self.stable.is_required() => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the clients that have had no locks for a while and, after the grace period, those of
    /// an earlier run that did not return.
    fn maintain(&self, clients: &Clients, now: Duration, in_grace: bool) {
        let mut records = self.records();
        let idle = records
            .current
            .iter()
            .filter(|(name, last)| **last + Clients::IDLE <= now && !clients.holds(name))
            .filter_map(|((addr, name), _)| {
                let (addr, name) = ((*addr)?, name.clone());
                Some(Monitored { name, addr })
            });
        let mut removed: Vec<Monitored> = idle.take(Recovery::MAX_REMOVED).collect();
        for client in &removed {
            records.current.remove(&client.name());
        }
        if !in_grace {
            let left = records.earlier.len().saturating_sub(Recovery::MAX_REMOVED);
            removed.extend(records.earlier.split_off(left));
        }
        for client in removed {
            let _ = self.stable.remove(&client.record());
        }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock()
    }
}

impl Records {
    /// The time for which a client is not idle: it may be about to get a lock.
    const BUSY: Duration = Duration::from_secs(10);

    /// Forgets the client, at `addr` if given, that has no locks and has requested none for the
    /// longest time.
    fn forget_idle(
        &mut self,
        clients: &Clients,
        addr: Option<IpAddr>,
        now: Duration,
    ) -> Option<Monitored> {
        let idle = self.current.iter().filter(|(name, last)| {
            (addr.is_none() || name.0 == addr)
                && **last + Records::BUSY <= now
                && !clients.holds(name)
        });
        let (name, _) = idle.min_by_key(|(_, last)| **last)?;
        let name = name.clone();
        self.current.remove(&name);
        let (addr, name) = name;
        addr.map(|addr| Monitored { name, addr })
    }
}

impl Server {
    /// Returns the NLM clients that had locks during an earlier run: to be notified of this one by
    /// SM_NOTIFY with [`Server::nsm_state`].
    pub fn to_notify(&self) -> Vec<Monitored> {
        self.recovery.records().earlier.clone()
    }

    /// Reports that a client has been notified: extends the grace period to a lease time from now.
    pub fn notified(&self) {
        self.state.extend_lock_grace(self.options.lease);
    }

    /// Returns this run's NSM state number, which is odd while the server is up.
    pub fn nsm_state(&self) -> i32 {
        (self.options.boot << 1 | 1) as i32
    }

    /// Maintains the NLM clients and their records.
    pub(in crate::server) fn maintain_nlm_clients(&self) {
        let (now, in_grace) = ((self.options.clock)(), self.state.locks_in_grace());
        self.recovery.maintain(&self.clients, now, in_grace);
        self.clients.expire(now);
    }
}

impl RequestContext<'_> {
    /// Returns whether the client `name` may be granted a lock, reclaimed or new.
    pub(super) fn may_lock(&self, name: &[u8], reclaim: bool) -> Result<(), Status> {
        let listed = || {
            let name = (self.call.addr(), name.into());
            self.server.recovery.listed.contains(&name)
        };
        match (reclaim, self.server.state.locks_in_grace()) {
            (true, true) if !listed() => Err(Status::Denied),
            (true, true) | (false, false) => Ok(()),
            (true, false) | (false, true) => Err(Status::DeniedGracePeriod),
        }
    }

    /// Records the client `name` before it is granted a lock. Returns whether it may be granted
    /// one.
    pub(super) fn monitor(&self, name: &[u8]) -> Result<bool, CallError> {
        let addr = self.call.addr().filter(|addr| !addr.is_loopback());
        let Some(addr) = addr else {
            return Ok(true);
        };
        let client = Monitored {
            name: name.into(),
            addr,
        };
        let now = (self.server.options.clock)();
        let may_wait = self.cx().check_may_block().is_ok();
        let clients = &self.server.clients;
        let recorded = self.server.recovery.record(clients, client, now, may_wait);
        match recorded.map_err(CallError::retry) {
            Err(Some(stop)) => Err(stop),
            Err(None) => Ok(false),
            Ok(()) => Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::v4::state::InMemory;

    const SECOND: Duration = Duration::from_secs(1);

    fn client(name: &str, addr: &str) -> Monitored {
        Monitored {
            name: name.as_bytes().into(),
            addr: addr.parse().expect("an address"),
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for client in [client("", "10.0.0.1"), client("name", "fd00::1")] {
            assert_eq!(Monitored::read(&client.record()), Some(client));
        }
        assert_eq!(Monitored::read(&[0; 15]), None);
    }

    #[test]
    fn who_locks_is_on_record_and_is_forgotten_when_it_has_nothing() {
        let stable = Arc::new(InMemory::default());
        let recovery = Recovery::new(stable.clone());
        assert!(!recovery.is_needed());
        let one = client("one", "10.0.0.1");
        let would_block = Err(Errno::WOULD_BLOCK);
        assert_eq!(
            recovery.record(&Clients::default(), one.clone(), SECOND, false),
            would_block
        );
        assert_eq!(
            recovery.record(&Clients::default(), one.clone(), SECOND, true),
            Ok(())
        );
        assert_eq!(
            recovery.record(&Clients::default(), one.clone(), SECOND, false),
            Ok(()),
            "it is there"
        );
        let other = client("one", "10.0.0.2");
        assert_eq!(
            recovery.record(&Clients::default(), other.clone(), SECOND, true),
            Ok(())
        );
        assert_eq!(stable.list().len(), 2, "a name is an address's own");
        let clients = Clients::default();
        recovery.maintain(&clients, SECOND * 100, false);
        assert_eq!(stable.list().len(), 2);
        recovery.maintain(&clients, SECOND * 400, false);
        assert_eq!(stable.list().len(), 0);
    }

    #[test]
    fn records_of_an_address_are_bounded() {
        let stable = Arc::new(InMemory::default());
        let recovery = Recovery::new(stable.clone());
        for number in 0..Recovery::MAX_OF_AN_ADDRESS + 9 {
            let client = client(&number.to_string(), "10.0.0.1");
            assert_eq!(
                recovery.record(&Clients::default(), client, SECOND, true),
                Ok(())
            );
        }
        assert_eq!(stable.list().len(), Recovery::MAX_OF_AN_ADDRESS);
        let other = client("other", "10.0.0.2");
        assert_eq!(
            recovery.record(&Clients::default(), other, SECOND, true),
            Ok(())
        );
        assert_eq!(stable.list().len(), Recovery::MAX_OF_AN_ADDRESS + 1);
    }

    #[test]
    fn a_client_that_has_gone_gives_its_record_to_another() {
        let stable = Arc::new(InMemory::default());
        let (recovery, clients) = (Recovery::new(stable.clone()), Clients::default());
        let record = |number: usize, now| {
            let client = client(&number.to_string(), "10.0.0.1");
            recovery.record(&clients, client, now, true)
        };
        for number in 0..Recovery::MAX_OF_AN_ADDRESS {
            assert_eq!(record(number, SECOND * (number as u32 + 1)), Ok(()));
        }
        let last = Recovery::MAX_OF_AN_ADDRESS as u32;
        assert_eq!(record(9999, SECOND * (last + 20)), Ok(()));
        assert_eq!(stable.list().len(), Recovery::MAX_OF_AN_ADDRESS);
        let is_stored = |name| stable.list().contains(&client(name, "10.0.0.1").record());
        assert!(is_stored("9999") && is_stored("1") && !is_stored("0"));
    }

    #[test]
    fn grace_is_for_those_of_before_and_they_are_forgotten_behind_it() {
        let stable = Arc::new(InMemory::default());
        let [one, two] = [client("one", "10.0.0.1"), client("two", "10.0.0.2")];
        for client in [&one, &two] {
            stable.put(&client.record()).expect("kept");
        }
        let recovery = Recovery::new(stable.clone());
        assert!(recovery.is_needed());
        assert_eq!(
            recovery.record(&Clients::default(), one.clone(), SECOND, true),
            Ok(())
        );
        assert_eq!(recovery.records().earlier, [two]);
        let clients = Clients::default();
        recovery.maintain(&clients, SECOND * 2, true);
        assert_eq!(stable.list().len(), 2);
        recovery.maintain(&clients, SECOND * 11, false);
        assert_eq!(stable.list(), [one.record()]);
    }
}
