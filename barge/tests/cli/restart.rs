//! NFS before and after the server is killed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use vfs::{FileSystem, Level};

use crate::served::{BARGE, Served};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const OK: u32 = 0;
const STALE: u32 = 70;

/// A client of v3, by hand.
struct Client(TcpStream);

impl Client {
    fn connect(port: u16) -> Client {
        Client(TcpStream::connect(("127.0.0.1", port)).expect("connected"))
    }

    /// The status of a call by the super-user, and what follows it.
    fn call(&mut self, program: u32, procedure: u32, arguments: &[&[u8]]) -> (u32, Vec<u8>) {
        let head = [7, 0, 2, program, 3, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0];
        let message = [
            &head.map(u32::to_be_bytes).concat()[..],
            &arguments.concat(),
        ]
        .concat();
        let mark = (1 << 31 | message.len() as u32).to_be_bytes();
        self.0
            .write_all(&[&mark[..], &message].concat())
            .expect("sent");
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).expect("answered");
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.0.read_exact(&mut reply).expect("answered");
        // Behind the call's number: a reply, accepted, verified by nothing, done.
        assert_eq!(reply[4..24], [1, 0, 0, 0, 0].map(u32::to_be_bytes).concat());
        let (status, rest) = reply[24..].split_first_chunk().expect("a status");
        (u32::from_be_bytes(*status), rest.to_vec())
    }

    /// The handle of the file `f`.
    fn handle(&mut self) -> Vec<u8> {
        let (status, root) = self.call(MOUNT, 1, &[&opaque(b"/")]);
        assert_eq!(status, OK);
        let (status, found) = self.call(NFS, 3, &[&field(&root), &opaque(b"f")]);
        assert_eq!(status, OK);
        field(&found)
    }

    /// The verifier of an unstable write: the last of what it answers.
    fn write(&mut self, handle: &[u8]) -> Vec<u8> {
        let numbers = [0, 0, 1, 0].map(u32::to_be_bytes).concat();
        let (status, written) = self.call(NFS, 7, &[handle, &numbers, &opaque(b"x")]);
        assert_eq!(status, OK);
        written[written.len() - 8..].to_vec()
    }
}

/// Bytes as XDR has them: behind their number, filled up.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut put = (bytes.len() as u32).to_be_bytes().to_vec();
    put.extend(bytes);
    put.resize(put.len().next_multiple_of(4), 0);
    put
}

/// The first bytes of a result, as they came.
fn field(result: &[u8]) -> Vec<u8> {
    let len = result.first_chunk().expect("their number");
    result[..(4 + u32::from_be_bytes(*len) as usize).next_multiple_of(4)].to_vec()
}

#[test]
fn handles_outlive_a_killed_server_where_the_kernel_has_them_and_verifiers_do_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let [share, state] = ["share", "state"].map(|name| dir.path().join(name));
    std::fs::create_dir(&share).expect("made");
    std::fs::write(share.join("f"), "hello").expect("written");
    let free = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let serve = || {
        let mut command = Command::new(BARGE);
        command
            .arg("serve")
            .arg(&share)
            .arg("--state-dir")
            .arg(&state);
        command.args(["--nfs", &format!("tcp:127.0.0.1:{port}")]);
        Served::run(command)
    };

    let served = serve();
    let mut client = Client::connect(port);
    let handle = client.handle();
    let verifier = client.write(&handle);
    assert_eq!(client.write(&handle), verifier);
    // Killed.
    drop(served);

    let _served = serve();
    let mut client = Client::connect(port);
    assert_eq!(client.call(NFS, 1, &[&handle]).0, expected(&share));
    let again = client.handle();
    assert_ne!(client.write(&again), verifier);
}

/// What a handle of before is answered.
fn expected(share: &Path) -> u32 {
    let fs = hostdir::HostDir::open(share, hostdir::Options::default()).expect("opened");
    match fs.capabilities().handles {
        Level::Native => OK,
        _ => STALE,
    }
}
