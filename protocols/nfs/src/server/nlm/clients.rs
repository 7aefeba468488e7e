//! NLM's clients, and the files that each has locked.
//!
//! A client is identified by the name that it claims and its address: the name is not proved, but a
//! host can release only its own locks. The number of names and of files is bounded for each peer.
//! A name without locks is forgotten after a while.
//!
//! Lock order: the only mutex is held for look-ups, and while the lock table is asked whether a
//! client has any locks on a file.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use vfs::lock::Owner;
use vfs::{Account, Charge, Node, NodeId, Quota};

/// A client: its address and the name that it claims.
pub(super) type Name = (Option<IpAddr>, Box<[u8]>);

/// All clients that have requested a lock.
pub(in crate::server) struct Clients {
    table: Mutex<Table>,
    names: Arc<Quota>,
    files: Arc<Quota>,
}

#[derive(Default)]
struct Table {
    by_name: HashMap<Name, u64>,
    /// By client number in the lock table.
    clients: HashMap<u64, Client>,
}

struct Client {
    name: Name,
    peer: Account,
    locked: HashMap<NodeId, LockedNode>,
    /// The time of the latest lock request.
    used: Duration,
    _charge: Charge,
}

/// A node on which a client may hold locks.
struct LockedNode {
    node: Arc<dyn Node>,
    /// The LOCKs that are being served, which may add a lock at any time.
    requests: u32,
    _charge: Charge,
}

impl Default for Clients {
    fn default() -> Clients {
        Clients {
            table: Mutex::default(),
            // Each is a machine, or claims to be; one peer may be many machines that share an
            // address.
            names: Quota::new(4096, 1024, 512),
            // Each pins a node in memory.
            files: Quota::new(1 << 16, 1 << 14, 128),
        }
    }
}

impl Clients {
    /// The time for which a client without locks is remembered: it often locks again.
    pub(super) const IDLE: Duration = Duration::from_secs(300);

    /// Returns the number of the client with this name; `None` if there are too many clients.
    pub(super) fn number(&self, name: Name, peer: &Account, now: Duration) -> Option<u64> {
        let table = &mut *self.lock();
        if let Some(number) = table.by_name.get(&name) {
            let client = table.clients.get_mut(number)?;
            client.used = now;
            return Some(*number);
        }
        let charge = match self.names.take(peer, 1) {
            Ok(charge) => charge,
            Err(full) => {
                table.forget(|client| {
                    client.locked.is_empty() && (!full.is_per_client() || client.peer == *peer)
                });
                self.names.take(peer, 1).ok()?
            }
        };
        let number = Owner::new_client();
        let client = Client {
            name: name.clone(),
            peer: peer.clone(),
            locked: HashMap::new(),
            used: now,
            _charge: charge,
        };
        table.by_name.insert(name, number);
        table.clients.insert(number, client);
        Some(number)
    }

    /// Returns whether the client with this name may hold locks.
    pub(super) fn holds(&self, name: &Name) -> bool {
        let table = self.lock();
        let client = table.by_name.get(name);
        let client = client.and_then(|number| table.clients.get(number));
        client.is_some_and(|client| !client.locked.is_empty())
    }

    /// Begins a LOCK: records that the client may lock `node`, until [`Clients::end_lock`]. Returns
    /// `false` if the client is unknown or the table is full.
    pub(super) fn begin_lock(&self, number: u64, node: &Arc<dyn Node>) -> bool {
        let mut table = self.lock();
        let Some(client) = table.clients.get_mut(&number) else {
            return false;
        };
        if let Some(locked) = client.locked.get_mut(&node.id()) {
            locked.requests += 1;
            return true;
        }
        let Ok(charge) = self.files.take(&client.peer, 1) else {
            return false;
        };
        let locked = LockedNode {
            node: node.clone(),
            requests: 1,
            _charge: charge,
        };
        client.locked.insert(node.id(), locked);
        true
    }

    /// Ends a LOCK of `node`. Forgets the node if `is_free` returns `true`.
    pub(super) fn end_lock(&self, number: u64, node: NodeId, is_free: impl FnOnce() -> bool) {
        let mut table = self.lock();
        if let Some(client) = table.clients.get_mut(&number)
            && let Some(locked) = client.locked.get_mut(&node)
        {
            locked.requests -= 1;
        }
        drop(table);
        self.forget_if_unlocked(number, node, is_free);
    }

    /// Forgets that the client may have locked a node, if no LOCK of the client is being served
    /// there and `is_free` returns `true`.
    pub(super) fn forget_if_unlocked(
        &self,
        number: u64,
        node: NodeId,
        is_free: impl FnOnce() -> bool,
    ) {
        let mut table = self.lock();
        let Some(client) = table.clients.get_mut(&number) else {
            return;
        };
        let is_unused = |locked: &LockedNode| locked.requests == 0;
        let unused = client.locked.get(&node).is_some_and(is_unused) && is_free();
        let removed = unused.then(|| client.locked.remove(&node));
        drop(table);
        drop(removed);
    }

    /// Removes a client, and returns its number and the nodes that it may have locked. Linux sends
    /// its host name in lock calls, and its full name in notifications of a restart.
    pub(super) fn remove(
        &self,
        addr: Option<IpAddr>,
        name: &[u8],
    ) -> Option<(u64, Vec<Arc<dyn Node>>)> {
        let table = &mut *self.lock();
        let short = name.split(|&byte| byte == b'.').next().unwrap_or(name);
        let mut remove = |name: &[u8]| table.by_name.remove(&(addr, name.into()));
        let number = remove(name).or_else(|| remove(short))?;
        let client = table.clients.remove(&number)?;
        let nodes = client.locked.into_values().map(|locked| locked.node);
        Some((number, nodes.collect()))
    }

    /// Removes the clients that have had no locks for [`Clients::IDLE`].
    pub(super) fn expire(&self, now: Duration) {
        self.lock().forget(|client| {
            client.locked.is_empty() && now.saturating_sub(client.used) >= Clients::IDLE
        });
    }

    /// Returns the number of clients.
    #[cfg(test)]
    fn len(&self) -> usize {
        let table = self.lock();
        assert_eq!(table.by_name.len(), table.clients.len());
        assert_eq!(table.clients.len(), self.names.in_use());
        table.clients.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    fn forget(&mut self, which: impl Fn(&Client) -> bool) {
        let removed = self.clients.extract_if(|_, client| which(client));
        for (_, client) in removed {
            self.by_name.remove(&client.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use vfs::PeerKey;

    use super::*;

    fn name(last: u8, name: &str) -> Name {
        (Some([10, 0, 0, last].into()), name.as_bytes().into())
    }

    #[test]
    fn names_are_an_address_s_own_bounded_for_each_peer_and_expire() {
        let clients = Clients::default();
        let peer = |last| Account::of(PeerKey::Addr([10, 0, 0, last].into()));
        let zero = Duration::ZERO;
        let one = clients.number(name(1, "guest"), &peer(1), zero);
        let other = clients.number(name(2, "guest"), &peer(2), zero);
        assert!(one.is_some() && other.is_some() && one != other);
        for stranger in [name(3, "").0, None] {
            assert!(clients.remove(stranger, b"guest").is_none());
        }
        for number in 0..10_000 {
            let name = name(9, &number.to_string());
            assert!(clients.number(name, &peer(9), zero).is_some());
        }
        assert!(clients.len() <= 2 + 1024);
        assert_eq!(clients.number(name(1, "guest"), &peer(1), zero), one);
        clients.expire(Clients::IDLE);
        assert_eq!(clients.len(), 0);
    }
}
