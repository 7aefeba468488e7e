//! Trees of images: one EROFS layer with its root, layers of tar, platforms, and limits.

use std::io::{ErrorKind, Write};

use pack::oci::{Platform, ROOT_ANNOTATION};
use serde_json::{Value, json};
use vfs::{Call, Caller, Cx, FileSystem};

use crate::server::{Reply, Server};
use crate::{EROFS, TAR, erofs, error, open, options, read, tree};

fn annotated(mut layer: Value, root: &[u8]) -> Value {
    layer["annotations"] = json!({ ROOT_ANNOTATION: hex::encode(root) });
    layer
}

/// Returns the names in the root directory.
fn names(fs: &dyn FileSystem) -> Vec<String> {
    let (caller, call) = (Caller::new(0, 0), Call::detached());
    let cx = Cx::new(&caller, &call);
    let root = fs.root(&cx).expect("a root");
    let listed = vfs::listing::list(&cx, &*root).expect("listed");
    let names = listed
        .into_iter()
        .map(|entry| String::from_utf8(entry.name.to_vec()));
    let mut names: Vec<_> = names.map(|name| name.expect("text")).collect();
    names.sort();
    names
}

fn lookup(fs: &dyn FileSystem, cx: &Cx<'_>, name: &[u8]) -> vfs::Entry {
    let root = fs.root(cx).expect("a root");
    let name = vfs::Name::new(name).expect("a name");
    root.lookup(cx, name).expect("there")
}

fn attr(fs: &dyn FileSystem, name: &[u8]) -> vfs::Attr {
    let (caller, call) = (Caller::new(0, 0), Call::detached());
    lookup(fs, &Cx::new(&caller, &call), name).attr
}

fn xattr(fs: &dyn FileSystem, name: &[u8], attribute: &[u8]) -> Vec<u8> {
    let (caller, call) = (Caller::new(0, 0), Call::detached());
    let cx = Cx::new(&caller, &call);
    lookup(fs, &cx, name)
        .node
        .xattr(&cx, attribute)
        .expect("an attribute")
}

/// Returns an archive of empty files.
fn archive(files: &[&str]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_mode(0o644);
        header.set_cksum();
        archive
            .append_data(&mut header, file, &b""[..])
            .expect("appended");
    }
    archive.into_inner().expect("finished")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    to.write_all(bytes).expect("compressed");
    to.finish().expect("compressed")
}

#[test]
fn an_image_has_the_root_that_its_manifest_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, root) = erofs(dir.path(), b"contents");
    let server = Server::new();
    let layer = server.blob(EROFS, &image);
    for root in [&root[..], &[]] {
        let layer = match root {
            [] => layer.clone(),
            root => annotated(layer.clone(), root),
        };
        server.image(&[layer]);
        let tree = tree(open(&server, "").expect("opened")).expect("a tree");
        assert_eq!(names(&tree), ["file"]);
    }
    // Without the annotation, a digest requires the whole layer to be intact.
    let manifest = server.image(std::slice::from_ref(&layer));
    let digest = manifest["digest"].as_str().expect("text");
    let cache = dir.path().join("cache");
    let cached = format!("@{digest}?hosts_dir=/none&cache_dir={}", cache.display());
    let plain = format!("@{digest}");
    for rest in [&plain, &cached] {
        let tree = tree(open(&server, rest).expect("opened")).expect("a tree");
        assert_eq!(names(&tree), ["file"]);
    }
    let blob = layer["digest"].as_str().expect("text");
    let mut changed = image.clone();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    server.put(format!("/v2/dir/image/blobs/{blob}"), changed);
    let refused = error(open(&server, &plain)).to_string();
    assert!(
        refused.contains("expected a blob with the digest"),
        "{refused}"
    );
    // The verified one is still in the disk cache.
    tree(open(&server, &cached).expect("opened")).expect("a tree");
    let (other, _) = erofs(dir.path(), b"others");
    // The first chunk of a stripped image has no header.
    let mut stripped = image.clone();
    stripped[..1024].fill(0);
    for (bytes, part) in [
        (other, "is not the expected one"),
        (stripped, "got one without"),
    ] {
        server.image(&[annotated(server.blob(EROFS, &bytes), &root)]);
        let untrusted = tree(open(&server, "").expect("opened"))
            .err()
            .expect("not opened");
        assert!(untrusted.contains(part), "{untrusted}");
    }
    let mut changed = image;
    let at = changed.len() / 2;
    changed[at] ^= 1;
    server.image(&[annotated(server.blob(EROFS, &changed), &root)]);
    let untrusted = tree(open(&server, "").expect("opened")).map(drop);
    let untrusted = untrusted.expect_err("not opened");
    assert!(untrusted.contains("got a truncated file"), "{untrusted}");
}

