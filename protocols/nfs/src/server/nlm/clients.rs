//! The clients of NLM, by the names they give themselves, and the files that each has locked.
//!
//! Lock order: the one mutex here is held for a look-up, and across the question whether a file is locked at all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use vfs::lock::Owner;
use vfs::{Node, NodeId};

/// All that have locked something.
#[derive(Default)]
pub(in crate::server) struct Clients {
    by_name: Mutex<HashMap<Box<[u8]>, Client>>,
}

struct Client {
    /// Whose locks are its, in the table.
    number: u64,
    locked: HashMap<NodeId, Arc<dyn Node>>,
}

impl Clients {
    /// Each is a machine, or pretends to be.
    const MOST: usize = 4096;

    /// The number of the client of this name; nothing if there are too many.
    pub(super) fn number(&self, name: &[u8]) -> Option<u64> {
        let mut clients = self.lock();
        if let Some(client) = clients.get(name) {
            return Some(client.number);
        }
        if clients.len() >= Clients::MOST {
            clients.retain(|_, client| !client.locked.is_empty());
        }
        if clients.len() >= Clients::MOST {
            return None;
        }
        let number = Owner::new_client();
        let locked = HashMap::new();
        clients.insert(name.into(), Client { number, locked });
        Some(number)
    }

    /// Whether the client of this name may have locked anything.
    pub(super) fn holds(&self, name: &[u8]) -> bool {
        let clients = self.lock();
        clients
            .get(name)
            .is_some_and(|client| !client.locked.is_empty())
    }

    /// The client is about to lock `node`.
    pub(super) fn hold(&self, number: u64, node: &Arc<dyn Node>) {
        if let Some(client) = by_number(&mut self.lock(), number) {
            client
                .locked
                .entry(node.id())
                .or_insert_with(|| node.clone());
        }
    }

    /// Forgets that the client may have locked a node, if that `is_free`.
    pub(super) fn settle(&self, number: u64, node: NodeId, is_free: impl FnOnce() -> bool) {
        let mut clients = self.lock();
        let Some(client) = by_number(&mut clients, number) else {
            return;
        };
        let gone = is_free().then(|| client.locked.remove(&node));
        drop(clients);
        drop(gone);
    }

    /// Forgets a client: its number, and what it may have locked. Linux calls itself by its host name when it locks, and by its
    /// full name when it has restarted.
    pub(super) fn remove(&self, name: &[u8]) -> Option<(u64, Vec<Arc<dyn Node>>)> {
        let mut clients = self.lock();
        let short = name.split(|&byte| byte == b'.').next().unwrap_or(name);
        let client = clients.remove(name).or_else(|| clients.remove(short))?;
        Some((client.number, client.locked.into_values().collect()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Client>> {
        self.by_name.lock().expect("no panic holds it")
    }
}

fn by_number(clients: &mut HashMap<Box<[u8]>, Client>, number: u64) -> Option<&mut Client> {
    clients.values_mut().find(|client| client.number == number)
}
