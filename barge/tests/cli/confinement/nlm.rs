//! Locks of NFS v3 that wait, with answers by a call of the server to its client (`NLM4_LOCK_MSG`
//! and `NLM4_LOCK_RES`): under the default confinement the broker makes the sockets of such calls.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::nfs::port;
use crate::served::{BARGE, ServerProcess, has};

const NLM: (u32, u32) = (100_021, 4);
const LOCK: u32 = 2;
const UNLOCK: u32 = 4;
const LOCK_MSG: u32 = 7;
const LOCK_RES: u32 = 12;
const GRANTED: u32 = 0;

/// The time that a lock waits, and that no answer may come in.
const WAIT: Duration = Duration::from_millis(300);

const TIMEOUT: Duration = Duration::from_secs(20);

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let padding = vec![0; bytes.len().wrapping_neg() % 4];
    [&words(&[bytes.len() as u32]), bytes, &padding].concat()
}

/// Returns the word at `at` of a message.
fn word(message: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(message[at..at + 4].try_into().expect("4 bytes"))
}

/// A connection of root's.
struct Client(TcpStream);

impl Client {
    fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        Client(stream)
    }

    fn send(&mut self, (program, version): (u32, u32), procedure: u32, args: &[u8]) {
        // AUTH_SYS without a name, as user 0 of group 0.
        let head = [7, 0, 2, program, version, procedure, 1, 20];
        let call = [&words(&head), &words(&[0; 5]), &words(&[0; 2]), args].concat();
        let mark = words(&[call.len() as u32 | 1 << 31]);
        self.0
            .write_all(&[&mark[..], &call].concat())
            .expect("sent");
    }

    /// Returns the results of the next reply.
    fn receive(&mut self) -> Vec<u8> {
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).expect("a reply");
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.0.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[4..24], words(&[1, 0, 0, 0, 0]), "it is accepted");
        reply.split_off(24)
    }

    fn call(&mut self, program: (u32, u32), procedure: u32, args: &[u8]) -> Vec<u8> {
        self.send(program, procedure, args);
        self.receive()
    }

    /// Returns the handle of the file `name` in the only share.
    fn file(&mut self, name: &[u8]) -> Vec<u8> {
        let handle = |results: &[u8]| {
            assert_eq!(word(results, 0), 0, "found");
            results[8..8 + word(results, 4) as usize].to_vec()
        };
        let root = handle(&self.call((100_005, 3), 1, &opaque(b"/")));
        let args = [opaque(&root), opaque(name)].concat();
        handle(&self.call((100_003, 3), 3, &args))
    }
}

/// Returns the arguments of LOCK, which waits, of all of a file for the owner `owner`.
fn lock(file: &[u8], owner: &[u8]) -> Vec<u8> {
    let block_and_exclusive = words(&[1, 1]);
    let no_reclaim = words(&[0, 1]);
    let head = [opaque(owner), block_and_exclusive].concat();
    [head, whole_file(file, owner), no_reclaim].concat()
}

/// Returns the arguments of UNLOCK.
fn unlock(file: &[u8], owner: &[u8]) -> Vec<u8> {
    [opaque(owner), whole_file(file, owner)].concat()
}

fn whole_file(file: &[u8], owner: &[u8]) -> Vec<u8> {
    let range = words(&[1, 0, 0, 0, 0]);
    [opaque(b"client"), opaque(file), opaque(owner), range].concat()
}

/// The results of LOCK and UNLOCK, and the arguments of `LOCK_RES`.
fn granted(owner: &[u8]) -> Vec<u8> {
    [opaque(owner), words(&[GRANTED])].concat()
}

/// The portmapper and the lock service of the client.
struct Services {
    portmapper: UdpSocket,
    nlm: UdpSocket,
}

impl Services {
    fn new() -> Services {
        let [portmapper, nlm] = [111, 0].map(|port| {
            let socket = UdpSocket::bind(("127.0.0.1", port)).expect("bound");
            socket.set_read_timeout(Some(TIMEOUT)).expect("set");
            socket
        });
        Services { portmapper, nlm }
    }