#[test]
fn a_disk_cache_tells_roots_of_one_digest_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, root) = erofs(dir.path(), b"contents");
    let (other, other_root) = erofs(dir.path(), b"Contents");
    assert_eq!(image.len(), other.len());
    let (server, liar) = (Server::new(), Server::new());
    let layer = server.blob(EROFS, &image);
    // The liar has another image under the digest, with the root of that image.
    let digest = layer["digest"].as_str().expect("text");
    liar.put(format!("/v2/dir/image/blobs/{digest}"), other);
    liar.image(&[annotated(layer.clone(), &other_root)]);
    server.image(&[annotated(layer.clone(), &root)]);
    let cache = dir.path().join("cache");
    let cached = format!("?hosts_dir=/none&cache_dir={}", cache.display());
    for server in [&liar, &server, &liar] {
        let opened = tree(open(server, &cached).expect("opened")).expect("a tree");
        assert_eq!(names(&opened), ["file"]);
    }
}

#[test]
fn a_layer_is_verified_against_its_digest_in_the_url() {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, _) = erofs(dir.path(), b"contents");
    let server = Server::new();
    let layer = server.blob(EROFS, &image);
    server.image(std::slice::from_ref(&layer));
    let digest = layer["digest"].as_str().expect("text");
    let one = format!("?hosts_dir=/none&layer={digest}");
    let opened = tree(open(&server, &one).expect("opened")).expect("a tree");
    assert_eq!(names(&opened), ["file"]);
    let mut changed = image;
    changed[2000] ^= 1;
    server.put(format!("/v2/dir/image/blobs/{digest}"), changed);
    let refused = error(open(&server, &one)).to_string();
    let expected = "expected a blob with the digest";
    assert!(refused.contains(expected), "{refused}");
}

