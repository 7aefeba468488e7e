//! 9P for guests, without a virtual machine: as a virtio device, and over vsock with monitors that
//! connect it to Unix sockets.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

fn barge(args: &[&str]) -> Output {
    Command::new(BARGE).args(args).output().expect("runs")
}

/// Makes a directory with two shares in it, each with a file that names it.
fn place() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["one", "two"] {
        std::fs::create_dir(dir.path().join(name)).expect("made");
        std::fs::write(dir.path().join(name).join("file"), name).expect("written");
    }
    dir
}

fn at(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

#[test]
fn a_virtio_device_is_listed_read_and_written_through_its_socket() {
    let dir = place();
    let served = ServerProcess::start(&["--virtio-9p", &at(&dir, "socket"), &at(&dir, "one")]);
    let socket = at(&dir, "socket");
    let mount = "mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share /mnt";
    assert!(served.output.iter().any(|line| line == mount));
    let device = "virtio-id=9,num_vqs=1,vq_size=128,config_size=7";
    assert!(served.output.iter().any(|line| line.ends_with(device)));
    let url = |path: &str| format!("9p+virtio:{socket}?aname={path}");
    assert_eq!(stdout_of(&barge(&["ls", &url("/")])), "file\n");
    assert_eq!(stdout_of(&barge(&["cat", &url("/file")])), "one");
    // Several requests, the last one partial.
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(at(&dir, "large"), &large).expect("written");
    stdout_of(&barge(&["cp", &at(&dir, "large"), &url("/copy")]));
    assert!(std::fs::read(at(&dir, "one/copy")).expect("there") == large);
    stdout_of(&barge(&["cp", &url("/copy"), &at(&dir, "back")]));
    assert!(std::fs::read(at(&dir, "back")).expect("there") == large);
    let error = stderr_of(&barge(&["cat", &url("/none")]));
    assert!(error.contains("No such file"), "{error}");
    assert!(served.stop().success());
}

#[test]
fn a_device_of_one_source_shows_no_other() {
    let dir = place();
    let (one, two) = (at(&dir, "one"), at(&dir, "two"));
    let (all, single) = (at(&dir, "all"), at(&dir, "single"));
    let _served = ServerProcess::start(&[
        &format!("a={one}"),
        &format!("b={two}"),
        "--virtio-9p",
        &all,
        "--virtio-9p",
        &format!("b={single},tag=x"),
    ]);
    assert_eq!(
        stdout_of(&barge(&["ls", &format!("9p+virtio:{all}")])),
        "a\nb\n"
    );
    let file = format!("9p+virtio:{all}?aname=a/file");
    assert_eq!(stdout_of(&barge(&["cat", &file])), "one");
    let file = |socket| format!("9p+virtio:{socket}?aname=file");
    assert_eq!(stdout_of(&barge(&["cat", &file(&single)])), "two");
    stderr_of(&barge(&["ls", &format!("9p+virtio:{single}?aname=a/file")]));
    let unknown = format!("c={single}2");
    let refused = barge(&["serve", &format!("a={one}"), "--virtio-9p", &unknown]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr_of(&refused).contains("expected the name of a source"));
}

/// Connects clients to the socket of the guest's port, as a guest does that listens there itself.
fn monitor(path: &Path) {
    let listener = UnixListener::bind(path).expect("bound");
    let path = path.display().to_string();
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            let mut asked = String::new();
            let mut reader = BufReader::with_capacity(1, host.try_clone().expect("cloned"));
            reader.read_line(&mut asked).expect("a line");
            let port = asked.trim_end().strip_prefix("CONNECT ").expect("asked");
            let Ok(guest) = UnixStream::connect(format!("{path}_{port}")) else {
                continue;
            };
            (&host).write_all(b"OK 1024\n").expect("told");
            let copy = |mut from: UnixStream, mut to: UnixStream| {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                })
            };
            let clone = |stream: &UnixStream| stream.try_clone().expect("cloned");
            copy(clone(&host), clone(&guest));
            copy(guest, host);
        }
    });
}

#[test]
fn vsock_by_unix_sockets_is_served_for_the_guest_and_mounted_from_it() {
    let dir = place();
    let vm = at(&dir, "vm");
    let listed = "/ localhost(rw) *(ro)";
    let addr = format!("vsock-uds:{vm}:99");
    let arguments = ["--9p", &addr, "--export", listed, &at(&dir, "one")];
    let _served = ServerProcess::start(&arguments);
    monitor(Path::new(&vm));
    let url = |path: &str| format!("9p+vsock-uds:{vm}:99?aname={path}");
    assert_eq!(stdout_of(&barge(&["cat", &url("/file")])), "one");
    // A guest is not a local client.
    std::fs::write(at(&dir, "new"), "new").expect("written");
    let error = stderr_of(&barge(&["cp", &at(&dir, "new"), &url("/new")]));
    assert!(error.contains("Read-only"), "{error}");
    let error = stderr_of(&barge(&["ls", &format!("9p+vsock-uds:{vm}:98")]));
    assert!(error.contains("no program listens"), "{error}");
}
