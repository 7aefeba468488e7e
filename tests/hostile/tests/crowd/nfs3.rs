//! NFSv3 with NLM, and the duplicate request cache, which v4.0 shares.

use std::sync::atomic::{AtomicU32, Ordering};

use engine::Tuning;
use hostile::client::{Client, Protocol};
use hostile::rpc::{NFS, Ops, opaque, words};
use vfs_testkit::wait_until;

use super::sockets::{SocketServer, plain_server, small_limits};
use super::{Guard, TestServer, assert_all_pass, case, file};

/// Offset of attackers' locks.
const FAR: u64 = 1 << 40;

const GRANTED: u32 = 0;
const NO_LOCKS: u32 = 2;

/// Locks bytes of several files under many made-up client names.
fn names(stage: &SocketServer) -> Guard {
    let mut client = stage.client("attacker");
    // Each locked file takes a file descriptor.
    let files: Vec<_> = (0..16).map(|number| client.lookup(&file(number))).collect();
    let lock = |number: u64| {
        let name = format!("made up {number}");
        client
            .file
            .clone_from(&files[number as usize % files.len()]);
        client.nlm(false, name.as_bytes(), 1, FAR + 2 * number)
    };
    let end = (0..5000).map(lock).find(|status| *status != GRANTED);
    assert_eq!(end, Some(NO_LOCKS));
    Box::new(client)
}

/// Locks many ranges of one file as one client.
fn ranges(stage: &SocketServer) -> Guard {
    let mut client = stage.client("attacker");
    let lock = |number: u64| client.nlm(false, b"attacker", 1, FAR + 2 * number);
    let end = (0..5000).map(lock).find(|status| *status != GRANTED);
    assert_eq!(end, Some(NO_LOCKS));
    Box::new(client)
}

fn locks_a_byte(client: &mut Client) {
    assert_eq!(client.nlm(false, b"bystander", 1, 0), GRANTED);
    assert_eq!(client.nlm(true, b"bystander", 1, 0), GRANTED);
}

/// Sends more LOCKs that wait for a byte held by the attacker than may wait in total.
fn waiting(stage: &SocketServer) -> Guard {
    const CONNECTIONS: u32 = 22;
    const OF_EACH: u32 = 200;
    /// Size in bytes of the reply to a LOCK.
    const REPLY: u64 = 36;
    let most = 4096;
    let mut holder = stage.client("holder");
    assert_eq!(holder.nlm(false, b"attacker", 0, FAR), GRANTED);
    let mut all: Vec<_> = (0..CONNECTIONS)
        .map(|number| stage.client(&format!("attacker {number}")))
        .collect();
    let sent = || stage.server.engine.stats().1.sent;
    let before = sent();
    for (client, number) in all.iter_mut().zip(0..) {
        for owner in 0..OF_EACH {
            let owner = 1 + number * OF_EACH + owner;
            let call = client.nlm_lock_call(true, b"attacker", owner, FAR);
            client.send(&call);
        }
    }
    // LOCKs beyond the limit get a reply.
    let refused = u64::from(CONNECTIONS * OF_EACH) - most;
    wait_until("all replies are held", || {
        sent() >= before + refused * REPLY
    });
    Box::new((holder, all))
}

/// Waits for a byte that is unlocked soon. The LOCK may arrive only after the unlock, so it tries
/// several times.
fn waits_for_a_byte(client: &mut Client) {
    for owner in 1..20 {
        assert_eq!(client.nlm(false, b"bystander", 0, 0), GRANTED);
        let wait = client.nlm_lock_call(true, b"bystander", owner, 0);
        client.send(&wait);
        let statuses = [client.nlm(true, b"bystander", 0, 0), client.nlm_status()];
        assert_eq!(statuses, [GRANTED; 2]);
        assert_eq!(client.nlm(true, b"bystander", owner, 0), GRANTED);
    }
}

/// Returns a server with the default memory, so that the tables' own limits apply.
pub(crate) fn with_memory(protocol: Protocol) -> SocketServer {
    let bounds = Tuning {
        memory: 1 << 30,
        ..small_limits()
    };
    SocketServer::with_tree(protocol, bounds)
}

/// Sends more non-idempotent calls than the cache holds replies.
fn replies(stage: &SocketServer) -> Guard {
    const CALLS: usize = 500;
    let mut client = stage.client("attacker");
    let remove = match stage.protocol {
        Protocol::Nfs3 => [opaque(&client.root), opaque(b"none")].concat(),
        _ => Ops::default()
            .root()
            .op(28, &[])
            .opaque(b"none")
            .compound(0),
    };
    let what = match stage.protocol {
        Protocol::Nfs3 => (NFS, 3, 12),
        _ => (NFS, 4, 1),
    };
    for _ in 0..80 {
        let calls: Vec<u8> = (0..CALLS)
            .flat_map(|_| client.call(what, &remove))
            .collect();
        client.send(&calls);
        client.receive_replies(CALLS);
    }
    Box::new(client)
}

/// Returns a new directory name.
fn new_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("made {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Makes a directory, and retransmits the previous call.
fn makes_and_repeats(client: &mut Client) {
    // Without attributes.
    let place = [opaque(&client.root), opaque(new_name().as_bytes())].concat();
    client.retransmit_previous((NFS, 3, 9), &[place, words(&[0; 6])].concat());
}

fn makes_and_repeats_in_v4(client: &mut Client) {
    let make = Ops::default().root().mkdir(new_name().as_bytes());
    client.retransmit_previous((NFS, 4, 1), &make.compound(0));
}

#[test]
fn one_client_that_fills_a_table_of_nfs_v3_makes_no_other_fail() {
    let v3 = Protocol::Nfs3;
    let v40 = Protocol::Nfs40;
    let serve = move || plain_server(v3);
    let keeping = |protocol| move || with_memory(protocol);
    let kept = "replies kept for retransmissions";
    assert_all_pass([
        case(v3, "NLM names", serve, names, locks_a_byte),
        case(v3, "NLM ranges", serve, ranges, locks_a_byte),
        case(v3, "NLM LOCKs that wait", serve, waiting, waits_for_a_byte),
        case(v3, kept, keeping(v3), replies, makes_and_repeats),
        case(v40, kept, keeping(v40), replies, makes_and_repeats_in_v4),
    ]);
}
