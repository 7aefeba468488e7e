//! Requests to the broker of `barge serve` by a process that others have taken over.
//!
//! A script is packets: each has a byte that says whether it passes a socket for the reply, its
//! length, and its contents.
//!
//! Invariants: each request with such a socket is answered, and descriptors are passed only for
//! files and addresses that the options of the server name.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair, sockopt};
use serde_json::Value;
use tempfile::TempDir;
use transports::fd_passing::{recv_with_file, send_with_file};

/// Maximum length in bytes of a reply.
const MAX_REPLY: usize = 208 << 10;

/// A server with a file and a socket that its options name, in a directory.
struct Server {
    dir: TempDir,
    channel: OwnedFd,
}

impl Server {
    fn start() -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("cert"), "").expect("written");
        let args = [
            "mem:",
            &format!("--nfs=unix:{}", path("socket")),
            &format!("--nfs-tls-cert={}", path("cert")),
            &format!("--nfs-tls-key={}", path("cert")),
            &format!("--record-calls={}", path("calls")),
            "--sandbox=landlock",
        ];
        let channel = barge::fuzzing::broker(&args);
        Server { dir, channel }
    }

    /// Returns `text` with the paths of this run: `DIR` stands for the directory, and `CERT` and
    /// `CALLS` for files in it, as serde writes paths.
    fn with_paths(&self, text: &str) -> String {
        let dir = self.dir.path().display().to_string();
        let bytes = |name: &str| format!("{:?}", format!("{dir}/{name}").into_bytes());
        text.replace("DIR", &dir)
            .replace("CERT", &bytes("cert"))
            .replace("CALLS", &bytes("calls"))
    }

    /// Returns whether the reply to a request may pass a descriptor.
    fn may_pass(&self, request: &Value) -> bool {
        let is = |value: &Value, name: &str| {
            let path = self.dir.path().join(name);
            value.as_str().is_some_and(|text| Path::new(text) == path)
        };
        let Some((kind, arguments)) = request.as_object().and_then(|all| all.iter().next()) else {
            return false;
        };
        // A path is an object with the bytes of its text.
        let path = &arguments["path"]["Unix"];
        let path = path.as_array().map(|bytes| {
            let bytes = bytes.iter().filter_map(|byte| byte.as_u64());
            let bytes: Vec<u8> = bytes.map(|byte| byte as u8).collect();
            Value::from(String::from_utf8_lossy(&bytes).into_owned())
        });
        let path = path.unwrap_or_default();
        match kind.as_str() {
            "Listen" => arguments["addr"]
                .as_str()
                .and_then(|addr| addr.strip_prefix("unix:"))
                .is_some_and(|path| is(&path.into(), "socket")),
            "Read" => is(&path, "cert"),
            "Create" => is(&path, "calls"),
            // Clients of NFS may be anywhere.
            "CallClient" => true,
            _ => false,
        }
    }
}

/// Sends the packets of the script `data`.
pub fn script(data: &[u8]) {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(Server::start);
    // The end of the input is the end of the script.
    let _ = play(&mut Unstructured::new(data), server);
}

fn play(input: &mut Unstructured<'_>, server: &Server) -> Result<()> {
    while !input.is_empty() {
        let with_socket: bool = input.arbitrary()?;
        let len = usize::from(input.arbitrary::<u16>()?).min(input.len());
        let text = input.bytes(len)?;
        let text = server.with_paths(&String::from_utf8_lossy(text));
        if with_socket {
            ask(server, text.as_bytes());
        } else {
            let send = || send(&server.channel, text.as_bytes(), SendFlags::NOSIGNAL);
            retry_on_intr(send).expect("sent");
        }
    }
    Ok(())
}

/// Sends a packet with a socket, and checks the reply.
fn ask(server: &Server, text: &[u8]) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair");
    let patience = Some(Duration::from_secs(5));
    sockopt::set_socket_timeout(&here, sockopt::Timeout::Recv, patience).expect("set");
    let send = || send_with_file(server.channel.as_fd(), text, there.as_fd(), true);
    retry_on_intr(send).expect("sent");
    drop(there);
    let (mut reply, mut passed) = (vec![0; MAX_REPLY], None);
    let receive = || recv_with_file(here.as_fd(), &mut reply, true, &mut passed);
    let len = retry_on_intr(receive).expect("an answer");
    let request = serde_json::from_slice::<Value>(text);
    if len == 0 {
        // No request.
        assert!(passed.is_none());
        return;
    }
    let reply: Value = serde_json::from_slice(&reply[..len]).expect("a reply");
    let request = request.expect("a reply is to a request");
    let may_pass = server.may_pass(&request);
    assert!(passed.is_none() || may_pass, "{request} got {reply}");
}
