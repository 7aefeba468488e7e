//! Images in Debian's docker-registry, copied there by skopeo: packed, listed, mounted, served.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, has, stderr_of, stdout_of};

#[allow(dead_code, reason = "faults are for the tests of the source")]
#[path = "../../../sources/registry/tests/it/server.rs"]
mod server;

/// A user `me` with the password `U*U`: a test vector of crypt_blowfish.
const HTPASSWD: &str = "me:$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW\n";

/// The same as `auth` in Docker's configuration.
const AUTH: &str = "bWU6VSpV";

/// docker-registry, and a directory for what is copied there.
pub(crate) struct Registry {
    child: Child,
    pub(crate) host: String,
    pub(crate) dir: TempDir,
}

impl Registry {
    /// Starts a registry, or returns `None` if a program is not installed. `protected` is one with
    /// TLS and a password.
    pub(crate) fn start(protected: bool) -> Option<Registry> {
        for program in ["docker-registry", "skopeo", "openssl", "tar"] {
            if !has(program) {
                eprintln!("skipped: there is no {program} here");
                return None;
            }
        }
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let mut config = format!(
            "version: 0.1\nlog: {{level: info}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http:\n  addr: \"127.0.0.1:0\"\n",
            at("data")
        );
        if protected {
            let key = KeyPair::generate().expect("a key");
            let mut ca = CertificateParams::new(Vec::new()).expect("parameters");
            ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            fs::write(at("ca.pem"), ca.self_signed(&key).expect("signed").pem()).expect("written");
            let issuer = Issuer::from_params(&ca, &key);
            let own = KeyPair::generate().expect("a key");
            let names = vec!["127.0.0.1".to_owned()];
            let certificate = CertificateParams::new(names).expect("parameters");
            let certificate = certificate.signed_by(&own, &issuer).expect("signed");
            fs::write(at("registry.pem"), certificate.pem()).expect("written");
            fs::write(at("key.pem"), own.serialize_pem()).expect("written");
            fs::write(at("htpasswd"), HTPASSWD).expect("written");
            config += &format!(
                "  tls: {{certificate: {}, key: {}}}\n\
                 auth: {{htpasswd: {{realm: here, path: {}}}}}\n",
                at("registry.pem"),
                at("key.pem"),
                at("htpasswd")
            );
        }
        fs::write(at("config.yml"), config).expect("written");
        let mut command = Command::new("docker-registry");
        command.args(["serve", &at("config.yml")]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("starts");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut lines = lines.map_while(Result::ok);
        let host = lines.find_map(|line| {
            let (_, host) = line.split_once("listening on ")?;
            let end = host.find(|c: char| c != '.' && c != ':' && !c.is_ascii_digit());
            Some(host[..end.unwrap_or(host.len())].to_owned())
        });
        // The registry goes on logging.
        thread::spawn(move || lines.for_each(drop));
        Some(Registry {
            child,
            host: host.expect("it says where it is"),
            dir,
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Makes a tree, and returns its path.
    pub(crate) fn tree(&self) -> String {
        let tree = self.path("tree");
        fs::create_dir_all(tree.join("etc")).expect("made");
        for number in 0..100 {
            fs::write(tree.join(format!("etc/{number}")), format!("{number}\n")).expect("written");
        }
        let large: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(tree.join("large"), large).expect("written");
        tree.display().to_string()
    }

    /// Runs `program` in the directory, with the registry's credentials.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.dir.path());
        command.env("DOCKER_CONFIG", self.path("docker"));
        command
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    pub(crate) fn barge(&self, args: &[&str]) -> Output {
        self.run(BARGE, args)
    }

    /// Copies the image layout `name` to the registry under that name.
    pub(crate) fn push(&self, name: &str) {
        let (from, to) = (
            format!("oci:{name}"),
            format!("docker://{}/dir/{name}:1", self.host),
        );
        let args = [
            "copy",
            "--quiet",
            "--dest-tls-verify=false",
            "--dest-creds=me:U*U",
            &from,
            &to,
        ];
        stdout_of(&self.run("skopeo", &args));
    }

    /// Returns the digest of the manifest in the registry.
    pub(crate) fn digest(&self, name: &str) -> String {
        let image = format!("docker://{}/dir/{name}:1", self.host);
        let args = [
            "inspect",
            "--tls-verify=false",
            "--format",
            "{{.Digest}}",
            &image,
        ];
        stdout_of(&self.run("skopeo", &args)).trim().to_owned()
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("oci://{}/dir/{name}:1", self.host)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts that two trees are equal.
pub(crate) fn same(one: &Path, other: &Path) {
    let output = Command::new("diff").arg("-r").args([one, other]).output();
    stdout_of(&output.expect("diff runs"));
}

#[test]
fn a_packed_image_is_a_source_in_a_registry() {
    let Some(registry) = Registry::start(false) else {
        return;
    };
    let tree = registry.tree();
    for (name, more) in [("plain", &[][..]), ("small", &["-c", "zstd"])] {
        let args = [&["pack", "--quiet", "--oci", &tree, name], more].concat();
        stdout_of(&registry.barge(&args));
        registry.push(name);
        let url = registry.url(name);
        assert_eq!(stdout_of(&registry.barge(&["ls", &url])), "etc\nlarge\n");
        let file = format!("{url}/etc/42");
        assert_eq!(stdout_of(&registry.barge(&["cat", &file])), "42\n");
        stdout_of(&registry.barge(&["cp", "-rq", &url, "copy"]));
        same(&registry.path("copy"), Path::new(&tree));
        fs::remove_dir_all(registry.path("copy")).expect("removed");
    }
    // skopeo keeps the digest of the manifest, which vouches for everything.
    let layout = fs::read_to_string(registry.path("plain/index.json")).expect("read");
    let digest = registry.digest("plain");
    assert!(layout.contains(&digest), "{layout}");
    let by_digest = format!("oci://{}/dir/plain@{digest}", registry.host);
    stdout_of(&registry.barge(&["check", &by_digest]));
    let within = stderr_of(&registry.barge(&["check", &format!("{by_digest}/etc")]));
    let expected = "expected a whole image, got the path 'etc' in one";
    assert!(within.contains(expected), "{within}");
    let args = [
        "serve",
        "--9p",
        "tcp:127.0.0.1:0",
        "--cache-dir",
        "cache",
        &by_digest,
    ];
    let mut command = Command::new(BARGE);
    command.args(args).current_dir(registry.dir.path());
    let served = ServerProcess::run(command);
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "etc/43")), "43\n");
    drop(served);
    if may_mount() {
        let at = registry.path("mounted");
        fs::create_dir(&at).expect("made");
        let cache = format!("cache_dir={}", registry.text("cache"));
        let mounted = Mounted::new(&["-o", &cache, &by_digest], &at);
        same(&at, Path::new(&tree));
        drop(mounted);
    }
    let missing = stderr_of(&registry.barge(&["ls", &registry.url("none")]));
    assert!(missing.contains("404, "), "{missing}");
    let within = stderr_of(&registry.barge(&["cat", &format!("{by_digest}/none")]));
    assert!(within.contains("No such file"), "{within}");
}

#[test]
fn a_check_is_confined_before_it_sends_a_request() {
    let registry = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = registry.local_addr().expect("an address");
    let url = format!("oci://{host}/image?hosts_dir=/none");
    let mut child = Command::new(BARGE)
        .args(["check", &url])
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let (connection, _) = registry.accept().expect("it connects");
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    drop(connection);
    assert!(status.contains("Seccomp:\t2"), "{status}");
}

#[test]
fn a_signature_is_required_of_an_image_in_a_registry() {
    let Some(registry) = Registry::start(false) else {
        return;
    };
    let tree = registry.tree();
    for name in ["k", "other"] {
        let (secret, public) = (format!("{name}.pem"), format!("{name}.pub"));
        let args = ["genpkey", "-algorithm", "ed25519", "-out", &secret];
        stdout_of(&registry.run("openssl", &args));
        let args = ["pkey", "-in", &secret, "-pubout", "-out", &public];
        stdout_of(&registry.run("openssl", &args));
    }
    let args = [
        "pack", "--quiet", "--oci", "--sign", "k.pem", &tree, "signed",
    ];
    stdout_of(&registry.barge(&args));
    registry.push("signed");
    let url = registry.url("signed");
    stdout_of(&registry.barge(&["check", "--verify-key", "k.pub", &url]));
    let serve = |key: &str, url: &str| {
        let mut command = Command::new(BARGE);
        command.args(["serve", "--9p", "tcp:127.0.0.1:0", "--verify-key", key, url]);
        command.current_dir(registry.dir.path());
        command
    };
    let served = ServerProcess::run(serve("k.pub", &url));
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "etc/1")), "1\n");
    let refused = stderr_of(&serve("other.pub", &url).output().expect("runs"));
    assert!(refused.contains("signed with another key"), "{refused}");
    // Another image under the annotation of this one.
    fs::remove_file(registry.path("tree/large")).expect("removed");
    stdout_of(&registry.barge(&["pack", "--quiet", "--oci", &tree, "changed"]));
    let root_of = |name: &str| {
        let blobs = fs::read_dir(registry.path(name).join("blobs/sha256")).expect("listed");
        let texts = blobs.filter_map(|blob| fs::read_to_string(blob.ok()?.path()).ok());
        let manifest = texts
            .into_iter()
            .find(|text| text.contains("vnd.barge.erofs.root"));
        let manifest = manifest.expect("a manifest");
        let (_, rest) = manifest
            .split_once("vnd.barge.erofs.root\":\"")
            .expect("an annotation");
        (manifest.clone(), rest[..64].to_owned())
    };
    let (manifest, root) = root_of("changed");
    let forged = manifest.replace(&root, &root_of("signed").1);
    let sum = |text: &str| {
        fs::write(registry.path("text"), text).expect("written");
        let output = stdout_of(&registry.run("sha256sum", &["text"]));
        output[..64].to_owned()
    };
    let (old, new) = (sum(&manifest), sum(&forged));
    let blobs = registry.path("changed/blobs/sha256");
    fs::write(blobs.join(&new), &forged).expect("written");
    let index = registry.path("changed/index.json");
    let text = fs::read_to_string(&index)
        .expect("read")
        .replace(&old, &new);
    fs::write(&index, text).expect("written");
    registry.push("changed");
    let digest = format!("oci://{}/dir/changed@sha256:{new}", registry.host);
    let refused = stderr_of(&registry.barge(&["ls", &digest]));
    assert!(refused.contains("is not the expected one"), "{refused}");
    let refused = stderr_of(&registry.barge(&["check", &digest]));
    assert!(refused.contains("is not that in the manifest"), "{refused}");
}

