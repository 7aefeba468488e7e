//! Clients that take connections, file descriptors or time, while another user's client is not
//! affected.

#![forbid(unsafe_code)]

use std::net::TcpStream;
use std::time::Duration;

use engine::{Engine, Timeouts, Tuning};
use hostile::process::Process;
use hostile::raw_client::{Bystander, RawClient, encode_request};
use hostile::server::{Server, Transport, tree, tuning};
use hostile::user::run_as_other_user;
use p9::server::Options;
use p9::{Data, Fid, Tag, Tmessage as T};
use rustix::process::{Resource, Rlimit, prlimit};
use transports::Addr;
use vfs_testkit::wait_until;

fn connect(addr: &Addr) -> TcpStream {
    let Addr::Tcp { host, port } = addr else {
        panic!("{addr} is no TCP port");
    };
    TcpStream::connect((host.as_str(), *port)).expect("connected")
}

fn refused(engine: &Engine, reason: &str) -> u64 {
    let all = engine.connection_refusals();
    let found = all.into_iter().find(|(name, _)| *name == reason);
    found.expect("a reason").1
}

#[test]
fn one_user_cannot_take_all_connections() {
    let tuning = Tuning {
        connections: 64,
        ..tuning()
    };
    let server = Server::with(Transport::Tcp, tree(), Options::default(), tuning);
    let flood = || -> Vec<_> { (0..100).map(|_| connect(&server.addr)).collect() };
    let Some(attackers) = run_as_other_user(flood) else {
        return println!("skipped: not root");
    };
    let mut bystander = Bystander::new(&server.addr);
    wait_until("the others are refused", || {
        refused(&server.engine, "client-connections") >= 68
    });
    bystander.assert_unaffected();
    drop(attackers);
    // The connections are free again.
    wait_until("the connections are free", || server.engine.stats().0 <= 1);
    let again = run_as_other_user(|| RawClient::connect_attached(&server.addr, 8192));
    assert!(again.is_some());
}

fn with_timeouts(timeouts: Timeouts) -> Server {
    let tuning = Tuning {
        timeouts,
        ..tuning()
    };
    Server::with(Transport::Tcp, tree(), Options::default(), tuning)
}

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn messages_that_never_end_are_given_up_and_their_memory_comes_back() {
    let server = with_timeouts(Timeouts {
        message: SHORT,
        ..Timeouts::default()
    });
    let mut bystander = Bystander::new(&server.addr);
    let before = server.engine.budget().used();
    const MSIZE: u32 = 1 << 20;
    let mut message = Vec::new();
    let data = vec![7; MSIZE as usize - 100];
    T::Write {
        fid: Fid(9),
        offset: 0,
        data: Data(&data),
    }
    .encode(p9::Dialect::Linux, Tag(1), &mut message);
    let mut slow: Vec<_> = (0..50)
        .map(|_| RawClient::connect_attached(&server.addr, MSIZE))
        .collect();
    for peer in &mut slow {
        // The server may have closed the connection.
        let _ = peer.try_send(&message[..message.len() - 1]);
    }
    for peer in &mut slow {
        assert_eq!(peer.assert_closed(), 0);
        bystander.assert_unaffected();
    }
    assert_eq!(refused(&server.engine, "timeout"), 50);
    wait_until("the memory is released", || {
        server.engine.budget().used() <= before
    });
}

#[test]
fn clients_that_read_nothing_are_given_up_and_their_memory_comes_back() {
    const MSIZE: u32 = 1 << 20;
    let server = with_timeouts(Timeouts {
        send: SHORT,
        ..Timeouts::default()
    });
    let mut bystander = Bystander::new(&server.addr);
    let before = server.engine.budget().used();
    let mut owner = RawClient::connect_attached(&server.addr, MSIZE);
    owner.create(Fid(1), b"large");
    let data = vec![7; MSIZE as usize - 100];
    let (fid, offset) = (Fid(1), 0);
    owner.expect_ok(&T::Write {
        fid,
        offset,
        data: Data(&data),
    });
    drop(owner);
    let slow: Vec<_> = (0..20)
        .map(|_| {
            let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
            peer.open(fid, &[b"large"]);
            let count = MSIZE;
            let read = encode_request(Tag(1), &T::Read { fid, offset, count });
            let _ = peer.try_send(&read.repeat(64));
            peer
        })
        .collect();
    wait_until("the clients are given up", || {
        bystander.assert_unaffected();
        refused(&server.engine, "timeout") >= 20
    });
    wait_until("the memory is released", || {
        server.engine.budget().used() <= before
    });
    drop(slow);
}

#[test]
fn clients_wait_while_a_server_has_no_descriptors_and_are_served_when_it_has() {
    let server = Process::start(env!("CARGO_BIN_EXE_hostile-server"), None, None);
    let mut bystander = Bystander::new(&server.addr);
    let limit = |limit| {
        let both = Rlimit {
            current: Some(limit),
            maximum: Some(20_000),
        };
        prlimit(Some(server.pid()), Resource::Nofile, both)
    };
    // As many as are open, and four more; the descriptor that enlarged the table is above this
    // limit.
    let few = server.descriptors() as u64 + 4;
    if limit(few).is_err() {
        return println!("skipped: not root");
    }
    let mut peers: Vec<_> = (0..20).map(|_| RawClient::connect(&server.addr)).collect();
    wait_until("the server has no descriptors", || {
        bystander.assert_reads();
        server.descriptors() as u64 >= few
    });
    bystander.assert_reads();
    limit(20_000).expect("as before");
    for peer in &mut peers {
        peer.start_session(8192);
    }
    bystander.assert_unaffected();
}
