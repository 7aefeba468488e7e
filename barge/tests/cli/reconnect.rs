//! Clients of 9P and NFS whose server is killed and restarted.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use crate::mount::{Mounted, may_mount};
use crate::restart::free_port;
use crate::served::{BARGE, ServerProcess, has};

/// A server that is killed and restarted repeatedly.
struct RestartedServer {
    serve: Box<dyn Fn() -> ServerProcess>,
    running: Option<ServerProcess>,
}

impl RestartedServer {
    fn new(share: &Path, protocol: &str, port: u16) -> RestartedServer {
        let (share, protocol) = (share.to_owned(), protocol.to_owned());
        let state = share.with_file_name("state");
        let serve = move || {
            let mut command = Command::new(BARGE);
            command.arg("serve").arg(&share);
            command.args([&protocol, &format!("tcp:127.0.0.1:{port}")]);
            command.arg("--nfs-state-dir").arg(&state);
            ServerProcess::run(command)
        };
        let now = Some(serve());
        let serve = Box::new(serve);
        RestartedServer {
            serve,
            running: now,
        }
    }

    /// Kills the server up to `times` times while `program` runs, once `begun` exists. Returns the
    /// exit status of `program` and the number of kills.
    fn kill_during(&mut self, program: &mut Child, begun: &Path, times: u32) -> (ExitStatus, u32) {
        let mut killed = 0;
        loop {
            if let Some(status) = program.try_wait().expect("a child") {
                return (status, killed);
            }
            if killed < times && begun.exists() {
                // Dropping sends SIGKILL.
                drop(self.running.take());
                self.running = Some((self.serve)());
                killed += 1;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn text(number: u32) -> Vec<u8> {
    let len = 1000 + number * 3001;
    (0..len).map(|at| (at * (number + 3) / 7) as u8).collect()
}

#[test]
fn trees_are_copied_in_and_out_of_a_server_that_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let [share, from, to] = ["share", "from", "to"].map(|name| dir.path().join(name));
    for made in [&share, &from] {
        fs::create_dir(made).expect("made");
    }
    for number in 0..400 {
        let sub = from.join(format!("d{}", number % 20));
        fs::create_dir_all(&sub).expect("made");
        fs::write(sub.join(format!("f{number}")), text(number)).expect("written");
    }
    let port = free_port();
    let mut server = RestartedServer::new(&share, "--9p", port);
    let url = format!("9p://127.0.0.1:{port}/tree");
    for (from, to, begun) in [
        (from.display().to_string(), url.clone(), share.join("tree")),
        (url, to.display().to_string(), to.clone()),
    ] {
        let mut command = Command::new(BARGE);
        let mut copy = command
            .args(["cp", "-r", &from, &to])
            .spawn()
            .expect("runs");
        let (status, killed) = server.kill_during(&mut copy, &begun, 8);
        assert!(status.success() && killed > 0, "{status}, {killed} kills");
        println!("{killed} kills");
    }
    for number in 0..400 {
        let name = format!("d{}/f{number}", number % 20);
        let there = fs::read(to.join(&name)).expect(&name);
        assert!(there == text(number), "{name}");
    }
}

#[test]
fn what_is_written_on_a_mount_whose_server_is_killed_is_what_is_read() {
    verified_over_kills("--9p", "9p://127.0.0.1:PORT/");
}

#[test]
fn what_is_written_over_nfs_v3_to_a_server_that_is_killed_is_what_is_read() {
    verified_over_kills("--nfs", "nfs://127.0.0.1:PORT/?vers=3");
}

#[test]
fn what_is_written_over_nfs_v4_to_a_server_that_is_killed_is_what_is_read() {
    verified_over_kills("--nfs", "nfs://127.0.0.1:PORT/?vers=4.2");
}

/// Runs fio with fsync and verification on a mount whose server is killed and restarted.
fn verified_over_kills(protocol: &str, url: &str) {
    if !may_mount() {
        return;
    }
    if !has("fio") {
        return eprintln!("skipped: this takes fio");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let [share, at] = ["share", "at"].map(|name| dir.path().join(name));
    for made in [&share, &at] {
        fs::create_dir(made).expect("made");
    }
    let port = free_port();
    let mut server = RestartedServer::new(&share, protocol, port);
    let mounted = Mounted::new(&[&url.replace("PORT", &port.to_string())], &at);
    let job = "fio --name=verified --size=8M --rw=randrw --bsrange=4k-64k --verify=crc32c --verify_fatal=1 \
               --verify_state_save=0 --thread --numjobs=2 --ioengine=psync --fsync=64 --loops=3";
    let mut words = job.split(' ').filter(|word| !word.is_empty());
    let output = dir.path().join("fio.out");
    let mut fio = Command::new(words.next().expect("a program"))
        .args(words)
        .arg("--directory")
        .arg(&at)
        .current_dir(dir.path())
        .stdout(fs::File::create(&output).expect("made"))
        .spawn()
        .expect("runs");
    let (status, killed) = server.kill_during(&mut fio, &share.join("verified.0.0"), 20);
    let output = fs::read_to_string(&output).expect("read");
    assert!(
        status.success() && killed > 0,
        "{status}, {killed} kills\n{output}"
    );
    println!("{killed} kills");
    drop(mounted);
}
