//! Blocking locks over 9P.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use p9::numbers::{LockFlags, Lopen, lock_kind, lock_status};
use p9::{Dialect, Fid, Names, Rmessage, Tmessage, Uid};
use remote::ninep::Connection;
use transports::{Addr, Link, dial};

use crate::served::ServerProcess;

const FILE: Fid = Fid(1);

/// Returns a connection on which the file `f` is open.
fn opened(served: &ServerProcess) -> Arc<Connection> {
    let pipe = connect(served.port());
    open(&pipe, &[b"f"]);
    pipe
}

/// Returns a session with the server at `port` of this host.
pub(crate) fn connect(port: u16) -> Arc<Connection> {
    let addr = Addr::Tcp {
        host: "127.0.0.1".into(),
        port,
    };
    session(dial(&addr).expect("connected"))
}

/// Returns a session over `link`.
pub(crate) fn session(link: impl Link + 'static) -> Arc<Connection> {
    Connection::open(link, Dialect::Linux, 8192).expect("a session")
}

/// Opens the file at `path`.
pub(crate) fn open(pipe: &Connection, path: &[&[u8]]) {
    let attach = Tmessage::Attach {
        fid: Fid(0),
        afid: Fid::NONE,
        uname: b"",
        aname: b"",
        n_uname: Uid(rustix::process::geteuid().as_raw()),
    };
    let walk = Tmessage::Walk {
        fid: Fid(0),
        newfid: FILE,
        names: Names::new(path),
    };
    let open = Tmessage::Lopen {
        fid: FILE,
        flags: Lopen::RDWR.bits(),
    };
    for request in [attach, walk, open] {
        pipe.call(&request).expect("done");
    }
}

/// Requests a lock of the whole file as Linux does for F_SETLKW, and returns the status.
fn lock(pipe: &Connection) -> u8 {
    lock_as(pipe, 1, lock_kind::WRLCK).expect("an answer")
}

/// Does the same for the process `proc_id` and a lock of this kind. Returns `None` if there is no
/// answer.
pub(crate) fn lock_as(pipe: &Connection, proc_id: u32, kind: u8) -> Option<u8> {
    let request = Tmessage::Lock {
        fid: FILE,
        kind,
        flags: LockFlags::BLOCK.bits(),
        start: 0,
        length: 0,
        proc_id,
        client_id: b"client",
    };
    let reply = pipe.call(&request).ok()?;
    match reply.message() {
        Ok(Rmessage::Lock { status }) => Some(status),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_waits_for_a_lock_is_answered_when_it_is_granted_or_asks_again() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("f"), "").expect("written");
    let path = dir.path().to_str().expect("text");
    for (args, waits) in [(&[path][..], true), (&["--9p-no-lock-wait", path], false)] {
        let served = ServerProcess::start(args);
        let (one, other) = (opened(&served), opened(&served));
        assert_eq!(lock(&one), lock_status::SUCCESS);
        let (tell, told) = channel();
        std::thread::spawn(move || tell.send(lock(&other)));
        if waits {
            let early = told.recv_timeout(Duration::from_millis(100));
            assert!(early.is_err(), "{args:?}: {early:?}");
            drop(one);
        }
        let status = told.recv_timeout(Duration::from_secs(10));
        let expected = if waits {
            lock_status::SUCCESS
        } else {
            lock_status::BLOCKED
        };
        assert_eq!(status, Ok(expected), "{args:?}");
    }
}
