//! Clients that send or request more than the memory budget, while another user's client works.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use engine::Tuning;
use hostile::client::{Client, FILE, Protocol, SIZE};
use hostile::process::barge;
use hostile::raw_client::{Bystander, RawClient, encode_request};
use hostile::server::{Server, Transport, host_dir, tree, tuning};
use hostile::user::run_as_other_user;
use p9::server::Options;
use p9::{Data, Fid, Rmessage, Tag, Tmessage as T};
use vfs_testkit::{ControlGroup, wait_until};

const MIB: usize = 1 << 20;
const MSIZE: u32 = 4 << 20;

fn served(memory: usize) -> Server {
    let tuning = Tuning { memory, ..tuning() };
    let options = Options {
        max_msize: MSIZE,
        ..Options::default()
    };
    Server::with(Transport::Tcp, tree(), options, tuning)
}

/// Writes and reads as much as fits in a message.
fn assert_moves_much(peer: &mut RawClient, name: &[u8]) {
    let data = vec![3; 2 * MIB];
    let (fid, offset) = (Fid(7), 0);
    peer.create(fid, name);
    for _ in 0..10 {
        peer.expect_ok(&T::Write {
            fid,
            offset,
            data: Data(&data),
        });
        let count = data.len() as u32;
        let Rmessage::Read { data: got } = peer.expect_ok(&T::Read { fid, offset, count }) else {
            panic!("not read");
        };
        assert!(got.0 == data);
    }
}

#[test]
fn messages_that_have_begun_stay_within_the_budget_and_leave_room_for_others() {
    let server = served(32 * MIB);
    let budget = server.engine.budget().clone();
    let mut message = Vec::new();
    let data = vec![7; MSIZE as usize - 100];
    let (fid, offset, data) = (Fid(9), 0, Data(&data));
    T::Write { fid, offset, data }.encode(p9::Dialect::Linux, Tag(1), &mut message);
    message.pop();
    let attack = || {
        let mut attackers: Vec<_> = (0..100)
            .map(|_| RawClient::connect_attached(&server.addr, MSIZE))
            .collect();
        for attacker in &mut attackers {
            attacker.fill_socket(&message, 1);
        }
        attackers
    };
    let Some(attackers) = run_as_other_user(attack) else {
        return println!("skipped: not root");
    };
    // The messages exceed the budget, of which a client may take half.
    wait_until("the messages are held", || {
        budget.used() >= budget.limit() / 3
    });
    let mut bystander = RawClient::connect_attached(&server.addr, MSIZE);
    assert_moves_much(&mut bystander, b"bystander");
    assert!(budget.used() <= budget.limit(), "{} bytes", budget.used());
    drop(attackers);
    drop(bystander);
    wait_until("the memory is released", || budget.used() == 0);
}

#[test]
fn replies_that_are_not_taken_stay_near_the_budget_and_leave_room_for_others() {
    let server = served(32 * MIB);
    let budget = server.engine.budget().clone();
    let mut owner = RawClient::connect_attached(&server.addr, MSIZE);
    owner.create(Fid(1), b"large");
    let data = vec![7; MSIZE as usize - 100];
    owner.expect_ok(&T::Write {
        fid: Fid(1),
        offset: 0,
        data: Data(&data),
    });
    let attack = || {
        let attackers = (0..100).map(|_| {
            let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
            peer.walk(hostile::raw_client::ROOT, Fid(1), &[b"large"]);
            peer.try_open(Fid(1), 0).expect("opened");
            peer
        });
        // Once their share is used, even a walk of theirs gets no reply.
        let mut attackers: Vec<_> = attackers.collect();
        for peer in &mut attackers {
            let (fid, offset, count) = (Fid(1), 0, MSIZE);
            peer.fill_socket(&encode_request(Tag(1), &T::Read { fid, offset, count }), 64);
        }
        attackers
    };
    let Some(attackers) = run_as_other_user(attack) else {
        return println!("skipped: not root");
    };
    wait_until("the messages are held", || {
        budget.used() >= budget.limit() / 3
    });
    let mut bystander = Bystander::new(&server.addr);
    bystander.assert_unaffected();
    assert_moves_much(&mut owner, b"bystander");
    // Replies in progress when the limit was reached may exceed it, one for each running thread.
    let most = budget.limit() + 8 * MSIZE as usize;
    assert!(budget.used() <= most, "{} bytes", budget.used());
    drop((attackers, bystander, owner));
    wait_until("the memory is released", || budget.used() == 0);
}

