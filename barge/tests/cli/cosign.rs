//! Signatures of cosign on images in Debian's docker-registry: made by barge, by openssl, and by
//! cosign if it is installed.

use std::fs;
use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::mount::{Mounted, may_mount};
use crate::registry::{Registry, same};
use crate::served::{BARGE, ServerProcess, has, stderr_of, stdout_of};

const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// Makes a key `NAME.pem` with its public part `NAME.pub`.
fn make_key(registry: &Registry, name: &str, algorithm: &[&str]) {
    let (secret, public) = (format!("{name}.pem"), format!("{name}.pub"));
    let args = [&["genpkey", "-out", &secret, "-algorithm"], algorithm].concat();
    stdout_of(&registry.run("openssl", &args));
    let args = ["pkey", "-in", &secret, "-pubout", "-out", &public];
    stdout_of(&registry.run("openssl", &args));
}

/// Returns the JSON in a file.
fn read(registry: &Registry, path: &str) -> Value {
    let text = fs::read(registry.path(path)).expect("read");
    serde_json::from_slice(&text).expect("JSON")
}

/// Returns the path of a blob of the layout `dir`, and its digest.
fn blob(dir: &str, descriptor: &Value) -> (String, String) {
    let digest = descriptor["digest"].as_str().expect("text");
    let path = digest.replace(':', "/");
    (format!("{dir}/blobs/{path}"), digest.to_owned())
}

/// Adds a blob to the layout `dir`, and returns its descriptor.
fn put(registry: &Registry, dir: &str, media_type: &str, bytes: &[u8]) -> Value {
    fs::write(registry.path("blob"), bytes).expect("written");
    let sum = stdout_of(&registry.run("sha256sum", &["blob"]));
    let blobs = registry.path(dir).join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("made");
    fs::write(blobs.join(&sum[..64]), bytes).expect("written");
    json!({"mediaType": media_type, "digest": format!("sha256:{}", &sum[..64]), "size": bytes.len()})
}

/// Copies the signature in the layout `dir` to the tag of the image `name` in the registry.
fn push_signature(registry: &Registry, dir: &str, name: &str, tag: &str) {
    let from = format!("oci:{dir}");
    let to = format!("docker://{}/dir/{name}:{tag}", registry.host);
    let args = ["copy", "--quiet", "--dest-tls-verify=false", &from, &to];
    stdout_of(&registry.run("skopeo", &args));
}

