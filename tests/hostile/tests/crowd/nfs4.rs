//! NFSv4: clients, sessions, opens, locks and copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hostile::client::{Callbacks, Client, FILE, Protocol, SIZE};
use hostile::rpc::{Ops, word};
use hostile::server::{Server, Transport, nfs_with};
use nfs::server::Options;
use parking_lot::Mutex;
use vfs::{Attr, Kind, Op};
use vfs_testkit::script::{Answer, Script, default_attr};

use super::nfs3::with_memory;
use super::sockets::{SocketServer, plain_server, small_limits};
use super::{FILES, Guard, TestServer, assert_all_pass, case, file};

/// Creates many client IDs as one peer; those without state are evicted first.
fn clients(stage: &SocketServer) -> Guard {
    let mut client = stage.client("attacker");
    for number in 0..9000 {
        let name = format!("made up {number}");
        match stage.protocol {
            Protocol::Nfs40 => drop(client.set_client_id(name.as_bytes())),
            _ => {
                if let Ok((id, sequence)) = client.exchange_id(name.as_bytes()) {
                    (client.id, client.sequence) = (id, sequence);
                    let _ = client.create_session(Callbacks::None);
                }
            }
        }
    }
    Box::new(client)
}

/// Creates sessions of one client, with as many slots as the server grants.
fn sessions(stage: &SocketServer) -> Guard {
    let mut client = stage.client("attacker");
    let refused = (0..20_000).find_map(|_| client.create_session(Callbacks::None).err());
    assert!(refused.is_some(), "no bound");
    Box::new(client)
}

/// Opens files with many open owners.
fn owners(stage: &SocketServer) -> Guard {
    /// Number of OPENs in a compound, each after a PUTROOTFH.
    const OPENS: usize = 60;
    let mut client = stage.client("attacker");
    let refused = (0..4000).find_map(|batch| {
        let mut ops = client.begin_compound();
        for number in 0..OPENS {
            let file = file((batch * OPENS + number) % FILES);
            let open = client.open(&format!("{batch} {number}"), &file);
            ops = ops.root().append(open);
        }
        match client.compound(&ops).0 {
            0 => None,
            status => Some(status),
        }
    });
    assert!(refused.is_some(), "no bound");
    Box::new(client)
}

/// Opens the file with an open owner, and reads.
fn opens(client: &mut Client) {
    let ops = client.begin_compound().root();
    let ops = ops.append(client.open("bystander", FILE));
    assert_eq!(client.compound(&ops).0, 0, "OPEN");
    client.read(SIZE);
}

/// The special stateid for the current stateid.
const CURRENT: [u32; 4] = [1, 0, 0, 0];

fn range(offset: u64) -> [u32; 4] {
    [(offset >> 32) as u32, offset as u32, 0, 1]
}

/// Returns OPEN, and LOCK of a byte with a new lock owner.
fn open_and_lock(client: &mut Client, owner: &str, offset: u64) -> Ops {
    let ops = client.begin_compound().root();
    let ops = ops.append(client.open_for(3, owner, FILE));
    // Exclusive, no reclaim; then a new lock owner from the open.
    let ops = ops.op(12, &[2, 0]).words(&range(offset)).words(&[1, 0]);
    let ops = ops.words(&CURRENT).words(&[0]).raw(&client.id);
    ops.opaque(owner.as_bytes())
}

fn locks(stage: &SocketServer) -> Guard {
    /// Number of LOCKs in a compound besides the first.
    const LOCKS: u64 = 100;
    const FAR: u64 = 1 << 40;
    let mut client = stage.client("attacker");
    let refused = (0..60).find_map(|batch: u64| {
        let at = FAR + batch * 10_000;
        let mut ops = open_and_lock(&mut client, &format!("{batch}"), at);
        for number in 1..=LOCKS {
            ops = ops.op(12, &[2, 0]).words(&range(at + 2 * number));
            ops = ops.words(&[0]).words(&CURRENT).words(&[0]);
        }
        match client.compound(&ops).0 {
            0 => None,
            status => Some(status),
        }
    });
    assert!(refused.is_some(), "no bound");
    Box::new(client)
}