/// Misbehaves in one of three ways.
fn misbehave(client: &mut Client, how: usize) {
    match how % 3 {
        // A message without its last byte.
        0 => {
            let mut message = client.write_request(SIZE);
            message.pop();
            client.fill_socket(&message);
        }
        // Large and small replies that are not read.
        1 => {
            for _ in 0..8 {
                let request = client.read_request(SIZE);
                client.fill_socket(&request);
            }
        }
        _ => {
            for _ in 0..64 {
                let request = client.read_request(1 << 10);
                client.fill_socket(&request);
            }
        }
    }
}

/// Runs many connections of one client over `protocol` with a bystander; returns `false` if the
/// process lacks the privileges.
fn crowd_stays_below_the_budget(protocol: Protocol) -> bool {
    const CROWD: usize = 512;
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join(FILE), vec![7; SIZE as usize]).expect("written");
    let bounds = Tuning {
        connections: 3 * CROWD,
        memory: 64 * MIB,
        workers: 4,
        ..tuning()
    };
    let server = Server::with_protocol(protocol, host_dir(dir.path(), None), bounds);
    let budget = server.engine.budget();
    let assert_below = || {
        let used = budget.used();
        assert!(used <= budget.limit(), "{protocol:?}: {used} bytes");
    };
    let ordinary = |client: &mut Client| {
        client.attributes();
        client.write(64 << 10);
        client.read(SIZE);
        assert_below();
    };
    let mut early = Client::new(protocol, &server.addr, "early");
    ordinary(&mut early);
    let attack = || {
        let connect = |number| Client::new(protocol, &server.addr, &format!("attacker {number}"));
        let mut crowd: Vec<_> = (0..CROWD).map(connect).collect();
        for (number, client) in crowd.iter_mut().enumerate() {
            misbehave(client, number);
            assert_below();
        }
        // One client's share is used.
        wait_until("one client's share is used", || {
            budget.used() >= budget.limit() / 2
        });
        crowd
    };
    let Some(crowd) = run_as_other_user(attack) else {
        return false;
    };
    for _ in 0..20 {
        ordinary(&mut early);
    }
    ordinary(&mut Client::new(protocol, &server.addr, "late"));
    drop((crowd, early));
    // Lease-based state is retained.
    wait_until("all but the state is released", || {
        budget.used() <= budget.state_bytes()
    });
    true
}

#[test]
fn a_crowd_of_hostile_connections_stays_below_the_budget_over_every_protocol() {
    sys::limits::raise_descriptors();
    for protocol in Protocol::ALL {
        if !crowd_stays_below_the_budget(protocol) {
            return println!("skipped: not root");
        }
    }
}

/// A server in a control group. Dropping it kills and reaps the server.
struct Grouped {
    child: Child,
    _group: ControlGroup,
}

impl Drop for Grouped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes to the file `f` several times at once. While the server refuses the connection, tries
/// again.
fn write_much(addr: &transports::Addr, data: &[u8]) {
    const AT_ONCE: u16 = 4;
    let mut peer = None;
    wait_until("the server accepts the connection", || {
        peer = RawClient::try_connect_attached(addr, MSIZE);
        peer.is_some()
    });
    let mut peer = peer.expect("connected");
    peer.open(Fid(1), &[b"f"]);
    let (fid, offset, data) = (Fid(1), 0, Data(data));
    for tag in 0..AT_ONCE {
        peer.send_request(tag, &T::Write { fid, offset, data });
    }
    for _ in 0..AT_ONCE {
        let reply = peer.reply();
        assert!(matches!(reply.1, Rmessage::Write { .. }), "{reply:?}");
    }
}

#[test]
fn many_large_writers_do_not_get_a_server_in_a_small_control_group_killed() {
    const WRITERS: usize = 300;
    let (Some(program), Some(group)) = (barge(), ControlGroup::with_memory(64 * MIB)) else {
        return println!("skipped: barge has not been built, or there are no control groups");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).expect("made");
    let mut child = Command::new("sh")
        .args([
            "-c",
            "echo $$ > \"$1/cgroup.procs\" && exec \"$2\" serve \"$3\" --9p \"unix:$4\"",
            "sh",
        ])
        .args([group.path(), &program, &shared, &socket])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let stdout = child.stdout.take().expect("piped");
    let mut server = Grouped {
        child,
        _group: group,
    };
    let mut ready = String::new();
    BufReader::new(stdout)
        .read_line(&mut ready)
        .expect("a line");
    let addr = transports::Addr::Unix(socket);
    let mut first = RawClient::connect_attached(&addr, MSIZE);
    first.create(Fid(1), b"f");
    let data = vec![7; MSIZE as usize - 100];
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| write_much(&addr, &data));
        }
    });
    let ended = server.child.try_wait().expect("a child");
    assert!(ended.is_none(), "{ended:?}");
}