/// Writes the layout `dir` with a signature of `payload` by the ECDSA key `NAME.pem`.
fn sign_with_openssl(registry: &Registry, dir: &str, name: &str, payload: &[u8]) {
    fs::write(registry.path("payload"), payload).expect("written");
    let key = format!("{name}.pem");
    let args = [
        "dgst",
        "-sha256",
        "-sign",
        &key,
        "-out",
        "signature",
        "payload",
    ];
    stdout_of(&registry.run("openssl", &args));
    let signature = fs::read(registry.path("signature")).expect("signed");
    let mut layer = put(registry, dir, PAYLOAD, payload);
    layer["annotations"] = json!({SIGNATURE: STANDARD.encode(signature)});
    let config = json!({
        "architecture": "", "os": "", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let oci = |name: &str| format!("application/vnd.oci.image.{name}.v1+json");
    let config = put(registry, dir, &oci("config"), config.to_string().as_bytes());
    let manifest = json!({
        "schemaVersion": 2, "mediaType": oci("manifest"), "config": config, "layers": [layer],
    });
    let manifest = put(
        registry,
        dir,
        &oci("manifest"),
        manifest.to_string().as_bytes(),
    );
    let index = json!({"schemaVersion": 2, "manifests": [manifest]}).to_string();
    fs::write(registry.path(dir).join("index.json"), index).expect("written");
    let marker = r#"{"imageLayoutVersion": "1.0.0"}"#;
    fs::write(registry.path(dir).join("oci-layout"), marker).expect("written");
}

/// Runs `barge check` of the image with a key.
fn check(registry: &Registry, name: &str, key: &str) -> Output {
    registry.barge(&["check", "--cosign-key", key, &registry.url(name)])
}

/// Asserts that a command failed with status 1 and one line, and returns that.
fn refused(output: &Output) -> String {
    let line = stderr_of(output);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn a_packed_image_has_a_signature_of_cosign() {
    let Some(registry) = Registry::start(false) else {
        return;
    };
    let tree = registry.tree();
    make_key(&registry, "k", &["ed25519"]);
    make_key(
        &registry,
        "ec",
        &["EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
    );
    let args = [
        "pack", "--quiet", "--oci", "--sign", "k.pem", &tree, "signed",
    ];
    stdout_of(&registry.barge(&args));
    registry.push("signed");
    let digest = registry.digest("signed");
    let unsigned = refused(&check(&registry, "signed", "k.pub"));
    assert!(unsigned.contains("got none: no tag sha256-"), "{unsigned}");
    // The signature is verified by another program.
    let index = read(&registry, "signed/cosign/index.json");
    let entry = &index["manifests"][0];
    let tag = entry["annotations"]["org.opencontainers.image.ref.name"].as_str();
    let tag = tag.expect("a tag");
    assert_eq!(tag, format!("{}.sig", digest.replace(':', "-")));
    let manifest = read(&registry, &blob("signed/cosign", entry).0);
    let layer = &manifest["layers"][0];
    let payload = blob("signed/cosign", layer).0;
    let signature = layer["annotations"][SIGNATURE].as_str().expect("text");
    let signature = STANDARD.decode(signature).expect("base64");
    fs::write(registry.path("signature"), signature).expect("written");
    let verify = |key: &str| {
        let args = ["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", key];
        let files = ["-in", &payload, "-sigfile", "signature"];
        registry.run("openssl", &[&args[..], &files].concat())
    };
    stdout_of(&verify("k.pub"));
    assert_eq!(layer["mediaType"], PAYLOAD);
    push_signature(&registry, "signed/cosign", "signed", tag);
    stdout_of(&check(&registry, "signed", "k.pub"));
    let other = refused(&check(&registry, "signed", "ec.pub"));
    assert!(other.contains("signed with another key"), "{other}");
    let secret = refused(&check(&registry, "signed", "k.pem"));
    assert!(secret.contains("expected a public key"), "{secret}");
    let url = registry.url("signed");
    let mut command = Command::new(BARGE);
    command.args([
        "serve",
        "--9p",
        "tcp:127.0.0.1:0",
        "--cosign-key",
        "k.pub",
        &url,
    ]);
    command.current_dir(registry.dir.path());
    let served = ServerProcess::run(command);
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "etc/1")), "1\n");
    drop(served);
    if may_mount() {
        let at = registry.path("mounted");
        fs::create_dir(&at).expect("made");
        let (key, other) = (registry.text("k.pub"), registry.text("ec.pub"));
        let cache = format!("cache_dir={}", registry.text("cache"));
        for more in [&["-o", &cache][..], &["--fuse"]] {
            let mounted = Mounted::new(&[more, &["--cosign-key", &key, &url]].concat(), &at);
            same(&at, tree.as_ref());
            drop(mounted);
        }
        let dir = at.display().to_string();
        let args = ["mount", "-f", "--cosign-key", &other, &url, &dir];
        let refused = stderr_of(&registry.barge(&args));
        assert!(refused.contains("signed with another key"), "{refused}");
        let args = [
            "cache",
            "warm",
            "--dir",
            "warmed",
            "--cosign-key",
            &key,
            &url,
        ];
        stdout_of(&registry.barge(&args));
    }
    let args = ["check", "--cosign-key", "k.pub", "signed"];
    let usage = registry.barge(&args);
    assert_eq!(usage.status.code(), Some(2));
    assert!(stderr_of(&usage).contains("expected an image in a registry"));
    // By a key of the type that cosign makes.
    let payload = fs::read(registry.path(&payload)).expect("read");
    sign_with_openssl(&registry, "by-openssl", "ec", &payload);
    push_signature(&registry, "by-openssl", "signed", tag);
    stdout_of(&check(&registry, "signed", "ec.pub"));
    refused(&check(&registry, "signed", "k.pub"));
    // The signature of one image is not that of another.
    fs::remove_file(registry.path("tree/large")).expect("removed");
    stdout_of(&registry.barge(&["pack", "--quiet", "--oci", &tree, "signed"]));
    assert!(
        !registry.path("signed/cosign").exists(),
        "it is of the other image"
    );
    registry.push("signed");
    let other = registry.digest("signed").replace(':', "-");
    push_signature(&registry, "by-openssl", "signed", &format!("{other}.sig"));
    let of_other = refused(&check(&registry, "signed", "ec.pub"));
    assert!(
        of_other.contains(&format!("it is of {digest}")),
        "{of_other}"
    );
}

#[test]
fn cosign_and_barge_accept_each_others_signatures() {
    let Some(registry) = Registry::start(false).filter(|_| has("cosign")) else {
        eprintln!("skipped: there is no cosign here");
        return;
    };
    let tree = registry.tree();
    make_key(&registry, "k", &["ed25519"]);
    let args = [
        "pack", "--quiet", "--oci", "--sign", "k.pem", &tree, "signed",
    ];
    stdout_of(&registry.barge(&args));
    registry.push("signed");
    let tag = format!("{}.sig", registry.digest("signed").replace(':', "-"));
    push_signature(&registry, "signed/cosign", "signed", &tag);
    let image = format!("{}/dir/signed@{}", registry.host, registry.digest("signed"));
    let cosign = |args: &[&str]| {
        let mut command = Command::new("cosign");
        command.current_dir(registry.dir.path()).args(args);
        command
            .env("COSIGN_PASSWORD", "")
            .env("HOME", registry.dir.path());
        command.output().expect("runs")
    };
    let verify = |key: &str| {
        let args = [
            "verify",
            "--insecure-ignore-tlog",
            "--allow-insecure-registry",
            "--key",
        ];
        cosign(&[&args[..], &[key, &image]].concat())
    };
    stdout_of(&verify("k.pub"));
    stdout_of(&cosign(&["generate-key-pair"]));
    stderr_of(&verify("cosign.pub"));
    refused(&check(&registry, "signed", "cosign.pub"));
    let args = [
        "sign",
        "--yes",
        "--tlog-upload=false",
        "--allow-insecure-registry",
        "--key",
    ];
    stdout_of(&cosign(&[&args[..], &["cosign.key", &image]].concat()));
    stdout_of(&verify("cosign.pub"));
    for key in ["k.pub", "cosign.pub"] {
        stdout_of(&check(&registry, "signed", key));
    }
}
