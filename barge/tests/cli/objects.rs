//! Images in object stores: over HTTP from a server that counts requests, and from moto, an S3
//! server.

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, has, stderr_of, stdout_of};

#[allow(dead_code, reason = "faults are for the tests of the source")]
#[path = "../../../sources/objects/tests/it/server.rs"]
pub(crate) mod server;

use server::Server;

fn barge(args: &[&str]) -> Output {
    Command::new(BARGE).args(args).output().expect("runs")
}

/// A tree of 600 files, the last of which is large, and images of it.
struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    fn new() -> Tree {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("etc")).expect("made");
        for number in 0..600 {
            let name = format!("etc/a-file-with-a-long-name-{number:04}");
            fs::write(tree.join(name), format!("{number}\n")).expect("written");
        }
        let large: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(tree.join("large"), large).expect("written");
        Tree { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn image(&self, args: &[&str]) -> Vec<u8> {
        let (tree, image) = (self.path("tree"), self.path("image"));
        let (tree, image) = (tree.display().to_string(), image.display().to_string());
        stdout_of(&barge(
            &[&["pack", "--quiet", &tree, &image], args].concat(),
        ));
        fs::read(image).expect("read")
    }
}

#[test]
fn an_image_over_http_is_a_source() {
    let tree = Tree::new();
    for args in [&["-f", "rofs"][..], &[], &["-c", "zstd"]] {
        let server = Server::new(tree.image(args));
        let url = server.url();
        assert_eq!(stdout_of(&barge(&["ls", &url])), "etc\nlarge\n");
        assert_eq!(
            stdout_of(&barge(&["ls", &format!("image:{url}")])),
            "etc\nlarge\n"
        );
        let file = format!("{url}/etc/a-file-with-a-long-name-0123");
        assert_eq!(stdout_of(&barge(&["cat", &file])), "123\n");
        assert!(stdout_of(&barge(&["stat", &file])).contains("0123"));
        let shown = stdout_of(&barge(&["tree", &format!("{url}/")]));
        assert!(shown.contains("0599"), "{shown}");
        let copy = tree.path("copy").display().to_string();
        stdout_of(&barge(&["cp", "-rq", &url, &copy]));
        same(&tree.path("copy"), &tree.path("tree"));
        // Read-only directories were copied with their permissions.
        let writable = Command::new("chmod").args(["-R", "u+w", &copy]).status();
        assert!(writable.expect("runs").success());
        fs::remove_dir_all(&copy).expect("removed");
        stdout_of(&barge(&["check", &url]));
        let told = stderr_of(&barge(&["cat", &format!("{url}/none")]));
        assert!(told.contains("No such file"), "{told}");
    }
    let told = stderr_of(&barge(&["ls", "http://127.0.0.1:1/image"]));
    assert!(
        told.contains("refused") && told.lines().count() == 1,
        "{told}"
    );
}

#[test]
fn an_ordinary_mistake_with_a_variable_is_one_line_and_a_status() {
    for (source, name, value) in [
        ("s3://b/k", "AWS_ENDPOINT_URL", ""),
        ("s3://b/k", "AWS_ENDPOINT_URL", "minio:9000"),
        ("s3://b/k", "AWS_SECRET_ACCESS_KEY", "key\n"),
        ("s3://b/k", "AWS_REGION", "eu central"),
        ("gs://b/k", "GOOGLE_BASE_URL", "minio"),
        ("az://c/k", "AZURE_STORAGE_ENDPOINT", "minio"),
        ("az://c/k", "AZURE_STORAGE_CLIENT_SECRET", "alone"),
    ] {
        let mut ls = Command::new(BARGE);
        ls.args(["ls", source]).env("AWS_ACCESS_KEY_ID", "id");
        ls.env("AWS_SECRET_ACCESS_KEY", "key").env(name, value);
        let output = ls.output().expect("runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}={value:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{name}={value:?}: {told}");
        assert!(told.contains(name) && !told.contains("panicked"), "{told}");
    }
    for source in ["s3://two words/k", "s3://b@c/k", "az://c@a.b/k"] {
        let output = barge(&["ls", source]);
        assert_eq!(output.status.code(), Some(2), "{source}: {output:?}");
    }
}

#[test]
fn two_reads_mount_an_image() {
    let tree = Tree::new();
    for args in [&["-f", "rofs"][..], &[], &["-c", "zstd"]] {
        let server = Server::new(tree.image(args));
        let client = barge_client::Client::open(&server.url()).expect("opened");
        client.metadata("/").expect("the root");
        let requests = server.requests();
        assert!(requests.len() <= 2, "{args:?}: {requests:?}");
        let bytes = requests.iter().filter_map(|request| request.range.clone());
        let bytes: u64 = bytes.map(|range| range.end - range.start).sum();
        assert!(bytes < 200_000, "{args:?}: {bytes}");
    }
}

#[test]
fn an_image_over_http_is_served_and_mounted() {
    let tree = Tree::new();
    let server = Server::new(tree.image(&[]));
    let served = ServerProcess::start(&[&server.url()]);
    let file = "etc/a-file-with-a-long-name-0077";
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], file)), "77\n");
    assert!(served.stop().success());
    if !may_mount() {
        return;
    }
    let kept = tree.path("kept").display().to_string();
    let options = format!("cache_dir={kept},cache_dir_size=1G");
    for start in 0..2 {
        let dir = tempfile::tempdir().expect("a directory");
        let mounted = Mounted::new(&[&server.url(), "-o", &options], dir.path());
        server.requests();
        same(dir.path(), &tree.path("tree"));
        drop(mounted);
        let requests = server.requests().len();
        assert!(start == 0 || requests == 0, "{requests} after a restart");
    }
}