fn locks_a_byte(client: &mut Client) {
    let ops = open_and_lock(client, "bystander", 0);
    let unlock = ops.op(14, &[2, 0]).words(&CURRENT).words(&range(0));
    assert_eq!(client.compound(&unlock).0, 0, "LOCK");
}

/// Serves a large file that is copied slowly: a copy becomes asynchronous and never ends.
fn copying(protocol: Protocol) -> SocketServer {
    let script = Script::new();
    script.set_capabilities(vfs::Capabilities {
        handles: vfs::Support::Native,
        ..Default::default()
    });
    let file = Attr {
        size: 1 << 40,
        ..default_attr(2, Kind::File)
    };
    script.always(Op::FileAttr, Answer::Attr(file));
    script.always(Op::Copy, Answer::Count(1));
    // Each reading of the clock advances it by a tenth of a second.
    let ticks = AtomicU32::new(0);
    let clock = move || Duration::from_millis(100) * ticks.fetch_add(1, Ordering::Relaxed);
    let work = Mutex::new(Vec::new());
    let options = Options {
        lease: Duration::from_secs(1 << 20),
        run: Some(Arc::new(move |step| {
            work.lock().push(step);
        })),
        ..Options::new(7, Arc::new(clock))
    };
    let service = nfs_with(script, options);
    SocketServer::new(
        protocol,
        Server::with_service(Transport::Tcp, small_limits(), Arc::new(service)),
    )
}

/// Copies a part of the file to a far offset in it; returns whether the copy is asynchronous.
fn copy(client: &mut Client) -> bool {
    let on_file = |ops: Ops| ops.root().lookup(FILE.as_bytes());
    let ops = on_file(client.begin_compound()).op(32, &[]);
    let ops = on_file(ops).op(60, &[0; 8]);
    // Source offset, destination offset, count; consecutive, not synchronous, no source server.
    let ops = ops.words(&[0, 0, 1 << 7, 0, 0, 1 << 30]).words(&[1, 0, 0]);
    let (status, results) = client.compound(&ops);
    assert_eq!(status, 0, "COPY");
    // SEQUENCE's results, then the statuses of six operations and COPY.
    let stateids = &results[results.len() - COPIED..];
    word(stateids) == 1
}

/// Size in bytes of COPY's results if the copy is asynchronous: a stateid, the count, the
/// stability, the verifier, and the two flags.
const COPIED: usize = 4 + 16 + 8 + 4 + 8 + 8;

fn copies(stage: &SocketServer) -> Guard {
    let mut all: Vec<_> = (0..16)
        .map(|number| stage.client(&format!("attacker {number}")))
        .collect();
    let going: usize = all
        .iter_mut()
        .map(|client| (0..20).take_while(|_| copy(client)).count())
        .sum();
    assert!((1..16 * 20).contains(&going), "no bound");
    Box::new(all)
}

fn copies_in_the_background(client: &mut Client) {
    assert!(copy(client));
}

#[test]
fn one_client_that_fills_a_table_of_nfs_v4_makes_no_other_fail() {
    use Protocol::{Nfs40, Nfs41, Nfs42};
    let serve = |protocol| move || plain_server(protocol);
    let both = [Nfs40, Nfs41].into_iter().flat_map(|protocol| {
        [
            case(
                protocol,
                "clients",
                move || with_memory(protocol),
                clients,
                opens,
            ),
            case(protocol, "owners and opens", serve(protocol), owners, opens),
        ]
    });
    assert_all_pass(both.chain([
        case(
            Nfs41,
            "sessions and slots",
            || with_memory(Nfs41),
            sessions,
            opens,
        ),
        case(Nfs41, "locked ranges", serve(Nfs41), locks, locks_a_byte),
        case(
            Nfs42,
            "copies that go on",
            || copying(Nfs42),
            copies,
            copies_in_the_background,
        ),
    ]));
}
