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
