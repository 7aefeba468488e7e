//! NFS: libnfs's tools (v3, v4.0) and a library of v3 and v4.2.

use std::path::Path;
use std::process::Command;

use nfs_client::{AuthSys, v3, v4};
use rustix::process::{getgid, getuid};

use crate::served::{ServerProcess, has, stdout_of};

/// Serves `dir` over NFS; returns the server and its port.
fn serve(dir: &Path) -> (ServerProcess, u16) {
    let state = dir.join("state");
    std::fs::create_dir(dir.join("share")).expect("made");
    let mut command = Command::new(crate::served::BARGE);
    command.arg("serve").arg(dir.join("share"));
    command.args(["--nfs", "tcp:127.0.0.1:0", "--nfs-state-dir"]);
    command.arg(state);
    let served = ServerProcess::run(command);
    let port = served.port();
    (served, port)
}

fn caller() -> AuthSys {
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    AuthSys::new("test", uid, gid, Vec::new())
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 / 7) as u8).collect()
}

#[test]
fn libnfs_tools_list_read_and_copy() {
    if !has("nfs-ls") {
        eprintln!("skipped: nfs-ls (Debian's package libnfs-utils) is not installed");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (_served, port) = serve(dir.path());
    let sub = dir.path().join("share/sub");
    std::fs::create_dir(&sub).expect("made");
    std::fs::write(sub.join("big"), bytes(3_000_000)).expect("written");
    // libnfs 4.0 has no room for longer v4 writes: it drops them before sending.
    for (version, len) in [("3", 2_000_000), ("4", 100)] {
        let url = |path: &str| {
            format!("nfs://127.0.0.1/{path}?version={version}&nfsport={port}&mountport={port}")
        };
        let run =
            |program: &str, args: &[&str]| Command::new(program).args(args).output().expect("runs");
        let listed = stdout_of(&run("nfs-ls", &[&url("sub")]));
        assert!(
            listed.contains("3000000") && listed.contains("big"),
            "v{version}: {listed}"
        );
        let read = run("nfs-cat", &[&url("sub/big")]);
        assert!(read.stdout == bytes(3_000_000), "v{version}");
        let from = dir.path().join("from");
        std::fs::write(&from, bytes(len)).expect("written");
        let to = format!("sub/copied-{version}");
        stdout_of(&run("nfs-cp", &[from.to_str().expect("text"), &url(&to)]));
        let copied = std::fs::read(dir.path().join("share").join(to)).expect("there");
        assert!(copied == bytes(len), "v{version}");
    }
}

/// Exercises a client of either version in a directory, and checks the results on the host.
macro_rules! exercise {
    ($client:expr, $share:expr) => {{
        let (mut client, share): (_, &Path) = ($client, $share);
        client.mkdir("/d", 0o750).expect("made");
        let long = bytes(3_000_001);
        client.write("/d/f", &long).expect("written");
        assert!(std::fs::read(share.join("d/f")).expect("there") == long);
        assert!(client.read("/d/f").expect("read") == long);
        let part = client.read_range("/d/f", 1_999_999, 7).expect("read");
        assert_eq!(part, long[1_999_999..][..7]);
        assert_eq!(client.append("/d/f", b"more").expect("appended"), 4);
        client.truncate("/d/f", 3_000_003).expect("cut");
        assert_eq!(
            client.read_range("/d/f", 3_000_000, 9).expect("read")[1..],
            *b"mo"
        );
        client.rename("/d/f", "/d/g").expect("renamed");
        client.hard_link("/d/g", "/d/h").expect("linked");
        client.symlink("/d/s", "g").expect("linked");
        assert_eq!(client.read_link("/d/s").expect("read"), "g");
        let entries = client.read_dir("/d").expect("listed");
        let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        assert_eq!(names, ["g", "h", "s"]);
        assert!(client.rmdir("/d").is_err());
        assert!(!client.exists("/d/f").expect("asked"));
        client.remove_all("/d").expect("removed");
        assert!(!share.join("d").exists());
        client
    }};
}

#[test]
fn a_library_of_v3_works_in_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_served, port) = serve(dir.path());
    let client = v3::blocking::Client::builder("127.0.0.1", "/")
        .nfs_port(port)
        .mount_port(port)
        .auth_sys(caller())
        .connect()
        .expect("mounted");
    exercise!(client, &dir.path().join("share"));
}

#[test]
fn a_library_of_v42_works_in_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_served, port) = serve(dir.path());
    let client = v4::blocking::Client::builder("127.0.0.1")
        .port(port)
        .auth_sys(caller())
        .connect()
        .expect("a session");
    let mut client = exercise!(client, &dir.path().join("share"));
    client.create_new("/holes").expect("made");
    assert!(client.create_new("/holes").is_err());
    client.write("/holes", b"begin").expect("written");
    client.truncate("/holes", 4 << 20).expect("longer");
    client
        .write_at("/holes", (4 << 20) - 3, b"end")
        .expect("written");
    let found = client.seek_data("/holes", 1 << 20).expect("sought");
    assert!(
        found.is_some_and(|at| at > 1 << 20 && at < 4 << 20),
        "{found:?}"
    );
    client.allocate("/holes", 1 << 20, 4096).expect("allocated");
    client
        .deallocate("/holes", 0, 4096)
        .expect("a hole is made");
    assert_eq!(client.read_range("/holes", 0, 5).expect("read"), [0; 5]);
    client.copy("/holes", "/copied").expect("copied");
    let read = |name| std::fs::read(dir.path().join("share").join(name)).expect("there");
    assert!(read("copied") == read("holes"));
    client.shutdown().expect("ended");
}
