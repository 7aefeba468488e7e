//! `barge serve --nfs`: the printed mount commands work over TCP, and over UDP for the locks of v3.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use crate::served::{BARGE, ServerProcess};

/// Encodes a call without arguments, with AUTH_NONE.
fn call(program: u32, version: u32) -> Vec<u8> {
    [7, 0, 2, program, version, 0, 0, 0, 0, 0]
        .iter()
        .flat_map(|word: &u32| word.to_be_bytes())
        .collect()
}

/// Returns the port of NFS, from the printed mount command.
pub(crate) fn port(served: &ServerProcess) -> u16 {
    let line = served.output.iter().find(|line| line.contains("vers=4.2"));
    let (_, port) = line.expect("a command").split_once("port=").expect("one");
    let port = port.split([' ', ',']).next();
    port.and_then(|port| port.parse().ok()).expect("a number")
}

/// A successful reply without results.
const DONE: [u8; 24] = [
    0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[test]
fn the_port_that_is_announced_answers() {
    let served = ServerProcess::start(&[
        "mem:",
        "--nfs",
        "tcp:127.0.0.1:0",
        "--nfs-rpcbind",
        "tcp:127.0.0.1:0",
    ]);
    let line = served.output.iter().find(|line| line.contains("vers=3,"));
    let line = line.expect("a command for v3");
    let (_, port) = line.split_once("mountport=").expect("a port");
    let (port, place) = port.split_once(' ').expect("no further option");
    assert_eq!(place, "127.0.0.1:/ /mnt");
    let port: u16 = port.parse().expect("a number");
    let is_v4 = |line: &&String| line.contains(&format!("vers=4.2,tcp,port={port} "));
    assert!(served.output.iter().any(|line| is_v4(&line)), "{line}");

    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    for (program, version) in [(100_003, 3), (100_003, 4), (100_005, 3), (100_021, 4)] {
        let call = call(program, version);
        let mark = (call.len() as u32 | 1 << 31).to_be_bytes();
        stream
            .write_all(&[&mark, &call[..]].concat())
            .expect("sent");
        let mut reply = [0; 28];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[4..], DONE, "{program}");
    }
    let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("bound");
    let patience = Some(Duration::from_secs(10));
    socket.set_read_timeout(patience).expect("set");
    socket
        .send_to(&call(100_021, 4), ("127.0.0.1", port))
        .expect("sent");
    let mut reply = [0; 100];
    let len = socket.recv(&mut reply).expect("a reply");
    assert_eq!(reply[..len], DONE);
    assert!(served.stop().success());
}

#[test]
fn a_command_finds_it_and_a_portmapper_needs_it() {
    let run = |args: &[&str]| {
        let mut command = Command::new(BARGE);
        command.args(["serve", "mem:"]).args(args);
        command.output().expect("runs")
    };
    let found = run(&[
        "--nfs",
        "tcp:127.0.0.1:0",
        "--run",
        "test $BARGE_NFS = nfs://127.0.0.1:$BARGE_NFS_PORT/ && test -z \"$BARGE_9P\"",
    ]);
    assert!(found.status.success(), "{found:?}");
    let alone = run(&["--nfs-rpcbind"]);
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(!alone.status.success() && said.contains("--nfs"), "{said}");
}

/// Clients without credentials were admitted as the anonymous user.
#[test]
fn calls_without_credentials_take_a_list_of_flavors_with_none() {
    // A COMPOUND of v4.0 with PUTROOTFH and GETATTR.
    let compound = || {
        let mut compound = call(100_003, 4);
        compound[20..24].copy_from_slice(&1u32.to_be_bytes());
        for word in [0u32, 0, 2, 24, 9, 0] {
            compound.extend(word.to_be_bytes());
        }
        compound
    };
    let getattr = || {
        let mut getattr = call(100_003, 3);
        getattr[20..24].copy_from_slice(&1u32.to_be_bytes());
        getattr
    };
    let words = |port: u16, call: Vec<u8>| -> Vec<u32> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let mark = (call.len() as u32 | 1 << 31).to_be_bytes();
        stream
            .write_all(&[&mark, &call[..]].concat())
            .expect("sent");
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).expect("a reply");
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        stream.read_exact(&mut reply).expect("a reply");
        let words = reply.chunks_exact(4);
        words
            .map(|word| u32::from_be_bytes(word.try_into().expect("4 bytes")))
            .collect()
    };
    let serve = |more: &[&str]| {
        ServerProcess::start(&[&["mem:", "--nfs", "tcp:127.0.0.1:0"], more].concat())
    };
    let plain = serve(&[]);
    // NFS4ERR_WRONGSEC, and MSG_DENIED with AUTH_TOOWEAK.
    assert_eq!(words(port(&plain), compound())[6], 10016);
    assert_eq!(words(port(&plain), getattr())[2..5], [1, 1, 5]);
    assert!(plain.stop().success());
    if cfg!(feature = "gss") {
        let listed = serve(&["--nfs-sec", "sys:none"]);
        assert_eq!(words(port(&listed), compound())[6], 0);
        assert_eq!(words(port(&listed), getattr())[2], 0, "accepted");
        assert!(listed.stop().success());
    }
}
