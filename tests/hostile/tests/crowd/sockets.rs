//! Tables common to all socket protocols: connections, messages, replies and workers.

use std::sync::Arc;

use engine::{ConnectionRefusals, Tuning};
use hostile::client::{Client, Protocol, SIZE};
use hostile::server::{Server, tuning};
use transports::Addr;
use vfs::memory::MemoryBudget;
use vfs::{Attr, Kind, Op, Patience, Support};
use vfs_testkit::script::{Answer, Latch, Script, default_attr};
use vfs_testkit::wait_until;

use super::{Guard, TestCase, TestServer, Tree, assert_all_pass, case};

/// A server on a socket.
pub(crate) struct SocketServer {
    pub(crate) protocol: Protocol,
    pub(crate) server: Server,
    pub(crate) tree: Option<Tree>,
    /// Releases hanging requests when opened.
    latch: Latch,
}

impl TestServer for SocketServer {
    type Client = Client;

    fn client(&self, name: &str) -> Client {
        Client::new(self.protocol, self.addr(), name)
    }

    fn budget(&self) -> Option<&MemoryBudget> {
        Some(self.server.engine.budget())
    }
}

impl SocketServer {
    pub(crate) fn addr(&self) -> &Addr {
        &self.server.addr
    }

    /// Wraps a server made by the caller.
    pub(crate) fn new(protocol: Protocol, server: Server) -> SocketServer {
        SocketServer {
            protocol,
            server,
            tree: None,
            latch: Latch::new(),
        }
    }

    /// Serves a directory of the host with these limits.
    pub(crate) fn with_tree(protocol: Protocol, bounds: Tuning) -> SocketServer {
        let tree = Tree::new();
        let server = Server::with_protocol(protocol, tree.host_dir.clone(), bounds);
        SocketServer {
            tree: Some(tree),
            ..SocketServer::new(protocol, server)
        }
    }

    /// Returns the number of connections refused because of their client's limit.
    fn refused(&self) -> u64 {
        let all = self.server.engine.connection_refusals();
        let is_it = |(name, _): &(&str, u64)| *name == ConnectionRefusals::CLIENT_CONNECTIONS;
        all.into_iter().find(is_it).expect("a reason").1
    }
}

/// Returns limits of a few tens of connections and some megabytes.
pub(crate) fn small_limits() -> Tuning {
    Tuning {
        connections: 64,
        memory: 32 << 20,
        ..tuning()
    }
}

/// Returns limits with less memory than a maximum-size message per connection. Without zero copy,
/// since pages of files would not be charged.
fn little_memory() -> Tuning {
    Tuning {
        zerocopy: false,
        memory: 12 << 20,
        ..small_limits()
    }
}

pub(crate) fn plain_server(protocol: Protocol) -> SocketServer {
    SocketServer::with_tree(protocol, small_limits())
}

/// Returns a tree whose first reads hang, and whose attributes (flushes for `Nbd`) take a worker.
fn hanging_tree(slow: Op, latch: &Latch) -> Arc<Script> {
    let script = Script::new();
    script.set_capabilities(vfs::Capabilities {
        handles: Support::Native,
        ..Default::default()
    });
    for _ in 0..1000 {
        script.next(Op::Read, Answer::Block(latch.clone()));
    }
    script.always(slow, Answer::NeedsPatience(Patience::Full));
    let file = Attr {
        size: SIZE.into(),
        ..default_attr(2, Kind::File)
    };
    script.always(Op::FileAttr, Answer::Attr(file));
    script
}

/// Returns the limits of a server whose requests hang.
fn few_workers() -> Tuning {
    Tuning {
        workers: 4,
        ..small_limits()
    }
}

fn hanging_server(protocol: Protocol) -> SocketServer {
    let slow = match protocol {
        Protocol::Nbd => Op::Fsync,
        _ => Op::Attr,
    };
    let latch = Latch::new();
    let tree = hanging_tree(slow, &latch);
    SocketServer {
        latch,
        ..SocketServer::new(
            protocol,
            Server::with_protocol(protocol, tree, few_workers()),
        )
    }
}

/// Gets attributes, and performs a write and a read that need memory.
fn reads_and_writes(client: &mut Client) {
    client.attributes();
    client.write(64 << 10);
    client.read(SIZE);
}

fn all_connections(stage: &SocketServer) -> Guard {
    let all: Vec<_> = (0..100)
        .map(|_| Client::connect(stage.protocol, stage.addr()))
        .collect();
    wait_until("the table is full", || stage.refused() >= 50);
    Box::new(all)
}

/// Returns `number` clients of the attacker.
pub(crate) fn attackers(stage: &SocketServer, number: usize) -> Vec<Client> {
    let one = |number| stage.client(&format!("attacker {number}"));
    (0..number).map(one).collect()
}

/// Sends messages of 1 MiB without their last byte.
fn unfinished_messages(stage: &SocketServer) -> Guard {
    let budget = stage.server.engine.budget();
    let mut all = attackers(stage, 30);
    for client in &mut all {
        let mut message = client.write_request(SIZE);
        message.pop();
        client.fill_socket(&message);
    }
    wait_until("the table is full", || budget.used() >= budget.limit() / 3);
    Box::new(all)
}

/// Sends requests for 1 MiB each, and does not read the replies.
fn unread_replies(stage: &SocketServer) -> Guard {
    let mut all = attackers(stage, 30);
    let budget = stage.server.engine.budget();
    for client in &mut all {
        for _ in 0..20 {
            let request = client.read_request(SIZE);
            client.fill_socket(&request);
        }
    }
    wait_until("the table is full", || budget.used() >= budget.limit() / 3);
    Box::new(all)
}

/// Hanging requests; the latch opens when the attacker is dropped.
struct HungRequests {
    latch: Latch,
    _clients: Vec<Client>,
}

impl Drop for HungRequests {
    fn drop(&mut self) {
        self.latch.open();
    }
}

fn hung_requests(stage: &SocketServer) -> Guard {
    let mut clients = attackers(stage, 8);
    let offloaded = || stage.server.engine.stats().1.offloaded;
    let before = offloaded();
    for client in &mut clients {
        for _ in 0..16 {
            let request = client.read_request(4096);
            client.send(&request);
        }
    }
    wait_until("the table is full", || offloaded() >= before + 8 * 16);
    Box::new(HungRequests {
        latch: stage.latch.clone(),
        _clients: clients,
    })
}

#[test]
fn one_client_that_fills_what_all_protocols_have_makes_no_other_fail() {
    type Fill = fn(&SocketServer) -> Guard;
    let tables: [(&str, Fill); 3] = [
        ("connections", all_connections),
        ("held bytes of messages", unfinished_messages),
        ("replies not read", unread_replies),
    ];
    let rows = Protocol::ALL.into_iter().flat_map(|protocol| {
        let serve = move || SocketServer::with_tree(protocol, little_memory());
        let plain =
            tables.map(|(table, fill)| case(protocol, table, serve, fill, reads_and_writes));
        let hangs = move || hanging_server(protocol);
        let workers: TestCase<SocketServer> = case(
            protocol,
            "workers",
            hangs,
            hung_requests,
            Client::attributes,
        );
        plain.into_iter().chain([workers])
    });
    assert_all_pass(rows);
}
