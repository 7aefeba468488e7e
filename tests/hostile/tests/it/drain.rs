//! A server that is stopped completes the requests it has received, and ends.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use hostile::raw_client::{ROOT, RawClient, errno, lock_exclusive};
use hostile::server::{Server, Transport};
use p9::{Data, Fid, Rmessage, Tag, Tmessage as T};
use rustix::process::{Pid, Signal, kill_process};
use transports::Addr;
use vfs::Errno;

use crate::over_both;

#[test]
fn a_request_that_waits_longer_than_the_time_of_grace_is_cancelled() {
    over_both(|server| {
        let mut peer = RawClient::connect_attached(&server.addr, 8192);
        peer.create(Fid(1), b"f");
        peer.expect_ok(&lock_exclusive(Fid(1), 1));
        peer.open(Fid(2), &[b"f"]);
        peer.send_request(5, &lock_exclusive(Fid(2), 2));
        peer.expect_ok(&T::Statfs { fid: ROOT });
        server.engine.stop();
        std::thread::scope(|scope| {
            scope.spawn(|| server.engine.wait());
            // The connection may be closed before the reply is sent.
            if let Some(reply) = peer.receive() {
                let (tag, reply) =
                    p9::Rmessage::decode(p9::Dialect::Linux, &reply).expect("a reply");
                assert_eq!((tag, errno(&reply)), (Tag(5), Some(Errno::EINTR)));
            }
            peer.assert_closed();
        });
    });
}

#[test]
fn clients_that_do_not_read_do_not_keep_a_server_from_stopping() {
    for via in Transport::ALL {
        let server = Server::memory(via);
        let mut peer = RawClient::connect_attached(&server.addr, 8192);
        let statfs = hostile::raw_client::encode_request(Tag(1), &T::Statfs { fid: ROOT });
        peer.fill_socket(&statfs, 1_000_000);
        drop(server);
        drop(peer);
    }
}

/// Returns the program if it is built: `target/debug`, the parent of this test's `deps` directory.
fn barge() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let program = test.parent()?.parent()?.join("barge");
    program.exists().then_some(program)
}

#[test]
fn sigterm_ends_barge_serve_when_what_it_took_is_answered() {
    let Some(program) = barge() else {
        println!("skipped: barge has not been built");
        return;
    };
    const MSIZE: u32 = 1 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let mut child = Command::new(program)
        .args(["serve", "mem:", "--9p"])
        .arg(format!("unix:{}", socket.display()))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut ready = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped"))
        .read_line(&mut ready)
        .expect("a line");
    let addr = Addr::Unix(socket);
    let mut peer = RawClient::connect_attached(&addr, MSIZE);
    peer.create(Fid(1), b"f");
    let data = vec![7; MSIZE as usize - 100];
    let (fid, offset, count) = (Fid(1), 0, MSIZE);
    peer.expect_ok(&T::Write {
        fid,
        offset,
        data: Data(&data),
    });
    // Requests with large replies; the first reply shows that they were received.
    for tag in 0..10 {
        peer.send_request(tag, &T::Read { fid, offset, count });
    }
    peer.reply();
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).expect("a child");
    let mut answered = 1;
    while let Some(reply) = peer.receive() {
        let (_, reply) = Rmessage::decode(p9::Dialect::Linux, &reply).expect("a reply");
        assert_eq!(reply, Rmessage::Read { data: Data(&data) });
        answered += 1;
    }
    println!("{answered} of 10 replies before the end");
    let status = child.wait().expect("a child");
    assert!(status.success(), "ended by {status}");
}
