//! Registries that lie, truncate and fail, and mirrors of them.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use pack::oci::Digest;
use parking_lot::Mutex;
use serde_json::json;
use vfs::Errno;

use crate::server::{Reply, Request, Server, ranged};
use crate::{EROFS, TAR, error, open, open_with, options, read, tree};

fn bytes() -> Vec<u8> {
    (0..3_u32 << 20)
        .map(|at| (at * 31 + at / 251) as u8)
        .collect()
}

#[test]
fn what_passes_is_requested_again() {
    let server = Server::new();
    server.image(&[server.blob(EROFS, &bytes())]);
    for (path, bad) in [
        ("/manifests/", Reply::status(503)),
        ("/manifests/", Reply::status(429).with("Retry-After", "0")),
        ("/blobs/", Reply::status(500)),
        (
            "/blobs/",
            Reply {
                cut: true,
                ..Reply::good(vec![0; 1000])
            },
        ),
        (
            "/blobs/",
            Reply {
                status: 206,
                ..Reply::good("x")
            }
            .with("Content-Range", "bytes 0-0/9"),
        ),
    ] {
        let failures = AtomicUsize::new(0);
        server.handle(move |request| {
            let fails = request.path.contains(path) && failures.fetch_add(1, Ordering::Relaxed) < 2;
            // Only failures that a retry may change: a whole blob is none.
            fails.then(|| match bad.cut {
                true => Reply {
                    cut: true,
                    ..ranged(request, &bytes())
                },
                false => bad.clone(),
            })
        });
        let image = open(&server, "").expect("opened");
        assert!(read(&*image.source).expect("read") == bytes(), "{path}");
    }
}