#[test]
fn layers_of_tar_are_converted_once() {
    let Some(registry) = Registry::start(true) else {
        return;
    };
    registry.tree();
    stdout_of(&registry.run("tar", &["-cf", "archive.tar", "-C", "tree", "."]));
    let hosts = registry.path("hosts").join(&registry.host);
    fs::create_dir_all(&hosts).expect("made");
    fs::create_dir(registry.path("docker")).expect("made");
    make_layout(&registry);
    registry.push("archive");
    let url = format!(
        "{}?hosts_dir={}",
        registry.url("archive"),
        registry.text("hosts")
    );
    // Addresses of this host are reached without TLS by default.
    let tls = format!("{url}&plain_http=false");
    let refused = stderr_of(&registry.barge(&["ls", &tls]));
    assert!(refused.contains("certificate"), "{refused}");
    let server = format!("server = \"https://{}\"\n", registry.host);
    fs::write(
        hosts.join("hosts.toml"),
        format!("{server}ca = \"../../ca.pem\"\n"),
    )
    .expect("written");
    let refused = stderr_of(&registry.barge(&["ls", &url]));
    assert!(
        refused.contains("no credentials for the registry"),
        "{refused}"
    );
    let auths = format!(
        r#"{{"auths": {{"{}": {{"auth": "{AUTH}"}}}}}}"#,
        registry.host
    );
    fs::write(registry.path("docker/config.json"), auths).expect("written");
    for hosts_toml in ["ca = \"../../ca.pem\"\n", "skip_verify = true\n"] {
        fs::write(hosts.join("hosts.toml"), format!("{server}{hosts_toml}")).expect("written");
        assert_eq!(stdout_of(&registry.barge(&["ls", &url])), "etc\nlarge\n");
    }
    let args = ["cp", "-rq", "--cache-dir", "cache", &url, "copy"];
    stdout_of(&registry.barge(&args));
    let verified = stdout_of(&registry.barge(&["cache", "--dir", "cache", "verify"]));
    assert!(verified.contains("has no checksums"), "{verified}");
    same(&registry.path("copy"), &registry.path("tree"));
    // An image with one EROFS layer instead, which runs the same.
    let args = ["pack", "--quiet", "--oci", &url, "packed"];
    stdout_of(&registry.barge(&args));
    let blobs = fs::read_dir(registry.path("packed/blobs/sha256")).expect("listed");
    let texts = blobs.filter_map(|blob| fs::read_to_string(blob.ok()?.path()).ok());
    let configured = |text: &String| text.contains(r#""Entrypoint":["/etc/1"]"#);
    assert_eq!(texts.filter(configured).count(), 1);
    // Without the blobs, the converted image is still there.
    let blobs = registry.path("data/docker/registry/v2/blobs/sha256");
    for blob in fs::read_dir(&blobs).expect("listed").flatten() {
        for blob in fs::read_dir(blob.path()).expect("listed").flatten() {
            let data = blob.path().join("data");
            if fs::metadata(&data).is_ok_and(|data| data.len() > 4096) {
                fs::remove_file(data).expect("removed");
            }
        }
    }
    let args = ["ls", "--cache-dir", "cache", &url];
    assert_eq!(stdout_of(&registry.barge(&args)), "etc\nlarge\n");
    assert!(!registry.barge(&["ls", &url]).status.success());
}

/// Pushes the tree as an image with one layer of tar, and returns its URL.
fn push_archive(registry: &Registry) -> String {
    registry.tree();
    stdout_of(&registry.run("tar", &["-cf", "archive.tar", "-C", "tree", "."]));
    make_layout(registry);
    registry.push("archive");
    registry.url("archive")
}

#[test]
fn layers_of_tar_are_mounted() {
    let Some(registry) = Registry::start(false).filter(|_| may_mount()) else {
        return;
    };
    let url = push_archive(&registry);
    let at = registry.path("mounted");
    fs::create_dir(&at).expect("made");
    let cache = format!("cache_dir={}", registry.text("cache"));
    // Converted by the confined process, into a temporary file and twice from the cache.
    for options in ["ro", &cache, &cache] {
        let mounted = Mounted::new(&["-o", options, &url], &at);
        same(&at, &registry.path("tree"));
        drop(mounted);
    }
}

/// A tag that moves gave the layers of one image and the configuration of another.
#[test]
fn a_tag_that_moves_is_packed_as_it_was() {
    let server = server::Server::new();
    let dir = tempfile::tempdir().expect("a directory");
    let image = |name: &str| {
        let tree = dir.path().join(name);
        fs::create_dir(&tree).expect("made");
        fs::write(tree.join(name), name).expect("written");
        let archive = Command::new("tar")
            .args(["-cC"])
            .arg(&tree)
            .arg(".")
            .output();
        let layer = archive.expect("tar runs").stdout;
        let layers = [server.blob("application/vnd.oci.image.layer.v1.tar", &layer)];
        let config = json!({"architecture": "any", "os": "linux", "author": name});
        let config = server.blob("config", config.to_string().as_bytes());
        let manifest = json!({"config": config, "layers": layers});
        server.document("latest", &manifest);
        manifest.to_string()
    };
    let second = image("second");
    image("first");
    let requested = AtomicBool::new(false);
    server.handle(move |request| {
        let moved =
            request.path.contains("/manifests/latest") && requested.swap(true, Ordering::Relaxed);
        moved.then(|| server::Reply::good(second.clone()))
    });
    let url = format!("oci://{}/dir/image?hosts_dir=/none", server.host());
    let mut command = Command::new(BARGE);
    command.args(["pack", "--quiet", "--oci", &url, "layout"]);
    stdout_of(&command.current_dir(dir.path()).output().expect("runs"));
    let blobs = fs::read_dir(dir.path().join("layout/blobs/sha256")).expect("listed");
    let (mut configs, mut trees) = (Vec::new(), Vec::new());
    for blob in blobs.flatten() {
        let path = blob.path().display().to_string();
        let text = fs::read(blob.path()).expect("read");
        if let Ok(document) = serde_json::from_slice::<Value>(&text) {
            configs.extend(document["author"].as_str().map(str::to_owned));
        } else {
            let listed = Command::new(BARGE)
                .args(["ls", &format!("{path}/")])
                .output();
            trees.push(stdout_of(&listed.expect("runs")));
        }
    }
    assert_eq!(
        (configs, trees),
        (vec!["first".into()], vec!["first\n".into()])
    );
}

/// A full disk, and a registry that denies a layer, are named in one line.
#[test]
fn a_conversion_that_fails_says_why() {
    let Some(registry) = Registry::start(false).filter(|_| may_mount()) else {
        return;
    };
    let url = push_archive(&registry);
    let full = registry.path("full");
    fs::create_dir(&full).expect("made");
    let at = full.display().to_string();
    let args = ["-t", "tmpfs", "-o", "size=1m", "none", &at];
    stdout_of(&registry.run("mount", &args));
    let image = full.join("image").display().to_string();
    let no_space = registry.barge(&["pack", "--quiet", &url, &image]);
    let cached = ["ls", "--cache-dir", &at, &url];
    let outputs = [no_space, registry.barge(&cached)];
    stdout_of(&registry.run("umount", &[&at]));
    for output in outputs {
        let line = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(line.contains("No space left on device"), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
    // The blob of the layer is unreadable for the registry's user, or gone.
    let blobs = registry.path("data/docker/registry/v2/blobs/sha256");
    for blob in fs::read_dir(&blobs).expect("listed").flatten() {
        for blob in fs::read_dir(blob.path()).expect("listed").flatten() {
            let data = blob.path().join("data");
            if fs::metadata(&data).is_ok_and(|data| data.len() > 4096) {
                fs::remove_file(data).expect("removed");
            }
        }
    }
    let output = registry.barge(&["ls", &url]);
    let line = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(
        line.contains("layer sha256:") && line.contains("404, "),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1, "{line}");
}

/// Makes an image layout `archive` with the layer `archive.tar`.
fn make_layout(registry: &Registry) {
    let blobs = registry.path("archive/blobs/sha256");
    fs::create_dir_all(&blobs).expect("made");
    let put = |media_type: &str, bytes: &[u8]| {
        fs::write(registry.path("blob"), bytes).expect("written");
        let output = stdout_of(&registry.run("sha256sum", &["blob"]));
        fs::write(blobs.join(&output[..64]), bytes).expect("written");
        format!(
            r#"{{"mediaType": "application/vnd.oci.image.{media_type}", "digest": "sha256:{}", "size": {}}}"#,
            &output[..64],
            bytes.len()
        )
    };
    let layer = put(
        "layer.v1.tar",
        &fs::read(registry.path("archive.tar")).expect("read"),
    );
    let digest = layer
        .split('"')
        .find(|part| part.starts_with("sha256:"))
        .expect("a digest");
    let config = format!(
        r#"{{"architecture": "any", "os": "linux", "config": {{"Entrypoint": ["/etc/1"]}}, "rootfs": {{"type": "layers", "diff_ids": ["{digest}"]}}}}"#
    );
    let config = put("config.v1+json", config.as_bytes());
    let manifest = format!(r#"{{"schemaVersion": 2, "config": {config}, "layers": [{layer}]}}"#);
    let manifest = put("manifest.v1+json", manifest.as_bytes());
    let index = format!(r#"{{"schemaVersion": 2, "manifests": [{manifest}]}}"#);
    fs::write(registry.path("archive/index.json"), index).expect("written");
    let marker = r#"{"imageLayoutVersion": "1.0.0"}"#;
    fs::write(registry.path("archive/oci-layout"), marker).expect("written");
}