#[test]
fn what_was_fetched_outlasts_a_restart() {
    let tree = Tree::new();
    let server = Server::new(tree.image(&["-c", "lz4"]));
    let kept = tree.path("kept").display().to_string();
    let copy = tree.path("copy").display().to_string();
    for start in 0..2 {
        stdout_of(&barge(&[
            "cp",
            "-rq",
            "--cache-dir",
            &kept,
            &server.url(),
            &copy,
        ]));
        same(&tree.path("copy"), &tree.path("tree"));
        fs::remove_dir_all(&copy).expect("removed");
        let requests = server.requests();
        match start {
            0 => assert!(requests.len() < 200, "{}", requests.len()),
            // A single request, which checks that the object is unchanged.
            _ => assert_eq!(requests.len(), 1),
        }
    }
}

/// moto, and the lines that it logs for requests.
struct Moto {
    child: Child,
    addr: String,
    lines: Receiver<String>,
    /// Number of marks among the lines.
    marks: Cell<u32>,
}

impl Moto {
    /// Starts moto, or returns `None` if it is not installed.
    fn start() -> Option<Moto> {
        if !has("moto_server") {
            eprintln!("skipped: there is no moto_server here (pip install 'moto[server]')");
            return None;
        }
        let mut command = Command::new("moto_server");
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("starts");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let addr = lines.iter().find_map(|line| {
            let (_, addr) = line.split_once("Running on http://")?;
            Some(addr.trim().to_owned())
        });
        let addr = addr.expect("it says where it is");
        Some(Moto {
            child,
            addr,
            lines,
            marks: Cell::new(0),
        })
    }

    fn put(&self, path: &str, body: &[u8]) {
        let mut stream = TcpStream::connect(&self.addr).expect("connected");
        let len = body.len();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n",
            self.addr
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(body).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// Runs `barge` with S3 credentials in its environment.
    fn barge(&self, args: &[&str]) -> Output {
        let mut command = Command::new(BARGE);
        command.args(args).envs([
            ("AWS_ENDPOINT_URL", format!("http://{}", self.addr).as_str()),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "eu-west-1"),
        ]);
        command.output().expect("runs")
    }

    /// Returns the log lines of GET requests for `path` since the last call.
    fn requests(&self, path: &str) -> Vec<String> {
        // A request is logged after its reply, so a marker request is logged after all earlier
        // ones. Its object is new each time.
        let mark = format!("/until/{}", self.marks.replace(self.marks.get() + 1));
        self.put(&mark, b"");
        let until = |line: &String| !line.contains(&mark);
        let lines = self.lines.iter().take_while(until);
        lines
            .filter(|line| line.contains(&format!("GET {path}")))
            .collect()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_image_in_s3_is_a_source_and_is_kept() {
    let Some(moto) = Moto::start() else {
        return;
    };
    let tree = Tree::new();
    for bucket in ["until", "images"] {
        moto.put(&format!("/{bucket}"), b"");
    }
    moto.put("/images/linux/root.erofs", &tree.image(&[]));
    let url = "s3://images/linux/root.erofs";
    assert_eq!(stdout_of(&moto.barge(&["ls", url])), "etc\nlarge\n");
    let file = format!("{url}/etc/a-file-with-a-long-name-0042");
    assert_eq!(stdout_of(&moto.barge(&["cat", &file])), "42\n");
    let told = stderr_of(&moto.barge(&["ls", "s3://images/none"]));
    assert!(told.contains("404"), "{told}");
    let plain = format!(
        "{url}?endpoint=http://{}&region=us-east-1&access_key_id=key&secret_access_key=secret",
        moto.addr
    );
    assert_eq!(stdout_of(&barge(&["ls", &plain])), "etc\nlarge\n");
    let none = plain.replace("linux", "none").replace("=secret", "=hush");
    let told = stderr_of(&barge(&["ls", &none]));
    assert!(told.contains("404") && !told.contains("hush"), "{told}");
    moto.requests("/images");

    let kept = tree.path("kept").display().to_string();
    let copy = tree.path("copy").display().to_string();
    for start in 0..2 {
        let args = ["cp", "-rq", "--cache-dir", &kept, url, &copy];
        stdout_of(&moto.barge(&args));
        same(&tree.path("copy"), &tree.path("tree"));
        fs::remove_dir_all(&copy).expect("removed");
        let requests = moto.requests("/images/linux/root.erofs");
        assert!(start == 0 || requests.len() == 1, "{requests:?}");
    }

    let mut command = Command::new(BARGE);
    command.args(["serve", "--9p", "tcp:127.0.0.1:0", &plain]);
    let served = ServerProcess::run(command);
    let path = "etc/a-file-with-a-long-name-0043";
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], path)), "43\n");
}

/// Compares two trees.
fn same(one: &Path, other: &Path) {
    let output = Command::new("diff").arg("-r").args([one, other]).output();
    stdout_of(&output.expect("diff runs"));
}
