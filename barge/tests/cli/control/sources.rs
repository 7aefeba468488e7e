//! Sources with parameters and with relative paths, through `--control` and `barge ctl add`.

use std::fs;

use super::changes::modes;
use super::*;
use crate::objects::server::Server;

/// Returns the versions of NFS that the clients of `place` use.
fn nfs_versions(place: &Fixture) -> Vec<String> {
    let clients = stdout_of(&place.ctl(&["clients", "--json"]));
    let clients: Value = serde_json::from_str(&clients).expect("JSON");
    let clients = clients["clients"].as_array().expect("a list").iter();
    let versions = clients.filter(|client| client["protocol"] == "nfs");
    versions
        .map(|client| client["version"].as_str().expect("text").to_owned())
        .collect()
}

#[test]
fn parameters_of_an_url_are_those_of_the_share_that_is_added() {
    let elsewhere = Fixture::new(&["--sandbox=none"]);
    let place = Fixture::new(&["--sandbox=none"]);
    let (_, port) = elsewhere.addr("nfs").rsplit_once(':').expect("a port");
    let url = format!("{}?vers=3&mountport={port}", elsewhere.url("nfs", "a"));
    stdout_of(&place.ctl(&["add", &format!("r={url}")]));
    let client = Client::open(&place.url("9p", "r")).expect("connected");
    assert_eq!(client.read("f").expect("read"), b"a");
    let versions = nfs_versions(&elsewhere);
    assert!(!versions.is_empty(), "no client");
    assert!(
        versions.iter().all(|one| one.ends_with("v3")),
        "{versions:?}"
    );
}

/// Returns an image with the file `f`.
fn image(dir: &Path) -> Vec<u8> {
    let image = dir.join("image");
    let mut pack = Command::new(BARGE);
    pack.args(["pack", "--quiet"])
        .arg(dir.join("b"))
        .arg(&image);
    stdout_of(&pack.output().expect("runs"));
    fs::read(image).expect("read")
}

#[test]
fn signatures_of_urls_reach_the_store_and_are_not_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("b")).expect("made");
    fs::write(dir.path().join("b/f"), "b").expect("written");
    let store = Server::new(image(dir.path()));
    let url = format!("{}?sig=hush", store.url());
    let place = Fixture::started(|dir, command| {
        let control = dir.path().join("control");
        command.args([
            "--9p",
            "tcp:127.0.0.1:0",
            "--ready=json",
            "--sandbox=none",
            "-vv",
        ]);
        command.arg(format!("--control=unix:{}", control.display()));
        command.arg(format!("a={url}"));
    });
    stdout_of(&place.ctl(&["add", &format!("b={url}")]));
    for name in ["a", "b"] {
        let client = Client::open(&place.url("9p", name)).expect("connected");
        assert_eq!(client.read("f").expect("read"), b"b");
    }
    let requests = store.requests();
    assert!(!requests.is_empty() && requests.iter().all(|one| one.path.ends_with("?sig=hush")));
    let refused = place.ctl(&["add", &format!("b={url}")]);
    let unnamed = place.ctl(&["add", &url]);
    let listed = [place.ctl(&["list"]), place.ctl(&["debug"])];
    let log = fs::read_to_string(place.at("log")).expect("read");
    for text in [stderr_of(&refused), stderr_of(&unnamed), log] {
        assert!(!text.contains("hush"), "{text}");
    }
    for text in listed.map(|output| stdout_of(&output)) {
        assert!(
            !text.contains("hush") && text.contains(&store.url()),
            "{text}"
        );
    }
}

#[test]
fn relative_paths_that_are_added_begin_in_the_callers_directory() {
    for options in modes() {
        let place = Fixture::new(options);
        fs::write(place.at("list"), "f\n").expect("written");
        let socket = format!("--control=unix:{}", place.at("control"));
        let add = |args: &[&str]| {
            let mut command = Command::new(BARGE);
            command.args(["ctl", &socket, "add"]).args(args);
            command.current_dir(place.dir.path());
            stdout_of(&command.output().expect("runs"))
        };
        add(&[
            "b=./b",
            "--only",
            "list",
            "--virtiofs",
            "b.sock",
            "--9p",
            "unix:9p.sock",
        ]);
        add(&["--nbd", "unix:nbd.sock"]);
        let listing = place.listing();
        let shares = listing["shares"].as_array().expect("a list");
        let share = shares
            .iter()
            .find(|share| share["name"] == "b")
            .expect("it");
        assert_eq!(share["source"], place.at("b"));
        let device = format!("virtiofs:{}", place.at("b.sock"));
        let guest = Client::open(&device).expect("connected");
        assert_eq!(guest.read("f").expect("read"), b"b");
        for name in ["9p.sock", "nbd.sock"] {
            assert!(Path::new(&place.at(name)).exists(), "{name}");
        }
    }
}