#[test]
fn layers_of_tar_are_merged_once() {
    let server = Server::new();
    let lower = archive(&["a", "b", "dir/x"]);
    let upper = gzip(&archive(&[".wh.a", "c", "dir/.wh..wh..opq", "dir/y"]));
    let layers = [
        server.blob(TAR, &lower),
        server.blob(&format!("{TAR}+gzip"), &upper),
    ];
    server.image(&layers);
    let cache = tempfile::tempdir().expect("a directory");
    let cached = format!("?hosts_dir=/none&cache_dir={}", cache.path().display());
    for (rest, requests) in [("", 3), (&cached, 3), (&cached, 1)] {
        server.requests();
        let opened = tree(open(&server, rest).expect("opened")).expect("a tree");
        assert_eq!(names(&opened), ["b", "c", "dir"]);
        assert_eq!(server.requests().len(), requests, "{rest}");
    }
    // Any number of them at once.
    let both = [open(&server, &cached), open(&server, &cached)];
    assert!(both.into_iter().all(|image| image.is_ok()));
    let digest = layers[1]["digest"].as_str().expect("text");
    let one = open(&server, &format!("?hosts_dir=/none&layer={digest}")).expect("opened");
    let one = tree(one).expect("a tree");
    assert_eq!(names(&one), ["a", "c", "dir"]);
    assert_eq!(attr(&one, b"a").kind, vfs::Kind::CharDevice);
    assert_eq!(xattr(&one, b"dir", b"trusted.overlay.opaque"), b"y");
    let none = pack::oci::Digest::sha256(b"none");
    let missing = error(open(&server, &format!("?hosts_dir=/none&layer={none}")));
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn the_platform_selects_from_an_index() {
    let server = Server::new();
    let entry = |file: &str, os: &str, architecture: &str| {
        let mut manifest = server.image(&[server.blob(TAR, &archive(&[file]))]);
        manifest["platform"] = json!({"os": os, "architecture": architecture});
        manifest
    };
    let host = Platform::host();
    let others = [
        entry("a", "windows", &host.architecture),
        entry("b", "linux", "vax"),
    ];
    let ours = entry("ours", "linux", &host.architecture);
    let all = [&others[..], &[ours]].concat();
    server.document("all", &json!({"manifests": all}));
    server.document("others", &json!({"manifests": others}));
    let opened = tree(open(&server, ":all").expect("opened")).expect("a tree");
    assert_eq!(names(&opened), ["ours"]);
    let missing = error(open(&server, ":others")).to_string();
    assert!(
        missing.contains(&format!("expected an image for {host}, got 2 others")),
        "{missing}"
    );
}

#[test]
fn layers_are_bounded() {
    let server = Server::new();
    let cache = tempfile::tempdir().expect("a directory");
    let small = format!(
        "?hosts_dir=/none&cache_dir={}&cache_dir_size=1M",
        cache.path().display()
    );
    let mut bomb = archive(&["a"]);
    bomb.resize(4 << 20, 0);
    let mut large = archive(&["a"]);
    large.resize(2 << 20, 0);
    let mut sparse = tar::Builder::new(Vec::new());
    let records = [("GNU.sparse.major", "0"), ("GNU.sparse.minor", "1")];
    let more = [
        ("GNU.sparse.numblocks", "0"),
        ("GNU.sparse.realsize", "1099511627776"),
    ];
    let records = records
        .into_iter()
        .chain(more)
        .map(|(key, value)| (key, value.as_bytes()));
    sparse.append_pax_extensions(records).expect("appended");
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    header.set_cksum();
    sparse
        .append_data(&mut header, "holes", &b""[..])
        .expect("appended");
    let sparse = sparse.into_inner().expect("finished");
    let many = vec![server.blob(TAR, &archive(&["a"])); 3000 / 4];
    for (layers, part) in [
        (
            vec![server.blob(&format!("{TAR}+gzip"), &gzip(&bomb))],
            "when decompressed, got more",
        ),
        (
            vec![server.blob(TAR, &large)],
            "expected layers of at most 1048576 bytes",
        ),
        (many, "at most 512 layers"),
        (
            vec![server.blob(TAR, &sparse)],
            "that is similar to that of their layers",
        ),
        (Vec::new(), "without"),
        (
            vec![server.blob("text/plain", b"x")],
            "got the media type 'text/plain'",
        ),
        (
            vec![server.blob(TAR, b"no archive")],
            "expected a tar archive",
        ),
    ] {
        server.image(&layers);
        let failed = error(open(&server, &small)).to_string();
        assert!(failed.contains(part), "{failed}");
    }
    // Only maps without an image are left.
    for entry in std::fs::read_dir(cache.path()).expect("listed") {
        let path = entry.expect("an entry").path();
        assert_eq!(path.extension().and_then(|end| end.to_str()), Some("map"));
    }
}

#[test]
fn several_erofs_layers_are_merged_with_the_marks_of_overlayfs() {
    let dir = tempfile::tempdir().expect("a directory");
    let (lower, root) = erofs(dir.path(), b"contents");
    let server = Server::new();
    let layer = annotated(server.blob(EROFS, &lower), &root);
    let upper = server.blob(TAR, &archive(&[".wh.file", "new"]));
    // The single layer of tar is an EROFS image with marks, here as another registry has it.
    let digest = upper["digest"].as_str().expect("text").to_owned();
    server.image(std::slice::from_ref(&upper));
    let alone = open(&server, &format!("?hosts_dir=/none&layer={digest}")).expect("opened");
    let marked = read(&*alone.source).expect("read");
    for upper in [
        server.blob(EROFS, &marked),
        server.blob(
            &format!("{EROFS}+zstd"),
            &zstd::encode_all(&marked[..], 1).expect("packed"),
        ),
        upper,
    ] {
        server.image(&[layer.clone(), upper]);
        let merged = tree(open(&server, "").expect("opened")).expect("a tree");
        assert_eq!(names(&merged), ["new"]);
    }
    let (other, _) = erofs(dir.path(), b"other");
    server.image(&[annotated(server.blob(EROFS, &other), &root), layer]);
    let refused = error(open(&server, "")).to_string();
    assert!(refused.contains("is not the expected one"), "{refused}");
}

#[test]
fn a_tag_is_resolved_once() {
    let server = Server::new();
    let image = |file: &str| {
        let text = json!({"architecture": file, "os": "linux"}).to_string();
        let config = server.blob("config", text.as_bytes());
        let layers = [server.blob(TAR, &archive(&[file]))];
        server.document("latest", &json!({"layers": layers, "config": config}))
    };
    image("first");
    let url = format!("oci://{}/dir/image?hosts_dir=/none", server.host());
    let url: registry::Url = url.parse().expect("a URL");
    let resolved = registry::resolve(&url, &options()).expect("resolved");
    image("second");
    server.requests();
    let opened = registry::open(&resolved, &options()).expect("opened");
    assert_eq!(names(&tree(opened).expect("a tree")), ["first"]);
    let config = registry::config(&resolved, &options()).expect("read");
    let config = format!("{:?}", config.expect("a configuration"));
    assert!(config.contains("first"), "{config}");
    let requests = server.requests();
    assert!(
        requests
            .iter()
            .all(|request| !request.path.contains("latest"))
    );
    let again = registry::resolve(&resolved, &options()).expect("resolved");
    assert_eq!((again, server.requests().len()), (resolved, 0));
}

#[test]
fn a_layer_that_is_denied_or_too_large_says_so() {
    let server = Server::new();
    let layers = [
        server.blob(TAR, &archive(&["a"])),
        server.blob(TAR, &archive(&["b"])),
    ];
    server.image(&layers);
    let denied = layers[1]["digest"].as_str().expect("text").to_owned();
    let path = denied.clone();
    server.handle(move |request| request.path.contains(&path).then(|| Reply::status(403)));
    let cache = tempfile::tempdir().expect("a directory");
    let cached = format!("?hosts_dir=/none&cache_dir={}", cache.path().display());
    for rest in ["", &cached] {
        let error = error(open(&server, rest));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        let line = format!("layer {denied}: 403, Forbidden");
        assert_eq!(error.to_string(), line);
    }
    server.handle(|request| request.path.contains("/blobs/").then(|| Reply::status(404)));
    assert_eq!(error(open(&server, "")).kind(), ErrorKind::NotFound);
    server.handle(|_| None);
    let mut bomb = archive(&["a"]);
    bomb.resize(4 << 20, 0);
    server.image(&[server.blob(&format!("{TAR}+gzip"), &gzip(&bomb))]);
    let error = error(open(&server, &format!("{cached}&cache_dir_size=1M")));
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
}
