//! Requests to the broker of a process that others have taken over, which sends what it likes.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::{Value, json};
use transports::fd_passing::{recv_with_file, send_with_file};

/// Returns the reply of the broker at `channel`, `Null` if there is none, and whether a descriptor
/// is passed.
fn ask(channel: &OwnedFd, request: &Value) -> (Value, bool) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair");
    let text = request.to_string();
    send_with_file(channel.as_fd(), text.as_bytes(), there.as_fd(), true).expect("sent");
    drop(there);
    let (mut reply, mut passed) = (vec![0; 64 << 10], None);
    let len = recv_with_file(here.as_fd(), &mut reply, true, &mut passed).expect("a reply");
    let reply = serde_json::from_slice(&reply[..len]).unwrap_or_default();
    (reply, passed.is_some())
}

/// A process that serves no NFS got the state of standby servers, and any process with NFS a
/// socket to any port of any host.
#[test]
fn a_process_gets_the_state_of_nfs_and_sockets_to_clients_only_if_it_serves_nfs() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let call = |to: &str| json!({ "CallClient": { "to": to, "program": "Nsm" } });
    for (protocol, serves_nfs) in [("--nfs", true), ("--9p", false)] {
        let at = format!("{protocol}=unix:{}", socket.display());
        let args = ["mem:", &at, "--export=/ 127.0.0.1", "--sandbox=landlock"];
        let channel = barge::fuzzing::broker(&args);
        let is_refused = |request: &Value| {
            let (reply, passes) = ask(&channel, request);
            assert!(
                !passes,
                "there is neither a state nor a portmapper: {reply}"
            );
            reply["Failed"]["errno"] == nix::libc::EPERM
        };
        assert_eq!(is_refused(&json!("NfsState")), !serves_nfs, "{protocol}");
        assert_eq!(is_refused(&call("127.0.0.1")), !serves_nfs, "{protocol}");
        assert!(is_refused(&call("198.51.100.1")), "{protocol}");
        // The port is not the process's choice.
        let anywhere = json!({ "ConnectUdp": { "to": "127.0.0.1:53" } });
        assert_eq!(
            ask(&channel, &anywhere),
            (Value::Null, false),
            "it is no request"
        );
    }
}