#[test]
fn a_document_has_its_digest_or_is_not_used() {
    let server = Server::new();
    let layer = server.blob(EROFS, b"bytes");
    let manifest = server.image(std::slice::from_ref(&layer));
    let digest = manifest["digest"].as_str().expect("text").to_owned();
    open(&server, &format!("@{digest}")).expect("opened");
    // Another manifest under the digest.
    let other = json!({"layers": [layer, layer]}).to_string();
    server.put(format!("/v2/dir/image/manifests/{digest}"), other.into());
    let lied = error(open(&server, &format!("@{digest}"))).to_string();
    assert!(lied.contains("expected the manifest sha256:"), "{lied}");
    open(&server, "").expect("the tag is intact");
    // An index that names it.
    server.document("index", &json!({"manifests": [manifest]}));
    assert!(
        error(open(&server, ":index"))
            .to_string()
            .contains("expected the manifest")
    );
    // A tag with the digest of another document.
    server.handle(|request| {
        let header = Digest::sha256(b"another").to_string();
        let tag = request.path.ends_with("/latest");
        tag.then(|| Reply::good(r#"{"layers": []}"#).with("Docker-Content-Digest", header))
    });
    assert!(
        error(open(&server, ""))
            .to_string()
            .contains("expected the manifest")
    );
}

#[test]
fn a_document_is_bounded_and_of_its_size() {
    let server = Server::new();
    let manifest = server.image(&[server.blob(EROFS, b"bytes")]);
    let mut wrong = manifest.clone();
    wrong["size"] = json!(1);
    server.document("wrong", &json!({"manifests": [wrong]}));
    server.put(
        "/v2/dir/image/manifests/large".into(),
        vec![b' '; (4 << 20) + 1],
    );
    server.put("/v2/dir/image/manifests/json".into(), b"{".to_vec());
    server.put(
        "/v2/dir/image/manifests/old".into(),
        br#"{"schemaVersion": 1}"#.to_vec(),
    );
    let mut nested = manifest;
    for _ in 0..5 {
        nested = server.document("nested", &json!({"manifests": [nested]}));
    }
    for (tag, part) in [
        ("wrong", "expected a manifest of 1 bytes"),
        ("large", "at most 4194304 bytes"),
        ("json", "EOF"),
        ("old", "neither layers nor manifests"),
        ("nested", "indexes of indexes"),
        ("missing", "404, unknown to us"),
    ] {
        server.requests();
        let failed = error(open(&server, &format!(":{tag}"))).to_string();
        assert!(failed.contains(part), "{failed}");
        assert!(server.requests().len() <= 5, "{tag}");
    }
    assert_eq!(error(open(&server, ":missing")).kind(), ErrorKind::NotFound);
}

#[test]
fn a_blob_that_is_not_whole_is_not_used() {
    let server = Server::new();
    let layer = server.blob(EROFS, &bytes());
    server.image(&[layer]);
    let image = open(&server, "").expect("opened");
    for reply in [
        // The range is ignored.
        (|_| Reply::good(bytes())) as fn(&Request) -> Reply,
        |request| ranged(request, &bytes()[1..]),
        |request| Reply {
            cut: true,
            ..ranged(request, &bytes())
        },
        |request| Reply {
            body: vec![0; 9],
            ..ranged(request, &bytes())
        },
        |request| Reply {
            body: vec![0; 3 << 20],
            ..ranged(request, &bytes())
        },
        |_| Reply::status(416),
    ] {
        server.handle(move |request| Some(reply(request)));
        server.requests();
        let failed = read(&*image.source).expect_err("not read");
        assert_eq!(Errno::from(failed), Errno::EIO);
        // Two ranges, with at most four attempts each.
        assert!(server.requests().len() <= 8);
    }
    server.handle(|_| None);
    assert!(read(&*image.source).expect("read again") == bytes());
}

#[test]
fn a_layer_of_tar_has_its_digest_or_is_not_used() {
    let server = Server::new();
    let archive = vec![0; 1024];
    let layer = server.blob(TAR, &archive);
    let digest = layer["digest"].as_str().expect("text").to_owned();
    server.image(&[layer]);
    tree(open(&server, "").expect("opened")).expect("a tree");
    server.put(format!("/v2/dir/image/blobs/{digest}"), vec![1; 1024]);
    let cache = tempfile::tempdir().expect("a directory");
    let cached = format!("?hosts_dir=/none&cache_dir={}", cache.path().display());
    for rest in ["", &cached] {
        let lied = error(open(&server, rest)).to_string();
        assert!(
            lied.contains("expected a blob with the digest sha256:"),
            "{lied}"
        );
    }
    server.put(format!("/v2/dir/image/blobs/{digest}"), archive);
    tree(open(&server, &cached).expect("opened")).expect("a tree");
    // From here on without the registry's blob.
    server.put(format!("/v2/dir/image/blobs/{digest}"), vec![1; 1024]);
    tree(open(&server, &cached).expect("opened")).expect("a tree");
}

/// Returns a directory with the mirror of `server` in a `hosts.toml`.
fn mirrored(server: &Server, mirror: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let of = dir.path().join(server.host());
    std::fs::create_dir(&of).expect("made");
    let text = format!("[host.'{mirror}']\ncapabilities = ['pull', 'resolve']\n");
    std::fs::write(of.join("hosts.toml"), text).expect("written");
    dir
}

#[test]
fn a_mirror_is_asked_first_and_the_registry_where_it_fails() {
    let (server, mirror) = (Server::new(), Server::new());
    for one in [&server, &mirror] {
        one.image(&[one.blob(EROFS, &bytes())]);
    }
    let dir = mirrored(&server, &mirror.base());
    let rest = format!("?hosts_dir={}", dir.path().display());
    let image = open(&server, &rest).expect("opened");
    assert!(read(&*image.source).expect("read") == bytes());
    assert!(server.requests().is_empty());
    let asked = mirror.requests();
    let namespace = format!("?ns={}", server.host().replace(':', "%3A"));
    assert!(
        asked
            .iter()
            .all(|request| request.path.ends_with(&namespace)),
        "{asked:?}"
    );
    // A mirror that fails, lies, truncates or has other images.
    for bad in [
        (|_| Reply::status(500)) as fn(&Request) -> Reply,
        |_| Reply::status(404),
        |_| Reply::status(401).with("WWW-Authenticate", "Basic realm=x"),
        |_| Reply {
            cut: true,
            ..Reply::good(vec![0; 100])
        },
        |request| ranged(request, b"another"),
    ] {
        mirror.handle(move |request| Some(bad(request)));
        let image = open(&server, &rest).expect("opened");
        assert!(read(&*image.source).expect("read") == bytes());
        assert!(!mirror.requests().is_empty() && !server.requests().is_empty());
    }
    // One that is away, also while the image is open.
    mirror.handle(|_| None);
    let image = open(&server, &rest).expect("opened");
    drop(mirror);
    assert!(read(&*image.source).expect("read") == bytes());
}

#[test]
fn a_silent_mirror_does_not_hide_the_registry() {
    let (server, mirror) = (Server::new(), Server::new());
    for one in [&server, &mirror] {
        one.image(&[one.blob(EROFS, b"bytes")]);
    }
    let dir = mirrored(&server, &mirror.base());
    let rest = format!("?hosts_dir={}", dir.path().display());
    let mut options = options();
    options.tuning.request_timeout = Duration::from_secs(60);
    options.tuning.call_timeout = Duration::from_secs(1);
    let image = open_with(&server, &rest, &options).expect("opened");
    // It replies to nothing until the test ends.
    let (end, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    mirror.handle(move |_| {
        ended.lock().recv().expect_err("nothing is sent");
        None
    });
    let late = read(&*image.source).expect_err("no reply").to_string();
    assert!(server.requests().is_empty(), "{late}");
    assert_eq!(read(&*image.source).expect("read"), b"bytes");
    drop(end);
}
