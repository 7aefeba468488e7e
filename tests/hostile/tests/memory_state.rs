//! Clients that make the server hold much state between requests, while another user's client
//! works.

#![forbid(unsafe_code)]

use engine::Tuning;
use hostile::raw_client::{Bystander, ROOT, RawClient};
use hostile::server::{Server, Transport, tree, tuning};
use hostile::user::run_as_other_user;
use p9::server::Options;
use p9::{Data, Fid, Rmessage, Tmessage as T};
use vfs::Errno;
use vfs_testkit::wait_until;

const MIB: usize = 1 << 20;
const MSIZE: u32 = 64 << 10;

fn served(memory: usize) -> Server {
    let tuning = Tuning { memory, ..tuning() };
    Server::with(Transport::Tcp, tree(), Options::default(), tuning)
}

/// Returns a request that changes the mode of a file.
fn mode(fid: Fid, mode: u32) -> T<'static> {
    T::Setattr {
        fid,
        valid: 1,
        mode,
        uid: 0,
        gid: 0,
        size: 0,
        atime_sec: 0,
        atime_nsec: 0,
        mtime_sec: 0,
        mtime_nsec: 0,
    }
}

/// Asserts that one client's state is limited to a quarter of the budget, that the bystander can
/// create state, and that the state is freed with the connections.
#[track_caller]
fn assert_bounded(server: &Server, attackers: Vec<RawClient>) {
    let budget = server.engine.budget();
    let (kept, most) = (budget.state_bytes(), budget.limit() / 4);
    assert!((most / 2..=most).contains(&kept), "{kept} bytes of state");
    let mut bystander = Bystander::new(&server.addr);
    bystander.assert_unaffected();
    let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
    for fid in 1..1000 {
        peer.walk(ROOT, Fid(fid * 8), &[]);
    }
    bystander.assert_unaffected();
    drop((attackers, bystander, peer));
    wait_until("the memory is released", || budget.used() == 0);
}

#[test]
fn fids_of_one_client_are_bounded_over_all_its_connections_and_in_bytes() {
    let server = served(16 * MIB);
    let attack = || {
        // Sparse fids, so that each takes a page of the table, over any number of connections.
        let fill = |mut peer: RawClient| {
            let refused = (1..40_000).find_map(|fid| peer.try_walk(ROOT, Fid(fid * 8), &[]).err());
            (peer, refused)
        };
        let peers: Vec<_> = (0..4)
            .map(|_| RawClient::connect_attached(&server.addr, MSIZE))
            .collect();
        peers.into_iter().map(fill).collect::<Vec<_>>()
    };
    let Some(attackers) = run_as_other_user(attack) else {
        return println!("skipped: not root");
    };
    let refused: Vec<_> = attackers.iter().map(|(_, refused)| *refused).collect();
    assert_eq!(refused, [Some(Errno::EMFILE); 4]);
    assert_bounded(
        &server,
        attackers.into_iter().map(|(peer, _)| peer).collect(),
    );
}

#[test]
fn a_fid_counts_for_all_directories_that_it_was_walked_through() {
    let server = served(4 * MIB);
    RawClient::connect_attached(&server.addr, MSIZE).expect_ok(&mode(ROOT, 0o777));
    let attack = || {
        let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
        peer.walk(ROOT, Fid(1), &[]);
        let (dfid, mode, gid) = (Fid(1), 0o777, 0);
        let refused = (0..20_000).find_map(|_| {
            let name = b"d";
            peer.expect_ok(&T::Mkdir {
                dfid,
                name,
                mode,
                gid,
            });
            peer.try_walk(Fid(1), Fid(1), &[name]).err()
        });
        (peer, refused)
    };
    let Some((attacker, refused)) = run_as_other_user(attack) else {
        return println!("skipped: not root");
    };
    assert_eq!(refused, Some(Errno::EMFILE));
    assert_bounded(&server, vec![attacker]);
}

#[test]
fn values_of_attributes_count_over_all_connections() {
    let server = served(16 * MIB);
    let size = 60 << 10;
    let attack = || {
        let fill = |mut peer: RawClient| {
            let refused = (1..60).find_map(|fid| {
                let fid = Fid(fid);
                let name = b"user.large";
                peer.try_walk(ROOT, fid, &[]).err().or_else(|| {
                    let reply = peer.rpc(&T::Xattrcreate {
                        fid,
                        name,
                        size,
                        flags: 0,
                    });
                    hostile::raw_client::errno(&reply)
                })
            });
            (peer, refused)
        };
        let peers: Vec<_> = (0..3)
            .map(|_| RawClient::connect_attached(&server.addr, MSIZE))
            .collect();
        peers.into_iter().map(fill).collect::<Vec<_>>()
    };
    let Some(attackers) = run_as_other_user(attack) else {
        return println!("skipped: not root");
    };
    // The limit of each connection is 4 MiB.
    assert_eq!(attackers[2].1, Some(Errno::EMFILE));
    assert_bounded(
        &server,
        attackers.into_iter().map(|(peer, _)| peer).collect(),
    );
}

#[test]
fn ranges_that_one_client_locks_leave_some_of_the_file_to_others() {
    let server = served(64 * MIB);
    let mut owner = RawClient::connect_attached(&server.addr, MSIZE);
    owner.create(Fid(1), b"shared");
    owner.expect_ok(&mode(Fid(1), 0o666));
    /// Locks a byte in shared mode. Returns 0 for success, 1 for blocked, 2 for an error.
    fn lock(peer: &mut RawClient, at: u64) -> Result<u8, Errno> {
        let lock = T::Lock {
            fid: Fid(1),
            kind: 0,
            flags: 0,
            start: at * 2,
            length: 1,
            proc_id: 1,
            client_id: b"client",
        };
        match peer.rpc(&lock) {
            Rmessage::Lock { status } => Ok(status),
            reply => Err(hostile::raw_client::errno(&reply).expect("an error")),
        }
    }
    let attack = || {
        let mut peer = RawClient::connect_attached(&server.addr, MSIZE);
        peer.walk(ROOT, Fid(1), &[b"shared"]);
        peer.try_open(Fid(1), 0).expect("opened");
        let granted = (0..5000)
            .take_while(|at| lock(&mut peer, *at) == Ok(0))
            .count();
        (peer, granted)
    };
    let Some((_attacker, granted)) = run_as_other_user(attack) else {
        return println!("skipped: not root");
    };
    assert!((1000..2100).contains(&granted), "{granted} ranges");
    for at in 0..500 {
        assert_eq!(lock(&mut owner, at), Ok(0), "{at}");
    }
    let data = Data(b"as before");
    owner.expect_ok(&T::Write {
        fid: Fid(1),
        offset: 0,
        data,
    });
}
