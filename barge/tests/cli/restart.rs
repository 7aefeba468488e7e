//! NFS state before and after the server is killed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::served::{BARGE, ServerProcess};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const OK: u32 = 0;
const STALE: u32 = 70;

/// A v3 client that sends hand-made calls.
pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) fn connect(port: u16) -> Client {
        Client(TcpStream::connect(("127.0.0.1", port)).expect("connected"))
    }

    /// Returns the status of a call by the super-user, and the bytes after it.
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
        // After the xid: REPLY, MSG_ACCEPTED, a null verifier, SUCCESS.
        assert_eq!(reply[4..24], [1, 0, 0, 0, 0].map(u32::to_be_bytes).concat());
        let (status, rest) = reply[24..].split_first_chunk().expect("a status");
        (u32::from_be_bytes(*status), rest.to_vec())
    }

    /// Returns the handle of the file `f`.
    pub(crate) fn handle(&mut self) -> Vec<u8> {
        let (status, root) = self.call(MOUNT, 1, &[&opaque(b"/")]);
        assert_eq!(status, OK);
        let (status, found) = self.call(NFS, 3, &[&field(&root), &opaque(b"f")]);
        assert_eq!(status, OK);
        field(&found)
    }

    /// Returns the verifier of an unstable write, the last field of the result.
    pub(crate) fn write(&mut self, handle: &[u8]) -> Vec<u8> {
        let numbers = [0, 0, 1, 0].map(u32::to_be_bytes).concat();
        let (status, written) = self.call(NFS, 7, &[handle, &numbers, &opaque(b"x")]);
        assert_eq!(status, OK);
        written[written.len() - 8..].to_vec()
    }
}

/// Encodes XDR opaque data: length, bytes, padding.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut put = (bytes.len() as u32).to_be_bytes().to_vec();
    put.extend(bytes);
    put.resize(put.len().next_multiple_of(4), 0);
    put
}

/// Returns the first opaque field of a result, encoded.
fn field(result: &[u8]) -> Vec<u8> {
    let len = result.first_chunk().expect("their number");
    result[..(4 + u32::from_be_bytes(*len) as usize).next_multiple_of(4)].to_vec()
}

/// Serves `share` on `port` with the program of `command`.
fn serve(mut command: Command, port: u16, share: &Path, state: &Path) -> ServerProcess {
    command
        .arg("serve")
        .arg(share)
        .arg("--nfs-state-dir")
        .arg(state);
    command.args(["--nfs", &format!("tcp:127.0.0.1:{port}")]);
    ServerProcess::run(command)
}

pub(crate) fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").expect("bound");
    free.local_addr().expect("bound").port()
}

/// Makes a directory, a share in it with a file `f`, and the path of a state directory there.
fn share_with_a_file() -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let [share, state] = ["share", "state"].map(|name| dir.path().join(name));
    std::fs::create_dir(&share).expect("made");
    std::fs::write(share.join("f"), "hello").expect("written");
    (dir, share, state)
}

#[test]
fn handles_outlive_a_killed_server_and_verifiers_do_not() {
    let (_dir, share, state) = share_with_a_file();
    let port = free_port();
    let serve = || serve(Command::new(BARGE), port, &share, &state);

    let served = serve();
    let mut client = Client::connect(port);
    let handle = client.handle();
    let verifier = client.write(&handle);
    assert_eq!(client.write(&handle), verifier);
    // Dropping kills it.
    drop(served);

    let _served = serve();
    let mut client = Client::connect(port);
    assert_eq!(client.call(NFS, 1, &[&handle]).0, OK);
    let again = client.handle();
    assert_ne!(client.write(&again), verifier);
}

#[test]
fn handles_end_with_their_secret_which_others_must_not_know() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, share, state) = share_with_a_file();
    let port = free_port();
    let serve = || serve(Command::new(BARGE), port, &share, &state);

    let served = serve();
    let handle = Client::connect(port).handle();
    drop(served);
    let secret = state.join("handle-key");
    let meta = std::fs::metadata(&secret).expect("there");
    assert_eq!(
        (meta.permissions().mode() & 0o7777, meta.len()),
        (0o600, 32)
    );
    std::fs::remove_file(&secret).expect("removed");
    let served = serve();
    let mut client = Client::connect(port);
    assert_eq!(client.call(NFS, 1, &[&handle]).0, STALE);
    drop(served);

    let shown = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(&secret, shown).expect("changed");
    let mut command = Command::new(BARGE);
    command
        .arg("serve")
        .arg(&share)
        .arg("--nfs-state-dir")
        .arg(&state);
    command.args(["--nfs", &format!("tcp:127.0.0.1:{port}")]);
    let refused = command.output().expect("run");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
    assert!(
        why.contains("handle-key") && why.contains("mode 0640"),
        "{why}"
    );
}

#[test]
fn handles_outlive_a_killed_server_that_has_no_privileges() {
    let nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", BARGE]);
        command
    };
    let runs = nobody().arg("--version").output();
    if !runs.is_ok_and(|output| output.status.success()) {
        return eprintln!(
            "skipped: becoming another needs root, setpriv, and a program that others may run"
        );
    }
    let dir = tempfile::tempdir().expect("a directory");
    let [share, state] = ["share", "state"].map(|name| dir.path().join(name));
    for dir in [dir.path(), &share, &state] {
        std::fs::create_dir_all(dir).expect("made");
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).expect("given");
    }
    for name in ["f", "g"] {
        std::fs::write(share.join(name), name).expect("written");
    }
    let port = free_port();
    let served = serve(nobody(), port, &share, &state);
    let mut client = Client::connect(port);
    let handle = client.handle();
    let root = {
        let (status, root) = client.call(MOUNT, 1, &[&opaque(b"/")]);
        assert_eq!(status, OK);
        field(&root)
    };
    // RENAME f into h.
    let names = [&root[..], &opaque(b"f"), &root, &opaque(b"h")];
    assert_eq!(client.call(NFS, 14, &names).0, OK);
    drop(served);
    let served = serve(nobody(), port, &share, &state);
    let mut client = Client::connect(port);
    assert_eq!(client.call(NFS, 1, &[&handle]).0, OK);
    std::fs::remove_file(share.join("h")).expect("removed");
    drop(served);
    let _served = serve(nobody(), port, &share, &state);
    assert_eq!(Client::connect(port).call(NFS, 1, &[&handle]).0, STALE);
}
