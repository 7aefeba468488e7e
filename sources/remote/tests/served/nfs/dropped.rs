//! A server that drops a call, or whose reply is lost, on a connection that stays open.

use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::Duration;

use remote::nfs::{Mount, Options, mount};
use remote::{Retry, Timeouts};
use transports::{Addr, Link, StreamLink, dial};
use vfs::{Caller, Errno, FileSystem};
use vfs_testkit::context::{TestNode, ok, refused, run};

use super::net::Served;

const VERSIONS: [(u32, u32); 4] = [(3, 0), (4, 0), (4, 1), (4, 2)];

/// The message to drop next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drops {
    Call,
    Reply,
}

/// A network between a client and a server, which drops single messages.
#[derive(Default)]
struct Network {
    drops: Mutex<Option<Drops>>,
    /// The number of connections that have been made.
    connections: AtomicUsize,
}

impl Network {
    fn drop_next(&self, what: Drops) {
        *self.drops.lock().expect("no panic holds it") = Some(what);
    }

    fn has_dropped(&self) -> bool {
        self.drops.lock().expect("no panic holds it").is_none()
    }

    /// Makes a connection to `served`.
    fn connect(self: &Arc<Network>, served: &Served) -> StreamLink {
        self.connections.fetch_add(1, Ordering::SeqCst);
        // Unlike an end of a socket pair, a dialled link lets its user check timeouts.
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let ours = dial(&Addr::Unix(path)).expect("connected");
        let (theirs, _) = listener.accept().expect("a client");
        let theirs = StreamLink::new(theirs.into(), "client").expect("a link");
        let (client, server) = (Arc::new(theirs), Arc::new(served.link()));
        for (from, to, what) in [
            (client.clone(), server.clone(), Drops::Call),
            (server, client, Drops::Reply),
        ] {
            let network = self.clone();
            spawn(move || network.forward(&from, &to, what));
        }
        ours
    }

    /// Forwards records of a single fragment until either end hangs up.
    fn forward(&self, from: &StreamLink, to: &StreamLink, what: Drops) {
        let mut buffer = Vec::new();
        let mut part = vec![0; 64 << 10];
        loop {
            match from.recv(&mut part, true) {
                Ok(0) => break,
                Ok(got) => buffer.extend_from_slice(&part[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(_) => break,
            }
            while let Some(mark) = buffer.first_chunk() {
                let len = 4 + (u32::from_be_bytes(*mark) & 0x7fff_ffff) as usize;
                if buffer.len() < len {
                    break;
                }
                let record: Vec<u8> = buffer.drain(..len).collect();
                let dropped = {
                    let mut drops = self.drops.lock().expect("no panic holds it");
                    drops.take_if(|drops| *drops == what).is_some()
                };
                let mut sent = 0;
                while !dropped && sent < len {
                    match to.send(&record[sent..], true) {
                        Ok(more) => sent += more,
                        Err(_) => return to.hang_up(),
                    }
                }
            }
        }
        to.hang_up();
    }
}

fn mounted(version: (u32, u32), silence: Timeouts) -> (Arc<Served>, Arc<Network>, TestNode) {
    let (served, network) = (Served::new(), Arc::new(Network::default()));
    let connect = {
        let (served, network) = (served.clone(), network.clone());
        Arc::new(move |_: _| Ok(Box::new(network.connect(&served)) as Box<dyn Link>))
    };
    let options = Options {
        version: Some(version),
        timeouts: silence,
        // The time of a lost server, which does not pass while a server is silent.
        retry: Retry::For(Duration::ZERO),
        ..Options::default()
    };
    let (fs, _) = mount(&Mount {
        dial: connect,
        path: "",
        require_full_path: true,
        options,
    })
    .expect("mounted");
    (served, network, root(&fs))
}

fn root(fs: &Arc<dyn FileSystem>) -> TestNode {
    let who = Caller::ROOT;
    let node = ok(run(&who, |cx| fs.root(cx)));
    TestNode { node, caller: who }
}

const HARD: Timeouts = Timeouts {
    timeo: Duration::from_secs(1),
    soft: false,
};

#[test]
fn a_dropped_call_is_sent_again_over_a_new_connection() {
    for version in VERSIONS {
        let (_served, network, root) = mounted(version, HARD);
        let before = network.connections.load(Ordering::SeqCst);
        network.drop_next(Drops::Call);
        // GETATTR, alone in v3 and in a compound in v4.
        assert_eq!(root.attr().kind, vfs::Kind::Directory, "{version:?}");
        assert!(network.has_dropped());
        // A machine that is busy for as long as a call waits takes further ones.
        assert!(network.connections.load(Ordering::SeqCst) > before);
    }
}

#[test]
fn a_call_whose_reply_was_dropped_is_not_carried_out_twice() {
    for version in VERSIONS {
        let (served, network, root) = mounted(version, HARD);
        network.drop_next(Drops::Reply);
        ok(root.mkdir("dir", 0o755));
        assert!(network.has_dropped(), "{version:?}");
        ok(self::root(served.tree()).lookup("dir"));
    }
}

#[test]
fn a_soft_mount_gives_the_call_up_and_keeps_the_connection() {
    let soft = Timeouts { soft: true, ..HARD };
    for version in VERSIONS {
        let (_served, network, root) = mounted(version, soft);
        let before = network.connections.load(Ordering::SeqCst);
        network.drop_next(Drops::Call);
        refused(root.lookup("dir"), Errno::ETIMEDOUT);
        assert_eq!(network.connections.load(Ordering::SeqCst), before);
    }
}
