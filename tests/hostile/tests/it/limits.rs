//! Every resource of a client is limited, without affecting other clients.

use std::sync::Arc;

use engine::Tuning;
use hostile::raw_client::{Bystander, ROOT, RawClient, encode_request, lock_exclusive};
use hostile::server::{Server, Transport, host_dir, tree, tuning};
use p9::server::Options;
use p9::{Data, Fid, Tag, Tmessage as T};
use vfs::Errno;
use vfs_testkit::wait_until;

#[test]
fn fids_end_at_their_bound() {
    let options = Options {
        max_fids: 1000,
        ..Options::default()
    };
    for via in Transport::ALL {
        let server = Server::with(via, tree(), options.clone(), tuning());
        let mut bystander = Bystander::new(&server.addr);
        let mut peer = RawClient::connect_attached(&server.addr, 8192);
        for fid in 1..1000 {
            peer.walk(ROOT, Fid(fid), &[]);
        }
        assert_eq!(peer.try_walk(ROOT, Fid(1000), &[]), Err(Errno::EMFILE));
        bystander.assert_unaffected();
        peer.expect_ok(&T::Clunk { fid: Fid(7) });
        peer.walk(ROOT, Fid(1000), &[]);
        assert_eq!(peer.try_walk(ROOT, Fid(7), &[]), Err(Errno::EMFILE));
    }
}

#[test]
fn open_files_of_a_host_directory_stay_within_its_budget_of_descriptors() {
    let dir = tempfile::tempdir().expect("a directory");
    let served = host_dir(dir.path(), Some(64));
    let server = Server::new(Transport::Unix, served.clone());
    let mut bystander = Bystander::new(&server.addr);
    let mut peer = RawClient::connect_attached(&server.addr, 8192);
    peer.create(Fid(1), b"f");
    let mut opened = 1;
    let errno = loop {
        let fid = Fid(opened + 1);
        let done = peer.try_walk(ROOT, fid, &[b"f"]);
        let done = done.and_then(|_| peer.try_open(fid, 0));
        assert!(served.open_descriptors() <= 64 + 1);
        match done {
            Ok(()) if opened < 300 => opened += 1,
            Ok(()) => break None,
            Err(errno) => break Some(errno),
        }
    };
    // File descriptors of idle files are reclaimed if kernel file handles are permitted; otherwise
    // there is a limit.
    if rustix::process::geteuid().is_root() {
        assert_eq!(errno, None);
        for fid in (1..=opened).step_by(7) {
            let attr = T::Getattr {
                fid: Fid(fid),
                mask: 0x7ff,
            };
            peer.expect_ok(&attr);
        }
    } else {
        // One client's limit is half of what is not reserved for leases.
        assert_eq!(errno, Some(Errno::EMFILE));
        assert!(opened > 20, "only {opened} of 64");
    }
    // Other clients' open files are not affected.
    bystander.assert_reads();
    // After some are closed, others can open files.
    peer.expect_ok(&T::Clunk { fid: Fid(2) });
    peer.expect_ok(&T::Clunk { fid: Fid(3) });
    bystander.assert_unaffected();
}

#[test]
fn values_of_attributes_end_at_their_bound() {
    let server = Server::memory(Transport::Unix);
    let mut bystander = Bystander::new(&server.addr);
    let mut peer = RawClient::connect_attached(&server.addr, 8192);
    let mut drafts = 0;
    let errno = loop {
        let fid = Fid(drafts + 1);
        peer.walk(ROOT, fid, &[]);
        let reply = peer.rpc(&T::Xattrcreate {
            fid,
            name: b"user.a",
            size: 64 << 10,
            flags: 0,
        });
        match hostile::raw_client::errno(&reply) {
            None => drafts += 1,
            Some(errno) => break errno,
        }
        assert!(drafts < 1000, "no bound");
    };
    assert_eq!(errno, Errno::ENOBUFS);
    bystander.assert_unaffected();
    let mut other = RawClient::connect_attached(&server.addr, 8192);
    other.expect_ok(&T::Xattrcreate {
        fid: ROOT,
        name: b"user.a",
        size: 64 << 10,
        flags: 0,
    });
}

#[test]
fn connections_end_at_their_bound() {
    let tuning = Tuning {
        connections: 3,
        connections_per_client: Some(usize::MAX),
        ..tuning()
    };
    for via in Transport::ALL {
        let server = Server::with(via, tree(), Options::default(), tuning);
        let mut bystander = Bystander::new(&server.addr);
        let first = RawClient::connect_attached(&server.addr, 8192);
        let _second = RawClient::connect_attached(&server.addr, 8192);
        RawClient::connect(&server.addr).assert_closed();
        bystander.assert_unaffected();
        drop(first);
        // The place is free once the server has noticed the disconnect.
        wait_until("the place is free", || server.engine.stats().0 != 3);
        RawClient::connect_attached(&server.addr, 8192);
    }
}

#[test]
fn waiting_requests_end_at_their_bound_and_hold_only_their_client_up() {
    let tuning = Tuning {
        in_flight: 16,
        workers: 4,
        ..tuning()
    };
    for via in Transport::ALL {
        let server = Server::with(via, tree(), Options::default(), tuning);
        let mut bystander = Bystander::new(&server.addr);
        let mut holder = RawClient::connect_attached(&server.addr, 8192);
        holder.create(Fid(1), b"f");
        holder.expect_ok(&lock_exclusive(Fid(1), 1));
        let mut waiter = RawClient::connect_attached(&server.addr, 8192);
        waiter.open(Fid(1), &[b"f"]);
        let all: Vec<u8> = (0..1000)
            .flat_map(|tag| encode_request(Tag(tag), &lock_exclusive(Fid(1), tag.into())))
            .collect();
        waiter.send(&all);
        bystander.assert_unaffected();
        wait_until("sixteen requests wait", || {
            server.engine.stats().1.offloaded >= 16
        });
        bystander.assert_unaffected();
        // Each waiter gets the lock in turn, and releases it by closing the file.
        drop(holder);
        waiter.reply();
        drop(waiter);
        let mut last = RawClient::connect_attached(&server.addr, 8192);
        last.open(Fid(1), &[b"f"]);
        last.expect_ok(&lock_exclusive(Fid(1), 1));
    }
}

#[test]
fn a_tree_in_memory_ends_at_its_bound_and_is_read_on() {
    let options = memory::Options {
        max_bytes: 1 << 20,
        max_nodes: 100,
        ..Default::default()
    };
    let clock = Arc::new(vfs::Time::default);
    let server = Server::new(Transport::Tcp, memory::Memory::with_options(clock, options));
    let mut bystander = Bystander::new(&server.addr);
    let mut peer = RawClient::connect_attached(&server.addr, 8192);
    peer.create(Fid(1), b"large");
    let data = vec![1; 8000];
    let full = (0..1000).find_map(|n| {
        let reply = peer.rpc(&T::Write {
            fid: Fid(1),
            offset: n * 8000,
            data: Data(&data),
        });
        hostile::raw_client::errno(&reply)
    });
    assert_eq!(full, Some(Errno::ENOSPC));
    bystander.assert_unaffected();
}
