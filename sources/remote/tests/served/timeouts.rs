//! Servers that are connected but do not answer, or stop answering.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use p9::client::Client;
use p9::{Data, Dialect, Fid, Rmessage, Tag, Tmessage};
use remote::ninep::{Connection, Retry};
use remote::{Timeouts, Url};
use transports::{Addr, Link, dial};
use vfs::{Call, Caller, Cx, Errno};

/// Soft, with a timeout of 1 s.
const SOFT: Timeouts = Timeouts {
    timeo: Duration::from_secs(1),
    soft: true,
};

/// Hard, so that calls wait forever.
const HARD: Timeouts = Timeouts {
    soft: false,
    ..SOFT
};

/// A listener and its address.
fn listening() -> (tempfile::TempDir, UnixListener, Addr) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).expect("bound");
    (dir, listener, Addr::Unix(path))
}

/// A scripted 9P server.
struct Peer(UnixStream);

impl Peer {
    /// Receives the next request's tag and type.
    fn next(&mut self) -> (Tag, u8) {
        let mut size = [0; 4];
        self.0.read_exact(&mut size).expect("a request");
        let mut rest = vec![0; u32::from_le_bytes(size) as usize - 4];
        self.0.read_exact(&mut rest).expect("all of it");
        (Tag(u16::from_le_bytes([rest[1], rest[2]])), rest[0])
    }

    fn answer(&mut self, tag: Tag, reply: &Rmessage<'_>) {
        let mut bytes = Vec::new();
        reply.encode(Dialect::Linux, tag, &mut bytes);
        self.0.write_all(&bytes).expect("sent");
    }
}

/// A session with a scripted server.
fn session(silence: Timeouts) -> (Arc<Connection>, Peer) {
    let (_dir, listener, addr) = listening();
    let server = spawn(move || {
        let mut peer = Peer(listener.accept().expect("a client").0);
        let (tag, _) = peer.next();
        let (msize, version) = (1 << 20, &b"9P2000.L"[..]);
        peer.answer(tag, &Rmessage::Version { msize, version });
        peer
    });
    let link = dial(&addr).expect("connected");
    let payloads = link.payloads();
    let client = Client::new(Dialect::Linux, 1 << 20);
    let pipe = Connection::open_with(link, client, payloads, silence).expect("a session");
    (pipe, server.join().expect("greeted"))
}

type Done = Result<Vec<u8>, Errno>;

/// Reads on another thread, as part of `call`.
fn reading(pipe: &Arc<Connection>, call: &Arc<Call>) -> JoinHandle<Done> {
    let (pipe, call) = (pipe.clone(), call.clone());
    spawn(move || {
        let (fid, offset, count) = (Fid(1), 0, 4);
        let read = Tmessage::Read { fid, offset, count };
        let cx = Cx::new(&Caller::ROOT, &call);
        pipe.call_in(&cx, &read).map(|reply| reply.data().to_vec())
    })
}

fn call() -> Arc<Call> {
    Arc::new(Call::parkable(vfs::cx::thread_waker()))
}

#[test]
fn who_is_soft_gives_up_and_goes_on_when_there_is_an_answer() {
    let (pipe, mut peer) = session(SOFT);
    let readers = [(); 2].map(|()| reading(&pipe, &call()));
    let late = [(); 2].map(|()| peer.next().0);
    for reader in readers {
        assert_eq!(reader.join().expect("no panic"), Err(Errno::ETIMEDOUT));
    }
    // The tags of unanswered requests are not reused.
    let reader = reading(&pipe, &call());
    let (tag, _) = peer.next();
    assert!(!late.contains(&tag));
    for (tag, data) in [(late[0], b"late"), (tag, b"data"), (late[1], b"late")] {
        let data = Data(data);
        peer.answer(tag, &Rmessage::Read { data });
    }
    assert_eq!(reader.join().expect("no panic"), Ok(b"data".to_vec()));
    assert_eq!(pipe.failure(), None);
}

#[test]
fn who_is_cancelled_need_not_wait_for_an_answer() {
    let (pipe, mut peer) = session(HARD);
    let calls = [call(), call()];
    let readers = calls.each_ref().map(|call| reading(&pipe, call));
    let tags = [peer.next().0, peer.next().0];
    for call in &calls {
        call.cancel();
    }
    for reader in readers {
        assert_eq!(reader.join().expect("no panic"), Err(Errno::EINTR));
    }
    for tag in tags {
        let data = Data(b"late");
        peer.answer(tag, &Rmessage::Read { data });
    }
    assert_eq!(pipe.failure(), None);
}

#[test]
fn half_an_answer_is_none() {
    let (pipe, mut peer) = session(SOFT);
    let reader = reading(&pipe, &call());
    let (tag, _) = peer.next();
    let mut bytes = Vec::new();
    let data = Data(b"data");
    Rmessage::Read { data }.encode(Dialect::Linux, tag, &mut bytes);
    let (head, rest) = bytes.split_at(9);
    peer.0.write_all(head).expect("sent");
    assert_eq!(reader.join().expect("no panic"), Err(Errno::ETIMEDOUT));
    peer.0.write_all(rest).expect("sent");
    let reader = reading(&pipe, &call());
    let (tag, _) = peer.next();
    peer.answer(tag, &Rmessage::Read { data });
    assert_eq!(reader.join().expect("no panic"), Ok(b"data".to_vec()));
}

#[test]
fn a_server_that_takes_nothing_loses_its_connection() {
    let (pipe, peer) = session(HARD);
    let block = vec![7; 512 << 10];
    let write = || {
        let (fid, offset, data) = (Fid(1), 0, Data(&block));
        pipe.call(&Tmessage::Write { fid, offset, data })
    };
    std::thread::scope(|scope| {
        // More than socket buffers hold.
        let writers = [(); 32].map(|()| scope.spawn(write));
        for writer in writers {
            assert!(writer.join().expect("no panic").is_err());
        }
    });
    let why = pipe.failure().expect("it has failed");
    assert!(why.contains("does not receive requests"), "{why}");
    drop(peer);
}

/// Accepts a client, and sends nothing.
fn mute() -> (tempfile::TempDir, String, Sender<()>) {
    let (dir, listener, addr) = listening();
    let (end, ended): (_, Receiver<()>) = channel();
    spawn(move || {
        let client = listener.accept();
        // Until the test is over.
        let _ = ended.recv();
        drop(client);
    });
    let Addr::Unix(path) = addr else {
        unreachable!("it is one");
    };
    (dir, path.to_str().expect("text").to_owned(), end)
}

#[test]
fn nobody_waits_for_ever_to_get_to_know_a_server() {
    for (scheme, query) in [
        ("9p+unix", ""),
        ("9p+unix", "?retry=0"),
        ("nfs+unix", "?vers=4.2"),
        ("nfs+unix", "?vers=3"),
        ("virtiofs", ""),
    ] {
        let (_dir, path, _end) = mute();
        let mut url: Url = format!("{scheme}:{path}{query}").parse().expect("a URL");
        url.timeouts().timeo = SOFT.timeo;
        if let Some(retry) = url.retry() {
            assert!(matches!(retry, Retry::For(_)));
        }
        let error = url.open().map(drop).expect_err("it says nothing");
        // A device is set up over vhost-user, which has its own errors.
        let known = error.errno() == Errno::ETIMEDOUT || scheme == "virtiofs";
        assert!(known, "{scheme}{query}: {error}");
    }
}