    /// Answers the next call to `socket` with `results`, and returns its procedure and arguments.
    fn answer(socket: &UdpSocket, program: (u32, u32), results: &[u8]) -> (u32, Vec<u8>) {
        let mut call = [0; 1024];
        let (len, from) = socket.recv_from(&mut call).expect("a call");
        assert_eq!((word(&call, 12), word(&call, 16)), program);
        let reply = [&call[..4], &words(&[1, 0, 0, 0, 0]), results].concat();
        socket.send_to(&reply, from).expect("sent");
        // The credential and the verifier are before the arguments.
        let credential = word(&call, 28) as usize;
        (word(&call, 20), call[40 + credential..len].to_vec())
    }

    /// Asserts that nobody calls.
    fn are_not_called(&self) {
        self.portmapper.set_read_timeout(Some(WAIT)).expect("set");
        let early = self
            .portmapper
            .recv(&mut [0; 1024])
            .map_err(|error| error.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock));
        let patience = self.portmapper.set_read_timeout(Some(TIMEOUT));
        patience.expect("set");
    }

    /// Returns the procedure and the arguments of the next call to the lock service.
    fn called(&self) -> (u32, Vec<u8>) {
        let port = self.nlm.local_addr().expect("an address").port();
        let (getport, asked) =
            Services::answer(&self.portmapper, (100_000, 2), &words(&[port.into()]));
        assert_eq!((getport, asked), (3, words(&[NLM.0, NLM.1, 17, 0])));
        Services::answer(&self.nlm, NLM, &[])
    }
}

/// The client of the test: locks a file, and waits for it in each way.
fn waits_for_locks(port: u16) {
    let services = Services::new();
    let [mut holder, mut waiter] = [(); 2].map(|()| Client::connect(port));
    let file = holder.file(b"file");
    let results = holder.call(NLM, LOCK, &lock(&file, b"one"));
    assert_eq!(results, granted(b"one"));
    waiter.send(NLM, LOCK_MSG, &lock(&file, b"two"));
    services.are_not_called();
    let results = holder.call(NLM, UNLOCK, &unlock(&file, b"one"));
    assert_eq!(results, granted(b"one"));
    assert_eq!(services.called(), (LOCK_RES, granted(b"two")));
    assert!(waiter.receive().is_empty(), "LOCK_MSG has no results");
    // LOCK has them in its reply.
    holder.send(NLM, LOCK, &lock(&file, b"three"));
    services.are_not_called();
    let results = waiter.call(NLM, UNLOCK, &unlock(&file, b"two"));
    assert_eq!(results, granted(b"two"));
    assert_eq!(holder.receive(), granted(b"three"));
}

#[test]
fn a_client_that_waits_for_a_lock_is_called_when_it_has_it() {
    if !super::can_run() {
        return;
    }
    let programs = ["unshare", "ip"];
    if !rustix::process::geteuid().is_root() || !programs.iter().all(|program| has(program)) {
        return eprintln!("skipped: a network of its own takes root, util-linux and iproute2");
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("share")).expect("made");
    fs::write(dir.path().join("share/file"), "").expect("written");
    // Port 111 is free there.
    let script = format!("ip link set lo up && exec '{BARGE}' serve \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script, "sh"]);
    command.args(["--nfs=tcp:127.0.0.1:0", "--nfs-state-dir"]);
    command.args([dir.path().join("state"), dir.path().join("share")]);
    let served = ServerProcess::run(command);
    let network = File::open(format!("/proc/{}/ns/net", served.id())).expect("a namespace");
    let port = port(&served);
    let client = thread::spawn(move || {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(network.as_fd(), kind).expect("entered");
        waits_for_locks(port);
    });
    client.join().expect("no panic");
    assert!(served.stop().success());
}
